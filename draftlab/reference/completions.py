"""A reference on disk: the target's completions as token ids, and how they were made.

    REF/reference.json     what made them: target, prompts, template, thinking, settings, digests
    REF/completions.jsonl  one completion a line, in the order of the prompts
    REF/partial.jsonl      only while unfinished: rows so far, under the digest of the job

Token ids are what the target produced. Where a server gives text only, they are that text encoded
again, which need not be the tokens that it came from; each such row is marked `retokenised`.

Schema 2 has all of the decoding where schema 1 had the temperature alone. References of schema 1
are refused: they are made again by one command, and nothing that is bundled holds one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from draftlab.base.errors import CompletionsError
from draftlab.base.records import (
    Document,
    Provenance,
    Record,
    json_lines,
    sha256_file,
    write_atomic,
)
from draftlab.reference.collection import Collection, GivenCounts
from draftlab.reference.prompts import PromptSource
from draftlab.target.decoding import Decoding

Thinking = Literal["on", "off", "template"]
"""`template` leaves it to the chat template's own default."""
Finish = Literal["stop", "length"]
"""`length`: cut off at the token limit; of given text, that no end-of-text token ends it."""
IdsFrom = Literal["target", "server", "retokenised", "given"]
"""Whose token ids: a local target's own, a server's own, a server's text encoded again, or those
of a text that was given and that the target need not have written."""
SameTarget = Literal["checked", "unknown: server reference", "unknown: given text"]
"""What a capture can know of the target that wrote the reference."""
Dialect = Literal["sglang", "vllm", "llama.cpp", "text"]
"""How a server is spoken to; all but `text` take and give token ids."""

RECORD_NAME = "reference.json"
ROWS_NAME = "completions.jsonl"
PARTIAL_NAME = "partial.jsonl"


class Completion(Record):
    """What the target said to one prompt."""

    id: str
    """The prompt's; of several samples of one prompt, followed by # and which of them it is."""
    domain: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    """As generated; ends with the end-of-text token where the target stopped by itself (not where
    the ids were retokenised: text does not show it)."""
    finish: Finish
    ids_from: IdsFrom
    sample: int = 0
    """Which of the prompt's samples this is."""
    log_probs: tuple[float, ...] | None = None
    """Of each completion token, its natural log-probability under the very distribution that it was
    drawn from: after temperature, top-k and top-p, renormalised. None where decoding was greedy,
    and where a server drew: what servers call log-probabilities is filtered in one and not in the
    next, and wrong in some while they draft, so a capture has to compute them."""

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if self.log_probs is not None and len(self.log_probs) != len(self.completion_ids):
            raise ValueError("log_probs are not one for each token")
        return self


class LocalTarget(Record):
    """A target that this machine decoded with."""

    kind: Literal["local"] = "local"
    fingerprint: str
    architecture: str
    device: str
    dtype: Literal["float32", "bfloat16"]
    batch_size: int

    @property
    def ids_from(self) -> IdsFrom:
        """Whose token ids the completions are."""
        return "target"

    @property
    def same_target(self) -> SameTarget:
        """Captures compare fingerprints."""
        return "checked"


class Server(Record):
    """A server that was asked. What it computes with cannot be seen from outside."""

    kind: Literal["server"] = "server"
    name: str
    """What it is: SGLang, vLLM, llama.cpp or OpenAI-compatible."""
    version: str
    """As it says; `unknown` where it does not."""
    model_id: str
    """As it says."""
    dialect: Dialect
    ids_from: IdsFrom
    tokenizer_digest: str
    """SHA-256 of the tokenizer.json that encoded the prompts; empty where none was needed."""

    @property
    def same_target(self) -> SameTarget:
        """A server shows no weights: only a capture's agreement tells."""
        return "unknown: server reference"


class GivenText(Record):
    """Nobody was asked: the completions are the assistant's turns of conversations."""

    kind: Literal["given"] = "given"
    tokenizer_digest: str
    """SHA-256 of the tokenizer.json that encoded them."""

    @property
    def ids_from(self) -> IdsFrom:
        """Whose token ids the completions are."""
        return "given"

    @property
    def same_target(self) -> SameTarget:
        """Who wrote them is not known: only a capture's agreement tells how near the target is."""
        return "unknown: given text"


MadeBy = LocalTarget | Server | GivenText


class ReferenceJob(Record):
    """Everything that decides what the completions are."""

    prompts_digest: str
    num_prompts: int
    """As given; rows that cannot be used are left out of the completions."""
    made_by: Annotated[MadeBy, Field(discriminator="kind")]
    max_new_tokens: int
    """Of given text, the length of its longest row."""
    ignore_eos: bool
    decoding: Decoding | None
    """None where the text was given."""
    thinking: Thinking
    template_digest: str
    """SHA-256 of the chat template; empty where no prompt needed one."""
    keep_cut_off: bool
    """Whether completions that ended at the token limit are among the rows."""

    @property
    def temperature(self) -> float:
        """Of the decoding; 0 for given text, which is taken as it stands."""
        return 0.0 if self.decoding is None else self.decoding.temperature


class ReferenceRecord(Document):
    """The record beside the completions."""

    SCHEMA: ClassVar[str] = "draftlab.reference/2"

    job: ReferenceJob
    completions_sha256: str
    num_completions: int
    num_tokens: int
    """Completion tokens in all."""
    num_cut_off: int
    """Completions that ended at the token limit."""
    prompts: PromptSource | None
    """Where the prompts came from; None where a program gave them."""
    collection: Collection | None
    """Set where a server was asked."""
    given: GivenCounts | None
    """Set where the text was given."""
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


def finished(out: Path, job: ReferenceJob) -> Reference | None:
    """The reference in `out` if it is whole and of this job; None if there is none yet.

    Raises:
        CompletionsError: it is of another job.
    """
    if not (out / RECORD_NAME).is_file():
        return None
    found = Reference.open(out)
    differing = _differing(job.model_dump(), found.record.job.model_dump())
    if differing:
        raise CompletionsError(
            f"{out} holds another reference; these differ: {', '.join(differing)}.",
            mend="Give another --out.",
        )
    return found


def _differing(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Names of the fields that differ; those of a nested record by their own names."""
    names: list[str] = []
    for key in {**mine, **theirs}:
        one, other = mine.get(key), theirs.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            names += _differing(one, other)
        elif one != other:
            names.append(key)
    return names


def write_reference(
    out: Path,
    job: ReferenceJob,
    rows: Sequence[Completion],
    collection: Collection | GivenCounts | None,
    provenance: Provenance,
    *,
    source: PromptSource | None = None,
) -> Reference:
    """Write completions and record, the record last."""
    write_atomic(out / ROWS_NAME, "".join(map(row_text, rows)).encode())
    record = ReferenceRecord(
        job=job,
        completions_sha256=sha256_file(out / ROWS_NAME),
        num_completions=len(rows),
        num_tokens=sum(len(row.completion_ids) for row in rows),
        num_cut_off=sum(row.finish == "length" for row in rows),
        prompts=source,
        collection=collection if isinstance(collection, Collection) else None,
        given=collection if isinstance(collection, GivenCounts) else None,
        provenance=provenance,
    )
    record.save(out / RECORD_NAME)
    return Reference(out, record, rows)


def row_text(row: Record) -> str:
    """One line of the completions file, or of the partial one."""
    return json.dumps(row.model_dump(mode="json"), separators=(",", ":"), ensure_ascii=False) + "\n"


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
