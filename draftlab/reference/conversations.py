"""Conversations, and where in the text of one the assistant begins to speak; pure.

The text that opens an answer must be the beginning of the text that holds it; the rest is what the
assistant said. An empty think block at that seam was put there by the template, and is not said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import field_validator

from draftlab.base.errors import CompletionsError
from draftlab.base.records import Record, sha256_json
from draftlab.reference.prompts import NO_DOMAIN, LineShape, read_lines, refuse_twins

ASSISTANT = "assistant"
_OPENED_THOUGHT = re.compile(r"<think>\s*\Z")
_EMPTY_THOUGHT = re.compile(r"<think>\s*</think>\n{0,2}")
_THOUGHT_TAGS = re.compile(r"(<think>\s*(</think>\s*)?)?")
_LINES = LineShape(
    what="conversation",
    flag="--from",
    shape='Lines are {"messages": [{"role": ..., "content": ...}]}, with id, domain.',
    example='{"messages": [{"role": "user", "content": "..."}, '
    '{"role": "assistant", "content": "..."}]}',
)


class Turn(Record):
    """One message; what it does not say is not passed to the template."""

    role: str
    content: str
    reasoning_content: str | None = None
    """What was thought before it, where the template takes it apart from the content."""


class Conversation(Record):
    """Messages in order, some of them the assistant's."""

    id: str = ""
    domain: str = NO_DOMAIN
    messages: tuple[Turn, ...]

    @field_validator("messages")
    @classmethod
    def _has_an_answer(cls, messages: tuple[Turn, ...]) -> tuple[Turn, ...]:
        if not any(turn.role == ASSISTANT for turn in messages):
            raise ValueError("no message is the assistant's; such a line is a prompt")
        return messages

    @property
    def rendered_from(self) -> list[dict[str, str]]:
        """The messages as a template takes them."""
        return [turn.model_dump(exclude_none=True) for turn in self.messages]

    @property
    def key(self) -> str:
        """The id given, else the first 12 digits of the content's digest."""
        return self.id or sha256_json(self.rendered_from)[:12]


def read_conversations(path: Path) -> tuple[Conversation, ...]:
    """Every conversation of a JSONL file, in order.

    Raises:
        CompletionsError: no file, no line, a line amiss (by number), or an id used twice.
    """
    found = read_lines(path, Conversation, _LINES)
    refuse_twins(str(path), found)
    return found


@dataclass(frozen=True, slots=True)
class Parted:
    """The text of a conversation that ends with an answer, in two."""

    prompt: str
    answer: str
    has_empty_thought: bool
    """Whether the prompt ends with an empty think block that its opening alone lacks."""


def part(opened: str, whole: str, key: str) -> Parted:
    """What the target is told, and what it is to say.

    Args:
        opened: the messages before the answer, and what opens it.
        whole: the same messages and the answer.
        key: names the conversation in errors.

    Raises:
        CompletionsError: `whole` does not begin with `opened`.
    """
    if not whole.startswith(opened):
        pairs = enumerate(zip(opened, whole, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(opened), len(whole)))
        raise CompletionsError(
            f"conversation {key!r}: the text that opens the answer ends with "
            f"{opened[same:][:60]!r} where the text with the answer goes on with "
            f"{whole[same:][:60]!r}.",
            mend="Pass --thinking on or off as the answers were given, or leave this one out.",
        )
    thought = _OPENED_THOUGHT.search(opened)
    empty = _EMPTY_THOUGHT.match(whole, thought.start() if thought else len(opened))
    seam = max(len(opened), empty.end()) if empty else len(opened)
    return Parted(whole[:seam], whole[seam:], seam > len(opened))


def require_same_marks(parted: Parted, spans: Sequence[tuple[int, int]], key: str) -> None:
    """Check that a template's own marks say the same of the last answer; think tags may be in both.

    Raises:
        CompletionsError: they do not.
    """
    whole, seam = parted.prompt + parted.answer, len(parted.prompt)
    start, end = spans[-1] if spans else (seam, seam)
    between = whole[min(start, seam) : max(start, seam)]
    begins = start <= seam and _THOUGHT_TAGS.fullmatch(between) is not None
    ends = whole[:end].rstrip() == whole.rstrip()
    if not spans or not begins or not ends:
        raise CompletionsError(
            f"conversation {key!r}: the template marks {whole[start:end][:60]!r} as the "
            f"assistant's, but what follows the opening of the answer is {parted.answer[:60]!r}.",
            mend="Mend the {% generation %} marks of the template, or take them out of a copy.",
        )
