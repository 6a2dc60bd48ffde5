"""Rank the reference path among the pops of a best-first draft tree, without building the tree.

In:   per anchor and slot, the drafter's best log-probabilities in descending order, and the
      log-probability and rank of the reference token.
Out:  per anchor and slot, the pop at which the best-first tree takes in the reference up to
      there. A tree of b nodes accepts as many drafted tokens as there are ranks <= b, so one row
      answers every budget at once: the tree of a smaller budget is the first pops of a larger
      one's (arXiv:2604.12989, Lemma 1).

Why it needs no heap. Log-probabilities are never above 0, so in the order (score descending, then
rank tuple ascending, a tuple before its extensions) no prefix comes before its parent or before
the sibling ranked one better. The heap of liranringel/ddtree@c96427a, ddtree.py,
build_ddtree_tree, holds a prefix back only until those two are out. So it pops in this order, and

    rank of a path prefix = 1 + number of prefixes before it,

which tree/counting.py counts, up to `max_budget`.

Scores are float64 sums of float32 log-probabilities, added from the root outwards. Such sums are
exact unless two terms differ by a factor of more than about 2**29, so neither the order of
summation nor the heap's way of moving to a sibling (subtract one term, add the next) can change
the order of prefixes. Where they are not exact, the sums defined here decide.

A log-probability of -inf (a padding column of the vocabulary) is never a node.

Threads come from a plain pool; the kernel releases the interpreter lock. numba's own `prange` is
avoided on purpose: with its OpenMP layer a forked child that calls the kernel again is killed, with
its workqueue layer two threads that call it at once abort the process.

Imports: tree.counting, numpy. Nothing here knows about torch.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from draftlab.tree.counting import Flags, Floats, Integers, rank_chunk

# Shape letters: N anchors, D slots after the anchor, K best tokens per slot.

ANCHORS_PER_CHUNK = 64
"""Anchors handed to one kernel call: enough to hide the call, few enough to share among threads."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathRanks:
    """Where the reference path stands in the pop order of each anchor's tree."""

    path_ranks_ND: Integers
    """1-based pop index of the reference prefix of length d + 1; rises along a row.

    `max_budget + 1` where that prefix is not among the first `max_budget` pops, or the reference
    has ended. 0 from the first prefix on that K candidates could not decide.
    """

    unresolved_N: Flags
    """True where K was too small to decide; never so if K >= min(max_budget, vocab_size)."""


def rank_reference_paths(
    top_log_probs_NDK: Floats,
    path_log_probs_ND: Floats,
    path_token_ranks_ND: Integers,
    *,
    vocab_size: int,
    max_budget: int,
    threads: int = 1,
) -> PathRanks:
    """Pop index of every reference prefix in the best-first tree of its anchor.

    Args:
        top_log_probs_NDK: float32 [N, D, K]. Row d holds the K largest log-probabilities of slot
            d + 1 in descending order, normalised over the full vocabulary, so <= 0.
        path_log_probs_ND: float32 [N, D]. Log-probability of the reference token; the very value
            in `top_log_probs_NDK` where its rank is below K. Not read where the rank is negative.
        path_token_ranks_ND: integers [N, D]. 0-based rank of the reference token in its slot
            among the full vocabulary: larger logit first, then smaller token id. Negative where
            the reference has ended; the path stops there.
        vocab_size: V >= K.
        max_budget: largest number of nodes below the root that is of interest.
        threads: how many share the anchors.

    Returns:
        PathRanks of the N anchors. Ask again with a larger K for those left unresolved.

    Raises:
        ValueError: the arrays disagree in shape or type, hold NaN or a positive log-probability,
            are not in descending order, or contradict each other.
    """
    _check_shapes(top_log_probs_NDK, path_log_probs_ND, path_token_ranks_ND)
    anchors, depth, width = top_log_probs_NDK.shape
    if width > vocab_size or max_budget < 1 or threads < 1:
        raise ValueError(f"{width=} > {vocab_size=}, {max_budget=} < 1 or {threads=} < 1")
    _check_path(top_log_probs_NDK, path_log_probs_ND, path_token_ranks_ND, vocab_size)
    tables_NE = np.ascontiguousarray(top_log_probs_NDK).reshape(anchors, depth * width)
    log_probs_ND = np.ascontiguousarray(path_log_probs_ND)
    token_ranks_ND = np.ascontiguousarray(path_token_ranks_ND, dtype=np.int32)
    path_ranks_ND = np.empty((anchors, depth), np.int32)
    unresolved_N = np.empty(anchors, np.bool_)

    def rank_from(start: int) -> None:
        chunk = slice(start, start + ANCHORS_PER_CHUNK)
        fault = rank_chunk(
            tables_NE[chunk],
            log_probs_ND[chunk],
            token_ranks_ND[chunk],
            (width, vocab_size, max_budget),
            path_ranks_ND[chunk],
            unresolved_N[chunk],
        )
        if fault >= 0:
            raise ValueError(
                f"anchor {start + fault}: log-probabilities must be <= 0, in descending order "
                "and free of NaN"
            )

    _for_each(rank_from, range(0, anchors, ANCHORS_PER_CHUNK), threads)
    return PathRanks(path_ranks_ND=path_ranks_ND, unresolved_N=unresolved_N)


def _check_shapes(top_NDK: Floats, log_probs_ND: Floats, token_ranks_ND: Integers) -> None:
    if top_NDK.ndim != 3 or 0 in top_NDK.shape[1:]:
        raise ValueError(f"top log-probabilities must be [N, D, K], not {top_NDK.shape}")
    if not top_NDK.shape[:2] == log_probs_ND.shape == token_ranks_ND.shape:
        raise ValueError(
            f"path arrays must be {top_NDK.shape[:2]}, not {log_probs_ND.shape} and "
            f"{token_ranks_ND.shape}"
        )
    if top_NDK.dtype != np.float32 or log_probs_ND.dtype != np.float32:
        raise ValueError(
            f"log-probabilities must be float32, not {top_NDK.dtype} and {log_probs_ND.dtype}: "
            "rounding them here could make ties"
        )
    if not np.issubdtype(token_ranks_ND.dtype, np.integer):
        raise ValueError(f"token ranks must be integers, not {token_ranks_ND.dtype}")


def _check_path(
    top_NDK: Floats, log_probs_ND: Floats, token_ranks_ND: Integers, vocab_size: int
) -> None:
    if (token_ranks_ND >= vocab_size).any():
        raise ValueError(f"a path token's rank is not below the vocabulary size {vocab_size}")
    width = top_NDK.shape[2]
    column_ND = np.clip(token_ranks_ND, 0, width - 1)
    listed_ND = np.take_along_axis(top_NDK, column_ND[:, :, None], axis=2)[:, :, 0]
    agrees_ND = np.where(
        token_ranks_ND < width, log_probs_ND == listed_ND, log_probs_ND <= listed_ND
    )
    if not (agrees_ND | (token_ranks_ND < 0)).all():
        raise ValueError("a path log-probability is NaN or not the one that its rank has")


def _for_each(work: Callable[[int], None], items: Iterable[int], threads: int) -> None:
    if threads == 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, items):
            pass
