"""Count the prefixes that a best-first draft tree takes in before each reference prefix.

In:   arrays that tree/ranks.py has checked, for a chunk of anchors.
Out:  one row of ranks per anchor, and whether the table was wide enough to know them.

A node off the path leaves it after k tokens, by a token ranked better or worse than the path's
own. It precedes the path prefix of length m > k if it scores at least as much (better-ranked) or
more (worse-ranked); it is an extension of the shorter ones and precedes none of them. A score
bounds all scores below it, so a depth-first walk enters no branch that holds nothing to count.

numba compiles all of this (tree/jit.py); without it the same functions run interpreted.

Imports: tree.jit and numpy.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from draftlab.tree.jit import COMPILES, kernel, part

# Shape letters: N anchors, D slots after the anchor, K best tokens per slot, E = D*K (one anchor's
# table laid flat), P = D + 1 path prefixes by length (0: the empty one).
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
# What the compiled and the interpreted kernel hold their numbers in.
Reals = npt.NDArray[np.float64] | list[float]
Counts = npt.NDArray[np.int64] | list[int]

GROUP_SPAN = 0.5
"""Path prefixes whose scores differ by no more than this (nats) are counted in one walk.

Near-certain slots give neighbouring prefixes almost the same rank; counting each on its own would
visit the same nodes up to D times. Affects speed only.
"""

FIRST, LAST, COUNTED, DOUBTFUL = range(4)
"""Places in `Search.state`: shortest and longest prefix sought, nodes that precede the longest,
and the shortest prefix that an unlisted token might precede."""


class Search(NamedTuple):
    """One anchor's table and limits, and the working arrays that all anchors share."""

    table_E: Floats | memoryview
    width: int
    """K."""
    vocab_size: int
    max_budget: int
    at_least_P: Reals
    """Score of each path prefix: a better-ranked node that reaches it comes first."""
    more_than_P: Reals
    """The next larger float: a worse-ranked node must reach this."""
    before_P: Counts
    """Nodes that precede this prefix and no shorter one that is sought."""
    score_D: Reals
    """Stack, with the two below: score of the node whose children are being visited."""
    child_D: Counts
    """Its next child to visit."""
    bucket_D: Counts
    """Shortest sought prefix that the last child precedes."""
    state: Counts


@part
def longest_candidate(
    search: Search, log_probs_D: Floats | list[float], token_ranks_D: Integers | list[int]
) -> int:
    """Fill in the path's scores; return the length of the longest prefix that may fit the budget.

    A prefix none of whose tokens ranks worse than the path's in its slot comes no later than the
    path prefix of its length. The number of those alone puts many path prefixes out of reach.
    """
    boxed, no_later = 1, 0
    search.at_least_P[0] = 0.0
    for d in range(len(search.score_D)):
        if token_ranks_D[d] < 0 or log_probs_D[d] == -np.inf:
            return d
        boxed = min(boxed * (token_ranks_D[d] + 1), search.max_budget + 1)
        no_later += boxed
        if no_later > search.max_budget:
            return d
        score = search.at_least_P[d] + log_probs_D[d]
        search.at_least_P[d + 1] = score
        # Nothing scores above 0; a denormal there would vanish under torch.set_flush_denormal.
        search.more_than_P[d + 1] = 1.0 if score == 0.0 else float(np.nextafter(score, np.inf))
    return len(search.score_D)


@part
def shortest_preceded(bar_P: Reals, score: float, bucket: int, last: int) -> int:
    """Length of the first prefix from `bucket` on whose bar the score clears; last + 1 if none."""
    while bucket <= last and score < bar_P[bucket]:
        bucket += 1
    return bucket


@part
def drop_unreachable(search: Search, counted: int) -> int:
    """Seek no longer the prefixes that `max_budget` nodes precede; return the new COUNTED.

    Stops at LAST = FIRST - 1 at the latest: then nothing is counted any more.
    """
    last = search.state[LAST]
    while last + counted > search.max_budget:
        counted -= search.before_P[last]
        last -= 1
    search.state[LAST] = last
    return counted


