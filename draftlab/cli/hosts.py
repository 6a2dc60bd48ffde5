"""Machines as tables for the terminal, one screen each.

What is known stands plain; what is absent is dim and says why; what was not answered is yellow and
starts with `?`. Text from the machines never reaches the terminal raw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from draftlab.base.quantities import one_line
from draftlab.cli.host_models import model_rows, server_rows
from draftlab.cli.host_parts import Row, shown_path, unknown
from draftlab.cli.host_rows import machine_rows
from draftlab.cli.host_software import software_rows
from draftlab.host.fact import Known, known_or
from draftlab.host.facts import HostFacts
from draftlab.host.probe import NotReached

_SHADES = {"known": "", "absent": "dim", "unsure": "yellow", "warning": "dark_orange"}


def host_tables(hosts: Iterable[HostFacts]) -> Iterator[RenderableType]:
    """A heading and a table for each machine."""
    for number, facts in enumerate(hosts):
        if number:
            yield Text()
        yield _heading(facts)
        yield _grid(_rows(facts))


def missing_lines(missing: Iterable[NotReached]) -> Iterator[RenderableType]:
    """Two lines for each machine that was not reached."""
    for one in missing:
        yield Text()
        yield Text(f"not reached: {one_line(one.why, at_most=400)}", style="dark_orange")
        yield Text(f"  fix: {one_line(one.mend, at_most=400)}")


def _heading(facts: HostFacts) -> Text:
    text = Text(one_line(facts.host), style="bold")
    if isinstance(facts.system, Known):
        system = facts.system.value
        name = known_or(system.distribution, system.kernel)
        words = one_line(f"{name} · {system.kernel} {system.kernel_release} {system.machine}")
        text.append(f"  {words}", style="not bold dim")
    text.append(f" · {facts.asked_seconds:.2f} s", style="not bold dim")
    return text


def _rows(facts: HostFacts) -> Iterator[Row]:
    home = facts.system.value.home if isinstance(facts.system, Known) else ""
    yield from machine_rows(facts)
    yield from software_rows(facts, home)
    yield from server_rows(facts)
    yield from model_rows(facts)
    if isinstance(facts.scripts, Known):
        names = [shown_path(script, home) for script in facts.scripts.value]
        yield Row("scripts", f"{len(names)}: {', '.join(names[:12])}{' …' * (len(names) > 12)}")
    else:
        yield unknown("scripts", facts.scripts)


def _grid(rows: Iterable[Row]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True, min_width=8)
    table.add_column(overflow="fold")
    last = ""
    for row in rows:
        label = "" if row.label == last else row.label
        table.add_row(label, Text(one_line(row.text, at_most=600), style=_SHADES[row.shade]))
        last = row.label
    return table
