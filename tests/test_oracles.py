"""The oracles agree with each other and with other people's loops: replay is held to them.

What is compared is the list of rounds of each prompt, element by element, never an average.
"""

import ast
import functools
import itertools
import math
from collections import Counter
from pathlib import Path

import oracles
import peers
import pytest
import tiny
import torch

N_TOKENS = 40
BUDGETS = (1, 2, 3, 5, 8, 16, 64)
TIED = {"qwen3": False, "qwen3_5": False, "llama": True, "gemma3": True}
ATTENTION_ONLY = ("qwen3", "llama", "gemma3")
VARIANTS = {
    "plain": {},
    "nested": {"style": "nested", "rope_theta": 1e4},
    "sliding": {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 5},
    "wide": {"layer_types": ("sliding_attention", "sliding_attention"), "sliding_window": 20},
    "two_sided": {
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 4,  # narrower than the block, so that both edges cut
        "is_causal": False,
    },
    "causal": {"is_causal": True},
    "dressed": {
        "attention_bias": True,
        "input_embedding_scale": 2.0,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 4.0,
        "style": "nested",
    },
    "one_tap": {"target_layer_ids": (1,), "block_size": 9, "layer_types": ("full_attention",)},
}
NATIVE_VARIANTS = ("plain", "nested", "two_sided")


@pytest.fixture(scope="session")
def target_of(tmp_path_factory):
    root = tmp_path_factory.mktemp("targets")

    @functools.cache
    def make(architecture, layer_ids):
        folder = root / architecture
        if not folder.exists():
            tiny.write_target(folder, architecture, tied=TIED[architecture])
        return oracles.Target(folder, layer_ids)

    return make


@pytest.fixture(scope="session")
def pair_of(tmp_path_factory, target_of):
    root = tmp_path_factory.mktemp("drafters")

    @functools.cache
    def make(architecture, variant="plain"):
        changes = VARIANTS[variant]
        taps = changes.get("target_layer_ids", tiny.TAPS[architecture])
        target = target_of(architecture, taps)
        return oracles.fit_pair(root / f"{architecture}-{variant}", target, architecture, **changes)

    return make


@pytest.fixture(scope="session")
def chains_of(pair_of):
    @functools.cache
    def make(architecture, variant="plain"):
        pair = pair_of(architecture, variant)
        return [
            oracles.naive_chain(pair.target, pair.drafter, prompt, N_TOKENS)
            for prompt in pair.prompts
        ]

    return make


def mean_committed(runs):
    return sum(sum(run.committed) for run in runs) / sum(len(run.rounds) for run in runs)


def assert_same_rounds(ours, theirs, rounds=slice(None)):
    """`rounds` says which; near-ties are named, for two kernels may break them differently."""
    near = f"smallest margin {ours.smallest_margin:.1e}"
    assert theirs.tokens == ours.tokens, near
    assert list(theirs.committed[rounds]) == ours.committed[rounds], near


def assert_same_logits(pair, prompt, ours, theirs):
    """Of every round: a tree rests on all of them, a chain on the largest only."""
    text = [*prompt, *ours.tokens]
    for one, logits_DV in zip(ours.rounds, theirs.draft_logits, strict=False):
        expected_DV = oracles.draft(pair.target, pair.drafter, text[: one.anchor + 1])
        torch.testing.assert_close(logits_DV, expected_DV, rtol=1e-4, atol=1e-4)
    assert len(theirs.draft_logits) >= len(ours.rounds) - 1


# ---- the pieces ----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["oracles.py", "peers.py", "tiny.py"])
def test_no_oracle_imports_what_it_judges(file):
    tree = ast.parse(Path(__file__).with_name(file).read_text())
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }

    assert imported
    assert not [name for name in imported if name.split(".")[0] == "draftlab"]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["qwen3", "llama", "gemma3"])
def test_greedy_texts_wander(architecture, tied, tmp_path):
    target = oracles.Target(tiny.write_target(tmp_path, architecture, tied=tied), (1,))
    distinct = [len(set(oracles.greedy(target, p, N_TOKENS))) for p in tiny.random_prompts(3)]

    assert sum(distinct) / len(distinct) >= 10