@part
def count_subtrees(search: Search, bar_P: Reals, k: int, low: int, high: int, bucket: int) -> None:
    """Count the nodes that leave the path after k tokens by one of a range of ranks.

    A node is booked under the shortest sought prefix that it precedes; it precedes the longer
    ones too. Once `max_budget` nodes precede the longest sought prefix, that one is out of reach
    and no longer sought, which raises the bar for the rest of the walk.

    Args:
        search: LAST, COUNTED and DOUBTFUL in its state are updated.
        bar_P: least score with which such a node precedes each path prefix; never rising.
        k: length of the path prefix that they have in common.
        low: smallest rank in slot k + 1.
        high: one more than the largest.
        bucket: shortest sought prefix that any of them can precede.
    """
    width, base, limit = search.width, k * search.width, high
    last, counted = search.state[LAST], search.state[COUNTED]
    bar, depth, parent, child = bar_P[last], k, search.at_least_P[k], low
    while True:
        listed = child < limit and child < width
        score = parent + search.table_E[base + child] if listed else -np.inf
        if score >= bar:
            bucket = shortest_preceded(bar_P, score, bucket, last)
            search.before_P[bucket] += 1
            counted += 1
            child += 1
            if last + counted > search.max_budget:
                counted = drop_unreachable(search, counted)
                last = search.state[LAST]
                if last <= k or last < search.state[FIRST]:
                    break
                bar = bar_P[last]
            below = base + width
            if below < len(search.table_E) and score + search.table_E[below] >= bar:
                search.score_D[depth], search.child_D[depth] = parent, child
                search.bucket_D[depth] = bucket
                depth, base, parent, child, limit = depth + 1, below, score, 0, search.vocab_size
        else:
            if width <= child < limit:  # an unlisted sibling may score as much as the last listed
                search.state[DOUBTFUL] = min(search.state[DOUBTFUL], bucket)
            if depth == k:
                break
            depth, base = depth - 1, base - width
            parent, child = search.score_D[depth], search.child_D[depth]
            bucket, limit = search.bucket_D[depth], search.vocab_size if depth > k else high
    search.state[COUNTED] = counted


@part
def count_group(search: Search, token_ranks_D: Integers | list[int]) -> None:
    """Count all nodes off the path that precede the prefixes sought."""
    first, k = search.state[FIRST], 0
    while k < search.state[LAST] and first <= search.state[LAST]:
        bucket, token_rank = max(first, k + 1), token_ranks_D[k]
        if token_rank > 0:
            count_subtrees(search, search.at_least_P, k, 0, token_rank, bucket)
        last, best = search.state[LAST], search.at_least_P[k + 1]  # of the worse-ranked ones
        bucket = shortest_preceded(search.more_than_P, best, bucket, last)
        if bucket <= last:
            worse = token_rank + 1
            count_subtrees(search, search.more_than_P, k, worse, search.vocab_size, bucket)
        k += 1


@part
def start_group(search: Search, first: int, longest: int) -> int:
    """Seek the prefixes from length `first` on whose scores are close; return the last's length."""
    last, bar = first, search.at_least_P[first] - GROUP_SPAN
    while last < longest and search.at_least_P[last + 1] >= bar:
        last += 1
    for m in range(first, last + 1):
        search.before_P[m] = 0
    search.state[FIRST], search.state[LAST] = first, last
    search.state[COUNTED], search.state[DOUBTFUL] = 0, len(search.at_least_P)
    return last


