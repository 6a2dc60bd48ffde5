"""What an unfinished capture keeps beside its shards, so that a rerun continues it.

    STORE/job.json        what is being captured and how; another job in the same folder is refused
    STORE/journal*.jsonl  one line a whole shard; of several processes, each has its own
    STORE/scratch/        states between layers, where the target is streamed: see scratch.py

All of them are gone when the index is written.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from draftlab.base.errors import StoreError
from draftlab.base.records import (
    Provenance,
    Record,
    json_lines,
    read_json,
    sha256_file,
    sweep,
    write_atomic,
)
from draftlab.hidden.store import (
    INDEX_NAME,
    PROVENANCE_NAME,
    CaptureConditions,
    CaptureProvenance,
    HiddenStore,
    SequenceEntry,
    ShardEntry,
    StoreIndex,
)
from draftlab.reference.completions import Completion

JOB_NAME = "job.json"
JOURNAL_NAME = "journal.jsonl"
_JOURNALS = "journal*.jsonl"
SCRATCH_NAME = "scratch"


class CaptureJob(Record):
    """What a capture does; kept beside the shards until it is finished."""

    conditions: CaptureConditions
    sequences_per_shard: int
    tokens_per_pass: int
    head_rows_per_piece: int
    threads: int
    """Kept on resume: the order of additions, and so the last bit, may depend on it."""


class ShardReceipt(Record):
    """One line of the journal: a shard that is whole, and what is in it."""

    shard: ShardEntry
    sequences: tuple[SequenceEntry, ...]

    @property
    def number(self) -> int:
        """Of the shard."""
        return self.sequences[0].shard


def journal_name(rank: int) -> str:
    """Name of the journal that one of several processes writes."""
    return f"journal-{rank:04d}.jsonl" if rank else JOURNAL_NAME


def shard_name(number: int) -> str:
    """File name of a shard."""
    return f"states-{number:05d}.safetensors"


def finished(out: Path, job: CaptureJob) -> HiddenStore | None:
    """The store that `out` holds already, if it is of the same job.

    Raises:
        StoreError: it is of another.
    """
    if not (out / INDEX_NAME).is_file():
        return None
    store = HiddenStore.open(out)
    _refuse_other(out, job.conditions.model_dump(), store.index.conditions.model_dump())
    return store


def _refuse_other(out: Path, mine: Mapping[str, object], theirs: Mapping[str, object]) -> None:
    differing = [key for key in mine if mine[key] != theirs.get(key)]
    if differing:
        raise StoreError(
            f"{out} holds another capture; these differ: {', '.join(differing)}.",
            mend="Give another --out, or delete that folder to start again.",
        )


def begun(out: Path, job: CaptureJob) -> CaptureJob:
    """The job that an earlier run has begun in `out`, which is then continued as it was; or `job`.

    Raises:
        StoreError: it is another.
    """
    if not (out / JOB_NAME).is_file():
        return job
    earlier = CaptureJob.model_validate(read_json(out / JOB_NAME))
    _refuse_other(out, job.conditions.model_dump(), earlier.conditions.model_dump())
    return earlier


def begin(out: Path, job: CaptureJob, target_folder: Path) -> dict[int, ShardReceipt]:
    """Shards that an earlier run of the same job has finished; or a fresh start.

    Of several processes the leading one calls this, before any of them works.
    """
    out.mkdir(parents=True, exist_ok=True)
    sweep(out)
    if not (out / JOB_NAME).is_file():
        write_atomic(out / JOB_NAME, (job.model_dump_json(indent=1) + "\n").encode())
        made = CaptureProvenance(
            provenance=Provenance.now(), target_folder=str(target_folder.resolve())
        )
        made.save(out / PROVENANCE_NAME)
        return {}
    found = receipts(out)
    others = [path for path in out.glob(_JOURNALS) if path.name != JOURNAL_NAME]
    if others:  # into one, so that no shard that is made again has an older line elsewhere
        _write_journal(out / JOURNAL_NAME, [line.model_dump_json() for line in found.values()])
        for path in others:
            path.unlink()
    return found


def receipts(out: Path) -> dict[int, ShardReceipt]:
    """The whole shards of `out`, by number."""
    found = {}
    for journal in sorted(out.glob(_JOURNALS)):
        for line in _whole_lines(journal):
            receipt = ShardReceipt.model_validate_json(line)
            path = out / receipt.shard.file
            if path.is_file() and path.stat().st_size == receipt.shard.num_bytes:
                found[receipt.number] = receipt
    return found


def _whole_lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    return json_lines(path.read_text(encoding="utf-8", errors="replace"))[:-1]


def note_shard(
    out: Path, number: int, sequences: Sequence[SequenceEntry], name: str = JOURNAL_NAME
) -> ShardReceipt:
    """Take a whole shard into a journal, which one process alone may write."""
    path = out / shard_name(number)
    shard = ShardEntry(file=path.name, num_bytes=path.stat().st_size, sha256=sha256_file(path))
    receipt = ShardReceipt(shard=shard, sequences=tuple(sequences))
    _write_journal(out / name, [*_whole_lines(out / name), receipt.model_dump_json()])
    return receipt


def _write_journal(path: Path, lines: Sequence[str]) -> None:
    write_atomic(path, "".join(line + "\n" for line in lines).encode())


def entry_of(row: Completion, shard: int, argmax_n: Tensor) -> SequenceEntry:
    """What the index says of one sequence."""
    return SequenceEntry(
        id=row.id,
        domain=row.domain,
        shard=shard,
        prompt_tokens=len(row.prompt_ids),
        completion_tokens=len(row.completion_ids),
        finish=row.finish,
        agreeing=int((argmax_n == torch.tensor(row.completion_ids)).sum()),
    )


def finish(out: Path, job: CaptureJob, whole: Sequence[ShardReceipt]) -> HiddenStore:
    """Write the index, drop what only an unfinished capture needs, open the store."""
    index = StoreIndex(
        conditions=job.conditions,
        shards=tuple(receipt.shard for receipt in whole),
        sequences=tuple(entry for receipt in whole for entry in receipt.sequences),
    )
    index.save(out / INDEX_NAME)
    clear(out)
    return HiddenStore.open(out)


def clear(out: Path) -> None:
    """Drop what only an unfinished capture needs, also where a kill came before this was done."""
    for path in (out / JOB_NAME, *out.glob(_JOURNALS)):
        path.unlink(missing_ok=True)
    shutil.rmtree(out / SCRATCH_NAME, ignore_errors=True)
    sweep(out)
