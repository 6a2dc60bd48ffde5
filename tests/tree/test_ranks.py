"""The rank kernel against every prefix by brute force, against a heap, and against itself.

Neither oracle shares code with the kernel: one sorts all prefixes, the other is a heap with the
rules of liranringel/ddtree@c96427a, build_ddtree_tree.
"""

import heapq
import importlib
import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import draftlab
from draftlab.tree.ranks import ANCHORS_PER_CHUNK, rank_reference_paths

# Busy machines are no failures.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Shape letters: N anchors, D slots, V vocabulary, K best tokens per slot.


def ranked(log_probs_DV):
    """Values and token ids of each slot: larger value first, then smaller id."""
    order_DV = np.argsort(-log_probs_DV, axis=1, kind="stable")
    return np.take_along_axis(log_probs_DV, order_DV, axis=1), order_DV


def kernel_inputs(log_probs_NDV, references, width):
    """What a caller hands over; a reference shorter than D has ended."""
    count, depth, vocab_size = log_probs_NDV.shape
    top_NDK = np.empty((count, depth, width), np.float32)
    path_ND = np.full((count, depth), np.nan, np.float32)  # not read after the end
    token_ranks_ND = np.full((count, depth), -1, np.int32)
    for n, reference in enumerate(references):
        sorted_DV, order_DV = ranked(log_probs_NDV[n])
        top_NDK[n] = sorted_DV[:, :width]
        for d, token in enumerate(reference[:depth]):
            path_ND[n, d] = log_probs_NDV[n, d, token]
            token_ranks_ND[n, d] = list(order_DV[d]).index(token)
    return {
        "top_log_probs_NDK": top_NDK,
        "path_log_probs_ND": path_ND,
        "path_token_ranks_ND": token_ranks_ND,
        "vocab_size": vocab_size,
    }


def rank_all(log_probs_NDV, references, max_budget, width=None):
    width = width or log_probs_NDV.shape[2]
    inputs = kernel_inputs(log_probs_NDV, references, width)
    result = rank_reference_paths(**inputs, max_budget=max_budget)
    return result.path_ranks_ND, result.unresolved_N


def pops_by_enumeration(log_probs_DV):
    """All prefixes as rank tuples, in pop order: no heap, no pruning. {rank tuple: pop index}."""
    sorted_DV, _ = ranked(log_probs_DV)
    scored = []
    for length in range(1, len(sorted_DV) + 1):
        for ranks in itertools.product(range(sorted_DV.shape[1]), repeat=length):
            score = 0.0
            for d, rank in enumerate(ranks):
                score += float(sorted_DV[d, rank])
            if score > -np.inf:
                scored.append((-score, ranks))
    return {ranks: pop for pop, (_, ranks) in enumerate(sorted(scored), start=1)}


def pops_by_heap(log_probs_DV, budget):
    """The first `budget` pops of the published builder, its increments included."""
    table, _ = ranked(log_probs_DV)
    width, depth_limit = min(budget, table.shape[1]), len(table)
    first = float(table[0, 0])
    heap, pops = [(-first, (0,), 1, 0, first)], {}
    while heap and len(pops) < budget:
        _, ranks, depth, rank, logw = heapq.heappop(heap)
        pops[ranks] = len(pops) + 1
        if rank + 1 < width:
            sibling = logw - float(table[depth - 1, rank]) + float(table[depth - 1, rank + 1])
            heapq.heappush(heap, (-sibling, (*ranks[:-1], rank + 1), depth, rank + 1, sibling))
        if depth < depth_limit:
            child = logw + float(table[depth, 0])
            heapq.heappush(heap, (-child, (*ranks, 0), depth + 1, 0, child))
    return pops


def expected_ranks(pops, log_probs_DV, reference, max_budget):
    _, order_DV = ranked(log_probs_DV)
    path = [list(order_DV[d]).index(token) for d, token in enumerate(reference[: len(order_DV)])]
    row = [pops.get(tuple(path[: d + 1]), max_budget + 1) for d in range(len(path))]
    row += [max_budget + 1] * (len(order_DV) - len(path))
    return [min(pop, max_budget + 1) for pop in row]


def log_softmax(logits):
    """As the published builder: float32 logits minus their float32 logsumexp."""
    logits = logits.astype(np.float32)
    best = logits.max(axis=-1, keepdims=True)
    total = best + np.log(np.exp(logits - best).sum(axis=-1, keepdims=True, dtype=np.float32))
    return np.minimum(logits - total, np.float32(0))


