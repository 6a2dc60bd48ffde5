"""Capture with the target in memory: every layer of a pass at once.

Layer outputs are taken by hooks, before any final norm; the `hidden_states` that transformers
returns would hold the last layer's output after it.

Shape letters: R sequences of a pass, T padded length, H hidden size, n completion tokens,
S positions of one sequence, C taps x H.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from draftlab.base.progress import Track
from draftlab.base.records import whole_file
from draftlab.hidden import journal
from draftlab.hidden.journal import CaptureJob, ShardReceipt
from draftlab.hidden.judge import Verdict
from draftlab.hidden.passes import (
    Pass,
    first_ids,
    judged_positions,
    padded_ids,
    passes_of,
    positions,
    tokens_of,
)
from draftlab.hidden.shard import ShardFile, group_slots
from draftlab.hidden.store import SequenceEntry, require_finite
from draftlab.reference.completions import Completion
from draftlab.target.head import Head, check_head, head_in_memory
from draftlab.target.loading import LoadedTarget


@dataclass(frozen=True, slots=True)
class WholeWork:
    """What is to be captured, and where to."""

    target: LoadedTarget
    completions: Sequence[Completion]
    job: CaptureJob
    out: Path
    journal_name: str = journal.JOURNAL_NAME


def shards_from_memory(
    work: WholeWork, groups: Mapping[int, Sequence[int]], track: Track
) -> dict[int, ShardReceipt]:
    """Capture these shards, given as sequence numbers by shard number.

    Raises:
        TargetError: the model does more to its logits than its head.
        StoreError: a state is not finite.
    """
    head = head_in_memory(work.target)
    check_head(work.target, head, first_ids(work.completions).to(work.target.model.device))
    shards = track(groups.items(), total=len(groups), what="capture", unit="shards")
    return {number: _write_shard(work, head, number, group) for number, group in shards}


def _write_shard(work: WholeWork, head: Head, number: int, group: Sequence[int]) -> ShardReceipt:
    entries: dict[int, SequenceEntry] = {}
    with whole_file(work.out / journal.shard_name(number)) as beside:
        shard = ShardFile(beside, group_slots(group, work.completions, work.job.conditions))
        shard.begin()
        for this in passes_of(number, group, work.completions, work.job.tokens_per_pass):
            for i, found in zip(this.numbers, _run(work, head, this), strict=True):
                for name, tensor in found.items():
                    shard.write(f"{i}.{name}", tensor)
                entries[i] = journal.entry_of(work.completions[i], number, found["argmax"])
    return journal.note_shard(work.out, number, [entries[i] for i in group], work.journal_name)


def _run(work: WholeWork, head: Head, this: Pass) -> Iterator[dict[str, Tensor]]:
    """One pass over a few completions; what the store keeps of each."""
    target, taps = work.target, work.job.conditions.target_layer_ids
    ids_RT = padded_ids(this, work.completions).to(target.model.device)
    with _tapped(target.layers, taps) as outputs:
        normed_RTH = target.model.get_decoder()(input_ids=ids_RT, use_cache=False).last_hidden_state
    for r, i in enumerate(this.numbers):
        row = work.completions[i]
        taps_SC = torch.cat([outputs[layer][r, : positions(row)] for layer in taps], dim=-1)
        require_finite(taps_SC, row.id, taps)
        said_n = torch.tensor(row.completion_ids)
        verdict = Verdict.none(len(said_n))
        for start, stop in head.spans(work.job.head_rows_per_piece):
            verdict.see(head.piece(start, stop), normed_RTH[r, judged_positions(row)], said_n)
        yield {"tokens": tokens_of(row), "taps": taps_SC, **verdict.stored()}


@contextmanager
def _tapped(layers: nn.ModuleList, target_layer_ids: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Keep the outputs of these layers while the body runs the model."""
    outputs: dict[int, Tensor] = {}

    def keep(index: int) -> object:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            if isinstance(tensor, Tensor):
                outputs[index] = tensor

        return layers[index].register_forward_hook(hook)

    handles = [keep(index) for index in target_layer_ids]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()  # type: ignore[attr-defined]
