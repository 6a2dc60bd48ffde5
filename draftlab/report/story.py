"""A run in words and in tables: everything on the page that can be read without a script.

In:   EvaluationRun.  Out: RunStory: sentences, named numbers, tables of text.

The words are those of draftlab.replay.result, and only in its senses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from draftlab.replay.result import EvaluationRun, Numbered

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Text in columns. The first column names the row."""

    head: Row
    rows: tuple[Row, ...]
    bar_after: int = 0
    """Column (from 1) whose numbers are also drawn as bars; 0: none."""
    shares: tuple[float, ...] = ()
    """Length of each row's bar, 0 to 1."""


@dataclass(frozen=True, slots=True)
class RunStory:
    """What the page says about one run."""

    name: str
    tau: str
    tau_macro: str
    rounds: str
    prompts: str
    verdict: tuple[tuple[str, bool], ...]
    """Sentences in parts; True where a part is the number that matters."""
    conditions: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    methods: Table
    budgets: Table
    widths: Table
    slots: Table
    histogram: Table
    domains: Table
    origins: tuple[tuple[str, str], ...]


def story_of(run: EvaluationRun) -> RunStory:
    """Put one run into words."""
    return RunStory(
        name=run.drafter,
        tau=f"{run.chain.tau:.3f}",
        tau_macro=f"{run.chain.tau_macro:.3f}",
        rounds=f"{run.chain.rounds:,}",
        prompts=f"{run.conditions.prompts:,}",
        verdict=tuple(_verdict(run)),
        conditions=tuple(_conditions(run)),
        notes=tuple(_notes(run)),
        methods=_methods(run),
        budgets=_budgets(run),
        widths=_widths(run),
        slots=_slots(run),
        histogram=_histogram(run),
        domains=_domains(run),
        origins=tuple(_origins(run)),
    )


def percent(share: float | None) -> str:
    """71.3 %, or a dash where there is nothing to share."""
    return "–" if share is None else f"{100 * share:.1f} %"


def _verdict(run: EvaluationRun) -> Iterator[tuple[str, bool]]:
    """What a reader should know after ten seconds."""
    yield "On average ", False
    yield f"{run.chain.tau:.3f} tokens", True
    yield (
        f" are committed per target pass, of at most {run.conditions.block_size}: "
        "the drafts that were right, and the target's own token. ",
        False,
    )
    if run.slots:
        yield "The first draft is right ", False
        yield percent(run.slots[0].survival), True
        yield " of the time", False
        middle = len(run.slots) // 2
        if middle:
            first = percent(run.slots[middle].survival)
            yield f", the first {middle + 1} are all right {first}", False
        yield ". ", False
    yield from _weakest(run)
    drafted, curve = run.conditions.drafted_per_round, run.tree_tau_by_budget
    if drafted <= len(curve):
        yield f"A draft tree of as many nodes ({drafted}) would commit ", False
        yield f"{curve[drafted - 1]:.3f}", True
        yield f", one of {len(curve):,} nodes {curve[-1]:.3f}.", False


def _weakest(run: EvaluationRun) -> Iterator[tuple[str, bool]]:
    """The weakest and the strongest domain among those with enough rounds."""
    told = {name: result.chain for name, result in run.domains.items() if not result.too_few}
    if len(told) < 2:
        return
    weakest = min(told, key=lambda name: told[name].tau)
    strongest = max(told, key=lambda name: told[name].tau)
    yield "Weakest domain: ", False
    yield f"{weakest}, {told[weakest].tau:.3f}", True
    yield f"; strongest: {strongest}, {told[strongest].tau:.3f}. ", False


def _conditions(run: EvaluationRun) -> Iterator[tuple[str, str]]:
    made = run.conditions
    greedy = " (greedy)" if made.temperature == 0 else ""
    yield "prompts", f"{made.prompts:,}"
    yield "completion tokens", f"{made.completion_tokens:,}"
    yield "thinking", made.thinking
    yield "temperature", f"{made.temperature:g}{greedy}"
    yield "block", f"{made.block_size} (the anchor and {made.drafted_per_round} drafted)"
    if made.widths:
        yield "verify widths", f"{min(made.widths)} to {max(made.widths)}"
    yield "tree budgets", ", ".join(map(str, made.budgets)) or "none listed"
    yield "length limit", f"{made.max_new_tokens:,}" + (", end of text ignored" * made.ignore_eos)
    yield "computed on", made.computed_on
    yield "target", made.target_architecture
    yield (
        "drafter tensors",
        f"{run.coverage.used} of {run.coverage.total}, {run.coverage.stored_as}",
    )
    yield "reference = target's argmax", f"{100 * run.agreement:.2f} % of tokens"


