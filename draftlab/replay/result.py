"""What one drafter earned on one store: the record, and the definition of every number in it.

    τ              tokens committed / rounds, pooled over all completions: a ratio of sums
    τ macro        mean over completions of each one's own τ
    accepted       drafted tokens of a round that matched the reference
    committed      accepted + 1 (the target's own token); a round cut by the end commits what was
                   left
    streak@k       τ of the walk in which a slot counts as right if the reference token is among the
                   drafter's k best: an upper bound for any tree of width k; not a tree of k nodes
    all-anchor     1 + mean accepted over all anchors, which trainers log; not τ: easy stretches
                   hold more anchors per round

Tokens that can be committed are those of a completion but the first, which the prefill gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import StringConstraints, computed_field

from draftlab.base.records import Document, Provenance, Record

FEW_ROUNDS = 20
"""A domain with fewer rounds than this is marked as too few to read anything from."""


class WalkCounts(Record):
    """The rounds of one method; every estimator follows from these counts."""

    committed: tuple[tuple[int, ...], ...]
    """Tokens committed, [completion][round], in the order of the reference."""
    cut: tuple[bool, ...]
    """Whether the end of the completion cut the last round short of the target's own token."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tau(self) -> float:
        """Tokens committed / rounds, pooled."""
        return sum(map(sum, self.committed)) / self.rounds

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tau_macro(self) -> float:
        """Mean over completions of tokens / rounds."""
        return sum(sum(c) / len(c) for c in self.committed) / len(self.committed)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rounds(self) -> int:
        """Rounds in all: target passes after the prefill."""
        return sum(map(len, self.committed))

    def of(self, completions: Sequence[int]) -> WalkCounts:
        """The same method on some of the completions."""
        return WalkCounts(
            committed=tuple(self.committed[i] for i in completions),
            cut=tuple(self.cut[i] for i in completions),
        )


class WalkSummary(Record):
    """A method's numbers without its rounds."""

    tau: float
    tau_macro: float
    rounds: int