def test_the_same_seed_gives_the_same_target(tmp_path):
    for name in ("one", "two"):
        tiny.write_target(tmp_path / name, "qwen3_5", tied=True)

    assert (tmp_path / "one/model.safetensors").read_bytes() == (
        tmp_path / "two/model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_forward_used_in_training_equals_the_one_block_forward(variant, target_of, tmp_path):
    config = tiny.drafter_config(tiny.DrafterShape.of("qwen3", **VARIANTS[variant]))
    tiny.write_drafter(tmp_path, tiny.random_drafter(config), config)
    target = target_of("qwen3", tuple(config["dflash_config"]["target_layer_ids"]))
    drafter = oracles.NaiveDrafter(tmp_path, target.folder)
    taps_SN = torch.stack([target.forward(p)[0] for p in torch.arange(60).view(2, 30).tolist()])
    anchors_PM, tokens_PM = torch.tensor([[1, 4, 29], [6, 17, 23]]), torch.tensor([[3, 9, 2]] * 2)

    many = oracles.many_logits(drafter, taps_SN, anchors_PM, tokens_PM)

    for text, nth in itertools.product(range(2), range(3)):
        anchor, token = int(anchors_PM[text, nth]), int(tokens_PM[text, nth])
        one = drafter.logits(taps_SN[text, :anchor], token, anchor, drafter.block_size)
        torch.testing.assert_close(many[text, nth], one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("budget", [1, 2, 7, 40, 300, 1000])
def test_the_tree_holds_exactly_the_most_probable_prefixes(budget):
    depth, vocab = 3, 9  # 9 + 81 + 729 = 819 prefixes: a budget of 1000 takes them all
    logits_DV = torch.randn(depth, vocab, generator=torch.Generator().manual_seed(budget)) * 2
    log_probs = logits_DV.log_softmax(-1).tolist()
    prefixes = [p for n in range(1, depth + 1) for p in itertools.product(range(vocab), repeat=n)]

    def score(prefix):
        return math.fsum(log_probs[d][token] for d, token in enumerate(prefix))

    expected = sorted(prefixes, key=score, reverse=True)
    tree = oracles.best_first_tree(logits_DV, budget)
    paths = {0: ()}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True), 1):
        paths[node] = (*paths[parent], token)

    assert list(paths.values())[1:] == expected[:budget]
    assert tree.log_probs == pytest.approx([score(p) for p in expected[:budget]], abs=1e-5)
    if budget < len(expected):
        assert tree.gap == pytest.approx(tree.log_probs[-1] - score(expected[budget]), abs=1e-5)
    else:
        assert tree.gap == math.inf


def test_among_equal_scores_the_smaller_tuple_of_ranks_goes_first():
    """Rows of whole numbers are full of equals; whoever is popped late is cut off by a budget."""
    depth, vocab = 3, 6
    logits_DV = torch.tensor([[3, 3, 1, 1, 1, 0], [2, 2, 2, 2, 0, 0], [4, 4, 4, 1, 1, 1]]).float()
    log_probs = (logits_DV - logits_DV.logsumexp(-1, keepdim=True)).tolist()
    ranks = [p for n in range(1, depth + 1) for p in itertools.product(range(vocab), repeat=n)]

    def pop_order(prefix):
        return -math.fsum(log_probs[d][rank] for d, rank in enumerate(prefix)), prefix

    tree = oracles.best_first_tree(logits_DV, len(ranks))
    paths = {0: ()}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True), 1):
        paths[node] = (*paths[parent], token)  # tokens are ranks here: the rows are sorted

    assert list(paths.values())[1:] == sorted(ranks, key=pop_order)


def test_the_same_seed_gives_the_same_drafter(pair_of, tmp_path):
    pair = pair_of("llama")
    again = oracles.fit_pair(tmp_path, pair.target, "llama")

    for name, weight in pair.drafter.weights.items():
        assert torch.equal(weight, again.drafter.weights[name]), name


