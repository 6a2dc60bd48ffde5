"""Build a draft tree: the most probable prefixes under a node budget, or one greedy chain.

In:   one anchor's log-probabilities, all drafted slots by the full vocabulary.
Out:  a DraftTree, nodes in the order in which the budget takes them in.

For showing a tree and for saying what a tree is. Replay needs only how deep trees of every budget
follow the reference, and gets that without building any (tree/ranks.py).

Imports: numpy. Nothing here knows about torch.
"""

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Shape letters: D slots after the anchor, V vocabulary, K candidates of a slot.
Floats = npt.NDArray[np.floating]

ROOT = 0
"""Index of the anchor's own node. Its token is known; it is not part of the budget."""

NO_TOKEN = -1
NO_PARENT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """Drafted prefixes as nodes; each field is indexed by node, and node 0 is the root.

    Parents come before their children. Node i > 0 is the i-th that the budget pays for.
    """

    tokens: tuple[int, ...]
    """Token that the node adds to its parent's prefix; NO_TOKEN at the root."""

    parents: tuple[int, ...]
    """Index of the node one token shorter; NO_PARENT at the root."""

    depths: tuple[int, ...]
    """Tokens drafted up to and including the node; 0 at the root."""

    token_ranks: tuple[int, ...]
    """0-based rank of the token in its slot; 0 at the root."""

    scores: tuple[float, ...]
    """Log-probability of the node's prefix: the sum over its slots; 0.0 at the root."""

    @property
    def node_count(self) -> int:
        """Drafted nodes, the root not counted. The verifier runs one token more than this."""
        return len(self.tokens) - 1


def best_first_tree(log_probs_DV: Floats, node_budget: int) -> DraftTree:
    """The `node_budget` most probable draft prefixes, as one tree.

    Args:
        log_probs_DV: float [D, V]. Row d holds the drafter's log-probabilities for the token
            d + 1 places after the root. Block diffusion drafts all rows at once, so a prefix
            scores the sum of its rows' entries. Columns at -inf never become nodes.
        node_budget: nodes below the root, >= 1. Fewer come back if there are no more prefixes.

    Returns:
        A DraftTree whose nodes are in pop order: larger score first, then smaller ranks from the
        root outwards, a prefix before its extensions. In a slot, equal log-probabilities rank by
        token id.

    Raises:
        ValueError: the table is empty, holds NaN or a positive value, or the budget is below 1.

    Source: DDTree, arXiv:2604.12989; liranringel/ddtree@c96427a, ddtree.py, build_ddtree_tree.
    There a sibling's score moves on from the last one's (- one term, + the next); here it is its
    parent's plus its own term. Both are exact for float32 input (tree/ranks.py).
    """
    if node_budget < 1:
        raise ValueError(f"a tree needs a node budget of at least 1, not {node_budget}")
    _check(log_probs_DV)
    candidates = [_best_tokens(row_V, node_budget) for row_V in log_probs_DV]
    nodes = [(NO_TOKEN, NO_PARENT, 0, 0, 0.0)]
    # Entries: score negated, ranks from the root, parent. Ranks are unique, so parents never tie.
    frontier: list[tuple[float, tuple[int, ...], int]] = []

    def offer(parent: int, ranks: tuple[int, ...]) -> None:
        slot, rank = len(ranks) - 1, ranks[-1]
        if slot < len(candidates) and rank < len(candidates[slot]):
            score = nodes[parent][4] + float(log_probs_DV[slot, candidates[slot][rank]])
            heapq.heappush(frontier, (-score, ranks, parent))

    offer(ROOT, (0,))
    while frontier and len(nodes) <= node_budget:
        negated, ranks, parent = heapq.heappop(frontier)
        depth, rank = len(ranks), ranks[-1]
        nodes.append((int(candidates[depth - 1][rank]), parent, depth, rank, -negated))
        offer(parent, (*ranks[:-1], rank + 1))
        offer(len(nodes) - 1, (*ranks, 0))
    return _tree(nodes)


def chain_tree(log_probs_DV: Floats) -> DraftTree:
    """The most probable token of every slot, one below the other; equals what a chain drafts.

    Args:
        log_probs_DV: float [D, V], as for `best_first_tree`.

    Returns:
        A DraftTree of D nodes, or fewer if all columns of a slot are -inf.

    Raises:
        ValueError: the table is empty, or holds NaN or a positive value.
    """
    _check(log_probs_DV)
    nodes = [(NO_TOKEN, NO_PARENT, 0, 0, 0.0)]
    for depth, row_V in enumerate(log_probs_DV, start=1):
        token = int(row_V.argmax())  # the smallest token id among equals
        if row_V[token] == -np.inf:
            break
        nodes.append((token, depth - 1, depth, 0, nodes[-1][4] + float(row_V[token])))
    return _tree(nodes)


def _check(log_probs_DV: Floats) -> None:
    if log_probs_DV.ndim != 2 or log_probs_DV.size == 0:
        raise ValueError(f"log-probabilities must be [D, V], not {log_probs_DV.shape}")
    if not (log_probs_DV <= 0).all():
        raise ValueError("log-probabilities must be <= 0 and free of NaN")


def _best_tokens(log_probs_V: Floats, node_budget: int) -> npt.NDArray[np.intp]:
    """Ids of a slot's best tokens, best first, as many as a budget can reach; none at -inf.

    A token of rank r is popped only after its r better siblings, so `node_budget` are enough.
    """
    width = min(node_budget, len(log_probs_V))
    least = np.partition(log_probs_V, -width)[-width]
    tokens_K = np.flatnonzero((log_probs_V >= least) & (log_probs_V > -np.inf))
    return tokens_K[np.argsort(-log_probs_V[tokens_K], kind="stable")][:width]


def _tree(nodes: list[tuple[int, int, int, int, float]]) -> DraftTree:
    tokens, parents, depths, token_ranks, scores = zip(*nodes, strict=True)
    return DraftTree(
        tokens=tokens, parents=parents, depths=depths, token_ranks=token_ranks, scores=scores
    )