class WalkTotals(Record):
    """A method's tokens and rounds by completion, without the length of each round."""

    committed_by_completion: tuple[int, ...]
    """Tokens committed, in the order of the reference."""
    rounds_by_completion: tuple[int, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tau(self) -> float:
        """Tokens committed / rounds, pooled."""
        return sum(self.committed_by_completion) / self.rounds

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tau_macro(self) -> float:
        """Mean over completions of tokens / rounds."""
        pairs = zip(self.committed_by_completion, self.rounds_by_completion, strict=True)
        return sum(tokens / rounds for tokens, rounds in pairs) / len(self.rounds_by_completion)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rounds(self) -> int:
        """Rounds in all."""
        return sum(self.rounds_by_completion)


Numbered = WalkCounts | WalkTotals | WalkSummary
"""Whatever has τ, its macro mean and a number of rounds."""


class SlotRates(Record):
    """One drafted slot. Rounds and anchors count only where the completion reaches that far."""

    slot: int
    """1 is the first drafted token."""
    rounds: int
    """Chain rounds whose completion reaches this slot."""
    reached: int
    """Of these, rounds in which all earlier slots were accepted."""
    accepted: int
    """Of these, rounds in which this slot was accepted too."""
    anchors: int
    """Anchors (all of them, walked or not) whose completion reaches this slot."""
    top1: int
    """Of these, anchors at which the drafter's best token is the reference's, whatever came
    before."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def survival(self) -> float | None:
        """Share of rounds that accept this slot: unconditional. None without a round."""
        return self.accepted / self.rounds if self.rounds else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def conditional(self) -> float | None:
        """Share that accepts this slot among rounds that accepted all earlier ones."""
        return self.accepted / self.reached if self.reached else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def top1_all_anchors(self) -> float | None:
        """Share of all anchors whose best token is right in this slot."""
        return self.top1 / self.anchors if self.anchors else None


class AllAnchor(Record):
    """The mean over all anchors. Shown under this name only; it is not τ."""

    mean: float
    anchors: int
    cut_anchors: int
    """Anchors whose block reaches past the end of the completion."""


class DomainResult(Record):
    """One domain's share of the result."""

    prompts: int
    chain: WalkSummary
    trees: dict[str, WalkSummary]
    too_few: bool
    """Fewer chain rounds than FEW_ROUNDS."""


class Conditions(Record):
    """What a number depends on; two runs that differ here are not comparable."""

    prompts: int
    completion_tokens: int
    prompts_digest: str
    reference_digest: str
    store_digest: str
    target_architecture: str
    target_fingerprint: str
    thinking: str
    template_digest: str
    temperature: float
    max_new_tokens: int
    ignore_eos: bool
    block_size: int
    drafted_per_round: int
    widths: tuple[int, ...]
    """Verify widths of the truncated chains: tokens a target pass checks, the anchor included."""
    budgets: tuple[int, ...]
    """Tree budgets listed with their rounds: nodes below the root."""
    computed_on: str
    """Device, number type, threads."""


class CoverageRecord(Record):
    """How much of the drafter's checkpoint was used."""

    used: int
    total: int
    stored_as: str


class EvaluationRun(Document):
    """What one drafter earned on one store."""

    SCHEMA: ClassVar[str] = "draftlab.run/2"

    drafter: str
    """Name of the drafter's folder."""
    drafter_fingerprint: str
    coverage: CoverageRecord
    conditions: Conditions
    agreement: float
    """Share of reference tokens that equal the target's argmax in the capture."""
    chain: WalkCounts
    trees: dict[str, WalkCounts]
    """By budget."""
    tree_tau_by_budget: tuple[float, ...]
    """Pooled τ of budget 1, 2, ..., in order."""
    widths: dict[str, WalkTotals]
    """The chain cut to a narrower verify width. Not the same as drafting with a smaller block."""
    streaks: dict[str, WalkTotals]
    """By k."""
    all_anchor: AllAnchor
    slots: tuple[SlotRates, ...]
    histogram: dict[str, int]
    """Chain rounds by tokens committed; rounds cut by the end included."""
    domains: dict[str, DomainResult]
    prompt_ids: tuple[str, ...]
    prompt_domains: tuple[str, ...]
    notes: tuple[str, ...]
    rounds_file: str
    """File beside this one with the drafts of every anchor; empty if none was written."""
    rounds_sha256: str
    texts_file: str
    """File beside this one with the tokens and how they read (RunTexts); empty if none was
    written."""
    texts_sha256: str
    provenance: Provenance


class RunTexts(Document):
    """The tokens of a run's prompts and completions, and how each token reads."""

    SCHEMA: ClassVar[str] = "draftlab.texts/1"
    INDENT: ClassVar[int | None] = None

    prompts: tuple[tuple[int, ...], ...]
    """Token ids, [completion][position]."""
    completions: tuple[tuple[int, ...], ...]
    """Token ids, [completion][position]; the first is the first anchor."""
    pieces: dict[str, str] | None
    """Text of each token id above or among the drafts, alone. None: the target has no tokenizer."""
    byte_pieces: dict[str, Annotated[str, StringConstraints(pattern="^([0-9a-f]{2})+$")]]
    """Bytes, as hex, of the ids that are not whole characters by themselves."""


def summary(counts: WalkCounts | WalkTotals) -> WalkSummary:
    """The numbers of a method without its rounds."""
    return WalkSummary(tau=counts.tau, tau_macro=counts.tau_macro, rounds=counts.rounds)


def totals(counts: WalkCounts) -> WalkTotals:
    """Tokens and rounds by completion."""
    return WalkTotals(
        committed_by_completion=tuple(map(sum, counts.committed)),
        rounds_by_completion=tuple(map(len, counts.committed)),
    )
