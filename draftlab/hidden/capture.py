"""One pass of the target over each reference completion; the tapped layers' outputs go to a store.

In:   a reference folder, the target that made it, the layers to tap.  Out: a hidden-state store.

First a plan: what is captured, what it takes, whether the target is loaded whole (whole.py) or read
layer by layer (stream.py). Both ways write the same bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from draftlab.base.errors import StoreError, Unfinished
from draftlab.base.progress import Track, silent
from draftlab.hidden import journal
from draftlab.hidden.budget import Estimate, require_disk
from draftlab.hidden.journal import CaptureJob, ShardReceipt, journal_name
from draftlab.hidden.judge import head_rows_per_piece
from draftlab.hidden.passes import passes_of, shard_groups
from draftlab.hidden.planning import estimate_of, sequence_sizes, whether_to_stream
from draftlab.hidden.sharing import PLANNED, begin_together, finish_together
from draftlab.hidden.store import TAP_MEANING, CaptureConditions, HiddenStore
from draftlab.hidden.stream import StreamWork, stream_shards
from draftlab.hidden.together import Meeting
from draftlab.hidden.whole import WholeWork, shards_from_memory
from draftlab.reference.completions import LocalTarget, MadeBy, Reference
from draftlab.target.compute import Compute
from draftlab.target.loading import TargetIdentity, load_target
from draftlab.target.skeleton import Skeleton

SEQUENCES_PER_SHARD = 32
TOKENS_PER_PASS = 4096


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """A capture that can start: everything has been checked that needs no weights."""

    reference: Reference
    target_folder: Path
    out: Path
    compute: Compute
    job: CaptureJob
    estimate: Estimate
    skeleton: Skeleton | None
    """Set where the target is read layer by layer."""
    finished: HiddenStore | None
    """The store, where `out` holds it already."""

    @property
    def sizes(self) -> list[int]:
        """Padded tokens of each shard."""
        completions, job = self.reference.completions, self.job
        return [
            sum(this.num_tokens for this in passes_of(n, group, completions, job.tokens_per_pass))
            for n, group in enumerate(shard_groups(completions, job.sequences_per_shard))
        ]


def plan_capture(
    reference: Reference,
    target_folder: Path,
    target_layer_ids: Sequence[int],
    out: Path,
    compute: Compute,
    *,
    stream: bool | None = None,
) -> CapturePlan:
    """See what a capture would take.

    Args:
        reference: what the target wrote.
        target_folder: the target.
        target_layer_ids: layers to tap, counted from 0.
        out: folder of the store.
        compute: what to compute with.
        stream: read the target layer by layer; None does so where it does not fit into memory.

    Raises:
        StoreError: a layer is out of range, the reference is of another target, `out` holds
            something else, or the disk cannot hold the store.
        TargetError: the target's files are not whole, or cannot be read layer by layer.
    """
    target = TargetIdentity.of(target_folder)
    conditions = conditions_of(reference, target, target_layer_ids, compute)
    job = job_of(conditions, compute)
    finished = journal.finished(out, job)
    job = journal.begun(out, job)
    completions = reference.completions
    why = None
    if finished is None:
        why = whether_to_stream(target_folder, completions, job, compute, wish=stream)
    skeleton = None if why is None else Skeleton.open(target_folder, compute)
    estimate = estimate_of(completions, job, out, skeleton, why=why or "")
    if finished is None:
        require_disk(estimate, sequence_sizes(completions, conditions, streamed=why is not None))
    return CapturePlan(reference, target_folder, out, compute, job, estimate, skeleton, finished)


def capture(
    reference: Reference,
    target_folder: Path,
    target_layer_ids: Sequence[int],
    out: Path,
    compute: Compute,
    *,
    track: Track = silent,
) -> HiddenStore:
    """Capture the tapped states of every completion of a reference.

    Safe to stop and run again: whole shards are kept, and of a target that is read layer by layer,
    whole layers. A finished store of the same job is returned as it is.

    Raises:
        StoreError: a layer is out of range, the reference is of another target, `out` holds
            something else, or the disk cannot hold the store.
        TargetError: the target cannot be loaded.
        Unfinished: the disk is full.
    """
    plan = plan_capture(reference, target_folder, target_layer_ids, out, compute)
    return carry_out(plan, track=track)


def carry_out(
    plan: CapturePlan, *, track: Track = silent, meeting: Meeting | None = None
) -> HiddenStore:
    """Do what was planned, alone or as one of the processes of a meeting.

    Raises:
        StoreError: a state is not finite.
        TargetError: the target cannot be loaded.
        Unfinished: the disk is full, or another process is gone.
    """
    meeting = meeting or Meeting()
    if plan.finished is not None:
        if meeting.ranks.leads:
            meeting.hear_all(PLANNED)
            journal.clear(plan.out)
        return plan.finished
    begun = begin_together(plan.out, plan.job, plan.target_folder, plan.sizes, meeting)
    torch.set_num_threads(begun.job.threads)
    groups = shard_groups(plan.reference.completions, begun.job.sequences_per_shard)
    mine = {number: groups[number] for number in begun.shares[meeting.ranks.rank]}
    made: dict[int, ShardReceipt] = {}
    with disk_may_fill(plan.out), torch.inference_mode():
        if mine:
            made = _capture_shards(plan, begun.job, mine, track, journal_name(meeting.ranks.rank))
    return finish_together(plan.out, begun, made, meeting)


@contextmanager
def disk_may_fill(out: Path) -> Iterator[None]:
    """A full disk is no fault of ours: say how to go on.

    Raises:
        Unfinished: the body has filled it.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise Unfinished(
            f"the disk of {out} is full.",
            mend="Free some space and run the same command again; it continues where it stopped.",
        ) from error


