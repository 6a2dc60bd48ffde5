"""Programs, also where a non-interactive shell does not find them."""

from __future__ import annotations

import re

from draftlab.host.fact import Absent, Fact, Known, NotAnswered
from draftlab.host.facts import Tool
from draftlab.host.script import Section


def tools_of(section: Section) -> Fact[dict[str, Fact[Tool]]]:
    """One answer for each program that was looked for."""
    return Known(value={group.text("tool") or "": _tool(group) for group in section.groups("tool")})


def _tool(group: Section) -> Fact[Tool]:
    file = group.text("file")
    if file is None:
        return Absent(why="neither on PATH nor in the usual places")
    return Known(value=Tool(file=file, on_path=group.has("on-path"), version=_version(group)))


def _version(group: Section) -> Fact[str]:
    said = group.text("version")
    if said is None:
        return NotAnswered(why="not asked")
    if group.text("version-status") != "0":
        return NotAnswered(why="the program does not say")
    # nvcc names the release last, the others put their version into the first line.
    release = re.search(r"release (\d+\.\d+)", said)
    first = re.search(r"\d+(?:\.\d+)+", said.partition("\n")[0])
    found = release[1] if release else first[0] if first else ""
    return Known(value=found) if found else NotAnswered(why="the program does not say")
