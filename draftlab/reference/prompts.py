"""Prompts from JSON lines: text, chat messages or token ids.

One object a line: `{"prompt": str}`, `{"messages": [{"role": ..., "content": ...}]}` or
`{"input_ids": [int]}`, with optional `id` and `domain`. A prompt without an id is known by the
digest of its content, so a shuffled file names the same prompts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

from pydantic import ValidationError, model_validator

from draftlab.base.errors import CompletionsError
from draftlab.base.records import Record, json_lines, sha256_json

NO_DOMAIN = "all"
Selection = Literal["all", "evenly spread", "shuffled with seed 42"]


Line = TypeVar("Line", bound=Record)


class Keyed(Protocol):
    """What is known by an id."""

    @property
    def key(self) -> str:
        """The id given, else one made from the content."""
        ...


class Message(Record):
    """One turn of a conversation."""

    role: str
    content: str


class Prompt(Record):
    """One prompt, in exactly one of three forms."""

    id: str = ""
    domain: str = NO_DOMAIN
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    input_ids: tuple[int, ...] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = [self.prompt, self.messages, self.input_ids]
        if sum(form is not None for form in forms) != 1:
            raise ValueError("give exactly one of `prompt`, `messages`, `input_ids`")
        if not any(forms):
            raise ValueError("the prompt is empty")
        if self.input_ids is not None and min(self.input_ids) < 0:
            raise ValueError("input_ids has a negative id")
        return self

    @property
    def content_digest(self) -> str:
        """Hex digest of what is asked, without id and domain."""
        return sha256_json(self.model_dump(mode="json", exclude={"id", "domain"}))

    @property
    def key(self) -> str:
        """The id given, else the first 12 digits of the content digest."""
        return self.id or self.content_digest[:12]


class PromptSource(Record):
    """Where a reference's prompts came from, and how they were put."""

    name: str
    """As given to --prompts, a file by its name alone."""
    origin: str
    """Package, file or hub address that the rows were read from."""
    licence: str
    """Of the prompts; empty where it is the user's own affair."""
    form: str
    """What was done to a row to make a prompt of it; empty where nothing was."""
    num_available: int
    selection: Selection
    """How the prompts that are asked were taken from those that there are."""


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Every prompt of a JSONL file, in order.

    Raises:
        CompletionsError: no file, no prompts, a line amiss (by number), or an id used twice.
    """
    prompts = read_lines(path, Prompt, LINES)
    refuse_twins(str(path), prompts)
    return prompts


@dataclass(frozen=True, slots=True)
class LineShape:
    """How the lines of a file should look, for errors."""

    what: str
    flag: str
    shape: str
    example: str


LINES = LineShape(
    what="prompt",
    flag="--prompts",
    shape='Lines are {"prompt": ...}, {"messages": [...]} or {"input_ids": [...]}, with id, '
    "domain.",
    example='{"messages": [{"role": "user", "content": "..."}]}',
)


def read_lines(path: Path, kind: type[Line], expected: LineShape) -> tuple[Line, ...]:
    """Every line of a JSONL file as a record of one kind; blank lines are passed over.

    Raises:
        CompletionsError: no file, no line, or a line amiss, by its number.
    """
    try:
        lines = json_lines(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CompletionsError(
            f"no {expected.what} file {path}.", mend=f"Check {expected.flag}."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise CompletionsError(
            f"{path} cannot be read: {error}.", mend="Give a UTF-8 JSONL file."
        ) from error
    found = [
        _parse_line(f"{path}, line {number}", line, kind, expected.shape)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not found:
        raise CompletionsError(
            f"{path} holds no {expected.what}s ({len(lines)} lines, all blank).",
            mend=f"Write one object a line, e.g. {expected.example}.",
        )
    return tuple(found)


def prompts_digest(prompts: Sequence[Prompt]) -> str:
    """Hex digest of a list of prompts, order included."""
    return sha256_json([[p.key, p.domain, p.content_digest] for p in prompts])


def _parse_line(where: str, line: str, kind: type[Line], shape: str) -> Line:
    try:
        body: Any = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise CompletionsError(f"{where}: not JSON ({error}).", mend=shape) from error
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        place = f"`{field}`: " if field else ""
        raise CompletionsError(f"{where}: {place}{said}.", mend=shape) from error


def refuse_twins(where: str, prompts: Sequence[Keyed]) -> None:
    """Check that no two have the same id.

    Raises:
        CompletionsError: two have, by their places.
    """
    first_at: dict[str, int] = {}
    for position, prompt in enumerate(prompts, start=1):
        if prompt.key in first_at:
            raise CompletionsError(
                f"{where}: prompts {first_at[prompt.key]} and {position} are both {prompt.key!r}.",
                mend="Remove the repeated prompt, or give the two different ids.",
            )
        first_at[prompt.key] = position
