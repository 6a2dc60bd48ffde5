"""What a capture will take here: budget.py's arithmetic on this target, disk and memory.

Nothing is read but headers.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from draftlab.base.memory import available_bytes, is_memory_backed, read_mounts
from draftlab.base.quantities import bytes_text
from draftlab.hidden.budget import (
    VERDICT_BYTES,
    Estimate,
    Shape,
    StreamNeeds,
    fits_in_memory,
)
from draftlab.hidden.journal import SCRATCH_NAME, CaptureJob, receipts
from draftlab.hidden.judge import LOGITS_AT_ONCE
from draftlab.hidden.passes import Pass, passes_of, positions, shard_groups
from draftlab.hidden.scratch import layers_done
from draftlab.hidden.shard import ShardFile, group_slots
from draftlab.hidden.store import CaptureConditions
from draftlab.reference.completions import Completion
from draftlab.target.compute import Compute
from draftlab.target.ranges import PIECE_BYTES
from draftlab.target.skeleton import Skeleton
from draftlab.target.tensors import TensorFiles

_HIDDEN_COPIES, _WIDE_COPIES = 4, 3
"""Of hidden size and of the widest layer's outputs, how many tensors a pass holds at once."""
_LOGIT_COPIES = 3
_READERS = 4
"""transformers reads with up to four threads."""
_HELD_SHARE = 4
"""States between layers may take a quarter of what memory is left."""


def whether_to_stream(
    target_folder: Path,
    completions: Sequence[Completion],
    job: CaptureJob,
    compute: Compute,
    *,
    wish: bool | None,
) -> str | None:
    """Why the target is read layer by layer; None where it is loaded whole."""
    if wish is not None:
        return "as asked" if wish else None
    files = TensorFiles.open(target_folder)
    weights = files.num_values * compute.torch_dtype.itemsize
    room = _room(compute)
    if fits_in_memory(weights, _pass_bytes(files, completions, job), room):
        return None
    return (
        f"since {bytes_text(weights)} of weights in {compute.dtype} do not fit into the "
        f"{bytes_text(room)} that are available"
    )


def estimate_of(
    completions: Sequence[Completion],
    job: CaptureJob,
    out: Path,
    skeleton: Skeleton | None = None,
    *,
    why: str = "",
) -> Estimate:
    """What this capture needs, and what there is."""
    place = out.resolve()
    above = next(folder for folder in (place, *place.parents) if folder.is_dir())
    groups = shard_groups(completions, job.sequences_per_shard)
    return Estimate(
        place=str(above),
        is_memory_backed=is_memory_backed(above, read_mounts()),
        num_sequences=len(completions),
        num_positions=sum(map(positions, completions)),
        store_bytes=sum(
            ShardFile(out, group_slots(group, completions, job.conditions)).num_bytes
            for group in groups
        ),
        there_bytes=_written_bytes(out),
        free_bytes=shutil.disk_usage(above).free,
        stream=None if skeleton is None else _stream_needs(skeleton, completions, job, out, why),
    )


def sequence_sizes(
    completions: Sequence[Completion], conditions: CaptureConditions, *, streamed: bool
) -> list[int]:
    """Disk that each sequence takes, its share of the scratch files included."""
    shape = shape_of(conditions)
    return [
        shape.sequence_bytes(len(row.prompt_ids), len(row.completion_ids))
        + (2 * shape.states_bytes(positions(row)) if streamed else 0)
        for row in completions
    ]


def shape_of(conditions: CaptureConditions) -> Shape:
    """What decides how many bytes one position takes."""
    return Shape(
        hidden_size=conditions.hidden_size,
        num_taps=len(conditions.target_layer_ids),
        value_bytes={"float32": 4, "bfloat16": 2}[conditions.dtype],
    )


