"""The probe script: put together for one conversation, and its answer taken apart.

The script is text for `sh -s`. What the user names (paths) goes into it through `quoted` alone. The
answer is a list of parts between lines that start with a random marker; whatever stands before the
first one (banners, start-up files that print) is no part of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftlab.base.errors import DraftlabError

SECONDS = {
    "system": 10,
    "memory": 10,
    "cpu": 15,
    "disks": 60,
    "tools": 30,
    "pythons": 30,
    "scripts": 10,
    "gpus": 50,
    "servers": 30,
    "models": 60,
    "deep": 60,
}
"""The questions in the order they are asked, and how long each may take on the machine."""

_QUESTIONS = Path(__file__).parent / "questions"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an answer: a label, the words after it, and text."""

    label: str
    words: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """What was answered to one question."""

    parts: tuple[Part, ...]
    ended: str
    """`0` and the like: the status of its shell; `late`: cut at its time limit; empty: the
    connection ended in the middle of it."""

    def text(self, label: str) -> str | None:
        """The text of the first part with this label."""
        return next((part.text for part in self.parts if part.label == label), None)

    def has(self, label: str) -> bool:
        """Whether there is a part with this label."""
        return any(part.label == label for part in self.parts)

    def groups(self, *labels: str) -> list[Section]:
        """The parts cut before each part with one of these labels; what stands before is left out.

        A group carries the end of the whole only if it is the last: the others are complete.
        """
        starts = [i for i, part in enumerate(self.parts) if part.label in labels]
        ends = [*starts[1:], len(self.parts)] if starts else []
        return [
            Section(self.parts[start:end], self.ended if end == len(self.parts) else "0")
            for start, end in zip(starts, ends, strict=True)
        ]


def quoted(text: str) -> str:
    """One word of a POSIX shell that stands for exactly this text.

    Raises:
        DraftlabError: a NUL, which no path and no shell word can hold.
    """
    if "\0" in text:
        raise DraftlabError(
            f"a path holds a NUL character: {text!r}.", mend="Check where the path comes from."
        )
    return "'" + text.replace("'", "'\\''") + "'"


@dataclass(frozen=True, slots=True)
class Wish:
    """What to ask beyond what is always asked."""

    paths: tuple[str, ...] = ("~",)
    """Whose disks to measure."""
    models: tuple[str, ...] = ("~/models",)
    """Folders to look for models in."""
    hub_cache: bool = True
    """Look into the Hugging Face cache as well."""
    deep: bool = False
    """Measure rates."""

    @property
    def questions(self) -> tuple[str, ...]:
        """The questions that this wish asks, in order."""
        return tuple(name for name in SECONDS if self.deep or name != "deep")


def new_marker() -> str:
    """A line start that nothing on the machine can know."""
    return f"draftlab-{secrets.token_hex(16)}"


def probe_script(marker: str, wish: Wish) -> bytes:
    """The whole script; it prints `hello` first and `bye` last.

    Raises:
        DraftlabError: a path that no shell word can hold.
    """
    names = ("frame", *wish.questions)
    bodies = [(_QUESTIONS / f"{name}.sh").read_text(encoding="utf-8") for name in names]
    lines = [
        f"MARK={quoted(marker)}",
        f"HUB={'yes' if wish.hub_cache else 'no'}",
        f"MEASURE={quoted(_measure()) if wish.deep else ''}",
        *bodies,
        _each("each_path", wish.paths),
        _each("each_root", wish.models),
        "main() {",
        'cd "$HOME" 2>/dev/null || cd /',
        "part hello",
        *(f"ask {name} {SECONDS[name]}" for name in wish.questions),
        "part bye",
        "}",
        "main 2>/dev/null",  # read to its end before it runs: no command in it can eat the script
        "exit 0",
    ]
    return ("\n".join(lines) + "\n").encode("utf-8", errors="surrogateescape")


def _measure() -> str:
    """The program that measures on the machine, without what only its readers need."""
    return (_QUESTIONS / "measure.py").read_text(encoding="utf-8")


def _each(name: str, values: Sequence[str]) -> str:
    """A shell function that runs its argument once for each value."""
    calls = "\n".join(f'"$1" {quoted(value)}' for value in values) or ":"
    return f"{name}() {{\n{calls}\n}}"


def marks(marker: str) -> tuple[bytes, bytes]:
    """What the answer holds as soon as the script runs, and once it is complete."""
    return f"\n{marker} hello\n".encode(), f"\n{marker} bye\n".encode()


def parts_of(output: bytes, marker: str) -> list[Part]:
    """All parts of an answer, in order; what stands before the first is dropped.

    A part that was cut off inside its label line is dropped too.
    """
    pieces = output.split(f"\n{marker} ".encode())[1:]
    parts = []
    for piece in pieces:
        line, found, rest = piece.partition(b"\n")
        if found:
            label, *words = line.decode("ascii", errors="replace").split(" ")
            text = rest.decode("utf-8", errors="backslashreplace")
            parts.append(Part(label, tuple(words), text))
    return parts


def sections_of(output: bytes, marker: str) -> dict[str, Section]:
    """The sections of an answer by question; the last may be cut short."""
    sections: dict[str, Section] = {}
    name, body = "", list[Part]()
    for part in parts_of(output, marker):
        if part.label == "begin" and len(part.words) == 1:
            name, body = part.words[0], []
        elif part.label == "end" and len(part.words) == 2 and part.words[0] == name:
            sections[name] = Section(tuple(body), part.words[1])
            name = ""
        elif name:
            body.append(part)
    if name:
        sections[name] = Section(tuple(body[:-1]), "")  # the last part may be half
    return sections
