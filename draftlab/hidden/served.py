"""Capture from a server that gives hidden states: nothing is computed here but a few rows to check.

In:   a reference, a server of its target, the target's folder.  Out: a hidden-state store.

Before anything is believed, some rows are asked for one at a time and captured here too, from the
target's own layers (whole, or layer by layer): identity.py says which layers the server's states
are of. The same rows come again among all others, and must then be the same. Every row is as long
as its tokens, finite, and of its own tokens, or the capture stops (exported.py).

The store is laid out like any other. Log-probabilities, margins and argmax are the server's. A
rerun continues, but a server need not give the same bits twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from draftlab.base.errors import StoreError
from draftlab.base.progress import Track, silent
from draftlab.base.records import whole_file
from draftlab.hidden import journal
from draftlab.hidden.budget import require_disk
from draftlab.hidden.capture import conditions_of, disk_may_fill, job_of
from draftlab.hidden.check import OwnLayers, dtype_of, note_run
from draftlab.hidden.export import Exported, Wanted
from draftlab.hidden.identity import require_same
from draftlab.hidden.journal import CaptureJob, ShardReceipt
from draftlab.hidden.passes import shard_groups, tokens_of
from draftlab.hidden.planning import estimate_of, sequence_sizes
from draftlab.hidden.shard import ShardFile, group_slots
from draftlab.hidden.state_server import ServedSettings, StateServer
from draftlab.hidden.store import INDEX_NAME, HiddenStore, SequenceEntry
from draftlab.reference.completions import LocalTarget, Reference
from draftlab.reference.inflight import require_no_event_loop
from draftlab.reference.verify import spread
from draftlab.target.compute import Compute
from draftlab.target.loading import TargetIdentity

ServedDtype = Literal["float32", "bfloat16"]
FROM_SERVER = "server"
"""What conditions give for the device of a pass that was none of ours."""


@dataclass(frozen=True, slots=True)
class ServedPlan:
    """What is to be captured, and where to."""

    reference: Reference
    target_folder: Path
    target_layer_ids: tuple[int, ...]
    out: Path
    compute: Compute
    """For the rows that are checked; its number type becomes that of the server's states."""

    def job(self, dtype: ServedDtype) -> CaptureJob:
        """The capture of states of this number type.

        Raises:
            StoreError: a layer is out of range, or the reference is of another target or type.
        """
        compute = self.compute.model_copy(update={"dtype": dtype})
        target = TargetIdentity.of(self.target_folder)
        conditions = conditions_of(self.reference, target, self.target_layer_ids, compute)
        return job_of(conditions.model_copy(update={"device": FROM_SERVER}), compute)

    def rows(self, hidden_size: int) -> list[Wanted]:
        """What to ask for, in the order of the reference."""
        layers = self.target_layer_ids
        return [Wanted(row, layers, hidden_size) for row in self.reference.completions]

    @property
    def likely_dtype(self) -> ServedDtype:
        """Number type of the states, before any has been seen."""
        made_by = self.reference.record.job.made_by
        return made_by.dtype if isinstance(made_by, LocalTarget) else "bfloat16"

    @property
    def finished(self) -> HiddenStore | None:
        """The store, where `out` holds it already; no server is asked then."""
        if not (self.out / INDEX_NAME).is_file():
            return None
        dtype = HiddenStore.open(self.out).index.conditions.dtype
        return journal.finished(self.out, self.job(dtype))


def capture_from_server(
    plan: ServedPlan,
    settings: ServedSettings,
    *,
    track: Track = silent,
    tell: Callable[[str], None] = lambda line: None,
) -> HiddenStore:
    """Let a server give the tapped states of every completion of a reference.

    Safe to stop and run again: whole shards are kept. `tell` gets lines for who waits.

    Raises:
        StoreError: the server's states are not those of these layers, rows and tokens; or as in
            `capture`.
        Unreachable: nothing answers, or it has stopped answering.
        Unfinished: the disk is full.
    """
    done = plan.finished
    if done is not None:
        journal.clear(plan.out)
        return done
    require_no_event_loop("capture_from_server")
    expected = plan.job(plan.likely_dtype)  # what cannot be is said before anything is asked
    groups = shard_groups(plan.reference.completions, expected.sequences_per_shard)
    rows = plan.rows(expected.conditions.hidden_size)
    with asyncio.Runner() as runner, disk_may_fill(plan.out), torch.inference_mode():
        server = StateServer(runner, settings, rows)
        try:
            facts = server.meet()
            tell(f"{facts.name} {facts.version}, model {facts.model_id}")
            return _Served(plan, server, settings, track, tell).carry_out(groups)
        finally:
            server.close()


