"""Capture layer by layer: each layer's weights are read once and run over every sequence.

For a target that is larger than memory. One layer is resident; the next is brought into the page
cache meanwhile. States between layers go to scratch files, so a kill costs one layer at most. The
passes are those of a capture from memory and so is every operation in them: the shards hold the
same bytes.

Shape letters: R sequences of a pass, T padded length, H hidden size, S positions of one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from draftlab.base.errors import TargetError
from draftlab.base.memory import available_bytes
from draftlab.base.progress import Track
from draftlab.hidden import journal
from draftlab.hidden.journal import SCRATCH_NAME, CaptureJob, ShardReceipt, shard_name
from draftlab.hidden.judge import Verdict
from draftlab.hidden.passes import (
    Pass,
    first_ids,
    judged_positions,
    padded_ids,
    passes_of,
    positions,
    shard_groups,
    tokens_of,
)
from draftlab.hidden.scratch import (
    Progress,
    States,
    job_digest,
    load_verdicts,
    move_into_place,
    open_scratch,
    save_verdicts,
)
from draftlab.hidden.shard import ShardFile, group_slots
from draftlab.hidden.store import require_finite
from draftlab.reference.completions import Completion
from draftlab.target.head import Head, check_head
from draftlab.target.layerwise import passing_through, run_layer
from draftlab.target.ranges import ByteRange, warming
from draftlab.target.skeleton import Skeleton


@dataclass(frozen=True, slots=True)
class StreamWork:
    """What is to be captured, and where to."""

    skeleton: Skeleton
    completions: Sequence[Completion]
    job: CaptureJob
    out: Path
    held_bytes: int
    """Memory for states between layers."""


def stream_shards(
    work: StreamWork, groups: Mapping[int, Sequence[int]], track: Track
) -> dict[int, ShardReceipt]:
    """Capture these shards, given as sequence numbers by shard number.

    Raises:
        TargetError: the files do not fill the model, or its layers cannot be run apart.
        StoreError: a state is not finite.
    """
    stream = _Stream(work, groups)
    for _ in track(stream.steps(), total=stream.num_steps, what="capture", unit="passes"):
        pass
    return {number: stream.finish(number) for number in groups}


class _Stream:
    """One run over the layers, from where an earlier run has stopped."""

    def __init__(self, work: StreamWork, groups: Mapping[int, Sequence[int]]) -> None:
        self.work = work
        self._folder = work.out / SCRATCH_NAME
        fresh = Progress(job_digest=job_digest(work.job), shards=tuple(groups))
        self._lay_out(open_scratch(self._folder, fresh))
        if self._progress.layers_done and any(self._is_lost(n) for n in groups):
            self._lay_out(open_scratch(self._folder, fresh, anew=True))
        conditions, compute = work.job.conditions, work.skeleton.compute
        self._states = States(
            self._folder, self._passes, conditions.hidden_size, compute.torch_dtype
        )
        self._states.held_budget_bytes = work.held_bytes
        self._states.receipt = self._progress.states
        if self._progress.layers_done < conditions.num_target_layers:
            for shard in self._shards.values():
                shard.begin()

    def _lay_out(self, progress: Progress) -> None:
        """Passes and shards of what has been begun together."""
        job, completions = self.work.job, self.work.completions
        self._progress = progress
        groups = shard_groups(completions, job.sequences_per_shard)
        self._groups = {n: groups[n] for n in progress.shards}
        self._passes = [
            this
            for n, group in self._groups.items()
            for this in passes_of(n, group, completions, job.tokens_per_pass)
        ]
        self._shards = {
            n: ShardFile(
                self._folder / shard_name(n), group_slots(group, completions, job.conditions)
            )
            for n, group in self._groups.items()
        }

    def _is_lost(self, number: int) -> bool:
        """Whether taps that progress counts as written are gone, which begins everything anew."""
        has_place = (self.work.out / shard_name(number)).is_file()
        all_done = self._progress.layers_done == self.work.job.conditions.num_target_layers
        return not self._shards[number].is_laid_out and not (all_done and has_place)

    @property
    def num_steps(self) -> int:
        """Passes left: one a layer, one a piece of the head."""
        job = self.work.job
        head = job.conditions.vocab_size - self._progress.head_rows_done
        pieces = -(-head // job.head_rows_per_piece)
        left = job.conditions.num_target_layers - self._progress.layers_done
        return (left + pieces) * len(self._passes)

    def steps(self) -> Iterator[None]:
        """All that is left, one pass at a time."""
        target, job = self.work.skeleton.target, self.work.job
        with passing_through(target):
            head = self.work.skeleton.settle()
            first = first_ids(self.work.completions)
            check_head(target, head, first.to(self.work.skeleton.compute.torch_device))
            for layer in range(self._progress.layers_done, job.conditions.num_target_layers):
                yield from self._run_layer(layer)
        yield from self._read_head(head)

    def _run_layer(self, layer: int) -> Iterator[None]:
        skeleton, conditions = self.work.skeleton, self.work.job.conditions
        is_last = layer == conditions.num_target_layers - 1
        is_tapped = layer in conditions.target_layer_ids
        after = [skeleton.head_range] if is_last else skeleton.layer_ranges(layer + 1)
        with (
            skeleton.layer(layer),
            warming(_if_there_is_room(after)),
            self._states.writing(f"after-{layer:04d}.bin") as put,
        ):
            for k, this in enumerate(self._passes):
                ids_RT = padded_ids(this, self.work.completions).to(skeleton.compute.torch_device)
                before = self._states.read(k).to(ids_RT.device) if layer else None
                step = run_layer(skeleton.target, layer, ids_RT, before)
                if is_tapped:
                    self._tap(this, layer, step.states_RTH)
                put(k, step.normed_RTH if is_last else step.states_RTH)
                yield
        if is_tapped:
            for shard in self._shards.values():
                shard.sync()
        self._advance(layers_done=layer + 1, states=self._states.receipt)

    def _tap(self, this: Pass, layer: int, states_RTH: Tensor) -> None:
        conditions = self.work.job.conditions
        first = conditions.target_layer_ids.index(layer) * conditions.hidden_size
        if states_RTH.dtype != self.work.skeleton.compute.torch_dtype:
            raise TargetError(
                f"layer {layer} puts out {states_RTH.dtype}, not {conditions.dtype}.",
                mend="Capture with --dtype float32.",
            )
        for r, i in enumerate(this.numbers):
            row = self.work.completions[i]
            states_SH = states_RTH[r, : positions(row)]
            require_finite(states_SH, row.id, (layer,))
            self._shards[this.shard].write_columns(f"{i}.taps", first, states_SH)

    def _read_head(self, head: Head) -> Iterator[None]:
        done, step = self._progress.head_rows_done, self.work.job.head_rows_per_piece
        numbers = [i for this in self._passes for i in this.numbers]
        counts = {i: len(self.work.completions[i].completion_ids) for i in numbers}
        verdicts = {i: Verdict.none(count) for i, count in counts.items()}
        if self._progress.verdicts is not None:
            verdicts = load_verdicts(self._folder, self._progress.verdicts, counts)
        for start, stop in head.spans(step):
            if start < done:
                continue
            piece = head.piece(start, stop)
            for k, this in enumerate(self._passes):
                normed_RTH = self._states.read(k).to(piece.weight_vH.device)
                for r, i in enumerate(this.numbers):
                    row = self.work.completions[i]
                    said_n = torch.tensor(row.completion_ids)
                    verdicts[i].see(piece, normed_RTH[r, judged_positions(row)], said_n)
                yield
            saved = save_verdicts(self._folder, stop, verdicts)
            self._advance(head_rows_done=stop, verdicts=saved)
        self._verdicts = verdicts

    def finish(self, number: int) -> ShardReceipt:
        """Write what the head said into a shard and put it into the store."""
        completions, group = self.work.completions, self._groups[number]
        shard, place = self._shards[number], self.work.out / shard_name(number)
        stored = {i: self._verdicts[i].stored() for i in group}
        if shard.path.is_file():  # else a run was killed between this and the journal
            for i, judged in stored.items():
                shard.write(f"{i}.tokens", tokens_of(completions[i]))
                for name, tensor in judged.items():
                    shard.write(f"{i}.{name}", tensor)
            shard.sync()
            move_into_place(shard.path, place)
        entries = [journal.entry_of(completions[i], number, stored[i]["argmax"]) for i in group]
        return journal.note_shard(self.work.out, number, entries)

    def _advance(self, **changes: object) -> None:
        self._progress = self._progress.model_copy(update=changes)
        self._progress.save(self._folder)


def _if_there_is_room(ranges: Sequence[ByteRange]) -> Sequence[ByteRange]:
    """Bringing into the page cache what it must drop at once would only cost another read."""
    return ranges if sum(r.num_bytes for r in ranges) < available_bytes() else ()