# ---- the loops, among themselves -----------------------------------------------------------------


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_drafters_accept_some_and_not_all(architecture, chains_of):
    chains = chains_of(architecture)
    counts = Counter(count for chain in chains for count in chain.accepted)

    assert 2.4 <= mean_committed(chains) <= 3.8
    assert set(counts) == set(range(6))
    assert max(counts.values()) < 0.6 * counts.total()


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_a_chain_makes_the_greedy_text(architecture, pair_of, chains_of):
    pair = pair_of(architecture)

    for prompt, chain in zip(pair.prompts, chains_of(architecture), strict=True):
        assert list(chain.tokens) == oracles.greedy(pair.target, prompt, N_TOKENS)
        assert 1 + sum(chain.committed) == N_TOKENS


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_a_tree_makes_the_greedy_text(architecture, budget, pair_of):
    pair = pair_of(architecture)

    for prompt in pair.prompts[:2]:
        tree = oracles.naive_tree(pair.target, pair.drafter, prompt, N_TOKENS, budget)
        assert list(tree.tokens) == oracles.greedy(pair.target, prompt, N_TOKENS)
        assert 1 + sum(tree.committed) == N_TOKENS
        assert max(tree.accepted) <= min(budget, pair.drafter.block_size - 1)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_a_tree_of_width_one_is_the_chain(architecture, pair_of, chains_of):
    pair = pair_of(architecture)
    depth = pair.drafter.block_size - 1

    for prompt, chain in zip(pair.prompts, chains_of(architecture), strict=True):
        tree = oracles.naive_tree(pair.target, pair.drafter, prompt, N_TOKENS, depth, width=1)
        for ours, theirs in zip(tree.rounds, chain.rounds, strict=True):
            assert (ours.anchor, ours.drafted, ours.parents) == (
                theirs.anchor,
                theirs.drafted,
                theirs.parents,
            )
            assert (ours.accepted, ours.committed, ours.cut) == (
                theirs.accepted,
                theirs.committed,
                theirs.cut,
            )


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_at_one_anchor_more_budget_never_accepts_less_and_holding_the_chain_never_less_than_it(
    architecture, pair_of, chains_of
):
    pair = pair_of(architecture)
    gained, held = 0, 0
    for prompt, chain in zip(pair.prompts, chains_of(architecture), strict=True):
        text = [*prompt, *chain.tokens]
        for one in (one for one in chain.rounds if not one.cut):
            tokens = text[: one.anchor + 1]
            logits_DV = oracles.draft(pair.target, pair.drafter, tokens)
            trees = [oracles.best_first_tree(logits_DV, budget) for budget in (*BUDGETS, 400)]
            accepted = [len(oracles.walk(pair.target, tree, tokens)) - 1 for tree in trees]
            assert accepted == sorted(accepted)
            gained += accepted[-1] > accepted[0]
            for tree, count in zip(trees, accepted, strict=True):
                if holds_chain(tree, one.drafted):
                    held += 1
                    assert count >= one.accepted

    assert gained > 10
    assert held > 10


def holds_chain(tree, drafted):
    node = 0
    for token in drafted:
        node = tree.children(node).get(token)
        if node is None:
            return False
    return True


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_walking_lazily_is_verifying_the_whole_tree_in_one_masked_forward(
    architecture, pair_of, chains_of
):
    pair = pair_of(architecture)
    compared = 0
    for prompt, chain in zip(pair.prompts, chains_of(architecture), strict=True):
        for one in chain.rounds:
            tokens = [*prompt, *chain.tokens][: one.anchor + 1]
            logits_DV = oracles.draft(pair.target, pair.drafter, tokens)
            for budget in (3, 16, 64):
                tree = oracles.best_first_tree(logits_DV, budget)
                lazy = oracles.walk(pair.target, tree, tokens)
                at_once = oracles.walk_at_once(pair.target, tree, tokens)
                assert [c.token for c in lazy] == [c.token for c in at_once]
                compared += 1

    assert compared > 100


@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_5"])
def test_an_earlier_end_cuts_the_last_round_and_changes_nothing_before_it(
    architecture, pair_of, chains_of
):
    pair, whole = pair_of(architecture), chains_of(architecture)[0]
    for n_tokens in range(1, N_TOKENS):
        short = oracles.naive_chain(pair.target, pair.drafter, pair.prompts[0], n_tokens)
        assert short.tokens == whole.tokens[:n_tokens]
        if not short.rounds:
            assert n_tokens == 1
            continue
        last, same = short.rounds[-1], whole.rounds[len(short.rounds) - 1]
        assert short.rounds[:-1] == whole.rounds[: len(short.rounds) - 1]
        assert not any(one.cut for one in short.rounds[:-1])
        left = len(pair.prompts[0]) + n_tokens - 1 - last.anchor
        assert (last.anchor, last.drafted) == (same.anchor, same.drafted)
        assert last.committed == left == min(same.committed, left)
        assert last.accepted == min(same.accepted, left)
        assert last.cut == (left < same.accepted + 1)


