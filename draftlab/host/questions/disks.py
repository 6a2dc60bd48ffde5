"""File systems under the exact paths that were asked, in bytes and in files."""

from __future__ import annotations

import re
from functools import partial

from draftlab.host.fact import Absent, Fact, Known, NotAnswered
from draftlab.host.facts import AskedDisk, Disk, Inodes
from draftlab.host.questions.reading import CUT, KIB, last_line, readable
from draftlab.host.script import Section

_KILLED = "124"
_ROW = r"(?P<total>\d+|-)\s+(?P<used>\d+|-)\s+(?P<free>-?\d+|-)\s+(?:\d+%|-)\s+(?P<mount>/.*)"
_FIRST_FIT = re.compile(rf"(?P<device>.*?)\s+{_ROW}", re.DOTALL)
_LAST_FIT = re.compile(rf"(?P<device>.*)\s+{_ROW}", re.DOTALL)


def disks_of(section: Section, asked: tuple[str, ...]) -> tuple[AskedDisk, ...]:
    """One answer for each path, in the order asked."""
    groups = section.groups("path")
    mounts = section.text("mounts")
    rows = [readable(partial(_disk, group, mounts)) for group in groups]
    rows += [NotAnswered(why=CUT)] * (len(asked) - len(rows))
    return tuple(AskedDisk(asked=p, disk=disk) for p, disk in zip(asked, rows, strict=False))


def _disk(group: Section, mounts: str | None) -> Fact[Disk]:
    status, place, path = group.text("bytes-status"), group.text("at"), group.text("full")
    if status is None or place is None or path is None or not group.has("inodes-status"):
        return NotAnswered(why=CUT)
    if status == _KILLED:
        return NotAnswered(why=f"df gave no answer for {place} in 5 s")
    said = group.text("bytes") or ""
    if status != "0":
        return NotAnswered(why=f"df: {last_line(said)}")
    device, row = df_row(said)
    total, free = row["total"], row["free"]
    if total == "-" or free == "-":
        return NotAnswered(why=f"df knows no sizes for {place}")
    return Known(
        value=Disk(
            path=path,
            exists=place == path,
            measured_at=place,
            device=device,
            mount_point=row["mount"],
            kind=_kind(mounts, row["mount"]),
            total_bytes=int(total) * KIB,
            free_bytes=max(0, int(free)) * KIB,
            inodes=readable(partial(_inodes, group)),
            writable=group.has("writable"),
        )
    )


def df_row(text: str) -> tuple[str, dict[str, str]]:
    """Device and columns of the one row of `df -P`, also where an old df breaks it in two lines.

    Nothing is read from the header: its language and width vary.

    Raises:
        ValueError: no row, or one that can be read in two ways (numbers in a device's name).
    """
    _, _, body = text.strip("\n").partition("\n")
    first, last = _FIRST_FIT.fullmatch(body), _LAST_FIT.fullmatch(body)
    if first is None or last is None:
        raise ValueError(f"df said {last_line(text)!r}")
    columns, others = first.groupdict(), last.groupdict()
    device, other = columns.pop("device").strip(), others.pop("device").strip()
    if (device, columns) != (other, others):
        raise ValueError(f"df's row {last_line(text)!r} can be read in two ways")
    return device, columns


def _inodes(group: Section) -> Fact[Inodes]:
    said = group.text("inodes") or ""
    if group.text("inodes-status") != "0":
        return NotAnswered(why=f"df -i: {last_line(said)}")
    _, row = df_row(said)
    if not row["total"].isdigit() or not row["free"].isdigit() or row["total"] == "0":
        return Absent(why="the file system has no fixed number of files")
    return Known(value=Inodes(total=int(row["total"]), free=int(row["free"])))


def _kind(mounts: str | None, mount_point: str) -> Fact[str]:
    """The file system's type; the last mount on a folder is the one that shows."""
    if mounts is None:
        return NotAnswered(why="there is no /proc/self/mounts")
    kinds = {}
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) >= 3:
            kinds[_unescaped(words[1])] = words[2]
    kind = kinds.get(mount_point)
    return NotAnswered(why=f"{mount_point} is no mount") if kind is None else Known(value=kind)


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)
