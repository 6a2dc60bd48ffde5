"""Walks against worked examples, and against decoding loops that build every tree."""

import importlib
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import draftlab
from draftlab.tree.build import best_first_tree, chain_tree
from draftlab.tree.ranks import rank_reference_paths
from draftlab.tree.walk import accepted_path, walk, walk_budgets

# Busy machines are no failures.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Shape letters: N anchors, D slots, V vocabulary.


@st.composite
def lengths(draw):
    """Accepted lengths that leave every round within the completion."""
    count = draw(st.integers(0, 12))
    return [draw(st.integers(0, count - anchor)) for anchor in range(count)]


@st.composite
def rank_rows(draw, largest=9):
    """Ranks that rise along a row and never reach past the end of the completion."""
    count, depth = draw(st.integers(0, 8)), draw(st.integers(1, 4))
    rows = []
    for anchor in range(count):
        reach = min(depth, count - anchor)
        row = draw(st.sets(st.integers(1, largest + 1), min_size=0, max_size=reach))
        rows.append(sorted(row) + [largest + 1] * (depth - len(row)))
    return np.array(rows, np.int32).reshape(count, depth)


def rounds_one_by_one(ranks_ND, budget):
    anchor = rounds = 0
    while anchor < len(ranks_ND):
        anchor += sum(rank <= budget for rank in ranks_ND[anchor].tolist()) + 1
        rounds += 1
    return rounds


def test_a_walk_jumps_over_what_each_round_commits():
    """CASES D-1."""
    accepted = [3, 0, 0, 0, 2, 0, 0, 1, 0, 0]

    rounds = walk(accepted)

    assert rounds.starts_R.tolist() == [0, 4, 7, 9]
    assert rounds.accepted_R.tolist() == [3, 2, 1, 0]
    assert rounds.committed_R.tolist() == [4, 3, 2, 1]
    assert not rounds.cut
    assert rounds.accepted_R.sum() == 6
    assert rounds.committed_R.sum() / len(rounds.starts_R) == 2.5


def test_one_round_that_ends_with_its_own_token_is_not_cut():
    """CASES D-2."""
    accepted = np.array([7, 6, 5, 4, 3, 2, 1, 0])

    rounds = walk(accepted)

    assert rounds.committed_R.tolist() == [8]
    assert not rounds.cut


def test_a_round_that_accepts_all_that_was_left_is_cut():
    """Its own token lies beyond the end, so it commits one token less than accepted + 1."""
    rounds = walk([1, 0, 2, 1])

    assert rounds.starts_R.tolist() == [0, 2]
    assert rounds.accepted_R.tolist() == [1, 2]
    assert rounds.committed_R.tolist() == [2, 2]
    assert rounds.cut


def test_nothing_to_commit_takes_no_rounds():
    rounds = walk([])

    assert len(rounds.starts_R) == len(rounds.committed_R) == 0
    assert not rounds.cut


@patient
@given(lengths())
def test_a_walk_commits_every_token_once(accepted):
    rounds = walk(accepted)

    ends = (rounds.starts_R + rounds.committed_R).tolist()
    assert rounds.starts_R.tolist() == [0, *ends][: len(ends)]
    assert (ends or [0])[-1] == len(accepted)
    short = rounds.committed_R - rounds.accepted_R == 0
    assert short[:-1].sum() == 0
    assert rounds.cut == bool(short.any())


@pytest.mark.parametrize("accepted", [[-1, 0], [0, 2], [3, 0], [[0, 0]], [0.0, 0.0]])
def test_lengths_that_cannot_be_are_refused(accepted):
    with pytest.raises(ValueError, match=r"accept(ed|s) "):
        walk(accepted)


@patient
@given(rank_rows(), st.integers(1, 9))
def test_all_budgets_at_once_are_the_single_walks(ranks_ND, max_budget):
    rounds_B = walk_budgets(ranks_ND, len(ranks_ND), max_budget)

    assert rounds_B.dtype == np.int64
    budgets = range(1, max_budget + 1)
    assert rounds_B.tolist() == [rounds_one_by_one(ranks_ND, budget) for budget in budgets]
    accepted = [(ranks_ND <= budget).sum(axis=1) for budget in budgets]
    assert rounds_B.tolist() == [len(walk(lengths_N).starts_R) for lengths_N in accepted]


