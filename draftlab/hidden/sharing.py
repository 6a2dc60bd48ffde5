"""How the processes of one capture begin and end it: the shards of each, and one index for all.

The leading process reads what an earlier run has left, shares out the rest, and writes the index
when everybody's shards are there. Each process writes its own shards and its own journal.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftlab.base.errors import StoreError, Unfinished
from draftlab.base.records import Record
from draftlab.hidden import journal
from draftlab.hidden.journal import CaptureJob, ShardReceipt
from draftlab.hidden.store import INDEX_NAME, HiddenStore
from draftlab.hidden.together import SILENT_SECONDS, Meeting, shares

PLANNED, _BEGUN, _DONE, _FINISHED, _LEFT = "planned", "begun", "done", "finished", "left"


class Shared(Record):
    """What the leading process tells the others."""

    job: CaptureJob
    """As an earlier run has begun it, or as this one does."""
    shares: tuple[tuple[int, ...], ...]
    """Shards that each process captures."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A capture that all processes agree on."""

    job: CaptureJob
    shares: tuple[tuple[int, ...], ...]
    there: Mapping[int, ShardReceipt]
    """Whole shards of earlier runs; known to the leading process."""


def begin_together(
    out: Path, job: CaptureJob, target_folder: Path, sizes: Sequence[int], meeting: Meeting
) -> Begun:
    """Agree on the job and on who captures which shard.

    Args:
        out: folder of the store.
        job: what this process would do.
        target_folder: the target.
        sizes: padded tokens of each shard.
        meeting: this process and the others.

    Raises:
        StoreError: the processes would not capture the same.
        Unfinished: another process is gone.
    """
    if not meeting.ranks.leads:
        told = Shared.model_validate_json(meeting.hear(_BEGUN, 0))
        _require_same(job, told.job, meeting)
        return Begun(told.job, told.shares, {})
    meeting.hear_all(PLANNED)
    there = journal.begin(out, job, target_folder)
    pending = {n: size for n, size in enumerate(sizes) if n not in there}
    shared = Shared(job=job, shares=tuple(map(tuple, shares(pending, meeting.ranks.size))))
    meeting.say(_BEGUN, shared.model_dump_json())
    return Begun(job, shared.shares, there)


def finish_together(
    out: Path, begun: Begun, made: Mapping[int, ShardReceipt], meeting: Meeting
) -> HiddenStore:
    """Write the index once every shard is there; every process opens the same store.

    Raises:
        Unfinished: another process is gone; its shards are missing.
    """
    if meeting.ranks.leads:
        receipts = {**begun.there, **made, **_of_the_others(begun, meeting)}
        store = journal.finish(out, begun.job, [receipts[n] for n in sorted(receipts)])
        meeting.say(_FINISHED)
        _see_them_off(meeting)
        return store
    for number, receipt in made.items():
        meeting.say(_shard(number), receipt.model_dump_json())
    meeting.say(_DONE)
    meeting.hear(_FINISHED, 0)
    _wait_for(out / INDEX_NAME)
    store = HiddenStore.open(out)
    meeting.say(_LEFT)
    return store


def _of_the_others(begun: Begun, meeting: Meeting) -> dict[int, ShardReceipt]:
    meeting.hear_all(_DONE)
    return {
        number: ShardReceipt.model_validate_json(meeting.hear(_shard(number), rank))
        for rank, numbers in enumerate(begun.shares)
        for number in numbers
        if rank != meeting.ranks.rank
    }


def _shard(number: int) -> str:
    return f"shard-{number}"


def _see_them_off(meeting: Meeting) -> None:
    """The board may be this process's: it stays until the others have read it."""
    try:
        meeting.hear_all(_LEFT)
    except Unfinished:
        return  # all that they were needed for is done


def _wait_for(path: Path) -> None:
    """Until a file that is on the shared disk shows here; network disks take their time."""
    until = time.monotonic() + SILENT_SECONDS
    while not path.is_file():
        if time.monotonic() > until:
            raise Unfinished(
                f"{path} was written by another process and does not show here.",
                mend="All processes need the same --out; the store is whole where it is.",
            )
        time.sleep(0.1)


def _require_same(mine: CaptureJob, theirs: CaptureJob, meeting: Meeting) -> None:
    ours, leads = mine.conditions.model_dump(), theirs.conditions.model_dump()
    differing = [key for key in ours if ours[key] != leads[key]]
    if differing:
        first = differing[0]
        raise StoreError(
            f"{meeting.ranks} would capture with {first} {ours[first]}, the leading process with "
            f"{leads[first]}.",
            mend="Give every process the same command and files, and --device and --dtype by name.",
        )
