"""Small readers that several parsers share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from draftlab.base.quantities import one_line
from draftlab.host.fact import NotAnswered
from draftlab.host.script import SECONDS, Section

R = TypeVar("R")

KIB = 1024

CUT = "the connection ended in the middle of the answer"


def unfinished(section: Section | None, question: str) -> NotAnswered | None:
    """Why a section cannot be trusted to be whole; None if it can."""
    if section is None:
        return NotAnswered(why="the connection ended before it was asked")
    if section.ended == "late":
        return NotAnswered(why=f"no answer in {SECONDS[question]} s")
    return NotAnswered(why=CUT) if not section.ended else None


def readable(read: Callable[[], R]) -> R | NotAnswered:
    """What a parser makes of an answer; one that it cannot read is a fact not answered."""
    try:
        return read()
    except ValueError as error:
        return NotAnswered(why=f"an answer that cannot be read: {one_line(str(error))}")


def kernel_table(text: str) -> dict[str, int]:
    """`Name: 12 kB` lines as bytes."""
    found = re.findall(r"^([\w()]+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(number) * KIB for name, number in found}


def field(text: str, name: str) -> str | None:
    """The value of a `name : value` line."""
    found = re.search(rf"^{re.escape(name)}\s*:[ \t]*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def count_of_list(text: str) -> int:
    """How many numbers a kernel list like `0-3,8,10-11` names.

    Raises:
        ValueError: another form.
    """
    count = 0
    for piece in text.strip().split(","):
        first, _, last = piece.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def last_line(text: str) -> str:
    """The last line that says something, for a message."""
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else "nothing"
