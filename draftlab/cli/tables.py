"""An evaluation as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from draftlab.replay.result import EvaluationRun, Numbered

_BAR_WIDTH = 24
_MOST_BUDGETS = 3  # beside each other in the table by domain, in 80 columns


def result_tables(run: EvaluationRun) -> Iterator[RenderableType]:
    """The headline with its conditions, then methods, slots and domains."""
    yield _headline(run)
    yield _methods(run)
    yield _slots(run)
    if len(run.domains) > 1:
        yield _domains(run)
    for note in run.notes:
        yield Text(f"note: {note}", style="yellow")


def _headline(run: EvaluationRun) -> Text:
    made = run.conditions
    text = Text()
    text.append(f"τ {run.chain.tau:.3f}", style="bold")
    text.append(
        f"  chain, pooled over {run.chain.rounds:,} rounds  (macro {run.chain.tau_macro:.3f})\n"
    )
    text.append(
        f"{run.drafter}: {run.coverage.used} of {run.coverage.total} tensors; "
        f"block {made.block_size}, {made.drafted_per_round} drafted per round\n"
        f"{made.prompts} prompts, {made.completion_tokens:,} tokens, thinking {made.thinking}, "
        f"temperature {made.temperature:g}; {run.agreement:.2%} of reference tokens are the "
        f"target's argmax; {made.computed_on}",
        style="dim",
    )
    return text


def _methods(run: EvaluationRun) -> Table:
    table = Table(
        title="tokens committed per target pass", title_justify="left", box=None, pad_edge=False
    )
    for name, justify in (
        ("method", "left"),
        ("verified", "right"),
        ("τ", "right"),
        ("macro", "right"),
        ("rounds", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    width = run.conditions.block_size
    table.add_row("chain", str(width), *_numbers(run.chain), style="bold")
    for verified, cut in run.widths.items():
        if int(verified) in {2, 4, 8, 12} and int(verified) < width:
            table.add_row(f"chain cut to {verified}", verified, *_numbers(cut))
    for budget, counts in run.trees.items():
        table.add_row(f"tree of {budget} nodes", str(int(budget) + 1), *_numbers(counts))
    for k, bound in run.streaks.items():
        if int(k) > 1:
            table.add_row(f"streak@{k} (bound)", "-", *_numbers(bound), style="dim")
    table.add_row(
        "all-anchor mean (not τ)", "-", f"{run.all_anchor.mean:.3f}", "-", "-", style="dim"
    )
    return table


def _numbers(counts: Numbered) -> tuple[str, str, str]:
    return f"{counts.tau:.3f}", f"{counts.tau_macro:.3f}", f"{counts.rounds:,}"


def _slots(run: EvaluationRun) -> Table:
    table = Table(title="by slot", title_justify="left", box=None, pad_edge=False)
    for name in ("slot", "accepted", "if reached", "top-1, all anchors"):
        table.add_column(name, justify="right")
    table.add_column("accepted in this share of rounds")
    for rates in run.slots:
        share = rates.survival or 0.0
        table.add_row(
            str(rates.slot),
            _percent(rates.survival),
            _percent(rates.conditional),
            _percent(rates.top1_all_anchors),
            "█" * round(share * _BAR_WIDTH),
        )
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _domains(run: EvaluationRun) -> Table:
    table = Table(title="by domain", title_justify="left", box=None, pad_edge=False)
    shown = _spread(list(run.trees), _MOST_BUDGETS)
    table.add_column("domain", no_wrap=True)
    for name in ("prompts", "rounds", "τ", *(f"tree {budget}" for budget in shown)):
        table.add_column(name, justify="right", no_wrap=True)
    for domain, result in run.domains.items():
        rounds = f"{result.chain.rounds:,}" + (" (too few)" if result.too_few else "")
        trees = [f"{result.trees[budget].tau:.2f}" for budget in shown]
        table.add_row(domain, str(result.prompts), rounds, f"{result.chain.tau:.3f}", *trees)
    return table


def _spread(items: list[str], count: int) -> list[str]:
    """At most `count` of the items, the first and the last among them."""
    if len(items) <= count:
        return items
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
