"""The proof: replay's rounds are those of decoding loops that run the real target.

Every list of committed tokens is compared element by element, per prompt, for the chain and for
trees of several budgets, on four architectures. The loops are tests/oracles.py (no cache, no
batching, no code of draftlab), z-lab's own (PyPI `dflash`) and transformers' own. Drafters are
fitted to the prompts' completions until they accept some drafts and miss others.
"""

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path

import oracles
import peers
import pipeline
import pytest
import tiny

from draftlab.replay.evaluate import Evaluation

TOKENS = 40
BUDGETS = (1, 2, 7, 16, 64, 1024)
TIED = {"qwen3": False, "qwen3_5": False, "llama": True, "gemma3": True}
# Each architecture also shows one way of writing or shaping a drafter.
SHAPES = {
    "qwen3": {},
    "qwen3_5": {"style": "nested"},
    "llama": {
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 12,
        "style": "nested",
    },
    "gemma3": {"final_logit_softcapping": 30.0, "output_multiplier": 0.8},
}


@dataclass(frozen=True)
class Case:
    """A target, a drafter that accepts, and what the tool says of them."""

    target_folder: Path
    drafter_folder: Path
    target: oracles.Target
    drafter: oracles.NaiveDrafter
    prompts: list[list[int]]
    evaluation: Evaluation
    reference: list[tuple[int, ...]]


@pytest.fixture(scope="session")
def case_of(tmp_path_factory):
    @functools.cache
    def make(architecture):
        root = tmp_path_factory.mktemp(architecture)
        target_folder = tiny.write_target(root / "target", architecture, tied=TIED[architecture])
        shape = tiny.DrafterShape.of(architecture, **SHAPES[architecture])
        config = tiny.drafter_config(shape)
        target = oracles.Target(target_folder, shape.target_layer_ids)
        prompts = tiny.random_prompts(3, seed=1)
        drafter = oracles.overfit(root / "drafter", config, target, prompts)
        made = pipeline.run_pipeline(root, target_folder, root / "drafter", prompts, TOKENS)
        evaluation = made.evaluate(root / "drafter", target_folder, budgets=BUDGETS)
        texts = [row.completion_ids for row in made.reference.completions]
        return Case(target_folder, root / "drafter", target, drafter, prompts, evaluation, texts)

    return make


def rounds_of(decoded):
    return tuple(decoded.committed)


def explain(decoded, ours, what):
    """A difference within rounding is said to be one; it is still a failure to look at."""
    margin = f"smallest margin {decoded.smallest_margin:.2e}"
    return f"{what}: loop {decoded.committed}, replay {ours}; {margin}"


@pytest.mark.parametrize("architecture", SHAPES)
def test_the_reference_is_what_the_target_says_token_by_token(case_of, architecture):
    case = case_of(architecture)
    for prompt, text in zip(case.prompts, case.reference, strict=True):
        assert list(text) == oracles.greedy(case.target, prompt, TOKENS)
    assert case.evaluation.run.agreement == 1.0


@pytest.mark.parametrize("architecture", SHAPES)
def test_chain_rounds_equal_those_of_a_loop_without_caches(case_of, architecture):
    case = case_of(architecture)
    for i, prompt in enumerate(case.prompts):
        loop = oracles.naive_chain(case.target, case.drafter, prompt, TOKENS)
        ours = case.evaluation.run.chain.committed[i]
        assert ours == rounds_of(loop), explain(loop, ours, f"prompt {i}")
        assert list(loop.tokens) == list(case.reference[i])


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("architecture", SHAPES)
def test_tree_rounds_equal_those_of_a_loop_that_builds_trees(case_of, architecture, budget):
    case = case_of(architecture)
    for i, prompt in enumerate(case.prompts):
        loop = oracles.naive_tree(case.target, case.drafter, prompt, TOKENS, budget)
        ours = case.evaluation.run.trees[str(budget)].committed[i]
        assert ours == rounds_of(loop), explain(loop, ours, f"prompt {i}, budget {budget}")


@pytest.mark.parametrize("architecture", SHAPES)
def test_the_drafters_of_these_tests_accept_some_drafts_and_miss_others(case_of, architecture):
    run = case_of(architecture).evaluation.run
    assert 1.5 < run.chain.tau < run.conditions.block_size - 1
    assert len(set(itertools.chain(*run.chain.committed))) >= 3
    assert run.tree_tau_by_budget[63] > run.chain.tau


@pytest.mark.parametrize("architecture", SHAPES)
def test_a_smaller_block_of_the_same_drafter_equals_the_loop_with_that_block(
    case_of, architecture, tmp_path
):
    case = case_of(architecture)
    made = pipeline.run_pipeline(
        tmp_path, case.target_folder, case.drafter_folder, case.prompts, TOKENS
    )
    run = made.evaluate(case.drafter_folder, case.target_folder, budgets=(5,), block_size=4).run
    smaller = oracles.NaiveDrafter(case.drafter_folder, case.target_folder, block_size=4)
    for i, prompt in enumerate(case.prompts):
        chain = oracles.naive_chain(case.target, smaller, prompt, TOKENS)
        tree = oracles.naive_tree(case.target, smaller, prompt, TOKENS, 5)
        assert run.chain.committed[i] == rounds_of(chain)
        assert run.trees["5"].committed[i] == rounds_of(tree)


@pytest.mark.parametrize("architecture", SHAPES)
def test_a_narrower_verify_width_equals_a_chain_cut_there(case_of, architecture):
    """Oracle: the loop's own drafts, cut by hand; the block is drafted whole."""
    case = case_of(architecture)
    run = case.evaluation.run
    for width in range(2, run.conditions.block_size + 1):
        rounds = sum(len(cut_walk(case, prompt, width)) for prompt in case.prompts)
        assert run.widths[str(width)].rounds == rounds


def cut_walk(case, prompt, width):
    tokens = [*prompt, case.target.read(prompt)[1].token]
    end, rounds = len(prompt) + TOKENS, []
    text = oracles.greedy(case.target, prompt, TOKENS)
    while len(tokens) < end:
        drafted = oracles.draft(case.target, case.drafter, tokens).argmax(-1).tolist()
        left = text[len(tokens) - len(prompt) :]
        kept = 0
        while kept < min(width - 1, len(left)) and drafted[kept] == left[kept]:
            kept += 1
        rounds.append(kept)
        tokens += left[: kept + 1]
    return rounds


@peers.needs_zlab
def test_chain_rounds_equal_z_labs_own_loop(case_of):
    """PyPI `dflash` 0.1.0.

    It shortens its last blocks: asked for a block more and then cut, every round can be compared.
    """
    case, model = with_model(case_of)
    more = TOKENS + case.evaluation.run.conditions.block_size
    for i, prompt in enumerate(case.prompts):
        theirs = peers.zlab_run(model, case.drafter_folder, prompt, more).until(TOKENS)
        assert theirs.tokens == case.reference[i]
        assert theirs.committed == case.evaluation.run.chain.committed[i]


def test_chain_rounds_equal_transformers_own_dflash_generation(case_of):
    case, model = with_model(case_of)
    more = TOKENS + case.evaluation.run.conditions.block_size
    for i, prompt in enumerate(case.prompts):
        theirs = peers.native_run(model, case.drafter_folder, prompt, more).until(TOKENS)
        assert theirs.tokens == case.reference[i]
        assert theirs.committed == case.evaluation.run.chain.committed[i]


def with_model(case_of):
    case = case_of("qwen3")
    return case, tiny.load_target(case.target_folder)