def _notes(run: EvaluationRun) -> Iterator[str]:
    yield from run.notes
    cut = sum(run.chain.cut)
    if cut:
        yield (
            f"The end of the text cut {cut:,} of {run.chain.rounds:,} rounds short; "
            "they commit what was left."
        )


def _numbers(counts: Numbered) -> Row:
    return f"{counts.tau:.3f}", f"{counts.tau_macro:.3f}", f"{counts.rounds:,}"


def _methods(run: EvaluationRun) -> Table:
    """The chain, every listed tree, and what is not τ under its own name."""
    rows = [("chain", str(run.conditions.block_size), *_numbers(run.chain))]
    rows += [
        (f"tree, budget {budget}", f"{int(budget) + 1:,}", *_numbers(counts))
        for budget, counts in run.trees.items()
    ]
    rows += [
        (f"streak@{k} (bound for trees of width {k})", "–", *_numbers(bound))
        for k, bound in run.streaks.items()
        if int(k) > 1
    ]
    anchors = f"{run.all_anchor.anchors:,} anchors"
    rows.append(("all-anchor mean (not τ)", "–", f"{run.all_anchor.mean:.3f}", "–", anchors))
    return Table(("method", "tokens verified", "τ", "τ macro", "rounds"), tuple(rows))


def _budgets(run: EvaluationRun) -> Table:
    """Powers of two and the listed budgets; rounds only where they were listed."""
    curve = run.tree_tau_by_budget
    listed = {int(budget): counts for budget, counts in run.trees.items()}
    powers = {1 << i for i in range(len(curve).bit_length()) if 1 << i <= len(curve)}
    rows = []
    for budget in sorted(powers | set(listed)):
        counts = listed.get(budget)
        rest = _numbers(counts)[1:] if counts else ("–", "–")
        rows.append((f"{budget:,}", f"{curve[budget - 1]:.3f}", *rest))
    return Table(("budget (nodes)", "τ", "τ macro", "rounds"), tuple(rows))


def _widths(run: EvaluationRun) -> Table:
    """The chain cut to each width, beside the tree that verifies as many tokens."""
    rows = tuple(
        (width, *_numbers(counts), f"{run.tree_tau_by_budget[int(width) - 2]:.3f}")
        for width, counts in run.widths.items()
    )
    head = ("tokens verified", "chain τ", "chain τ macro", "chain rounds", "tree τ, as many nodes")
    return Table(head, rows)


def _slots(run: EvaluationRun) -> Table:
    rows = tuple(
        (
            str(rates.slot),
            percent(rates.survival),
            percent(rates.conditional),
            percent(rates.top1_all_anchors),
            f"{rates.accepted:,} / {rates.reached:,} / {rates.rounds:,}",
        )
        for rates in run.slots
    )
    counts = "rounds: accepted / reached / long enough"
    return Table(("slot", "accepted", "if reached", "top-1, all anchors", counts), rows)


def _histogram(run: EvaluationRun) -> Table:
    rows = tuple(
        (tokens, f"{rounds:,}", percent(rounds / run.chain.rounds))
        for tokens, rounds in run.histogram.items()
    )
    return Table(("tokens committed", "rounds", "share of rounds"), rows)


def _domains(run: EvaluationRun) -> Table:
    head = ("domain", "prompts", "rounds", "τ", "τ macro", *(f"tree {b}" for b in run.trees))
    rows = []
    for name, result in run.domains.items():
        rounds = f"{result.chain.rounds:,}" + (" (too few)" if result.too_few else "")
        trees = [f"{counts.tau:.2f}" for counts in result.trees.values()]
        tau, macro, _ = _numbers(result.chain)
        rows.append((name, f"{result.prompts:,}", rounds, tau, macro, *trees))
    most = max(result.chain.tau for result in run.domains.values())
    shares = tuple(result.chain.tau / most for result in run.domains.values())
    return Table(head, tuple(rows), bar_after=head.index("τ") + 1, shares=shares)


def _origins(run: EvaluationRun) -> Iterator[tuple[str, str]]:
    """What identifies the run and its inputs."""
    made = run.conditions
    yield "evaluated", f"{run.provenance.created_utc}, draftlab {run.provenance.draftlab}"
    yield "command", " ".join(run.provenance.command)
    yield "drafter", run.drafter_fingerprint
    yield "target", made.target_fingerprint
    yield "prompts", made.prompts_digest
    yield "reference", made.reference_digest
    yield "store", made.store_digest
    yield "chat template", made.template_digest or "none used"
