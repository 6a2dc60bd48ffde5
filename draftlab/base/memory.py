"""How much more memory this process may take, and what kind of disk a folder is on.

`/proc/meminfo` shows the host. In a container the smallest limit among the process's control groups
counts as well, and so does a `ulimit`; the least of all is what is there. Processes that were
started together (torchrun) share it in equal parts.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from draftlab.base.ranks import Ranks

NO_LIMIT_BYTES = 1 << 60
"""A control group without a limit shows `max` (version 2) or 9223372036854771712 (version 1)."""

_MEMORY_BACKED = ("tmpfs", "ramfs")


def available_bytes() -> int:
    """Memory that can still be taken, reclaimable page cache included."""
    status = _table(Path("/proc/self/status"))
    shared = min([_host_bytes(), *_group_rooms()]) // Ranks.read().local_size
    rooms = [
        shared,
        _room(resource.RLIMIT_AS, status.get("VmSize", 0)),
        _room(resource.RLIMIT_DATA, status.get("VmData", 0)),
    ]
    return max(0, min(rooms))


def group_room(limit: str, usage: str, statistics: str) -> int:
    """What one control group leaves: limit less usage, where page cache does not count as used.

    Args:
        limit: text of `memory.max`, or of version 1's `memory.limit_in_bytes`.
        usage: text of `memory.current`, or of `memory.usage_in_bytes`.
        statistics: text of `memory.stat`.
    """
    if limit.strip() == "max" or int(limit) >= NO_LIMIT_BYTES:
        return NO_LIMIT_BYTES
    counts = dict(line.split()[:2] for line in statistics.splitlines() if line.strip())
    cached = sum(
        int(counts.get(f"total_{name}", counts.get(name, 0)))
        for name in ("inactive_file", "active_file")
    )
    return int(limit) - int(usage) + cached


def is_memory_backed(folder: Path, mounts: str) -> bool:
    """Whether a folder lies in memory, by the text of `/proc/self/mounts`."""
    kinds = {}
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) >= 3:
            kinds[Path(fields[1].replace("\\040", " "))] = fields[2]
    place = folder.resolve()
    return next((kinds[p] in _MEMORY_BACKED for p in (place, *place.parents) if p in kinds), False)


def read_mounts() -> str:
    """The text of `/proc/self/mounts`; empty where there is none."""
    path = Path("/proc/self/mounts")
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _host_bytes() -> int:
    found = _table(Path("/proc/meminfo")).get("MemAvailable")
    return found if found is not None else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _table(path: Path) -> Mapping[str, int]:
    """`Name: 12 kB` lines as bytes; empty where there is no such file."""
    if not path.is_file():
        return {}
    rows = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[2:] == ["kB"]}


def _room(limit: int, used: int) -> int:
    soft, _ = resource.getrlimit(limit)
    return NO_LIMIT_BYTES if soft == resource.RLIM_INFINITY else soft - used


def _group_rooms() -> Iterator[int]:
    """Of this process's groups and of every group above them, both versions."""
    listing = Path("/proc/self/cgroup")
    if not listing.is_file():
        return
    for line in listing.read_text(encoding="utf-8").splitlines():
        _, controllers, inner = line.split(":", 2)
        if controllers == "":
            root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = root / inner.lstrip("/")
        for group in (folder, *folder.parents):
            files = [group / name for name in (*names, "memory.stat")]
            if all(file.is_file() for file in files):
                yield group_room(*(file.read_text(encoding="utf-8") for file in files))
            if group == root:
                break
