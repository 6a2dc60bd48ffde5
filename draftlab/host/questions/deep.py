"""Measured rates: what the disk, the memory and the matrix units give beside whatever runs."""

from __future__ import annotations

import re

from draftlab.host.fact import Absent, Fact, Known, NotAnswered
from draftlab.host.facts import DiskRate, Measured, Rates
from draftlab.host.questions.reading import CUT, last_line
from draftlab.host.script import SECONDS, Section


def rates_of(section: Section) -> Fact[Rates]:
    """Each rate by itself: what was measured before a time limit stands."""
    fill = dd_rate(section.text("zeros") or "")
    rates = Rates(
        disk_read=_disk(section),
        zero_fill_bytes_per_second=_unmeasured(section) if fill is None else Known(value=fill),
        computed=_computed(section),
    )
    return Known(value=rates)


def dd_rate(text: str) -> float | None:
    """Bytes per second by dd's closing line: `134217728 bytes (...) copied, 0.05 s, ...`."""
    found = re.search(r"^(\d+) bytes.*?copied, ([\d.]+(?:e-?\d+)?) s", text, re.MULTILINE)
    if found is None or float(found[2]) <= 0 or int(found[1]) == 0:
        return None
    return int(found[1]) / float(found[2])


def _disk(section: Section) -> Fact[DiskRate]:
    if not section.has("zeros"):
        return _unmeasured(section)
    file = section.text("file")
    if file is None:
        return Absent(why="no file of 256 MiB or more in the model folders to read from")
    rate = dd_rate(section.text("direct") or "")
    past_cache = rate is not None and section.text("direct-status") == "0"
    if not past_cache:
        rate = dd_rate(section.text("plain") or "")
    if rate is None:
        return NotAnswered(why=f"dd: {last_line(section.text('plain') or '')}")
    return Known(value=DiskRate(bytes_per_second=rate, file=file, past_cache=past_cache))


def _computed(section: Section) -> Fact[Measured]:
    torch, numpy = section.text("torch-python"), section.text("numpy-python")
    if torch is None or numpy is None:
        return _unmeasured(section)
    if not torch and not numpy:
        return Absent(why="no Python with torch or numpy there")
    status = section.text("measured-status")
    if status is None or status == "124":
        return _unmeasured(section)
    if status != "0":
        return NotAnswered(why=f"{torch or numpy} failed to measure")
    return Known(value=Measured.model_validate_json(section.text("measured") or ""))


def _unmeasured(section: Section) -> NotAnswered:
    if not section.ended:
        return NotAnswered(why=CUT)
    return NotAnswered(why=f"not measured in {SECONDS['deep']} s")
