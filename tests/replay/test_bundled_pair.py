"""The bundled pair does what its card says, and its rounds are those of a loop with its target."""

import oracles
import pytest

from draftlab.demo.run import DRAFTER, TARGET, run_demo
from draftlab.reference.completions import Reference
from draftlab.target.compute import Compute

BUDGETS = ("16", "1024")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    made = run_demo(out, Compute(device="cpu", dtype="float32", threads=1))
    return made, Reference.open(out / "reference")


def test_the_bundled_drafter_commits_at_least_two_and_a_half_tokens_a_round(demo):
    """On held-out prompts, and the reference is the target's own argmax throughout."""
    run = demo[0].evaluation.run
    assert run.chain.tau > 2.5
    assert run.agreement == 1.0
    assert len(run.domains) == 4


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 9, 20, 30])
def test_rounds_of_the_hybrid_target_equal_those_of_a_loop_without_caches(demo, number):
    made, reference = demo
    row = reference.completions[number]
    taps = made.store.index.conditions.target_layer_ids
    target, drafter = oracles.Target(TARGET, taps), oracles.NaiveDrafter(DRAFTER, TARGET)
    tokens = min(len(row.completion_ids), 48)
    chain = oracles.naive_chain(target, drafter, row.prompt_ids, tokens)
    assert chain.tokens == row.completion_ids[:tokens]
    run = made.evaluation.run
    compare(run.chain.committed[number], chain.committed)
    for budget in BUDGETS:
        tree = oracles.naive_tree(target, drafter, row.prompt_ids, tokens, int(budget))
        compare(run.trees[budget].committed[number], tree.committed)


def compare(ours, theirs):
    """Round by round, but for the last ones of a text that the loop ends earlier."""
    whole = len(theirs) - 1
    assert list(ours[:whole]) == list(theirs[:whole])
    assert ours[whole] >= theirs[whole]