def to_bf16(values):
    """Drop the 16 low bits of each float32: many equal values, as real logits have them."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def peaked_logits(random, depth, vocab_size):
    """Slot 1 nearly certain, later slots less and less so."""
    logits_DV = random.normal(0, 1.5, (depth, vocab_size))
    best_D = random.integers(0, vocab_size, depth)
    logits_DV[np.arange(depth), best_D] += np.linspace(12, 6, depth)
    return logits_DV


def drawn_reference(random, log_probs_DV):
    chances_DV = np.exp(log_probs_DV.astype(np.float64))
    return [int(random.choice(len(c), p=c / c.sum())) for c in chances_DV]


@st.composite
def small_cases(draw, values):
    """A table small enough to enumerate, and a reference that may end early."""
    depth, vocab_size = draw(st.sampled_from([(1, 1), (1, 6), (2, 5), (3, 4), (4, 3), (6, 2)]))
    row = st.lists(values, min_size=vocab_size, max_size=vocab_size)
    rows = draw(st.lists(row, min_size=depth, max_size=depth))
    reference = draw(st.lists(st.integers(0, vocab_size - 1), max_size=depth))
    return np.array(rows, np.float32), reference


tied_values = st.sampled_from([-np.inf, -3.0, -1.5, -1.0, -0.5, -0.0, 0.0])
any_values = st.floats(-(2.0**100), 0.0, width=32)


def assert_ranks_are_places(case, budgets):
    log_probs_DV, reference = case
    pops = pops_by_enumeration(log_probs_DV)
    for max_budget in budgets:
        ranks_ND, unresolved_N = rank_all(log_probs_DV[None], [reference], max_budget)
        assert ranks_ND[0].tolist() == expected_ranks(pops, log_probs_DV, reference, max_budget)
        assert not unresolved_N.any()


@settings(patient, max_examples=200)
@given(small_cases(tied_values))
def test_ranks_are_places_in_the_sorted_list_of_all_prefixes(case):
    """Few values, many ties, and certain tokens that leave a score as it was."""
    assert_ranks_are_places(case, range(1, 60))


@settings(patient, max_examples=200)
@given(small_cases(tied_values | any_values), st.integers(1, 200))
def test_sums_that_float64_must_round_are_compared_as_defined(case, max_budget):
    """Terms of very different size: added from the root outwards, by oracle and kernel alike."""
    assert_ranks_are_places(case, [max_budget])


@settings(patient, max_examples=100)
@given(st.integers(0, 2**32), st.floats(0.2, 0.9))
def test_ranks_are_right_where_most_tokens_are_certain_or_impossible(seed, certain):
    """Many prefixes of the very same score, path prefixes among them, dropped one after another."""
    random = np.random.default_rng(seed)
    values = np.array([0.0, -1.0, -np.inf], np.float32)
    chances = [certain, (1 - certain) * 0.7, (1 - certain) * 0.3]
    log_probs_DV = random.choice(values, size=(4, 3), p=chances)
    assert_ranks_are_places((log_probs_DV, random.integers(0, 3, 4).tolist()), range(1, 60))


@pytest.mark.parametrize("max_budget", [1, 2, 7, 16, 64, 1024])
@pytest.mark.parametrize("kind", ["peaked", "peaked bf16", "flat", "few values", "one value"])
def test_ranks_are_the_pops_of_the_published_heap(kind, max_budget):
    random = np.random.default_rng([max_budget, len(kind)])
    tables, references, expected = [], [], []
    for _ in range(12):
        depth, vocab_size = 15, 400
        logits_DV = peaked_logits(random, depth, vocab_size)
        if kind == "peaked bf16":
            logits_DV = to_bf16(logits_DV)
        elif kind == "flat":
            logits_DV = random.normal(0, 0.3, (depth, vocab_size))
        elif kind == "few values":
            logits_DV = random.integers(0, 5, (depth, vocab_size)).astype(float)
        elif kind == "one value":
            logits_DV = np.zeros((depth, vocab_size))
        tables.append(log_softmax(logits_DV))
        reference = drawn_reference(random, tables[-1])
        if kind in ("few values", "one value"):  # a drawn token would mostly be out of reach
            reference[0] = int(ranked(tables[-1])[1][0, random.integers(0, min(max_budget, 40))])
        references.append(reference)
        pops = pops_by_heap(tables[-1], max_budget)
        expected.append(expected_ranks(pops, tables[-1], references[-1], max_budget))

    ranks_ND, unresolved_N = rank_all(np.array(tables), references, max_budget)

    assert ranks_ND.tolist() == expected
    assert not unresolved_N.any()


def test_each_pop_of_the_published_heap_has_its_own_rank():
    """Every node of a 1024-node tree in turn is the reference."""
    random = np.random.default_rng(5)
    log_probs_DV = log_softmax(to_bf16(peaked_logits(random, 8, 50)))
    _, order_DV = ranked(log_probs_DV)
    pops = pops_by_heap(log_probs_DV, 1024)
    references = [[order_DV[d, rank] for d, rank in enumerate(ranks)] for ranks in pops]

    ranks_ND, _ = rank_all(np.repeat(log_probs_DV[None], 1024, axis=0), references, 1024)

    lengths = [len(reference) for reference in references]
    assert ranks_ND[np.arange(1024), np.array(lengths) - 1].tolist() == list(range(1, 1025))


def test_a_smaller_largest_budget_only_hides_the_later_pops():
    random = np.random.default_rng(6)
    tables_NDV = np.array([log_softmax(peaked_logits(random, 15, 200)) for _ in range(40)])
    references = [drawn_reference(random, log_probs_DV) for log_probs_DV in tables_NDV]
    full_ND, _ = rank_all(tables_NDV, references, 1024)

    for max_budget in (1, 2, 7, 16, 64, 1023):
        ranks_ND, _ = rank_all(tables_NDV, references, max_budget)
        assert (ranks_ND == np.minimum(full_ND, max_budget + 1)).all()


@settings(patient, max_examples=150)
@given(small_cases(tied_values))
def test_a_narrow_table_decides_as_the_full_one_or_says_that_it_cannot(case):
    log_probs_DV, reference = case
    vocab_size = log_probs_DV.shape[1]
    for max_budget, width in itertools.product(range(1, 20), range(1, vocab_size + 1)):
        full_ND, _ = rank_all(log_probs_DV[None], [reference], max_budget)

        ranks_ND, unresolved_N = rank_all(log_probs_DV[None], [reference], max_budget, width)

        decided_ND = ranks_ND > 0
        assert (ranks_ND[decided_ND] == full_ND[decided_ND]).all()
        assert unresolved_N[0] == (not decided_ND.all())
        assert not (unresolved_N[0] and width >= min(max_budget, vocab_size))


@settings(patient, max_examples=150)
@given(small_cases(tied_values | any_values), st.integers(1, 6))
def test_a_narrow_table_gives_up_only_where_the_missing_tokens_matter(case, width):
    """Oracle: the missing values at their largest and at their smallest. Ranks lie in between."""
    log_probs_DV, reference = case
    sorted_DV = ranked(log_probs_DV)[0]
    width = min(width, sorted_DV.shape[1])
    reference = list(itertools.takewhile(lambda token: token < width, reference))
    largest_DV, smallest_DV = sorted_DV.copy(), sorted_DV.copy()
    largest_DV[:, width:] = sorted_DV[:, width - 1 : width]
    smallest_DV[:, width:] = -np.inf
    pops = [pops_by_enumeration(table_DV) for table_DV in (largest_DV, smallest_DV)]

    for max_budget in range(1, 40):
        _, unresolved_N = rank_all(sorted_DV[None], [reference], max_budget, width)

        latest = expected_ranks(pops[0], largest_DV, reference, max_budget)
        earliest = expected_ranks(pops[1], smallest_DV, reference, max_budget)
        assert unresolved_N[0] == (latest != earliest)


def test_asking_again_with_more_candidates_settles_realistic_tables():
    random = np.random.default_rng(7)
    tables_NDV = np.array([log_softmax(peaked_logits(random, 15, 2000)) for _ in range(60)])
    references = [drawn_reference(random, log_probs_DV) for log_probs_DV in tables_NDV]
    full_ND, _ = rank_all(tables_NDV, references, 1024, 1024)
    ranks_ND, left = np.zeros_like(full_ND), np.arange(60)
    met = []

    for width in (8, 32, 128, 1024):
        again = [references[n] for n in left]
        ranks_ND[left], unresolved_N = rank_all(tables_NDV[left], again, 1024, width)
        met.append(len(left))
        left = left[unresolved_N]

    assert len(left) == 0
    assert met[0] > met[1] > met[-1]  # the retries did something
    assert (ranks_ND == full_ND).all()


def test_worked_example_of_three_slots():
    """CASES D-11: pops A, AC, B, BC, ACE; B C F is in with 3, 4 and (by hand) 9 nodes."""
    log_probs_DV = np.log(np.array([[0.6, 0.4], [0.7, 0.3], [0.55, 0.45]], np.float32))

    ranks_ND, _ = rank_all(log_probs_DV[None], [[1, 0, 1]], 1024)
    small_ND, _ = rank_all(log_probs_DV[None], [[1, 0, 1]], 5)

    assert ranks_ND.tolist() == [[3, 4, 9]]
    assert small_ND.tolist() == [[3, 4, 6]]
    assert [(small_ND <= budget).sum() for budget in (3, 4, 5)] == [1, 2, 2]


def test_one_token_per_slot_ranks_like_a_chain():
    """CASES D-12: without branches, a budget of d nodes accepts what a chain of d drafts does."""
    log_probs_DV = np.full((6, 9), -np.inf, np.float32)
    chain = [4, 0, 8, 8, 2, 5]
    log_probs_DV[np.arange(6), chain] = -0.25
    wrong_fourth = [*chain[:3], 1, *chain[4:]]

    ranks_ND, _ = rank_all(np.repeat(log_probs_DV[None], 2, axis=0), [chain, wrong_fourth], 6)

    assert ranks_ND.tolist() == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 7, 7]]


def test_masked_padding_columns_neither_count_nor_get_a_rank():
    """CASES D-13: the same table with and without 50 padding columns at -inf."""
    random = np.random.default_rng(8)
    tables_NDV = np.array([log_softmax(random.normal(0, 2, (5, 3))) for _ in range(20)])
    padded_NDV = np.pad(tables_NDV, ((0, 0), (0, 0), (0, 50)), constant_values=-np.inf)
    references = [random.integers(0, 3, 5).tolist() for _ in range(20)]

    plain_ND, _ = rank_all(tables_NDV, references, 1024)
    ranks_ND, unresolved_N = rank_all(padded_NDV, references, 1024)
    narrow_ND, narrow_N = rank_all(padded_NDV, references, 1024, 4)
    into_padding_ND, _ = rank_all(padded_NDV, [[0, 40, 0, 0, 0]] * 20, 1024)

    assert (ranks_ND == plain_ND).all()
    assert (narrow_ND == plain_ND).all()
    assert not unresolved_N.any()
    assert not narrow_N.any()  # the fourth candidate is -inf: nothing can follow
    assert (into_padding_ND[:, 1:] == 1025).all()


def test_certain_tokens_rank_right_where_the_processor_flushes_denormals():
    """torch.set_flush_denormal turns the float next above 0 into 0, which would count as 0 > 0."""
    torch = pytest.importorskip("torch")
    log_probs_DV = np.array([[0, -5], [0, -5], [0, 0]], np.float32)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        ranks_ND, _ = rank_all(np.repeat(log_probs_DV[None], 2, 0), [[0, 0, 0], [0, 0, 1]], 64)
    finally:
        torch.set_flush_denormal(False)

    assert ranks_ND.tolist() == [[1, 2, 3], [1, 2, 4]]


def test_the_path_stops_where_the_reference_ends():
    log_probs_DV = np.log(np.full((4, 4), 0.25, np.float32))

    ranks_ND, unresolved_N = rank_all(np.repeat(log_probs_DV[None], 3, 0), [[], [0], [1, 0]], 30)

    assert ranks_ND.tolist() == [[31] * 4, [1, 31, 31, 31], [2, 9, 31, 31]]
    assert not unresolved_N.any()


def test_no_anchors_give_no_ranks():
    ranks_ND, unresolved_N = rank_all(np.zeros((0, 3, 4), np.float32), [], 16)

    assert ranks_ND.shape == (0, 3)
    assert unresolved_N.shape == (0,)


def many_anchors(seed=9, count=2 * ANCHORS_PER_CHUNK + 7):
    random = np.random.default_rng(seed)
    tables_NDV = np.array(
        [log_softmax(to_bf16(peaked_logits(random, 10, 120))) for _ in range(count)]
    )
    return tables_NDV, [drawn_reference(random, log_probs_DV) for log_probs_DV in tables_NDV]


def test_threads_and_chunks_do_not_show_in_the_ranks():
    tables_NDV, references = many_anchors()
    alone = [rank_all(tables_NDV[[n]], [references[n]], 300)[0][0] for n in range(len(references))]

    inputs = kernel_inputs(tables_NDV, references, 120)
    for threads in (1, 2, 5):
        result = rank_reference_paths(**inputs, max_budget=300, threads=threads)
        assert (result.path_ranks_ND == alone).all()


def test_strided_and_wide_integer_inputs_are_read_right():
    tables_NDV, references = many_anchors(count=12)
    inputs = kernel_inputs(tables_NDV, references, 120)
    expected_ND, _ = rank_all(tables_NDV, references, 300)
    inputs["top_log_probs_NDK"] = np.repeat(inputs["top_log_probs_NDK"], 2, axis=2)[:, :, ::2]
    inputs["path_token_ranks_ND"] = inputs["path_token_ranks_ND"].astype(np.int64)

    assert (rank_reference_paths(**inputs, max_budget=300).path_ranks_ND == expected_ND).all()


def spoiled(name, index, value):
    tables_NDV, references = many_anchors(count=ANCHORS_PER_CHUNK + 3)
    inputs = kernel_inputs(tables_NDV, references, 120)
    inputs[name][index] = value
    return inputs


last = ANCHORS_PER_CHUNK + 1


@pytest.mark.parametrize(
    ("name", "index", "value", "complaint"),
    [
        ("top_log_probs_NDK", (last, 9, 119), np.nan, f"anchor {last}: .*NaN"),
        ("top_log_probs_NDK", (last, 5, 0), np.nan, "NaN"),
        ("top_log_probs_NDK", (last, 5, 60), np.nan, f"anchor {last}: .*NaN"),
        ("top_log_probs_NDK", (last, 5, 60), -0.001, f"anchor {last}: .*descending"),
        ("top_log_probs_NDK", (last, 5, 0), 1e-7, "<= 0|not the one"),
        ("path_log_probs_ND", (last, 5), np.nan, "path log-probability is NaN"),
        ("path_log_probs_ND", (last, 5), -99.0, "not the one that its rank has"),
        ("path_token_ranks_ND", (last, 5), 120, "not below the vocabulary size 120"),
    ],
)
def test_inputs_that_cannot_be_right_are_refused(name, index, value, complaint):
    inputs = spoiled(name, index, value)

    for threads in (1, 2):
        with pytest.raises(ValueError, match=complaint):
            rank_reference_paths(**inputs, max_budget=64, threads=threads)


def test_a_path_token_beyond_the_table_cannot_beat_the_last_one_in_it():
    tables_NDV, references = many_anchors(count=3)
    inputs = kernel_inputs(tables_NDV, references, 4)
    inputs["path_token_ranks_ND"][1, 2] = 4
    inputs["path_log_probs_ND"][1, 2] = np.nextafter(
        inputs["top_log_probs_NDK"][1, 2, 3], np.float32(0)
    )

    with pytest.raises(ValueError, match="not the one that its rank has"):
        rank_reference_paths(**inputs, max_budget=64)


def test_positive_log_probabilities_are_refused():
    inputs = kernel_inputs(np.full((1, 2, 3), 0.5, np.float32), [[0, 0]], 3)

    with pytest.raises(ValueError, match="anchor 0: log-probabilities must be <= 0"):
        rank_reference_paths(**inputs, max_budget=64)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"top_log_probs_NDK": np.zeros((2, 3), np.float32)}, r"must be \[N, D, K\]"),
        ({"top_log_probs_NDK": np.zeros((2, 3, 0), np.float32)}, r"must be \[N, D, K\]"),
        ({"top_log_probs_NDK": np.zeros((2, 3, 4))}, "must be float32, not float64"),
        ({"path_log_probs_ND": np.zeros((2, 3), np.float16)}, "must be float32"),
        ({"path_log_probs_ND": np.zeros((2, 4), np.float32)}, r"must be \(2, 3\)"),
        ({"path_token_ranks_ND": np.zeros((1, 3), np.int32)}, r"must be \(2, 3\)"),
        ({"path_token_ranks_ND": np.zeros((2, 3))}, "must be integers"),
        ({"vocab_size": 3}, "vocab_size=3"),
        ({"max_budget": 0}, "max_budget=0"),
        ({"threads": 0}, "threads=0"),
    ],
)
def test_shapes_types_and_limits_are_checked(change, complaint):
    inputs = {
        "top_log_probs_NDK": np.zeros((2, 3, 4), np.float32),
        "path_log_probs_ND": np.zeros((2, 3), np.float32),
        "path_token_ranks_ND": np.zeros((2, 3), np.int32),
        "vocab_size": 4,
        "max_budget": 8,
    }

    with pytest.raises(ValueError, match=complaint):
        rank_reference_paths(**(inputs | change))


@pytest.fixture
def interpreted(monkeypatch):
    """draftlab.tree.ranks as it is imported where numba is missing."""
    monkeypatch.setattr(draftlab, "tree", draftlab.tree)  # to be put back
    for name in [name for name in sys.modules if name.startswith("draftlab.tree")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    return importlib.import_module("draftlab.tree.ranks")


@pytest.mark.parametrize("width", [4, 20, 120])
def test_without_numba_the_ranks_are_the_same(interpreted, width):
    assert not sys.modules["draftlab.tree.jit"].COMPILES
    tables_NDV, references = many_anchors(seed=10)
    inputs = kernel_inputs(tables_NDV, references, width)

    for max_budget in (1, 16, 1024):
        compiled = rank_reference_paths(**inputs, max_budget=max_budget)
        slow = interpreted.rank_reference_paths(**inputs, max_budget=max_budget, threads=2)
        assert (slow.path_ranks_ND == compiled.path_ranks_ND).all()
        assert (slow.unresolved_N == compiled.unresolved_N).all()


def test_without_numba_wrong_inputs_are_refused_alike(interpreted):
    for index, value in (((last, 9, 119), np.nan), ((last, 5, 60), -0.001), ((last, 9, 0), 0.5)):
        inputs = spoiled("top_log_probs_NDK", index, value)
        inputs["path_token_ranks_ND"][:] = -1
        with pytest.raises(ValueError, match=f"anchor {last}: .*descending order and free of NaN"):
            interpreted.rank_reference_paths(**inputs, max_budget=64)


needs_numba = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="numba is not installed: nothing to compile"
)
ranking = """
    import numpy as np
    from draftlab.tree.ranks import rank_reference_paths

    def ranks():
        result = rank_reference_paths(
            np.log(np.full((200, 3, 4), 0.25, np.float32)),
            np.log(np.full((200, 3), 0.25, np.float32)),
            np.tile(np.array([1, 0, 0], np.int32), (200, 1)),
            vocab_size=4, max_budget=64, threads=2,
        )
        return result.path_ranks_ND[0].tolist()