def _capture_shards(
    plan: CapturePlan,
    job: CaptureJob,
    groups: dict[int, list[int]],
    track: Track,
    journal_name: str,
) -> dict[int, ShardReceipt]:
    completions = plan.reference.completions
    if plan.skeleton is None:
        target = load_target(plan.target_folder, plan.compute)
        whole = WholeWork(target, completions, job, plan.out, journal_name)
        return shards_from_memory(whole, groups, track)
    held_bytes = plan.estimate.stream.held_bytes if plan.estimate.stream else 0
    work = StreamWork(plan.skeleton, completions, job, plan.out, held_bytes, journal_name)
    return stream_shards(work, groups, track)


def job_of(conditions: CaptureConditions, compute: Compute) -> CaptureJob:
    """What is kept beside the shards."""
    return CaptureJob(
        conditions=conditions,
        sequences_per_shard=SEQUENCES_PER_SHARD,
        tokens_per_pass=TOKENS_PER_PASS,
        head_rows_per_piece=head_rows_per_piece(conditions.hidden_size),
        threads=compute.threads,
    )


def conditions_of(
    reference: Reference, target: TargetIdentity, target_layer_ids: Sequence[int], compute: Compute
) -> CaptureConditions:
    """What the states of a capture are states of.

    Raises:
        StoreError: a layer is out of range, or the reference is of another target or number type.
    """
    _require_same_target(reference, target)
    depth = target.facts.num_layers
    absent = [i for i in target_layer_ids if not 0 <= i < depth]
    if absent or not target_layer_ids or list(target_layer_ids) != sorted(set(target_layer_ids)):
        raise StoreError(
            f"layers {list(target_layer_ids)} cannot be tapped: the target has layers 0 to "
            f"{depth - 1}, each at most once, in ascending order.",
            mend="Give --layers as counted from 0, or --drafter to take them from its config.",
        )
    made = reference.record.job
    _require_same_dtype(made.made_by, compute)
    return CaptureConditions(
        reference_digest=reference.digest,
        prompts_digest=made.prompts_digest,
        target_fingerprint=target.fingerprint,
        target_architecture=target.facts.architecture,
        num_target_layers=depth,
        hidden_size=target.facts.hidden_size,
        vocab_size=target.facts.vocab_size,
        target_layer_ids=tuple(target_layer_ids),
        tap_meaning=TAP_MEANING,
        dtype=compute.dtype,
        device=compute.device,
        temperature=made.temperature,
        thinking=made.thinking,
        template_digest=made.template_digest,
        max_new_tokens=made.max_new_tokens,
        ignore_eos=made.ignore_eos,
        ids_from=made.made_by.ids_from,
        same_target=made.made_by.same_target,
    )


def _require_same_dtype(made_by: MadeBy, compute: Compute) -> None:
    """A server does not say what it computes in: its reference leaves the choice to this pass."""
    if isinstance(made_by, LocalTarget) and made_by.dtype != compute.dtype:
        raise StoreError(
            f"the reference was decoded in {made_by.dtype}, this capture would run in "
            f"{compute.dtype}; at near ties the two choose other tokens.",
            mend=f"Pass --dtype {made_by.dtype}, or make the reference again.",
        )


def _require_same_target(reference: Reference, target: TargetIdentity) -> None:
    """A server shows no weights: there, whether it is the same shows in the agreement alone."""
    made_by = reference.record.job.made_by
    if isinstance(made_by, LocalTarget) and made_by.fingerprint != target.fingerprint:
        raise StoreError(
            f"{reference.folder} was made by the target with fingerprint {made_by.fingerprint}; "
            f"--target has {target.fingerprint}.",
            mend="Point --target at the target that wrote these completions.",
        )