def _stream_needs(
    skeleton: Skeleton, completions: Sequence[Completion], job: CaptureJob, out: Path, why: str
) -> StreamNeeds:
    conditions, size = job.conditions, skeleton.compute.torch_dtype.itemsize
    passes = _passes_by_depth(completions, job, out)
    every = [this for group in passes.values() for this in group]
    done = min(passes)
    left = range(done, conditions.num_target_layers)
    padded = sum(this.num_tokens for this in every)
    judged = sum(len(row.completion_ids) for row in completions)
    states = shape_of(conditions).states_bytes(padded)
    layer_bytes = max(skeleton.layer_bytes(i) for i in range(conditions.num_target_layers))
    rows = min(job.head_rows_per_piece, conditions.vocab_size)
    buffers = (
        _pass_bytes(skeleton.files, completions, job)
        + skeleton.table_bytes(max(this.num_tokens for this in every))
        + rows * conditions.hidden_size * size
        + (2 + _READERS) * PIECE_BYTES
        + VERDICT_BYTES * judged
    )
    room = max(0, available_bytes() - layer_bytes - buffers)
    return StreamNeeds(
        why=why,
        num_layers=conditions.num_target_layers,
        layers_done=done,
        read_bytes=sum(r.num_bytes for i in left for r in skeleton.layer_ranges(i))
        + sum(r.num_bytes for r in skeleton.rest_ranges())
        + skeleton.head_range.num_bytes
        + _embedding_bytes(skeleton, completions),
        layer_bytes=layer_bytes,
        buffer_bytes=buffers,
        held_bytes=min(states, room // _HELD_SHARE),
        scratch_bytes=2 * states + 2 * VERDICT_BYTES * judged,
        operations=_operations(skeleton, passes) + 2.0 * judged * _head_values(conditions),
    )


def _passes_by_depth(
    completions: Sequence[Completion], job: CaptureJob, out: Path
) -> dict[int, list[Pass]]:
    """Every pass, by how many layers its shard has behind it."""
    whole, found = receipts(out), dict[int, list[Pass]]()
    for n, group in enumerate(shard_groups(completions, job.sequences_per_shard)):
        all_of_them = job.conditions.num_target_layers
        depth = all_of_them if n in whole else layers_done(out / SCRATCH_NAME, n, job)
        found.setdefault(depth, []).extend(passes_of(n, group, completions, job.tokens_per_pass))
    return found


def _all_passes(completions: Sequence[Completion], job: CaptureJob) -> list[Pass]:
    return [
        this
        for n, group in enumerate(shard_groups(completions, job.sequences_per_shard))
        for this in passes_of(n, group, completions, job.tokens_per_pass)
    ]


def _operations(skeleton: Skeleton, passes: Mapping[int, Sequence[Pass]]) -> float:
    values = [skeleton.active_values(i) for i in range(len(skeleton.target.layers))]
    return sum(
        2.0 * sum(values[depth:]) * sum(this.num_tokens for this in group)
        for depth, group in passes.items()
    )


def _head_values(conditions: CaptureConditions) -> int:
    return conditions.vocab_size * conditions.hidden_size


def _embedding_bytes(skeleton: Skeleton, completions: Sequence[Completion]) -> int:
    """Rows of the embedding that occur, as stored."""
    distinct = set().union(*(row.prompt_ids + row.completion_ids for row in completions))
    where = skeleton.embedding_range
    return len(distinct) * (where.num_bytes // where.shape[0])


def _pass_bytes(files: TensorFiles, completions: Sequence[Completion], job: CaptureJob) -> int:
    """Memory that the largest pass takes beside the weights, roughly."""
    conditions = job.conditions
    passes = _all_passes(completions, job)
    widest = max(
        (i.shape[0] for name, i in files.infos.items() if "layers." in name and len(i.shape) == 2),
        default=conditions.hidden_size,
    )
    values = max(this.num_tokens for this in passes) * (
        _HIDDEN_COPIES * conditions.hidden_size + _WIDE_COPIES * widest
    )
    rows = min(job.head_rows_per_piece, conditions.vocab_size)
    logits = min(LOGITS_AT_ONCE, max(len(row.completion_ids) for row in completions) * rows)
    mask = max(this.width for this in passes) ** 2
    return values * shape_of(conditions).value_bytes + _LOGIT_COPIES * logits * 4 + mask


def _room(compute: Compute) -> int:
    if compute.device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return int(free)
    return available_bytes()


def _written_bytes(out: Path) -> int:
    """Disk blocks that an earlier run of the same capture has taken."""
    files = [*out.glob("states-*.safetensors"), *(out / SCRATCH_NAME).rglob("*")]
    return sum(file.stat().st_blocks * 512 for file in files if file.is_file())
