"""How long work shows that it is alive.

Library functions take a `track` argument and call it around what they iterate over; the caller
chooses: `silent` (the default) or `bar` (a terminal bar with rate and time left; a line every
thirty seconds where standard error is not a terminal). Nothing is ever printed to standard output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from draftlab.base.quantities import seconds_text

T = TypeVar("T")

LOG_INTERVAL_SECONDS = 30.0


class Track(Protocol):
    """Wraps an iterable of work; the library calls it, the caller chooses it."""

    def __call__(self, items: Iterable[T], *, total: int, what: str, unit: str) -> Iterator[T]:
        """Yield the items unchanged, showing `what` advance through `total` of `unit`."""
        ...


def silent(items: Iterable[T], *, total: int, what: str, unit: str) -> Iterator[T]:
    """Show nothing: a library does not write to its caller's terminal."""
    yield from items


def bar(items: Iterable[T], *, total: int, what: str, unit: str) -> Iterator[T]:
    """A bar with count and time left on a terminal; plain lines in a log file."""
    if sys.stderr.isatty():
        yield from _terminal_bar(items, total=total, what=what, unit=unit)
    else:
        yield from _log_lines(items, total=total, what=what, unit=unit)


def _terminal_bar(items: Iterable[T], *, total: int, what: str, unit: str) -> Iterator[T]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total)
        for item in items:
            yield item
            progress.advance(task)


def _log_lines(items: Iterable[T], *, total: int, what: str, unit: str) -> Iterator[T]:
    started = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= LOG_INTERVAL_SECONDS:
            last = now
            left = (now - started) / done * (total - done)
            print(f"{what}: {done}/{total} {unit}, {seconds_text(left)} left", file=sys.stderr)  # noqa: T201
