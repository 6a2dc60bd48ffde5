"""Drafts of every anchor -> rounds: the walks that a server would have made, and their counts.

One set of drafts answers every question: the chain, the chain cut to a narrower verify width, the
tree of every budget, the top-k streak. Each walks its own anchors.

Shape letters: A anchors of one completion, D drafted slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from draftlab.replay.draft import MAX_BUDGET, AnchorDrafts
from draftlab.replay.result import AllAnchor, SlotRates, WalkCounts
from draftlab.tree.walk import Walk, walk, walk_budgets

Counts = npt.NDArray[np.int64]


def leading_run(matches_AD: npt.NDArray[np.bool_]) -> Counts:
    """How many leading True there are in each row."""
    counts: Counts = np.logical_and.accumulate(matches_AD, axis=1).sum(axis=1)
    return counts


def chain_accepted(drafts: AnchorDrafts) -> Counts:
    """Accepted tokens per anchor of the drafted chain."""
    return leading_run(drafts.path_token_ranks_AD == 0)


def streak_accepted(drafts: AnchorDrafts, k: int) -> Counts:
    """Consecutive slots per anchor whose reference token is among the drafter's k best."""
    return leading_run((drafts.path_token_ranks_AD >= 0) & (drafts.path_token_ranks_AD < k))


def tree_accepted(drafts: AnchorDrafts, budget: int) -> Counts:
    """Accepted tokens per anchor of the best-first tree with `budget` nodes below the root."""
    counts: Counts = (drafts.path_ranks_AD <= budget).sum(axis=1)
    return counts


def tree_rounds_by_budget(drafts: Sequence[AnchorDrafts]) -> Counts:
    """Rounds [prompts, MAX_BUDGET] that each budget 1..MAX_BUDGET takes over each completion."""
    return np.stack([walk_budgets(d.path_ranks_AD, d.num_anchors, MAX_BUDGET) for d in drafts])


def gather(walks: Sequence[Walk]) -> WalkCounts:
    """The rounds of one method over all completions, with pooled and macro τ."""
    return WalkCounts(
        committed=tuple(tuple(w.committed_R.tolist()) for w in walks),
        cut=tuple(bool(w.cut) for w in walks),
    )


def walks_of(accepted: Sequence[Counts]) -> list[Walk]:
    """One walk per completion."""
    return [walk(counts) for counts in accepted]


def slot_rates(drafts: Sequence[AnchorDrafts], chain: Sequence[Walk]) -> tuple[SlotRates, ...]:
    """Per slot: survival and conditional rate over the chain's rounds, top-1 over all anchors.

    A round or an anchor counts for a slot only where the completion reaches that far.
    """
    ranks_XD = np.concatenate([d.path_token_ranks_AD for d in drafts])
    on_walk = np.concatenate([_is_start(d, w) for d, w in zip(drafts, chain, strict=True)])
    run_X = leading_run(ranks_XD == 0)
    rates = []
    for d in range(ranks_XD.shape[1]):
        scored_X = ranks_XD[:, d] >= 0
        rounds = int((scored_X & on_walk).sum())
        reached = int((scored_X & on_walk & (run_X >= d)).sum())
        rates.append(
            SlotRates(
                slot=d + 1,
                rounds=rounds,
                reached=reached,
                accepted=int((on_walk & (run_X > d)).sum()),
                anchors=int(scored_X.sum()),
                top1=int((ranks_XD[:, d] == 0).sum()),
            )
        )
    return tuple(rates)


def _is_start(drafts: AnchorDrafts, made: Walk) -> npt.NDArray[np.bool_]:
    flags = np.zeros(drafts.num_anchors, dtype=bool)
    flags[made.starts_R] = True
    return flags


def all_anchor(accepted: Sequence[Counts], drafts: Sequence[AnchorDrafts]) -> AllAnchor:
    """The mean over all anchors that trainers log; not τ."""
    runs = np.concatenate(accepted)
    cut = sum(int((d.path_token_ranks_AD < 0).any(axis=1).sum()) for d in drafts)
    return AllAnchor(mean=1.0 + float(np.mean(runs)), anchors=len(runs), cut_anchors=cut)
