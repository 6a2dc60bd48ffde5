"""Trees against every prefix by brute force, and against a heap written by the published rules."""

import heapq
import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from draftlab.tree.build import NO_PARENT, NO_TOKEN, DraftTree, best_first_tree, chain_tree
from draftlab.tree.walk import accepted_path

# Busy machines are no failures.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Shape letters: D slots, V vocabulary.


def token_paths(tree):
    """Each node below the root as the token path that leads to it."""
    paths = {0: ()}
    for node in range(1, len(tree.tokens)):
        paths[node] = (*paths[tree.parents[node]], tree.tokens[node])
    return list(paths.values())[1:]


def every_prefix_by_score(log_probs_DV):
    """Token paths in pop order: score, then ranks; a slot ranks by value, then by token id."""
    depth, vocab_size = log_probs_DV.shape
    rank_D = []
    for row in log_probs_DV:
        order = sorted(range(vocab_size), key=lambda token: (-row[token], token))
        rank_D.append({token: rank for rank, token in enumerate(order)})
    scored = []
    for length in range(1, depth + 1):
        for path in itertools.product(range(vocab_size), repeat=length):
            score = math.fsum(float(log_probs_DV[d, token]) for d, token in enumerate(path))
            ranks = tuple(rank_D[d][token] for d, token in enumerate(path))
            if score > -math.inf:
                scored.append((-score, ranks, path))
    return [path for _, _, path in sorted(scored)]


def published_nodes(log_probs_DV, budget):
    """(token, parent, depth) per pop: liranringel/ddtree@c96427a, build_ddtree_tree."""
    order_DV = np.argsort(-log_probs_DV, axis=1, kind="stable")
    table = np.take_along_axis(log_probs_DV, order_DV, axis=1)
    first = float(table[0, 0])
    heap, nodes = [(-first, (0,), 0, 1, 0, first)], []
    while heap and len(nodes) < budget:
        _, ranks, parent, depth, rank, logw = heapq.heappop(heap)
        nodes.append((int(order_DV[depth - 1, rank]), parent, depth))
        if rank + 1 < min(budget, table.shape[1]):
            next_logw = logw - float(table[depth - 1, rank]) + float(table[depth - 1, rank + 1])
            next_ranks = (*ranks[:-1], rank + 1)
            heapq.heappush(heap, (-next_logw, next_ranks, parent, depth, rank + 1, next_logw))
        if depth < len(table):
            next_logw = logw + float(table[depth, 0])
            heapq.heappush(heap, (-next_logw, (*ranks, 0), len(nodes), depth + 1, 0, next_logw))
    return nodes


tied_tables = arrays(
    np.float32,
    st.sampled_from([(1, 1), (1, 6), (2, 5), (3, 4), (4, 3), (6, 2)]),
    elements=st.sampled_from([-np.inf, -3.0, -1.5, -1.0, -0.5, 0.0]),
)
tables = arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=st.floats(-20, 0)
)
references = st.lists(st.integers(0, 5), max_size=6)


@patient
@given(tied_tables, st.integers(1, 100))
def test_a_tree_holds_the_most_probable_prefixes_in_order(log_probs_DV, node_budget):
    tree = best_first_tree(log_probs_DV, node_budget)

    assert token_paths(tree) == every_prefix_by_score(log_probs_DV)[:node_budget]


@pytest.mark.parametrize("node_budget", [1, 2, 7, 16, 64, 1024])
@pytest.mark.parametrize("decimals", [0, 1, 6])
def test_a_tree_has_the_nodes_of_the_published_builder(node_budget, decimals):
    """Rounding to whole numbers or tenths makes many ties, as bf16 logits do."""
    logits_DV = np.random.default_rng(node_budget).normal(0, 2, (15, 300)).round(decimals)
    log_z_D = np.log(np.exp(logits_DV).sum(axis=1, keepdims=True))
    log_probs_DV = logits_DV.astype(np.float32) - log_z_D.astype(np.float32)

    tree = best_first_tree(log_probs_DV, node_budget)

    nodes = list(zip(tree.tokens, tree.parents, tree.depths, strict=True))
    assert nodes[0] == (NO_TOKEN, NO_PARENT, 0)
    assert nodes[1:] == published_nodes(log_probs_DV, node_budget)


@patient
@given(tables, st.integers(1, 40))
def test_every_field_of_a_node_follows_from_its_parent(log_probs_DV, node_budget):
    tree = best_first_tree(log_probs_DV, node_budget)

    assert tree.node_count == len(token_paths(tree)) == len(set(token_paths(tree)))
    assert list(tree.scores) == sorted(tree.scores, reverse=True)
    for node in range(1, len(tree.tokens)):
        parent, depth, token = tree.parents[node], tree.depths[node], tree.tokens[node]
        row = log_probs_DV[depth - 1]
        assert parent < node
        assert depth == tree.depths[parent] + 1
        assert tree.scores[node] == tree.scores[parent] + row[token]
        better = [t for t in range(len(row)) if (-row[t], t) < (-row[token], token)]
        assert tree.token_ranks[node] == len(better)