@pytest.fixture
def interpreted(monkeypatch):
    """draftlab.tree.walk as it is imported where numba is missing."""
    monkeypatch.setattr(draftlab, "tree", draftlab.tree)  # to be put back
    for name in [name for name in sys.modules if name.startswith("draftlab.tree")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    return importlib.import_module("draftlab.tree.walk")


def test_without_numba_the_rounds_are_the_same(interpreted):
    assert not sys.modules["draftlab.tree.jit"].COMPILES
    random = np.random.default_rng(0)
    ranks_ND = np.cumsum(random.geometric(0.05, (200, 15)), axis=1)
    ranks_ND[np.arange(15) >= np.arange(200, 0, -1)[:, None]] = 1025
    ranks_ND = np.minimum(np.maximum.accumulate(ranks_ND, axis=1), 1025)

    compiled_B = walk_budgets(ranks_ND, 200, 1024)

    assert (interpreted.walk_budgets(ranks_ND, 200, 1024) == compiled_B).all()
    assert compiled_B[0] > compiled_B[63] > compiled_B[-1]


@pytest.mark.parametrize(
    ("rows", "n", "complaint"),
    [
        ([[1, 2], [1, 9]], 3, "for 3 anchors"),
        ([1, 2], 2, "for 2 anchors"),
        ([[1, 2], [0, 9]], 2, "needs more candidates"),
        ([[3, 2], [1, 9]], 2, "fall with depth"),
        ([[1, 2], [1, 2]], 2, "more tokens than follow it"),
    ],
)
def test_ranks_that_cannot_be_walked_are_refused(rows, n, complaint):
    with pytest.raises(ValueError, match=complaint):
        walk_budgets(np.array(rows), n, 8)


def test_a_budget_below_one_is_refused():
    with pytest.raises(ValueError, match="max_budget=0"):
        walk_budgets(np.ones((1, 1), np.int32), 1, 0)


@patient
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.lists(st.integers(0, 5), max_size=6))
def test_accepted_tokens_are_the_longest_shared_prefix_with_the_reference(drafted, reference):
    log_probs_DV = np.log(np.full((len(drafted), 4), 0.1))
    log_probs_DV[np.arange(len(drafted)), drafted] = np.log(0.7)
    for tree in (chain_tree(log_probs_DV), best_first_tree(log_probs_DV, 9)):
        path = accepted_path(tree, reference)
        followed = [tree.tokens[node] for node in path]
        paths = {(): 0}
        for node in range(1, len(tree.tokens)):
            above = next(p for p, index in paths.items() if index == tree.parents[node])
            paths[(*above, tree.tokens[node])] = node
        prefixes = [tuple(reference[:length]) for length in range(len(reference) + 1)]
        longest = max((prefix for prefix in prefixes if prefix in paths), key=len)

        assert followed == list(longest)
        assert [tree.parents[node] for node in path] == [0, *path][: len(path)]


@settings(patient, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 8, 20]))
def test_ranks_walk_as_a_loop_that_builds_every_tree(seed, max_budget):
    """From tables to rounds: one tree per round and budget, followed token by token."""
    random = np.random.default_rng(seed)
    depth, vocab_size, count = 3, 4, 7
    logits = random.integers(0, 4, (count, depth, vocab_size)).astype(np.float32)
    tables_NDV = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    committed = random.integers(0, vocab_size, count).tolist()

    order_NDV = np.argsort(-tables_NDV, axis=2, kind="stable")
    token_ranks_ND = np.full((count, depth), -1)
    log_probs_ND = np.zeros((count, depth), np.float32)
    for anchor in range(count):
        for slot, token in enumerate(committed[anchor : anchor + depth]):
            token_ranks_ND[anchor, slot] = list(order_NDV[anchor, slot]).index(token)
            log_probs_ND[anchor, slot] = tables_NDV[anchor, slot, token]
    ranks = rank_reference_paths(
        np.take_along_axis(tables_NDV, order_NDV, axis=2),
        log_probs_ND,
        token_ranks_ND,
        vocab_size=vocab_size,
        max_budget=max_budget,
    )
    rounds_B = walk_budgets(ranks.path_ranks_ND, count, max_budget)

    for budget in range(1, max_budget + 1):
        anchor = rounds = 0
        while anchor < count:
            tree = best_first_tree(tables_NDV[anchor], budget)
            anchor += len(accepted_path(tree, committed[anchor:])) + 1
            rounds += 1
        assert rounds_B[budget - 1] == rounds
