"""Scripts in the home folder."""

from __future__ import annotations

from draftlab.host.fact import Absent, Fact, Known
from draftlab.host.script import Section


def scripts_of(section: Section) -> Fact[tuple[str, ...]]:
    """Their paths, sorted."""
    files = sorted(part.text for part in section.parts if part.label == "script")
    return Known(value=tuple(files)) if files else Absent(why="none in the home folder")
