"""Runs on the same references against a base run: what is compared, what is refused.

In:   run.json files.  Out: a Comparison.

Comparable are runs of the same texts: same target, prompts, completions, thinking mode, template
and temperature. Drafters may differ in everything, block size included: the chain cut to a common
verify width, and trees of one budget, compare them at equal cost for the target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from draftlab.base.errors import DraftlabError
from draftlab.base.quantities import listing
from draftlab.base.records import Document, Provenance, Record, sha256_file
from draftlab.compare.paired import Estimate, PromptTotals, difference, ratio, tau_interval
from draftlab.replay.result import (
    FEW_ROUNDS,
    Conditions,
    EvaluationRun,
    WalkTotals,
    totals,
)

SAME = {
    "target_fingerprint": "target",
    "prompts_digest": "prompts",
    "thinking": "thinking mode",
    "template_digest": "chat template",
    "temperature": "temperature",
    "max_new_tokens": "token limit",
    "ignore_eos": "whether end-of-text tokens stop a completion",
    "reference_digest": "completions",
}
"""Conditions that must agree, with the name that a refusal gives them; the telling ones first."""


@dataclass(frozen=True, slots=True)
class NamedRun:
    """A run under a name that no other run of the comparison has."""

    name: str
    path: Path
    run: EvaluationRun


class Side(Record):
    """One run of a comparison."""

    name: str
    file: str
    sha256: str
    drafter_fingerprint: str
    block_size: int


class Method(Record):
    """One run against the base by one method."""

    method: str
    """`chain`, `chain cut to W` (verify width), `tree of N nodes`."""
    tau: Estimate
    base_tau: Estimate
    difference: Estimate
    ratio: Estimate
    tau_macro: float
    """Mean over completions of their own τ; no interval is given for it."""
    base_tau_macro: float
    rounds: int
    base_rounds: int


class DomainMethod(Record):
    """The chain of one run against the base, in one domain."""

    domain: str
    prompts: int
    tau: Estimate
    base_tau: Estimate
    ratio: Estimate
    too_few: bool
    """Fewer than FEW_ROUNDS rounds on one side."""


class SlotShares(Record):
    """Share of chain rounds that accept a slot once all earlier ones were accepted."""

    slot: int
    conditional: float | None
    """None: no round reached it."""
    base_conditional: float | None


class AgainstBase(Record):
    """Everything about one run against the base."""

    name: str
    methods: tuple[Method, ...]
    """The chain first."""
    domains: tuple[DomainMethod, ...]
    slots: tuple[SlotShares, ...]
    """The slots that both draft."""
    notes: tuple[str, ...]

    @property
    def chain(self) -> Method:
        """The headline."""
        return self.methods[0]


class Comparison(Document):
    """Runs against a base run, on the same references."""

    SCHEMA: ClassVar[str] = "draftlab.comparison/1"

    base: Side
    others: tuple[Side, ...]
    prompts: int
    completions: int
    conditions: Conditions
    """Of the base; `SAME` says which of them hold for all."""
    results: tuple[AgainstBase, ...]
    """In the order of `others`."""
    provenance: Provenance


def open_runs(paths: Sequence[Path]) -> tuple[NamedRun, ...]:
    """Read runs and name each: by its drafter, by file where drafters share a name.

    Raises:
        DraftlabError: a file is no run, or the same file is given twice.
    """
    twice = [path for path, times in Counter(p.resolve() for p in paths).items() if times > 1]
    if twice:
        raise DraftlabError(f"{twice[0]} is given twice.", mend="Give each run once.")
    runs = [EvaluationRun.load(path) for path in paths]
    names = _distinct(
        [(run.drafter, path.stem, str(path)) for path, run in zip(paths, runs, strict=True)]
    )
    return tuple(NamedRun(*parts) for parts in zip(names, paths, runs, strict=True))


def _distinct(choices: Sequence[tuple[str, ...]]) -> list[str]:
    """For each its first choice that nobody else has as the same choice."""
    counted = [Counter(column) for column in zip(*choices, strict=True)]
    return [
        next(name for name, others in zip(mine, counted, strict=True) if others[name] == 1)
        for mine in choices
    ]


def unlike(one: EvaluationRun, other: EvaluationRun) -> tuple[str, ...]:
    """What keeps two runs from being compared, in words; empty if nothing does."""
    found = [
        f"{name} ({getattr(one.conditions, field)} against {getattr(other.conditions, field)})"
        for field, name in SAME.items()
        if getattr(one.conditions, field) != getattr(other.conditions, field)
    ]
    if not found and one.prompt_ids != other.prompt_ids:
        found.append("order of the prompts")
    return tuple(found)


def compare(base: NamedRun, others: Sequence[NamedRun]) -> Comparison:
    """Compare runs with a base run, prompt by prompt.

    Raises:
        DraftlabError: they are not of the same references, naming what differs.
    """
    for other in others:
        differing = unlike(base.run, other.run)
        if differing:
            raise DraftlabError(
                f"{base.name} and {other.name} cannot be compared; they differ in "
                f"{'; '.join(differing)}.",
                mend="Evaluate both drafters on stores of one reference.",
            )
    return Comparison(
        base=_side(base),
        others=tuple(map(_side, others)),
        prompts=len(set(prompts_of(base.run))),
        completions=len(base.run.prompt_ids),
        conditions=base.run.conditions,
        results=tuple(_against(base.run, other) for other in others),
        provenance=Provenance.now(),
    )


def prompts_of(run: EvaluationRun) -> tuple[str, ...]:
    """The prompt of each completion: what the bootstrap draws."""
    return run.prompt_ids


def methods_of(run: EvaluationRun) -> dict[str, WalkTotals]:
    """Every method of a run whose rounds are known by completion, the chain first."""
    found = {"chain": totals(run.chain)}
    width = run.conditions.block_size
    found |= {f"chain cut to {w}": run.widths[w] for w in run.widths if int(w) < width}
    found |= {f"tree of {b} nodes": totals(counts) for b, counts in run.trees.items()}
    return found


def tau_of(run: EvaluationRun) -> Estimate:
    """The chain's τ with its interval."""
    return tau_interval(_by_prompt(totals(run.chain), prompts_of(run)))


