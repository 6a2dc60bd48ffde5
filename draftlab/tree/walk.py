"""Walk along the reference: down one tree, or round by round through a whole completion.

In:   a DraftTree and the tokens after its root; or, for every anchor of a completion, how many
      drafted tokens match the reference there.
Out:  the accepted nodes; or the rounds that a decoding loop would have run.

No target model runs here. The reference is what the target said, so agreeing with the target and
agreeing with the reference are the same thing. A round that starts at anchor i and accepts a
drafted tokens commits them and the target's own next token; the next one starts at i + a + 1.
Nothing past the end of the reference is committed: a round that accepts all that was left has no
room for its own token, and is marked as cut.

Imports: tree.build, tree.jit and numpy. Nothing here knows about torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftlab.tree.build import ROOT, DraftTree
from draftlab.tree.jit import COMPILES, kernel

# Shape letters: N anchors = tokens that can be committed, R rounds, B budgets, D slots, E = N*D.
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walk:
    """The rounds of one completion, in order."""

    starts_R: Integers
    """Anchor at which each round starts: tokens committed before it."""

    accepted_R: Integers
    """Drafted tokens that matched the reference."""

    committed_R: Integers
    """Tokens committed: accepted + 1, or what was left. They add up to the completion."""

    cut: bool
    """Whether the last round's own token lies beyond the end of the completion."""


def accepted_path(tree: DraftTree, reference: Sequence[int]) -> tuple[int, ...]:
    """Nodes below the root whose tokens match `reference`, in order.

    Args:
        tree: as drafted at an anchor.
        reference: the tokens after that anchor.

    Returns:
        Indices into the tree; as many as drafted tokens are accepted.

    Source: liranringel/ddtree@c96427a, ddtree.py, follow_verified_tree.
    """
    below = zip(tree.parents, tree.tokens, strict=True)
    node_of = {parent_and_token: node for node, parent_and_token in enumerate(below)}
    path: list[int] = []
    node = ROOT
    for token in reference:
        child = node_of.get((node, token))
        if child is None:
            break
        path.append(child)
        node = child
    return tuple(path)


def walk(accepted_N: Sequence[int] | npt.NDArray[np.integer]) -> Walk:
    """The rounds from anchor 0 to the end.

    Args:
        accepted_N: for each anchor i, the drafted tokens that match the reference if a round
            starts there; at most N - i, for no more tokens follow.

    Returns:
        A Walk that commits N tokens.

    Raises:
        ValueError: an anchor accepts fewer than none or more than follow it.
    """
    lengths_N = _checked(accepted_N)
    accepted, anchor, starts = lengths_N.tolist(), 0, []
    while anchor < len(accepted):
        starts.append(anchor)
        anchor += accepted[anchor] + 1
    starts_R = np.array(starts, np.int64)
    return Walk(
        starts_R=starts_R,
        accepted_R=lengths_N[starts_R],
        committed_R=_committed(lengths_N)[starts_R],
        cut=anchor > len(accepted),
    )


def walk_budgets(path_ranks_ND: npt.NDArray[np.integer], n: int, max_budget: int) -> Integers:
    """Rounds of the walk for every tree budget.

    Args:
        path_ranks_ND: integers [N, D] from tree/ranks.py, all resolved: an anchor accepts, with
            budget b, as many tokens as its row has ranks <= b.
        n: N, the tokens that can be committed.
        max_budget: largest budget asked for; at most the one that the ranks were made for.

    Returns:
        int64 [max_budget]. Entry b - 1 is the number of rounds with budget b.

    Raises:
        ValueError: N is not n, or a rank is not resolved, falls along its row, or lies within
            `max_budget` though the reference has ended there.
    """
    if path_ranks_ND.ndim != 2 or len(path_ranks_ND) != n or max_budget < 1:
        raise ValueError(f"ranks {path_ranks_ND.shape} for {n} anchors, {max_budget=}")
    if (path_ranks_ND < 1).any():
        raise ValueError("ranks start at 1; 0 marks an anchor that needs more candidates per slot")
    if (path_ranks_ND[:, 1:] < path_ranks_ND[:, :-1]).any():
        raise ValueError("the ranks of an anchor fall with depth")
    left_N1 = np.arange(n, 0, -1)[:, None]
    if (path_ranks_ND[np.arange(path_ranks_ND.shape[1]) >= left_N1] <= max_budget).any():
        raise ValueError("an anchor accepts more tokens than follow it")
    ranks_E = np.minimum(path_ranks_ND, max_budget + 1).astype(np.int32).ravel()
    rounds_B = np.zeros(max_budget, np.int64)
    _count_rounds(ranks_E if COMPILES else ranks_E.tolist(), n, rounds_B)
    return rounds_B


def _checked(accepted_N: Sequence[int] | npt.NDArray[np.integer]) -> Integers:
    lengths_N = np.asarray(accepted_N)
    if lengths_N.ndim != 1 or (lengths_N.size and not np.issubdtype(lengths_N.dtype, np.integer)):
        raise ValueError(f"accepted must be integers [N], not {lengths_N.dtype} {lengths_N.shape}")
    if (lengths_N < 0).any() or (lengths_N > np.arange(len(lengths_N), 0, -1)).any():
        raise ValueError("an anchor accepts fewer than no tokens, or more than follow it")
    return lengths_N.astype(np.int64)


def _committed(accepted_N: Integers) -> Integers:
    """Tokens that a round starting at each anchor commits."""
    return np.minimum(accepted_N + 1, np.arange(len(accepted_N), 0, -1))


@kernel
def _count_rounds(ranks_E: npt.NDArray[np.int32] | list[int], n: int, rounds_B: Integers) -> None:
    """Fill in the rounds per budget."""
    depth = len(ranks_E) // max(n, 1)
    for b in range(len(rounds_B)):
        anchor, rounds = 0, 0
        while anchor < n:
            slot, end = anchor * depth, (anchor + 1) * depth
            while slot < end and ranks_E[slot] <= b + 1:
                slot += 1
            anchor += slot - anchor * depth + 1
            rounds += 1
        rounds_B[b] = rounds
