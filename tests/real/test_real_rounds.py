"""SmolLM2's replayed rounds against loops that run it, and number types that must not be mixed.

Oracle: tests/oracles.py, which runs the target over the whole prefix for every question.
"""

import oracles
import pipeline
import pytest
import tiny
import torch
from real_texts import chat, real_prompts

from draftlab.base.errors import DrafterError, StoreError
from draftlab.hidden.capture import capture
from draftlab.reference.generate import DecodeSettings, generate_reference
from draftlab.reference.prompts import Prompt
from draftlab.replay.evaluate import evaluate
from draftlab.target.compute import Compute
from recipes.real_models import GEMMA, SMOLLM2

pytestmark = [pytest.mark.real, pytest.mark.slow]

BF16 = Compute(device="cpu", dtype="bfloat16", threads=1)
TOKENS = 32
SETTINGS = DecodeSettings(max_new_tokens=TOKENS, ignore_eos=True)
LAYERS = (1, 8, 14, 20, 27)
BUDGETS = (4, 16)


def folder_of(packaged):
    if not packaged.installed:
        pytest.skip(f"needs the packages {packaged.package} and gguf: make test-real")
    return packaged.folder()


def short_prompts(count):
    return sorted(real_prompts(), key=len)[:count]


def made(root, target, prompts, compute, settings=SETTINGS, layers=LAYERS):
    reference = generate_reference(prompts, target, root / "ref", settings, compute)
    return reference, capture(reference, target, layers, root / "store", compute)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """Folder, and reference and store of three short prompts."""
    target = folder_of(SMOLLM2)
    prompts = [chat(text) for text in short_prompts(3)]
    root = tmp_path_factory.mktemp("smollm2")
    return target, *made(root, target, prompts, pipeline.FP32)


@pytest.fixture(scope="module")
def fitted(smollm2, tmp_path_factory):
    """The target for the oracle, and a small drafter fitted to what it says after the prompts."""
    folder, reference, _ = smollm2
    shape = tiny.DrafterShape(target_layer_ids=LAYERS, num_target_layers=30, block_size=5)
    config = tiny.drafter_config(shape) | {
        "hidden_size": 576,
        "intermediate_size": 256,
        "vocab_size": 49152,
        "head_dim": 64,
    }
    config["dflash_config"]["mask_token_id"] = 3
    target = oracles.Target(folder, LAYERS)
    prompts = [row.prompt_ids for row in reference.completions]
    recipe = oracles.Recipe(num_tokens=TOKENS, stop_at=2.0, anchors_per_step=8)
    out = tmp_path_factory.mktemp("drafter") / "drafter"
    return target, oracles.overfit(out, config, target, prompts, recipe), out


def test_the_reference_is_what_the_target_says_token_by_token(smollm2, fitted):
    _, reference, store = smollm2
    for row in reference.completions:
        assert list(row.completion_ids) == oracles.greedy(fitted[0], row.prompt_ids, TOKENS)
    assert store.index.agreement == 1.0


def test_chain_and_tree_rounds_equal_those_of_loops_with_the_target(smollm2, fitted):
    folder, reference, store = smollm2
    target, drafter, drafter_folder = fitted
    run = evaluate(store, drafter_folder, folder, pipeline.FP32, budgets=BUDGETS).run
    assert 1.3 < run.chain.tau < 4.5  # some drafts are accepted, some are not
    for number, row in enumerate(reference.completions):
        chain = oracles.naive_chain(target, drafter, row.prompt_ids, TOKENS)
        assert run.chain.committed[number] == tuple(chain.committed), chain.smallest_margin
        for budget in BUDGETS:
            tree = oracles.naive_tree(target, drafter, row.prompt_ids, TOKENS, budget)
            ours = run.trees[str(budget)].committed[number]
            assert ours == tuple(tree.committed), (budget, tree.smallest_margin)


def test_texts_of_the_two_number_types_part_and_are_not_mixed(smollm2, fitted, tmp_path):
    """Of the 32 prompts, 14 part within 48 tokens, half of those within 15: mixing would show."""
    folder = smollm2[0]
    prompts = [chat(text) for text in real_prompts()[16:28]]
    single = generate_reference(prompts, folder, tmp_path / "fp32", SETTINGS, pipeline.FP32)
    half, half_store = made(tmp_path, folder, prompts, BF16)
    pairs = list(zip(single.completions, half.completions, strict=True))
    assert all(a.prompt_ids == b.prompt_ids for a, b in pairs)
    assert sum(a.completion_ids != b.completion_ids for a, b in pairs) >= 2
    with pytest.raises(StoreError, match="decoded in bfloat16"):
        capture(half, folder, LAYERS, tmp_path / "a", pipeline.FP32)
    with pytest.raises(StoreError, match="decoded in float32"):
        capture(single, folder, LAYERS, tmp_path / "b", BF16)
    with pytest.raises(DrafterError, match="states are bfloat16"):
        evaluate(half_store, fitted[2], folder, pipeline.FP32)


@pytest.mark.parametrize("compute", [pipeline.FP32, BF16], ids=["float32", "bfloat16"])
def test_gemmas_largest_states_survive_in_both_number_types(compute, tmp_path):
    """Its residual stream passes 65,504, the most that float16 holds; the store has no float16."""
    prompts = [Prompt(prompt=text) for text in short_prompts(2)]
    settings = DecodeSettings(max_new_tokens=4, ignore_eos=True)
    layers = (1, 4, 8, 12, 15)
    _, store = made(tmp_path, folder_of(GEMMA), prompts, compute, settings, layers)
    for number in range(2):
        taps_SC = store.read(number).taps_SC
        assert taps_SC.dtype == compute.torch_dtype
        assert bool(torch.isfinite(taps_SC).all())
        assert float(taps_SC.abs().max()) > torch.finfo(torch.float16).max
        assert bool(torch.isinf(taps_SC.to(torch.float16)).any())
