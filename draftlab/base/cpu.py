"""What this machine's processors can compute with, by the flags that Linux lists."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

NATIVE_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
"""Flags of processors that multiply bfloat16 numbers: two of x86, one of ARM. Without them each
product is converted back and forth, tens to hundreds of times slower than float32
(github.com/pytorch/pytorch/issues/146508)."""

_FLAG_LINES = ("flags", "Features")
"""As x86 and ARM call them."""


def native_bfloat16(flags: Collection[str]) -> str | None:
    """The flag by which a processor multiplies bfloat16 numbers; None where it does not."""
    return next((name for name in NATIVE_BFLOAT16 if name in flags), None)


def flags_of(cpuinfo: str) -> frozenset[str]:
    """Flags that every processor of a `/proc/cpuinfo` has."""
    rows = (line.split(":", 1) for line in cpuinfo.splitlines() if ":" in line)
    listed = [frozenset(words.split()) for name, words in rows if name.strip() in _FLAG_LINES]
    return frozenset.intersection(*listed) if listed else frozenset()


def read_flags() -> frozenset[str]:
    """Flags of this machine's processors; none where there is no `/proc/cpuinfo`."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return flags_of(text)
