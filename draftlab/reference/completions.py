"""A reference on disk: the target's greedy completions as token ids, and how they were made.

    REF/reference.json     what made them: target, prompts, template, thinking, settings, digests
    REF/completions.jsonl  one completion a line, in the order of the prompts
    REF/partial.jsonl      only while unfinished: rows so far, under the digest of the job

Token ids are what the target produced and are never re-encoded from text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ValidationError

from draftlab.base.errors import CompletionsError
from draftlab.base.records import (
    Document,
    Provenance,
    Record,
    json_lines,
    sha256_file,
    sweep,
    write_atomic,
)

Thinking = Literal["on", "off", "template"]
"""`template` leaves it to the chat template's own default."""

RECORD_NAME = "reference.json"
ROWS_NAME = "completions.jsonl"
PARTIAL_NAME = "partial.jsonl"


class Completion(Record):
    """What the target said to one prompt."""

    id: str
    domain: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    """As generated; ends with the end-of-text token where the target stopped by itself."""
    finish: Literal["stop", "length"]
    """`length`: cut off at the token limit."""


class ReferenceJob(Record):
    """Everything that decides what the completions are."""

    prompts_digest: str
    num_prompts: int
    target_fingerprint: str
    target_architecture: str
    max_new_tokens: int
    ignore_eos: bool
    temperature: float
    thinking: Thinking
    template_digest: str
    """SHA-256 of the chat template; empty where no prompt needed one."""
    device: str
    dtype: Literal["float32", "bfloat16"]
    batch_size: int


class ReferenceRecord(Document):
    """The record beside the completions."""

    SCHEMA: ClassVar[str] = "draftlab.reference/1"

    job: ReferenceJob
    completions_sha256: str
    num_tokens: int
    """Completion tokens in all."""
    num_cut_off: int
    """Completions that ended at the token limit."""
    provenance: Provenance


class Reference:
    """A finished reference: its record and its completions."""

    def __init__(
        self, folder: Path, record: ReferenceRecord, completions: Sequence[Completion]
    ) -> None:
        self.folder = folder
        self.record = record
        self.completions = tuple(completions)

    @property
    def digest(self) -> str:
        """What identifies the texts: the digest of the completions file."""
        return self.record.completions_sha256

    @classmethod
    def open(cls, folder: Path) -> Reference:
        """Read a finished reference; its digest is checked.

        Raises:
            CompletionsError: no such folder, unfinished, or changed since it was written.
        """
        if not folder.is_dir():
            raise CompletionsError(
                f"no folder {folder}.", mend="Make one: draftlab reference --out ..."
            )
        if not (folder / RECORD_NAME).is_file():
            state = "is unfinished" if (folder / PARTIAL_NAME).is_file() else "is not a reference"
            raise CompletionsError(
                f"{folder} {state}: it has no {RECORD_NAME}.",
                mend="Run the same draftlab reference command again; it continues where it "
                "stopped.",
            )
        record = ReferenceRecord.load(folder / RECORD_NAME)
        rows = folder / ROWS_NAME
        if not rows.is_file() or sha256_file(rows) != record.completions_sha256:
            raise CompletionsError(
                f"{rows} is not the file that {RECORD_NAME} describes (digest differs).",
                mend="Make the reference again.",
            )
        return cls(folder, record, read_rows(rows.read_text(encoding="utf-8")))


def row_text(completion: Completion) -> str:
    """One line of the completions file."""
    return (
        json.dumps(completion.model_dump(mode="json"), separators=(",", ":"), ensure_ascii=False)
        + "\n"
    )


def read_rows(text: str) -> tuple[Completion, ...]:
    """The completions of a whole file.

    Raises:
        CompletionsError: a line is not a completion.
    """
    rows = []
    for number, line in enumerate(json_lines(text)[:-1], start=1):
        try:
            rows.append(Completion.model_validate_json(line))
        except ValidationError as error:
            raise CompletionsError(
                f"{ROWS_NAME}, line {number} is not a completion.", mend="Make the reference again."
            ) from error
    return tuple(rows)


class PartialRows:
    """The rows of an unfinished reference; appended batch by batch, dropped when finished.

    Its first line is the digest of the job, so rows of other prompts or settings are never taken
    over.
    """

    def __init__(self, folder: Path, job_digest: str) -> None:
        self._path = folder / PARTIAL_NAME
        self._header = json.dumps({"job": job_digest}) + "\n"

    def start(self) -> dict[str, Completion]:
        """Rows of the same job that are whole, by id; opens the file for the rest.

        Raises:
            CompletionsError: the folder holds the rows of another job.
        """
        sweep(self._path.parent)
        if not self._path.is_file():
            write_atomic(self._path, self._header.encode())
            return {}
        lines = json_lines(self._path.read_text(encoding="utf-8", errors="replace"))
        if lines[0] + "\n" != self._header:
            raise CompletionsError(
                f"{self._path} was begun with other prompts, another target or other settings.",
                mend="Give another --out, or delete that file to start again.",
            )
        rows = []
        for line in lines[1:-1]:  # what no newline ends is a torn write
            try:
                rows.append(Completion.model_validate_json(line))
            except ValidationError:
                break  # so is this; what follows it is redone
        write_atomic(self._path, (self._header + "".join(map(row_text, rows))).encode())
        return {row.id: row for row in rows}

    def append(self, rows: Sequence[Completion]) -> None:
        """Add a batch of rows."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(map(row_text, rows)))
            file.flush()

    def drop(self) -> None:
        """Forget the partial file, once the whole is written."""
        self._path.unlink(missing_ok=True)
