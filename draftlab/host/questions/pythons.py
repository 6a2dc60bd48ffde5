"""Python interpreters and environments, and the torch build in each; none of them is imported."""

from __future__ import annotations

import re

from draftlab.host.fact import Absent, Fact, Known, NotAnswered
from draftlab.host.facts import Gpus, Python, Torch
from draftlab.host.script import Section

_KINDS = {"python": "program", "venv": "venv", "conda": "conda"}
_WRAPPER = "a wrapper script; what it starts is listed by its own name"


def pythons_of(section: Section, gpus: Fact[Gpus]) -> Fact[tuple[Python, ...]]:
    """Programs first, then environments, in the order found.

    Args:
        section: the answer.
        gpus: of the same machine: whether a torch build sees a GPU depends on the driver.
    """
    found = [_python(group, gpus) for group in section.groups(*_KINDS)]
    if not found:
        return Absent(why="neither on PATH nor in the usual places")
    return Known(value=tuple(sorted(found, key=lambda python: python.kind != "program")))


def _python(group: Section, gpus: Fact[Gpus]) -> Python:
    packages: dict[str, str] = {}
    for part in group.parts:
        if part.label == "package":
            name, _, version = part.text.removesuffix(".dist-info").partition("-")
            packages.setdefault(name, version)
    cfg = group.text("cfg") or ""
    label = group.parts[0].label
    return Python.model_validate(
        {
            "file": group.parts[0].text,
            "kind": _KINDS[label],
            "on_path": group.has("on-path"),
            "version": _version(group),
            "torch": _torch(group, gpus),
            "packages": packages,
            "sees_system_packages": label == "python"
            or re.search(r"^include-system-site-packages\s*=\s*true", cfg, re.M) is not None,
        }
    )


def _version(group: Section) -> Fact[str]:
    """From pyvenv.cfg (`version`, uv: `version_info`), conda-meta, a header, or `python -V`."""
    sources = (
        ("cfg", r"^version(?:_info)?\s*=\s*(\d+\.\d+(?:\.\w+)?)"),
        ("conda-python", r"^python-(\d+\.\d+\.\w+)-"),
        ("header", r'PY_VERSION\s+"([\w.+]+)"'),
        ("version", r"^Python (\d+\.\d+\S*)$"),
    )
    for label, pattern in sources:
        found = re.search(pattern, group.text(label) or "", re.MULTILINE)
        if found:
            return Known(value=found[1])
    late = group.text("version-status") == "124"
    return NotAnswered(why="no answer in 5 s" if late else "it does not say")


def _torch(group: Section, gpus: Fact[Gpus]) -> Fact[Torch]:
    text = group.text("torch")
    if text is None:
        return NotAnswered(why=_WRAPPER) if group.has("wrapper") else Absent(why="not installed")
    version = _assigned(text, "__version__")
    if version is None:
        return NotAnswered(why="torch's version.py names no version")
    cuda, hip = _assigned(text, "cuda"), _assigned(text, "hip")
    return Known(
        value=Torch(
            version=version,
            cuda=Absent(why="built without CUDA") if cuda is None else Known(value=cuda),
            hip=Absent(why="built without ROCm") if hip is None else Known(value=hip),
            sees_gpu=sees_gpu(cuda, gpus),
        )
    )


def _assigned(text: str, name: str) -> str | None:
    """The string that a line of version.py assigns; None for None and for no such line."""
    found = re.search(rf"^{name}(?:: [^=\n]+)? = '([^'\n]+)'", text, re.MULTILINE)
    return found[1] if found else None


def sees_gpu(cuda: str | None, gpus: Fact[Gpus]) -> Fact[bool]:
    """Whether a torch build for `cuda` (None: without) sees an NVIDIA GPU here.

    Within one major version a driver runs builds for newer minor ones, unless they compile kernels
    as they go (CUDA's minor version compatibility); so that case is left open.
    """
    if isinstance(gpus, Absent):
        return Absent(why="there is no GPU")
    if cuda is None:
        return Known(value=False)
    ceiling = gpus if isinstance(gpus, NotAnswered) else gpus.value.cuda_ceiling
    if not isinstance(ceiling, Known):
        return NotAnswered(why=f"the driver's CUDA version is not known: {ceiling.why}")
    built, most = _pair(cuda), _pair(ceiling.value)
    if built <= most:
        return Known(value=True)
    if built[0] > most[0]:
        return Known(value=False)
    return NotAnswered(
        why=f"built for CUDA {cuda}, the driver supports {ceiling.value}: the same major version, "
        "so most of it works"
    )


def _pair(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return int(major), int(minor.partition(".")[0] or 0)
