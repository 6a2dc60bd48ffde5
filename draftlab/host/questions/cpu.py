"""Processors: model, counts, what a container grants, and the extensions that matter."""

from __future__ import annotations

import re

from draftlab.host.fact import Absent, Fact, Known, NotAnswered
from draftlab.host.facts import Cpu
from draftlab.host.questions.reading import count_of_list, field, readable
from draftlab.host.script import Section

ISA = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "svebf16", "sme",
)  # fmt: skip
"""Names of /proc/cpuinfo, x86 and Arm, from old to new."""


def cpu_of(section: Section) -> Fact[Cpu]:
    """From /proc/cpuinfo, lscpu and the control groups."""
    first, cores = section.text("first"), section.text("cores")
    if first is None or cores is None:
        return NotAnswered(why="there is no /proc/cpuinfo")
    logical = len(re.findall(r"^processor\s*:", cores, re.MULTILINE))
    if not logical:
        return NotAnswered(why="/proc/cpuinfo lists no processor")
    lscpu = section.text("lscpu") or ""
    sockets, physical = _topology(cores, lscpu)
    return Known(
        value=Cpu(
            model=_model(first, lscpu),
            sockets=sockets,
            cores=physical,
            logical_cpus=logical,
            allowed_cpus=readable(lambda: _allowed(section)),
            quota_cpus=readable(lambda: _quota(section)),
            numa_nodes=max(1, sum(part.label == "node" for part in section.parts)),
            max_mhz=_max_mhz(section),
            isa=_isa(section.text("flags") or ""),
            load_1min=_load(section),
        )
    )


def _model(first: str, lscpu: str) -> Fact[str]:
    for text, name in ((first, "model name"), (lscpu, "Model name"), (first, "Hardware")):
        value = field(text, name)
        if value and value != "-":
            return Known(value=" ".join(value.split()))
    return NotAnswered(why="neither /proc/cpuinfo nor lscpu names the model")


def _topology(cores: str, lscpu: str) -> tuple[Fact[int], Fact[int]]:
    """Sockets and physical cores."""
    sockets = re.findall(r"^physical id\s*: (\d+)$", cores, re.MULTILINE)
    ids = re.findall(r"^core id\s*: (\d+)$", cores, re.MULTILINE)
    if sockets and len(sockets) == len(ids):
        pairs = set(zip(sockets, ids, strict=True))
        return Known(value=len(set(sockets))), Known(value=len(pairs))
    count, each = field(lscpu, "Socket(s)"), field(lscpu, "Core(s) per socket")
    if count and each and count.isdigit() and each.isdigit():
        return Known(value=int(count)), Known(value=int(count) * int(each))
    why = NotAnswered(why="neither /proc/cpuinfo nor lscpu tells cores from threads")
    return why, why


def _allowed(section: Section) -> Fact[int]:
    listed = field(section.text("allowed") or "", "Cpus_allowed_list")
    if listed is None:
        return NotAnswered(why="there is no /proc/self/status")
    return Known(value=count_of_list(listed))


def _quota(section: Section) -> Fact[float]:
    """The smallest of `cpu.max` (`200000 100000`) and of version 1's two files."""
    quotas = []
    for group in section.groups("group"):
        words = " ".join(part.text for part in group.parts if part.label == "quota").split()
        if len(words) != 2 or int(words[1]) <= 0:
            raise ValueError(f"a limit on CPU time is {' '.join(words)!r}")
        if words[0] not in {"max", "-1"}:
            quotas.append(int(words[0]) / int(words[1]))
    return Known(value=min(quotas)) if quotas else Absent(why="no container limit")


def _max_mhz(section: Section) -> Fact[float]:
    text = section.text("frequency")
    if text is None:
        return NotAnswered(why="the kernel does not say (cpufreq)")
    return Known(value=int(text) / 1000)


def _isa(flags: str) -> tuple[str, ...]:
    """What all lines of flags have; unlike cores have unlike lines."""
    lines = [set(line.partition(":")[2].split()) for line in flags.splitlines() if ":" in line]
    common = set.intersection(*lines) if lines else set()
    return tuple(name for name in ISA if name in common)


def _load(section: Section) -> Fact[float]:
    text = section.text("load")
    if text is None:
        return NotAnswered(why="there is no /proc/loadavg")
    return Known(value=float(text.partition(" ")[0]))
