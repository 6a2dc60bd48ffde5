"""How bytes, seconds, counts and foreign text are written for people."""

from __future__ import annotations

from collections.abc import Sequence


def bytes_text(num_bytes: float) -> str:
    """Binary units, three significant digits: 512 B, 1.50 KiB, 16.0 GiB."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            digits = ".0f" if unit == "B" or abs(size) >= 999.5 else ".3g"  # 1008, not 1.01e+03
            return f"{size:{digits}} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def seconds_text(seconds: float) -> str:
    """0.42 s, 12.3 s, 4:05, 1:02:03."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def listing(names: Sequence[object], *, at_most: int = 5) -> str:
    """The first few names of a list, and how many more there are: `a, b, c (+12 more)`."""
    shown = ", ".join(str(name) for name in names[:at_most])
    return shown if len(names) <= at_most else f"{shown} (+{len(names) - at_most} more)"


def one_line(text: str, *, at_most: int = 200) -> str:
    """Text from outside as one line that a terminal may show: no control characters, and cut."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(shown.split())[:at_most]
