"""What the rows about a machine are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftlab.host.fact import Absent, NotAnswered


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a label and what is said; equal labels that follow each other are shown once."""

    label: str
    text: str
    shade: Literal["known", "absent", "unsure", "warning"] = "known"


def unknown(label: str, fact: Absent | NotAnswered, *, subject: str = "") -> Row:
    """The row of a fact that is not known."""
    about = f"{subject}: " if subject else ""
    if isinstance(fact, Absent):
        return Row(label, f"{about}none: {fact.why}", "absent")
    return Row(label, f"? {about}{fact.why}", "unsure")


def shown_path(path: str, home: str) -> str:
    """A path, with the home folder as `~`."""
    return f"~{path.removeprefix(home)}" if home and path.startswith(f"{home}/") else path