@patient
@given(tables, st.integers(1, 12), references)
def test_a_larger_budget_never_accepts_fewer_tokens(log_probs_DV, node_budget, reference):
    small = best_first_tree(log_probs_DV, node_budget)
    large = best_first_tree(log_probs_DV, node_budget + 1)

    assert len(accepted_path(large, reference)) >= len(accepted_path(small, reference))
    assert token_paths(large)[: small.node_count] == token_paths(small)


@patient
@given(tables, st.integers(1, 12), references)
def test_a_tree_that_holds_the_chain_accepts_no_fewer_tokens(log_probs_DV, node_budget, reference):
    tree, chain = best_first_tree(log_probs_DV, node_budget), chain_tree(log_probs_DV)

    if set(token_paths(chain)) <= set(token_paths(tree)):
        assert len(accepted_path(tree, reference)) >= len(accepted_path(chain, reference))


def test_worked_example_of_three_slots():
    """CASES D-11, tokens A C E = 0 and B D F = 1."""
    log_probs_DV = np.log(np.array([[0.6, 0.4], [0.7, 0.3], [0.55, 0.45]]))
    trees = [best_first_tree(log_probs_DV, node_budget) for node_budget in (3, 4, 5)]
    target = [1, 0, 1]

    assert token_paths(trees[0]) == [(0,), (0, 0), (1,)]
    assert token_paths(trees[1]) == [*token_paths(trees[0]), (1, 0)]
    assert token_paths(trees[2]) == [*token_paths(trees[1]), (0, 0, 0)]
    assert [len(accepted_path(tree, target)) for tree in trees] == [1, 2, 2]
    assert accepted_path(chain_tree(log_probs_DV), target) == ()


@patient
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), references)
def test_a_tree_without_branches_is_the_chain(drafted, reference):
    """CASES D-12: one possible token per slot, budget = depth."""
    log_probs_DV = np.full((len(drafted), 5), -np.inf)
    log_probs_DV[np.arange(len(drafted)), drafted] = -0.5
    tree, chain = best_first_tree(log_probs_DV, len(drafted)), chain_tree(log_probs_DV)

    assert tree == chain
    assert chain.tokens[1:] == tuple(drafted)
    matching = 0
    while matching < min(len(drafted), len(reference)) and drafted[matching] == reference[matching]:
        matching += 1
    assert len(accepted_path(chain, reference)) == matching


def test_masked_padding_columns_never_become_nodes():
    """CASES D-13: column 3 would win everywhere; masked, it is neither node nor draft."""
    logits_DV = np.array([[1.0, 2.0, 0.0, 99.0], [0.0, 0.5, 1.0, 99.0]])
    logits_DV[:, 3] = -np.inf
    log_probs_DV = logits_DV - np.log(np.exp(logits_DV).sum(axis=1, keepdims=True))

    tree = best_first_tree(log_probs_DV, 1024)

    assert tree.node_count == 3 + 9  # all there is: budgets beyond it add nothing
    assert 3 not in tree.tokens
    assert chain_tree(log_probs_DV).tokens == (NO_TOKEN, 1, 2)
    assert chain_tree(np.full((2, 3), -np.inf)).tokens == (NO_TOKEN,)


def test_equal_values_rank_by_token_id():
    log_probs_DV = np.log(np.full((2, 300), 1 / 300))

    tree = best_first_tree(log_probs_DV, 7)

    assert token_paths(tree) == [(token,) for token in range(7)]
    assert chain_tree(log_probs_DV).tokens == (NO_TOKEN, 0, 0)


@pytest.mark.parametrize("value", [np.nan, 0.01, np.inf])
def test_values_that_are_no_log_probabilities_are_refused(value):
    log_probs_DV = np.full((2, 3), -1.0)
    log_probs_DV[1, 2] = value

    for build in (chain_tree, lambda table: best_first_tree(table, 4)):
        with pytest.raises(ValueError, match="<= 0 and free of NaN"):
            build(log_probs_DV)


def test_empty_tables_and_budgets_are_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        best_first_tree(np.zeros((2, 3)), 0)
    with pytest.raises(ValueError, match=r"must be \[D, V\]"):
        chain_tree(np.zeros((0, 3)))
    with pytest.raises(ValueError, match=r"must be \[D, V\]"):
        best_first_tree(np.zeros(3), 1)


def test_a_tree_is_a_value():
    """Frozen, hashable, compared by content."""
    log_probs_DV = np.log(np.array([[0.6, 0.4]]))

    assert best_first_tree(log_probs_DV, 2) == best_first_tree(log_probs_DV, 2)
    assert len({best_first_tree(log_probs_DV, 1), chain_tree(log_probs_DV)}) == 1
    assert isinstance(chain_tree(log_probs_DV), DraftTree)