def _side(named: NamedRun) -> Side:
    return Side(
        name=named.name,
        file=str(named.path),
        sha256=sha256_file(named.path),
        drafter_fingerprint=named.run.drafter_fingerprint,
        block_size=named.run.conditions.block_size,
    )


def _against(base: EvaluationRun, other: NamedRun) -> AgainstBase:
    return AgainstBase(
        name=other.name,
        methods=tuple(_methods(base, other.run)),
        domains=tuple(_domains(base, other.run)),
        slots=tuple(_slots(base, other.run)),
        notes=tuple(_notes(base, other.run)),
    )


def _methods(base: EvaluationRun, run: EvaluationRun) -> Iterator[Method]:
    theirs, mine = _at_equal_widths(base, run), _at_equal_widths(run, base)
    for name, own in mine.items():
        if name in theirs:
            yield _method(name, own, theirs[name], prompts_of(run))


def _at_equal_widths(run: EvaluationRun, other: EvaluationRun) -> Mapping[str, WalkTotals]:
    """A run's methods; its whole chain is also the cut one at its own width.

    So a drafter of block 8 meets one of block 16 that is cut to 8.
    """
    found = methods_of(run)
    own = run.conditions.block_size
    if own < other.conditions.block_size:
        found[f"chain cut to {own}"] = found["chain"]
    return found


def _method(name: str, own: WalkTotals, theirs: WalkTotals, prompts: Sequence[str]) -> Method:
    one, base = _by_prompt(own, prompts), _by_prompt(theirs, prompts)
    return Method(
        method=name,
        tau=tau_interval(one),
        base_tau=tau_interval(base),
        difference=difference(one, base),
        ratio=ratio(one, base),
        tau_macro=own.tau_macro,
        base_tau_macro=theirs.tau_macro,
        rounds=own.rounds,
        base_rounds=theirs.rounds,
    )


def _by_prompt(counts: WalkTotals, prompts: Sequence[str]) -> PromptTotals:
    return PromptTotals.of(counts.committed_by_completion, counts.rounds_by_completion, prompts)


def _domains(base: EvaluationRun, run: EvaluationRun) -> Iterator[DomainMethod]:
    prompts = prompts_of(run)
    for domain in dict.fromkeys(run.prompt_domains):
        members = [i for i, name in enumerate(run.prompt_domains) if name == domain]
        here = [prompts[i] for i in members]
        mine, theirs = totals(run.chain.of(members)), totals(base.chain.of(members))
        one, other = _by_prompt(mine, here), _by_prompt(theirs, here)
        yield DomainMethod(
            domain=domain,
            prompts=len(set(here)),
            tau=tau_interval(one),
            base_tau=tau_interval(other),
            ratio=ratio(one, other),
            too_few=min(mine.rounds, theirs.rounds) < FEW_ROUNDS,
        )


def _slots(base: EvaluationRun, run: EvaluationRun) -> Iterator[SlotShares]:
    for mine, theirs in zip(run.slots, base.slots, strict=False):
        yield SlotShares(
            slot=mine.slot, conditional=mine.conditional, base_conditional=theirs.conditional
        )


def _notes(base: EvaluationRun, run: EvaluationRun) -> Iterator[str]:
    one, other = base.conditions, run.conditions
    if one.block_size != other.block_size:
        yield (
            f"blocks of {other.block_size} against {one.block_size}: compare them at one verify "
            "width, or by trees of one budget"
        )
    if one.computed_on != other.computed_on:
        yield f"computed on {other.computed_on}; the base on {one.computed_on}"
    if base.agreement != run.agreement:
        yield (
            f"the stores agree with the reference to {run.agreement:.2%} and {base.agreement:.2%}"
        )
    missing = sorted(map(int, base.trees.keys() ^ run.trees.keys()))
    if missing:
        yield f"budgets that only one of the two has: {listing(missing)}"


def comparable_groups(runs: Sequence[NamedRun]) -> tuple[tuple[NamedRun, ...], ...]:
    """Runs in groups of comparable ones, in the order of their first members."""
    groups: list[list[NamedRun]] = []
    for named in runs:
        for group in groups:
            if not unlike(group[0].run, named.run):
                group.append(named)
                break
        else:
            groups.append([named])
    return tuple(map(tuple, groups))
