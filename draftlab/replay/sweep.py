"""All that replay needs of the logits of some anchors, in one compiled sweep on a CPU.

In:   float32 logits of every drafted slot of some anchors, their maxima and log-sum-exps, the
      reference tokens.
Out:  RowFacts, with the pop rank of every reference prefix in the best-first tree.

The same answers as replay/scoring.py with tables of the largest budget's width, which is the path
for other devices and for machines without numba. What is saved is sorting: a slot's table needs
only tokens that can stand in a tree before the deepest reference prefix within the largest budget.
With s that prefix's score and c the score of the best chain up to the slot before, those are the
tokens of log-probability >= s - c, often a handful. If more than `max_budget` tokens exceed that,
the prefix does not fit after all (each is a node before it), and the next shorter one decides.

Shape letters: N anchors, D slots, V vocabulary, K listed tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftlab.tree.jit import kernel, part
from draftlab.tree.ranks import rank_reference_paths

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

_SLACK = 1e-5
"""Relative margin for float32 thresholds; a token too many in a table changes no rank."""


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What is kept of every slot. Token order: larger logit first, then smaller token id."""

    best_tokens_ND: Ints
    token_ranks_ND: Ints
    """0-based rank of the reference token; -1 where there is none."""
    path_log_probs_ND: Floats
    best_log_probs_ND: Floats
    path_ranks_ND: Ints


@dataclass(frozen=True, slots=True)
class SlotLogits:
    """Logits of every slot of some anchors."""

    logits_NDV: Floats
    best_ND: Floats
    """Their maxima over V."""
    totals_ND: Floats
    """Their log-sum-exps over V."""

    def part(self, which: slice) -> SlotLogits:
        """Some of the anchors."""
        return SlotLogits(self.logits_NDV[which], self.best_ND[which], self.totals_ND[which])


def sweep(slots: SlotLogits, path_ND: Ints, max_budget: int, threads: int) -> RowFacts:
    """Rank reference tokens and reference prefixes.

    Args:
        slots: of N anchors.
        path_ND: the reference tokens; negative from where the reference has ended.
        max_budget: largest tree, in nodes below the root.
        threads: how many share the anchors.
    """
    anchors, depth = path_ND.shape
    facts = RowFacts(
        best_tokens_ND=np.empty((anchors, depth), np.int32),
        token_ranks_ND=np.empty((anchors, depth), np.int32),
        path_log_probs_ND=np.zeros((anchors, depth), np.float32),
        best_log_probs_ND=slots.best_ND - slots.totals_ND,
        path_ranks_ND=np.empty((anchors, depth), np.int32),
    )

    def work(which: slice) -> None:
        _sweep_part(slots.part(which), path_ND[which], max_budget, _cut(facts, which))

    _share(work, anchors, threads)
    return facts


def _cut(facts: RowFacts, which: slice) -> RowFacts:
    return RowFacts(
        facts.best_tokens_ND[which],
        facts.token_ranks_ND[which],
        facts.path_log_probs_ND[which],
        facts.best_log_probs_ND[which],
        facts.path_ranks_ND[which],
    )


def _share(work: Callable[[slice], None], count: int, threads: int) -> None:
    edges = np.linspace(0, count, min(threads, count) + 1, dtype=int).tolist()
    parts = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
    if len(parts) == 1:
        work(parts[0])
        return
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(work, parts))


def _sweep_part(slots: SlotLogits, path_ND: Ints, max_budget: int, out: RowFacts) -> None:
    logits_NDV, totals_ND = slots.logits_NDV, slots.totals_ND
    shape = path_ND.shape
    _rank_tokens(
        logits_NDV,
        slots.best_ND,
        path_ND,
        (out.best_tokens_ND, out.token_ranks_ND),
        (totals_ND, out.path_log_probs_ND),
    )
    alive_ND = out.token_ranks_ND.copy()
    floors_ND, counts_ND = np.empty(shape, np.float32), np.empty(shape, np.int32)
    _bound_tables(
        logits_NDV,
        (totals_ND, out.path_log_probs_ND, out.best_log_probs_ND),
        max_budget,
        (alive_ND, counts_ND),
        floors_ND,
    )
    width = max(1, int(counts_ND.max()))
    tables_NDK = np.full((*shape, width), -np.inf, np.float32)
    _collect(logits_NDV, totals_ND, floors_ND, counts_ND, tables_NDK)
    ranks = rank_reference_paths(
        tables_NDK,
        out.path_log_probs_ND,
        alive_ND,
        vocab_size=width,  # what is not listed cannot matter
        max_budget=max_budget,
    )
    out.path_ranks_ND[:] = ranks.path_ranks_ND


