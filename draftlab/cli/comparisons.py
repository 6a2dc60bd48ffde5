"""Comparisons and rankings as tables for the terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from draftlab.compare.comparison import AgainstBase, Comparison, Method
from draftlab.compare.leaderboard import Board
from draftlab.compare.paired import CONFIDENCE, FEWEST_PROMPTS, Estimate
from draftlab.replay.result import Conditions

_WIDTHS_SHOWN = ("4", "8", "12")


def comparison_tables(comparison: Comparison) -> Iterator[RenderableType]:
    """The verdicts, the methods, the domains, the slots."""
    for result in comparison.results:
        yield Text(verdict(result, comparison), style="bold")
    yield Text(conditions_line(comparison), style="dim")
    for result in comparison.results:
        yield _methods(result, comparison)
        if len(result.domains) > 1:
            yield _domains(result, comparison)
        yield _slots(result, comparison)
        for note in result.notes:
            yield Text(f"note: {note}", style="yellow")


def verdict(result: AgainstBase, comparison: Comparison) -> str:
    """One sentence: who drafts better, by how much, and whether chance could do it."""
    chain, base = result.chain, comparison.base.name
    taus = (
        f"chain τ {chain.tau.value:.3f} against {chain.base_tau.value:.3f}, "
        f"macro {chain.tau_macro:.3f} against {chain.base_tau_macro:.3f}"
    )
    if not chain.ratio.has_interval:
        return (
            f"{result.name} and {base}: {taus}; {comparison.prompts} prompts are too few for an "
            f"interval (at least {FEWEST_PROMPTS})"
        )
    if chain.difference.low == chain.difference.high == 0:
        return f"{result.name} has the rounds of {base}: {taus}"
    times = f"{_ratio(chain.ratio)} of the τ of {base} ({taus})"
    if not chain.ratio.excludes(1.0):
        return f"{result.name} has {times}: {comparison.prompts} prompts cannot tell the two apart"
    return f"{result.name} has {times}"


def conditions_line(comparison: Comparison) -> str:
    """What the numbers depend on."""
    return (
        f"{_conditions(comparison.conditions)}; intervals: {CONFIDENCE:.0%}, paired, over prompts"
    )


def markdown_text(comparison: Comparison) -> str:
    """A summary for a pull request."""
    lines = [f"**{verdict(result, comparison)}**  " for result in comparison.results]
    lines += ["", conditions_line(comparison), ""]
    lines += ["| run | method | τ | base τ | difference | ratio |", "|---|---|---|---|---|---|"]
    for result in comparison.results:
        for method in _shown(result.methods):
            cells = [result.name, *_cells(method)]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def leaderboard_tables(boards: Sequence[Board]) -> Iterator[RenderableType]:
    """One ranking for each group of comparable runs."""
    for board in boards:
        yield Text(_conditions(board.conditions), style="dim")
        table = _table("", ("", "run", "τ", "of the first", "macro", "rounds"))
        for number, place in enumerate(board.places, start=1):
            share = "-" if place.ratio_to_first is None else _ratio(place.ratio_to_first)
            _add(
                table,
                (
                    str(number),
                    place.name,
                    _interval(place.tau),
                    share,
                    f"{place.tau_macro:.2f}",
                    f"{place.rounds:,}",
                ),
            )
        yield table


def _conditions(made: Conditions) -> str:
    return (
        f"{made.prompts} completions, {made.completion_tokens:,} tokens, thinking {made.thinking}, "
        f"temperature {made.temperature:g}; target {made.target_architecture}"
    )


def _methods(result: AgainstBase, comparison: Comparison) -> Table:
    table = _table(
        f"{result.name} against {comparison.base.name}",
        ("method", "τ", "base τ", "difference", "ratio"),
    )
    for method in _shown(result.methods):
        _add(table, _cells(method))
    return table


def _shown(methods: Sequence[Method]) -> Iterator[Method]:
    """All methods but most of the cut chains; the record holds every one."""
    for method in methods:
        cut = method.method.removeprefix("chain cut to ")
        if cut == method.method or cut in _WIDTHS_SHOWN:
            yield method


def _cells(method: Method) -> tuple[str, ...]:
    return (
        method.method,
        f"{method.tau.value:.3f}",
        f"{method.base_tau.value:.3f}",
        _interval(method.difference, sign="+"),
        _ratio(method.ratio),
    )


def _domains(result: AgainstBase, comparison: Comparison) -> Table:
    table = _table("chain, by domain", ("domain", "prompts", "τ", "base τ", "ratio"))
    for domain in result.domains:
        ratio = "too few rounds" if domain.too_few else _ratio(domain.ratio)
        taus = f"{domain.tau.value:.3f}", f"{domain.base_tau.value:.3f}"
        _add(table, (domain.domain, str(domain.prompts), *taus, ratio))
    return table


def _slots(result: AgainstBase, comparison: Comparison) -> Table:
    table = _table("accepted once reached, by slot", ("slot", result.name, comparison.base.name))
    for shares in result.slots:
        both = map(_percent, (shares.conditional, shares.base_conditional))
        _add(table, (str(shares.slot), *both))
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for place, name in enumerate(columns):
        left = place == 0 or name in {"run"}
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    return table


def _add(table: Table, cells: Sequence[str]) -> None:
    """A row of plain text: names come from outside and may look like markup."""
    table.add_row(*map(Text, cells))


def _interval(estimate: Estimate, sign: str = "") -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:{sign}.2f}"
    return f"{estimate.value:{sign}.2f} [{estimate.low:{sign}.2f}, {estimate.high:{sign}.2f}]"


def _ratio(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}×"
    return f"{estimate.value:.2f}× [{estimate.low:.2f}, {estimate.high:.2f}]"
