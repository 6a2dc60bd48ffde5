"""One shard on its way through the layers of a target that is read layer by layer.

Shape letters: R sequences of a pass, T padded length, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from draftlab.hidden import journal
from draftlab.hidden.journal import CaptureJob, ShardReceipt, shard_name
from draftlab.hidden.judge import Verdict
from draftlab.hidden.passes import Pass, passes_of, positions, tokens_of
from draftlab.hidden.scratch import (
    Allowance,
    Progress,
    States,
    folder_of,
    load_verdicts,
    move_into_place,
    open_scratch,
    save_verdicts,
)
from draftlab.hidden.shard import NUMBER_TYPES, ShardFile, group_slots
from draftlab.hidden.store import require_finite
from draftlab.reference.completions import Completion


@dataclass(frozen=True, slots=True)
class ShardPlaces:
    """Where the files of a capture go."""

    out: Path
    scratch: Path
    journal_name: str


class ShardUnderWay:
    """What a shard holds so far, in memory and on disk."""

    def __init__(
        self,
        number: int,
        group: Sequence[int],
        completions: Sequence[Completion],
        job: CaptureJob,
        places: ShardPlaces,
    ) -> None:
        self._number = number
        self._group = group
        self._completions = completions
        self._job = job
        self._places = places
        self._folder = folder_of(places.scratch, number)
        self.passes: list[Pass] = list(passes_of(number, group, completions, job.tokens_per_pass))
        self._file = ShardFile(
            self._folder / shard_name(number), group_slots(group, completions, job.conditions)
        )
        self._saved = open_scratch(self._folder, job)
        if self._saved.layers_done and self._is_lost:
            self._saved = open_scratch(self._folder, job, anew=True)
        self.layers_done = self._saved.layers_done
        self.head_rows_done = self._saved.head_rows_done
        self.verdicts = self._begun_verdicts()
        number_type = NUMBER_TYPES[job.conditions.dtype]
        self._states = States(self._folder, self.passes, job.conditions.hidden_size, number_type)
        self._states.receipt = self._saved.states
        if not self.all_layers_done:
            self._file.begin()

    @property
    def all_layers_done(self) -> bool:
        """Whether only the head is left."""
        return self.layers_done == self._job.conditions.num_target_layers

    @property
    def _is_lost(self) -> bool:
        """Whether taps that progress counts as written are gone, which begins everything anew."""
        is_whole = self._saved.layers_done == self._job.conditions.num_target_layers
        has_place = (self._places.out / shard_name(self._number)).is_file()
        return not self._file.is_laid_out and not (is_whole and has_place)

    def _begun_verdicts(self) -> dict[int, Verdict]:
        counts = {i: len(self._completions[i].completion_ids) for i in self._group}
        if self._saved.verdicts is not None:
            return load_verdicts(self._folder, self._saved.verdicts, counts)
        return {i: Verdict.none(count) for i, count in counts.items()}

    def hold(self, allowance: Allowance) -> None:
        """Keep states in memory, if there is room for all of them."""
        self._states.are_held = allowance.take(self._states.num_bytes)

    def states(self, place: int) -> Tensor:
        """States [R, T, H] that the layer before has left, of the pass in this place."""
        return self._states.read(place)

    @contextmanager
    def next_layer(self) -> Iterator[Callable[[int, Tensor], None]]:
        """Put what the next layer makes of each pass; the layer counts when the body ends."""
        with self._states.replaced(self._states_name(self.layers_done)) as put:
            yield put
        self.layers_done += 1
        if not self._states.are_held:
            self.save()

    def tap(self, this: Pass, layer: int, states_RTH: Tensor) -> None:
        """Write the outputs of a tapped layer.

        Raises:
            StoreError: a state is not finite.
        """
        conditions = self._job.conditions
        first = conditions.target_layer_ids.index(layer) * conditions.hidden_size
        for r, i in enumerate(this.numbers):
            row = self._completions[i]
            states_SH = states_RTH[r, : positions(row)]
            require_finite(states_SH, row.id, (layer,))
            self._file.write_columns(f"{i}.taps", first, states_SH)

    def save(self) -> None:
        """Let the disk have all that there is, so that a rerun goes on from here."""
        done, rows = self._saved, self.head_rows_done
        if (done.layers_done, done.head_rows_done) == (self.layers_done, rows):
            return
        if done.layers_done < self.layers_done:
            self._file.sync()
            self._states.save(self._states_name(self.layers_done - 1))
        verdicts = save_verdicts(self._folder, rows, self.verdicts) if rows else None
        self._saved = Progress(
            job_digest=done.job_digest,
            layers_done=self.layers_done,
            states=self._states.receipt,
            head_rows_done=rows,
            verdicts=verdicts,
        )
        self._saved.save(self._folder)

    def finish(self) -> ShardReceipt:
        """Write what the head said into the shard and put it into the store."""
        place = self._places.out / shard_name(self._number)
        stored = {i: self.verdicts[i].stored() for i in self._group}
        if self._file.path.is_file():  # else a run was killed between this and the journal
            for i, judged in stored.items():
                self._file.write(f"{i}.tokens", tokens_of(self._completions[i]))
                for name, tensor in judged.items():
                    self._file.write(f"{i}.{name}", tensor)
            self._file.sync()
            move_into_place(self._file.path, place)
        entries = [
            journal.entry_of(self._completions[i], self._number, stored[i]["argmax"])
            for i in self._group
        ]
        return journal.note_shard(
            self._places.out, self._number, entries, self._places.journal_name
        )

    @staticmethod
    def _states_name(layer: int) -> str:
        return f"after-{layer:04d}.bin"