@dataclass(frozen=True, slots=True)
class _Served:
    """A capture from a server that has been met."""

    plan: ServedPlan
    server: StateServer
    settings: ServedSettings
    track: Track
    tell: Callable[[str], None]

    def carry_out(self, groups: Sequence[Sequence[int]]) -> HiddenStore:
        plan = self.plan
        alone = dict(self.server.states(self._chosen(), 1))
        job = journal.begun(plan.out, plan.job(dtype_of(alone)))
        self._require_disk(job)
        self._check(alone, job)
        receipts = journal.begin(plan.out, job, plan.target_folder)
        pending = {n: group for n, group in enumerate(groups) if n not in receipts}
        shards = _Shards(plan, self.server, self.settings.concurrency, job, alone)
        count = sum(map(len, pending.values()))
        for _ in self.track(shards.steps(pending), total=count, what="capture", unit="rows"):
            pass
        receipts.update(shards.receipts)
        return journal.finish(plan.out, job, [receipts[n] for n in range(len(groups))])

    def _chosen(self) -> list[int]:
        """Rows to check, spread over all of them."""
        return spread(range(len(self.plan.reference.completions)), self.settings.check_rows)

    def _require_disk(self, job: CaptureJob) -> None:
        completions = self.plan.reference.completions
        estimate = estimate_of(completions, job, self.plan.out)
        for line in estimate.lines():
            self.tell(line)
        require_disk(estimate, sequence_sizes(completions, job.conditions, streamed=False))

    def _check(self, alone: Mapping[int, Exported], job: CaptureJob) -> None:
        plan, dtype = self.plan, job.conditions.dtype
        compute = plan.compute.model_copy(update={"dtype": dtype})
        self.tell(f"capturing {len(alone)} rows here too, in {dtype}, to know the layers by")
        own = OwnLayers(
            plan.reference, plan.target_folder, plan.target_layer_ids, plan.out, compute, self.track
        )
        run = own.check(alone, self.server)
        note_run(plan.out, run)
        farthest = max(check.nearly_all for check in run.checks)
        nearest = min(check.typical_of_next_best for check in run.checks)
        self.tell(
            f"layers {', '.join(map(str, plan.target_layer_ids))} recognised: nearly all positions "
            f"within {farthest:.2g} of them (at most {run.tolerance:g} counts as the same), every "
            f"other layer {nearest:.2g} or more away"
        )


class _Shards:
    """Shards, filled as rows come."""

    def __init__(
        self,
        plan: ServedPlan,
        server: StateServer,
        at_once: int,
        job: CaptureJob,
        alone: Mapping[int, Exported],
    ) -> None:
        self._plan = plan
        self._server = server
        self._at_once = at_once
        self._job = job
        self._alone = alone
        self.receipts: dict[int, ShardReceipt] = {}

    def steps(self, groups: Mapping[int, Sequence[int]]) -> Iterator[None]:
        """Capture these shards, one row at a time."""
        completions, out = self._plan.reference.completions, self._plan.out
        for number, group in groups.items():
            entries: dict[int, SequenceEntry] = {}
            with whole_file(out / journal.shard_name(number)) as beside:
                shard = ShardFile(beside, group_slots(group, completions, self._job.conditions))
                shard.begin()
                for i, exported in self._server.states(group, self._at_once):
                    self._write(shard, i, exported)
                    entries[i] = journal.entry_of(completions[i], number, exported.argmax_n)
                    yield
            self.receipts[number] = journal.note_shard(out, number, [entries[i] for i in group])

    def _write(self, shard: ShardFile, i: int, exported: Exported) -> None:
        row, dtype = self._plan.reference.completions[i], self._job.conditions.dtype
        if dtype == "bfloat16" and not exported.is_bfloat16:
            raise StoreError(
                f"row {row.id!r}: the server gives states that are no bfloat16 numbers; those of "
                "the rows before it were.",
                mend="Look at the server: it must compute every row in the same number type.",
            )
        if i in self._alone:
            before = self._alone[i].states_TC
            require_same(exported.states_TC, before, row=row.id, dtype=dtype)
        states_SC = exported.states_TC[:-1]  # a store ends before the token that is read last
        number_type = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
        shard.write(f"{i}.tokens", tokens_of(row))
        shard.write(f"{i}.taps", states_SC.to(number_type))
        shard.write(f"{i}.argmax", exported.argmax_n)
        shard.write(f"{i}.logprobs", exported.logprobs_n)
        shard.write(f"{i}.margins", exported.margins_n)