# ---- other people's loops ------------------------------------------------------------------------


ZLAB_CASES = [("qwen3", variant) for variant in VARIANTS] + [
    (architecture, variant)
    for architecture in ("llama", "gemma3")
    for variant in ("plain", "sliding")
]


@pytest.mark.peer
@peers.needs_zlab
@pytest.mark.parametrize(("architecture", "variant"), ZLAB_CASES)
def test_zlabs_loop_makes_the_same_rounds(architecture, variant, pair_of, chains_of):
    pair = pair_of(architecture, variant)
    block_size = pair.drafter.block_size
    for prompt, chain in zip(pair.prompts, chains_of(architecture, variant), strict=True):
        longer = peers.zlab_run(
            pair.target.model, pair.drafter_folder, prompt, N_TOKENS + block_size
        )
        assert_same_rounds(chain, longer.until(N_TOKENS))
        assert_same_logits(pair, prompt, chain, longer.until(N_TOKENS))


@pytest.mark.peer
@peers.needs_zlab
def test_zlabs_loop_makes_the_same_rounds_until_a_block_no_longer_fits(pair_of, chains_of):
    pair = pair_of("qwen3")
    shrunk = 0
    for prompt, chain in zip(pair.prompts, chains_of("qwen3"), strict=True):
        for n_tokens in range(20, N_TOKENS, 3):
            chain = oracles.naive_chain(pair.target, pair.drafter, prompt, n_tokens)
            end = len(prompt) + n_tokens
            fits = sum(one.anchor + pair.drafter.block_size <= end for one in chain.rounds)
            peer = peers.zlab_run(pair.target.model, pair.drafter_folder, prompt, n_tokens)
            assert_same_rounds(chain, peer, slice(fits))
            shrunk += list(peer.committed) != chain.committed

    assert shrunk, "no run where fewer slots drafted something else: the case is not covered"


@pytest.mark.peer
@peers.needs_zlab
@pytest.mark.parametrize("block_size", [2, 4, 9])
def test_zlabs_loop_makes_the_same_rounds_at_another_block_size(block_size, pair_of):
    pair = pair_of("qwen3")
    drafter = oracles.NaiveDrafter(pair.drafter_folder, pair.target.folder, block_size=block_size)
    for prompt in pair.prompts:
        chain = oracles.naive_chain(pair.target, drafter, prompt, N_TOKENS)
        longer = peers.zlab_run(
            pair.target.model,
            pair.drafter_folder,
            prompt,
            N_TOKENS + block_size,
            block_size=block_size,
        )
        assert_same_rounds(chain, longer.until(N_TOKENS))


@pytest.mark.peer
@peers.needs_zlab
def test_zlabs_loop_is_no_peer_on_a_hybrid_target_because_it_loses_the_text(pair_of, chains_of):
    """Its crop leaves rejected tokens in the recurrent states and says nothing."""
    pair, chain = pair_of("qwen3_5"), chains_of("qwen3_5")[0]

    peer = peers.zlab_run(pair.target.model, pair.drafter_folder, pair.prompts[0], N_TOKENS)

    assert peer.tokens != chain.tokens


@pytest.mark.peer
@pytest.mark.parametrize("variant", NATIVE_VARIANTS)
@pytest.mark.parametrize("architecture", ATTENTION_ONLY)
def test_transformers_own_loop_makes_the_same_rounds_the_cut_one_too(
    architecture, variant, pair_of, chains_of
):
    pair = pair_of(architecture, variant)
    for prompt, chain in zip(pair.prompts, chains_of(architecture, variant), strict=True):
        peer = peers.native_run(pair.target.model, pair.drafter_folder, prompt, N_TOKENS)
        assert_same_rounds(chain, peer)
        assert_same_logits(pair, prompt, chain, peer)


@pytest.mark.peer
def test_transformers_own_loop_refuses_a_hybrid_target(pair_of):
    pair = pair_of("qwen3_5")

    with pytest.raises(ValueError, match="stateful models"):
        peers.native_run(pair.target.model, pair.drafter_folder, pair.prompts[0], N_TOKENS)
