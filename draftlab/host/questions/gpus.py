"""GPUs as nvidia-smi tells of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from draftlab.base.quantities import bytes_text
from draftlab.host.fact import Absent, Fact, Known, NotAnswered
from draftlab.host.facts import Gpu, GpuHolder, GpuMemory, Gpus
from draftlab.host.questions.reading import last_line
from draftlab.host.script import Section

_MIB = 1 << 20
_NVIDIA = "0x10de"
_COLUMNS = ("index", "uuid", "total", "used", "free", "driver", "capability", "mig", "name")
_OLD_COLUMNS = ("index", "uuid", "total", "used", "free", "driver", "name")
_NO_NUMBER = {"[N/A]", "N/A", "[Not Supported]"}
_HIDDEN_BYTES = 1 << 30
"""Used memory above which somebody must hold it; a driver alone takes some hundred MiB."""


def gpus_of(section: Section) -> Fact[Gpus]:
    """Absent: asked and none. Not answered: nvidia-smi hangs, fails or is missing."""
    if not section.has("smi"):
        return _without_smi(section)
    if section.text("gpus-status") == "124":
        return NotAnswered(why="nvidia-smi gave no answer in 20 s")
    rows = _rows(section, "gpus", _COLUMNS) or _rows(section, "gpus-old", _OLD_COLUMNS)
    if rows is None:
        said = section.text("gpus-old") or section.text("gpus") or ""
        if "No devices were found" in said:
            return Absent(why="nvidia-smi finds none")
        return NotAnswered(why=f"nvidia-smi: {last_line(said)}")
    holders, slices = list(_holders(section)), dict(_slices(section.text("list") or ""))
    gpus = tuple(_gpu(row, holders, slices, _holders_failed(section)) for row in rows)
    return Known(value=Gpus(gpus=gpus, cuda_ceiling=_ceiling(section)))


def _without_smi(section: Section) -> Fact[Gpus]:
    if section.has("driver"):
        return NotAnswered(why="the NVIDIA driver is loaded and nvidia-smi is nowhere to be found")
    vendors = [part.text for part in section.parts if part.label == "display"]
    if _NVIDIA in vendors:
        return NotAnswered(why="there is NVIDIA hardware without a driver")
    if section.has("kfd"):
        return NotAnswered(why="there is an AMD GPU; only NVIDIA GPUs are asked")
    return Absent(why="no nvidia-smi, no NVIDIA driver")


def _rows(section: Section, label: str, names: tuple[str, ...]) -> list[dict[str, str]] | None:
    """The lines of one query; None where it failed."""
    if section.text(f"{label}-status") != "0":
        return None
    rows = []
    for line in (section.text(label) or "").splitlines():
        values = [value.strip() for value in line.split(",", len(names) - 1)]
        if line.strip() and len(values) != len(names):
            raise ValueError(f"nvidia-smi said {last_line(line)!r}")
        if line.strip():
            rows.append(dict(zip(names, values, strict=True)))
    return rows or None


def _gpu(
    row: dict[str, str],
    holders: list[tuple[str, GpuHolder]],
    slices: dict[str, tuple[str, ...]],
    failed: NotAnswered | None,
) -> Gpu:
    memory = _memory(row)
    capability = row.get("capability", "")
    known = re.fullmatch(r"\d+\.\d+", capability)
    return Gpu(
        index=int(row["index"]),
        uuid=row["uuid"],
        name=row["name"],
        memory=memory,
        driver=row["driver"],
        compute_capability=Known(value=capability)
        if known
        else NotAnswered(why="this nvidia-smi does not say"),
        mig_profiles=slices.get(row["uuid"], ()),
        holders=failed or _holders_of(row["uuid"], holders, memory),
    )


def _memory(row: dict[str, str]) -> Fact[GpuMemory]:
    total, used, free = row["total"], row["used"], row["free"]
    if total in _NO_NUMBER:
        return Absent(why="shared with the machine's memory, and counted there")
    if not (total.isdigit() and used.isdigit() and free.isdigit()):
        return NotAnswered(why=f"nvidia-smi says {total}, {used}, {free}")
    sizes = {"total_bytes": total, "used_bytes": used, "free_bytes": free}
    return Known(value=GpuMemory(**{name: int(size) * _MIB for name, size in sizes.items()}))


def _holders(section: Section) -> Iterator[tuple[str, GpuHolder]]:
    for line in (section.text("holders") or "").splitlines():
        values = [value.strip() for value in line.split(",", 3)]
        if len(values) == 4 and values[1].isdigit():
            uuid, pid, used, name = values
            known = used.isdigit()
            yield (
                uuid,
                GpuHolder(
                    pid=int(pid),
                    name=name.rpartition("/")[2],
                    used_bytes=Known(value=int(used) * _MIB)
                    if known
                    else NotAnswered(why=f"nvidia-smi says {used}"),
                ),
            )


def _holders_failed(section: Section) -> NotAnswered | None:
    status = section.text("holders-status")
    if status == "0":
        return None
    return NotAnswered(why=f"nvidia-smi: {last_line(section.text('holders') or '')}")


def _holders_of(
    uuid: str, holders: list[tuple[str, GpuHolder]], memory: Fact[GpuMemory]
) -> Fact[tuple[GpuHolder, ...]]:
    own = tuple(holder for where, holder in holders if where == uuid)
    if own:
        return Known(value=own)
    if isinstance(memory, Known) and memory.value.used_bytes > _HIDDEN_BYTES:
        used = bytes_text(memory.value.used_bytes)
        return NotAnswered(why=f"{used} are used by processes that cannot be seen from here")
    return Absent(why="no process")


def _ceiling(section: Section) -> Fact[str]:
    found = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", section.text("header") or "")
    if found is None:
        return NotAnswered(why="nvidia-smi does not say")
    return Known(value=found[1])


def _slices(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """MIG profiles by GPU, from `nvidia-smi -L`."""
    uuid, profiles = "", list[str]()
    for line in text.splitlines():
        gpu = re.match(r"GPU \d+: .*\(UUID: (GPU-[\w-]+)\)", line)
        mig = re.match(r"\s+MIG (\S+)\s+Device", line)
        if gpu:
            if profiles:
                yield uuid, tuple(profiles)
            uuid, profiles = gpu[1], []
        elif mig:
            profiles.append(mig[1])
    if profiles:
        yield uuid, tuple(profiles)