@part
def rank_anchor(
    search: Search,
    log_probs_D: Floats | list[float],
    token_ranks_D: Integers | list[int],
    path_ranks_D: Integers | list[int],
) -> bool:
    """Fill in one row of ranks; True if the K listed tokens did not decide it."""
    depth = len(search.score_D)
    for d in range(depth):
        path_ranks_D[d] = search.max_budget + 1
    longest, first = longest_candidate(search, log_probs_D, token_ranks_D), 1
    while first <= longest:
        group_end = start_group(search, first, longest)
        count_group(search, token_ranks_D)
        last, doubtful, before = search.state[LAST], search.state[DOUBTFUL], 0
        for m in range(first, min(last + 1, doubtful)):
            before += search.before_P[m]
            path_ranks_D[m - 1] = before + m  # itself and the path's m - 1 shorter prefixes
        if doubtful <= last:
            for m in range(doubtful, depth + 1):
                path_ranks_D[m - 1] = 0
            return True
        first = group_end + 1 if last == group_end else depth + 1
    return False


@part
def is_in_order(table_E: Floats, width: int) -> bool:
    """Whether each slot's log-probabilities are <= 0, descending and free of NaN."""
    faults = 0
    for base in range(0, len(table_E), width):
        row_K = table_E[base : base + width]
        faults += not row_K[0] <= 0.0
        for rank in range(1, width):
            faults += not row_K[rank] <= row_K[rank - 1]
    return faults == 0


def _rank_chunk_compiled(
    top_log_probs_NE: Floats,
    path_log_probs_ND: Floats,
    token_ranks_ND: Integers,
    limits: tuple[int, int, int],
    path_ranks_ND: Integers,
    unresolved_N: Flags,
) -> int:
    size = path_log_probs_ND.shape[1] + 1
    at_least_P, more_than_P, score_D = np.zeros(size), np.zeros(size), np.zeros(size - 1)
    before_P, child_D = np.zeros(size, np.int64), np.zeros(size - 1, np.int64)
    bucket_D, state = np.zeros(size - 1, np.int64), np.zeros(4, np.int64)
    for n in range(len(top_log_probs_NE)):
        table_E = top_log_probs_NE[n]
        if not is_in_order(table_E, limits[0]):
            return n
        search = Search(
            table_E, *limits, at_least_P, more_than_P, before_P, score_D, child_D, bucket_D, state
        )
        unresolved_N[n] = rank_anchor(
            search, path_log_probs_ND[n], token_ranks_ND[n], path_ranks_ND[n]
        )
    return -1


def _rank_chunk_interpreted(
    top_log_probs_NE: Floats,
    path_log_probs_ND: Floats,
    token_ranks_ND: Integers,
    limits: tuple[int, int, int],
    path_ranks_ND: Integers,
    unresolved_N: Flags,
) -> int:
    """As above, on lists and memory views: Python reads single numbers from these much faster."""
    depth = path_log_probs_ND.shape[1]
    for n, table_E in enumerate(top_log_probs_NE):
        table_DK = table_E.reshape(depth, -1)
        if not ((table_DK[:, 0] <= 0).all() and (table_DK[:, 1:] <= table_DK[:, :-1]).all()):
            return n
        at_least_P, more_than_P, before_P = (
            [0.0] * (depth + 1),
            [0.0] * (depth + 1),
            [0] * (depth + 1),
        )
        search = Search(
            memoryview(table_E), *limits, at_least_P, more_than_P, before_P,
            [0.0] * depth, [0] * depth, [0] * depth, [0] * 4,
        )  # fmt: skip
        ranks_D = [0] * depth
        unresolved_N[n] = rank_anchor(
            search, path_log_probs_ND[n].tolist(), token_ranks_ND[n].tolist(), ranks_D
        )
        path_ranks_ND[n] = ranks_D
    return -1


rank_chunk = kernel(_rank_chunk_compiled) if COMPILES else _rank_chunk_interpreted
"""Fill in the last two arrays from the others; -1, or the first anchor whose table is not in order.

`limits` are K, the vocabulary size and the largest budget. Tables come flat: [N, D*K].
"""
