"""Capture layer by layer: each layer's weights are read once and run over every sequence.

For a target that is larger than memory. One layer is resident; the next is brought into the page
cache meanwhile. States between layers stay in memory where there is room, else they go to scratch
files; from time to time all of it is saved, so a kill costs one layer, or as much work as was done
since. The passes are those of a capture from memory and so is every operation in them: the shards
hold the same bytes.

Shape letters: R sequences of a pass, T padded length, H hidden size.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from draftlab.base.errors import TargetError
from draftlab.base.memory import available_bytes
from draftlab.base.progress import Track
from draftlab.hidden.journal import JOURNAL_NAME, SCRATCH_NAME, CaptureJob, ShardReceipt
from draftlab.hidden.passes import first_ids, judged_positions, padded_ids
from draftlab.hidden.scratch import Allowance
from draftlab.hidden.underway import ShardPlaces, ShardUnderWay
from draftlab.reference.completions import Completion
from draftlab.target.head import HeadPiece, check_head
from draftlab.target.layerwise import passing_through, run_layer
from draftlab.target.ranges import ByteRange, warming
from draftlab.target.skeleton import Skeleton

SAVE_SECONDS = 10.0
SAVE_TIMES = 10
"""What memory alone holds is saved after so many seconds, and no sooner than after so many times
what the last saving took."""


@dataclass(frozen=True, slots=True)
class StreamWork:
    """What is to be captured, and where to."""

    skeleton: Skeleton
    completions: Sequence[Completion]
    job: CaptureJob
    out: Path
    held_bytes: int
    """Memory for states between layers."""
    journal_name: str = JOURNAL_NAME


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
    return {number: shard.finish() for number, shard in stream.shards.items()}


@dataclass(slots=True)
class Clock:
    """When to save."""

    last: float = field(default_factory=time.monotonic)
    took: float = 0.0

    def save_if_due(self, shards: Sequence[ShardUnderWay]) -> None:
        """Save all of these, if it is time."""
        started = time.monotonic()
        if started - self.last < max(SAVE_SECONDS, SAVE_TIMES * self.took):
            return
        for shard in shards:
            shard.save()
        self.last = time.monotonic()
        self.took = self.last - started


class _Stream:
    """One run over the layers, of each shard from where an earlier run has stopped."""

    def __init__(self, work: StreamWork, groups: Mapping[int, Sequence[int]]) -> None:
        self.work = work
        places = ShardPlaces(work.out, work.out / SCRATCH_NAME, work.journal_name)
        allowance = Allowance(work.held_bytes)
        self.shards: dict[int, ShardUnderWay] = {}
        for number, group in groups.items():
            shard = ShardUnderWay(number, group, work.completions, work.job, places)
            shard.hold(allowance)
            self.shards[number] = shard
        self._clock = Clock()

    @property
    def num_steps(self) -> int:
        """Passes left: one a layer, one a piece of the head."""
        job, total = self.work.job, 0
        for shard in self.shards.values():
            rows = job.conditions.vocab_size - shard.head_rows_done
            pieces = -(-rows // job.head_rows_per_piece)
            left = job.conditions.num_target_layers - shard.layers_done
            total += (left + pieces) * len(shard.passes)
        return total

    def steps(self) -> Iterator[None]:
        """All that is left, one pass at a time."""
        target, num_layers = self.work.skeleton.target, self.work.job.conditions.num_target_layers
        shards = list(self.shards.values())
        with passing_through(target):
            head = self.work.skeleton.settle()
            first = first_ids(self.work.completions)
            check_head(target, head, first.to(self.work.skeleton.compute.torch_device))
            for layer in range(min(shard.layers_done for shard in shards), num_layers):
                yield from self._run_layer(layer, [s for s in shards if s.layers_done == layer])
                self._clock.save_if_due(shards)
        for start, stop in head.spans(self.work.job.head_rows_per_piece):
            todo = [shard for shard in shards if shard.head_rows_done < stop]
            if todo:
                piece = head.piece(start, stop)
                for shard in todo:
                    yield from self._judge(shard, piece)
                    shard.head_rows_done = stop
                self._clock.save_if_due(shards)

    def _run_layer(self, layer: int, shards: Sequence[ShardUnderWay]) -> Iterator[None]:
        skeleton, conditions = self.work.skeleton, self.work.job.conditions
        is_last = layer == conditions.num_target_layers - 1
        after = [skeleton.head_range] if is_last else skeleton.layer_ranges(layer + 1)
        with skeleton.layer(layer), warming(_if_there_is_room(after)):
            for shard in shards:
                yield from self._run_shard(layer, shard)

    def _run_shard(self, layer: int, shard: ShardUnderWay) -> Iterator[None]:
        skeleton, conditions = self.work.skeleton, self.work.job.conditions
        is_last = layer == conditions.num_target_layers - 1
        with shard.next_layer() as put:
            for place, this in enumerate(shard.passes):
                ids_RT = padded_ids(this, self.work.completions).to(skeleton.compute.torch_device)
                before = shard.states(place).to(ids_RT.device) if layer else None
                step = run_layer(skeleton.target, layer, ids_RT, before)
                if step.states_RTH.dtype != skeleton.compute.torch_dtype:
                    raise TargetError(
                        f"layer {layer} puts out {step.states_RTH.dtype}, not {conditions.dtype}.",
                        mend="Capture with --dtype float32.",
                    )
                if layer in conditions.target_layer_ids:
                    shard.tap(this, layer, step.states_RTH)
                put(place, step.normed_RTH if is_last else step.states_RTH)
                yield

    def _judge(self, shard: ShardUnderWay, piece: HeadPiece) -> Iterator[None]:
        for place, this in enumerate(shard.passes):
            normed_RTH = shard.states(place).to(piece.weight_vH.device)
            for r, i in enumerate(this.numbers):
                row = self.work.completions[i]
                said_n = torch.tensor(row.completion_ids)
                shard.verdicts[i].see(piece, normed_RTH[r, judged_positions(row)], said_n)
            yield


def _if_there_is_room(ranges: Sequence[ByteRange]) -> Sequence[ByteRange]:
    """Bringing into the page cache what it must drop at once would only cost another read."""
    return ranges if sum(r.num_bytes for r in ranges) < available_bytes() else ()