@kernel
def _rank_tokens(
    logits_NDV: Floats,
    maxima_ND: Floats,
    path_ND: Ints,
    out: tuple[Ints, Ints],
    log_probs: tuple[Floats, Floats],
) -> None:
    """Best token, the reference token's rank and its log-probability, for every slot.

    `out` are best tokens and ranks; `log_probs` the totals to read and log-probabilities to fill.
    """
    best_ND, ranks_ND = out
    totals_ND, path_log_probs_ND = log_probs
    anchors, depth, vocab = logits_NDV.shape
    for n in range(anchors):
        for d in range(depth):
            row_V, best = logits_NDV[n, d], 0
            while row_V[best] != maxima_ND[n, d]:
                best += 1
            best_ND[n, d] = best
            token = path_ND[n, d]
            if token < 0:
                ranks_ND[n, d] = -1
                continue
            value, before = row_V[token], 0
            for v in range(token):
                before += row_V[v] >= value
            for v in range(token + 1, vocab):
                before += row_V[v] > value
            ranks_ND[n, d] = before
            path_log_probs_ND[n, d] = value - totals_ND[n, d]


@part
def _longest_boxed(token_ranks_D: Ints, log_probs_D: Floats, max_budget: int) -> int:
    """Length of the longest prefix that may fit, told by its tokens' ranks alone.

    A prefix whose every token ranks no worse than the path's comes no later than the path's.
    """
    boxed, longest = 1.0, 0
    while longest < len(token_ranks_D) and token_ranks_D[longest] >= 0:
        boxed *= token_ranks_D[longest] + 1.0
        if boxed > max_budget or log_probs_D[longest] == -np.inf:
            break
        longest += 1
    return longest


@part
def _bound_anchor(
    logits_DV: Floats,
    log_probs: tuple[Floats, Floats, Floats],
    longest: int,
    max_budget: int,
    out: tuple[Ints, Floats],
) -> bool:
    """Fill in floors and counts for the path's prefix of `longest` tokens; False if it is out."""
    totals_D, path_log_probs_D, best_log_probs_D = log_probs
    counts_D, floors_D = out
    depth, vocab = logits_DV.shape
    score, chain = 0.0, 0.0
    for d in range(longest):
        score += path_log_probs_D[d]
    slack = _SLACK * (1.0 - score)
    for d in range(depth):
        counts_D[d] = 0
    for d in range(depth):
        floor, surely = np.float32(score - slack - chain), np.float32(score + slack - chain)
        total, count, before = totals_D[d], 0, 0
        for v in range(vocab):
            log_prob = logits_DV[d, v] - total
            count += log_prob >= floor
            before += log_prob > surely
        if before > max_budget:  # each is a node before the prefix, below the best chain
            return False
        floors_D[d], counts_D[d] = floor, count
        chain += best_log_probs_D[d]
        if chain < score - slack:
            break
    return True


@kernel
def _bound_tables(
    logits_NDV: Floats,
    log_probs: tuple[Floats, Floats, Floats],
    max_budget: int,
    out: tuple[Ints, Ints],
    floors_ND: Floats,
) -> None:
    """Per slot, the least log-probability that can matter and how many tokens reach it.

    `log_probs` are totals, reference tokens' and best tokens'. `out` are the reference tokens'
    ranks, which become -1 from the first prefix on that does not fit, and the counts to fill in.
    """
    totals_ND, path_log_probs_ND, best_log_probs_ND = log_probs
    alive_ND, counts_ND = out
    anchors, depth = alive_ND.shape
    for n in range(anchors):
        longest = _longest_boxed(alive_ND[n], path_log_probs_ND[n], max_budget)
        of_anchor = (totals_ND[n], path_log_probs_ND[n], best_log_probs_ND[n])
        while longest > 0 and not _bound_anchor(
            logits_NDV[n], of_anchor, longest, max_budget, (counts_ND[n], floors_ND[n])
        ):
            longest -= 1
        for d in range(longest, depth):
            alive_ND[n, d] = -1
        if longest == 0:
            for d in range(depth):
                counts_ND[n, d] = 0


@kernel
def _collect(
    logits_NDV: Floats, totals_ND: Floats, floors_ND: Floats, counts_ND: Ints, tables_NDK: Floats
) -> None:
    """Fill in each slot's listed log-probabilities, in descending order."""
    anchors, depth, vocab = logits_NDV.shape
    for n in range(anchors):
        for d in range(depth):
            if counts_ND[n, d] == 0:
                continue
            place, floor, total = 0, floors_ND[n, d], totals_ND[n, d]
            for v in range(vocab):
                value = logits_NDV[n, d, v] - total
                if value >= floor:
                    tables_NDK[n, d, place] = -value
                    place += 1
            tables_NDK[n, d, :place] = -np.sort(tables_NDK[n, d, :place])