"""
compiling = """
    import numpy as np
    from draftlab.tree.jit import COMPILES, kernel

    def double(values):
        return values * 2

    before = double
    double = kernel(double)
    assert COMPILES and double is not before
    print(double(np.arange(3)).tolist(), double(np.arange(3)).tolist())
"""


def run_python(code, tmp_path, **environment):
    """Run code as a file of its own in a fresh interpreter; its standard output."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(draftlab.__file__).parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(tmp_path),
    } | environment
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_numba
def test_kernels_run_where_no_directory_can_hold_their_code(tmp_path):
    """Files stand where numba would make its directories; that stops the superuser too."""
    (tmp_path / "__pycache__").write_text("")
    (tmp_path / ".cache").write_text("")

    assert run_python(compiling, tmp_path) == "[0, 2, 4] [0, 2, 4]\n"


@needs_numba
def test_kernels_run_where_the_disk_is_full(tmp_path):
    """A file size limit of 0 bytes: files can be made, nothing can be written to them."""
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"

    assert run_python(full + textwrap.dedent(compiling), tmp_path) == "[0, 2, 4] [0, 2, 4]\n"
    assert not [path for path in tmp_path.rglob("*.nbc") if path.stat().st_size]


@needs_numba
def test_a_forked_child_can_rank_after_its_parent_did(tmp_path):
    """The parallel loops of numba itself kill such a child: hence the plain thread pool."""
    forking = """
    import os

    parent = ranks()
    child = os.fork()
    if child == 0:
        os._exit(0 if ranks() == parent == [2, 9, 37] else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), parent)
    """
    cache = os.environ.get("NUMBA_CACHE_DIR")
    environment = {} if cache is None else {"NUMBA_CACHE_DIR": cache}

    assert run_python(ranking + forking, tmp_path, **environment) == "0 [2, 9, 37]\n"
