"""Main memory, with the smallest limit among the control groups of the probe."""

from __future__ import annotations

from draftlab.base.memory import NO_LIMIT_BYTES, group_room
from draftlab.host.fact import Absent, Fact, Known, NotAnswered
from draftlab.host.facts import Memory
from draftlab.host.questions.reading import kernel_table
from draftlab.host.script import Section


def memory_of(section: Section) -> Fact[Memory]:
    """From /proc/meminfo and the limits of version 1 and 2 control groups."""
    text = section.text("meminfo")
    if text is None:
        return NotAnswered(why="there is no /proc/meminfo")
    table = kernel_table(text)
    missing = [name for name in ("MemTotal", "MemFree", "MemAvailable") if name not in table]
    if missing:
        return NotAnswered(why=f"/proc/meminfo has no {missing[0]}")
    limit, by, room = _limits(section)
    none = Absent(why="no container limit")
    return Known(
        value=Memory(
            total_bytes=table["MemTotal"],
            available_bytes=table["MemAvailable"],
            free_bytes=table["MemFree"],
            limit_bytes=none if limit is None else Known(value=limit),
            limit_room_bytes=none if room is None else Known(value=room),
            limited_by=by,
            swap_total_bytes=table.get("SwapTotal", 0),
            swap_free_bytes=table.get("SwapFree", 0),
        )
    )


def _limits(section: Section) -> tuple[int | None, str, int | None]:
    """The smallest limit, its group, and the least room that any limited group leaves."""
    limits, rooms = [], []
    for group in section.groups("group"):
        limit, usage = group.text("limit") or "", group.text("usage") or ""
        room = group_room(limit, usage, group.text("stat") or "")
        if room < NO_LIMIT_BYTES:
            limits.append((int(limit), group.text("group") or ""))
            rooms.append(room)
    if not limits:
        return None, "", None
    return *min(limits), min(rooms)
