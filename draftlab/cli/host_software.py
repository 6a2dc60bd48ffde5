"""Rows about a machine's software: pythons, torch builds, tools."""

from __future__ import annotations

from collections.abc import Iterator

from draftlab.cli.host_parts import Row, shown_path, unknown
from draftlab.host.fact import Absent, Known
from draftlab.host.facts import Gpus, HostFacts, Python, Tool, Torch

_MOST = 4
_FOR_WORK = ("uv", "git", "rsync", "tmux", "nvcc", "curl")


def software_rows(facts: HostFacts, home: str) -> Iterator[Row]:
    """Pythons with their torch, then tools."""
    yield from _pythons(facts, home)
    yield from _tools(facts, home)


def _pythons(facts: HostFacts, home: str) -> Iterator[Row]:
    if not isinstance(facts.pythons, Known):
        yield unknown("python", facts.pythons)
        return
    found = facts.pythons.value
    plain = [p for p in found if p.kind == "program" and not isinstance(p.torch, Known)]
    if plain:
        shown = [_short(python, home) for python in plain[:_MOST]]
        more = f" (+{len(plain) - _MOST} more)" if len(plain) > _MOST else ""
        yield Row("python", f"{', '.join(shown)}{more} · no torch in them")
    others = [p for p in found if p not in plain]
    others.sort(key=lambda python: not isinstance(python.torch, Known))
    for python in others[:_MOST]:
        yield from _with_torch(python, facts, home)
    if len(others) > _MOST:
        yield Row("python", f"(+{len(others) - _MOST} more)", "absent")
    if all(python.kind == "program" for python in found):
        yield Row("python", "environments: none", "absent")


def _short(python: Python, home: str) -> str:
    version = python.version.value if isinstance(python.version, Known) else "version unknown"
    return f"{shown_path(python.file, home)} {version}"


def _with_torch(python: Python, facts: HostFacts, home: str) -> Iterator[Row]:
    kind = "" if python.kind == "program" else f" ({python.kind})"
    parts = [f"{_short(python, home)}{kind}"]
    if isinstance(python.torch, Known):
        parts.append(f"torch {_build(python.torch.value)}")
    elif isinstance(python.torch, Absent):
        parts.append("no torch")
    else:
        parts.append(f"? torch: {python.torch.why}")
    parts += [
        f"{n} {v}" for n, v in python.packages.items() if n in {"sglang", "transformers", "vllm"}
    ]
    yield Row("python", " · ".join(parts))
    if isinstance(python.torch, Known) and isinstance(facts.gpus, Known):
        yield from _blindness(python.torch.value, facts.gpus.value)


def _build(torch: Torch) -> str:
    if isinstance(torch.cuda, Known):
        build = f"CUDA {torch.cuda.value}"
    else:
        build = f"ROCm {torch.hip.value}" if isinstance(torch.hip, Known) else "CPU build"
    return f"{torch.version} ({build})"


def _blindness(torch: Torch, gpus: Gpus) -> Iterator[Row]:
    """What keeps this torch from the GPU."""
    if not isinstance(torch.sees_gpu, Known):
        yield Row("python", f"? {torch.sees_gpu.why}", "unsure")
    elif not torch.sees_gpu.value:
        ceiling = gpus.cuda_ceiling
        most = f": the driver supports CUDA {ceiling.value}" if isinstance(ceiling, Known) else ""
        reason = most if isinstance(torch.cuda, Known) else ": it is not a CUDA build"
        yield Row("python", f"! this torch will not see the GPU{reason}", "warning")


def _tools(facts: HostFacts, home: str) -> Iterator[Row]:
    if not isinstance(facts.tools, Known):
        yield unknown("tools", facts.tools)
        return
    tools = facts.tools.value
    there = {name: tool.value for name, tool in tools.items() if isinstance(tool, Known)}
    yield Row("tools", ", ".join(_tool(name, tool) for name, tool in there.items()) or "none")
    for name, tool in there.items():
        if not tool.on_path:
            where = shown_path(tool.file, home)
            yield Row(
                "tools", f"! {name} is {where}, not on PATH for non-interactive shells", "warning"
            )
    missing = [name for name in _FOR_WORK if name in tools and name not in there]
    if missing:
        yield Row("tools", f"not there: {', '.join(missing)}", "absent")


def _tool(name: str, tool: Tool) -> str:
    return f"{name} {tool.version.value}" if isinstance(tool.version, Known) else name
