"""The SmolLM2 recipe: prompts that are kept apart, and what counts as a loop."""

import itertools
import random

import pytest

from recipes.smollm2.quality import looped


def looped_one_by_one(ids):
    """By the definition: every stretch, every period, token by token."""
    found = set()
    for period in range(1, 41):
        for start, end in itertools.combinations(range(period, len(ids) + 1), 2):
            if end - start < max(2 * period, 16):
                continue
            if all(ids[i] == ids[i - period] for i in range(start, end)):
                found |= set(range(start, end))
    return len(found)


@pytest.mark.parametrize("seed", range(12))
def test_looped_tokens_are_those_of_the_definition(seed):
    draw = random.Random(seed)
    unit = [draw.randrange(3) for _ in range(draw.randint(1, 9))]
    ids = [draw.randrange(3) for _ in range(10)] + unit * 5 + [draw.randrange(9) for _ in range(8)]
    assert looped(ids) == looped_one_by_one(ids)


def test_a_loop_is_counted_from_its_second_time_on():
    assert looped([7, *range(10, 30), *range(10, 30), *range(10, 30)]) == 40
    assert looped([*range(10, 30), *range(10, 30)]) == 0  # said twice
    assert looped([1, 2] * 8) == 0  # 14 tokens repeat
    assert looped([1, 2] * 9) == 16
    assert [looped([]), looped([1]), looped(range(50))] == [0, 0, 0]


@pytest.fixture(scope="module")
def prompts():
    pytest.importorskip("reasoning_gym", reason="make smollm2 installs it")
    from recipes.smollm2 import prompts  # noqa: PLC0415 (needs the package)

    return prompts


def texts(found):
    return {" ".join(prompt.messages[0].content.split()) for prompt in found}


@pytest.mark.slow
def test_nothing_held_out_is_trained_on(prompts):
    held_out = prompts.held_out_prompts()
    large = texts(prompts.training_prompts(prompts.LARGE))
    assert not texts(held_out) & large
    assert {p.domain for p in held_out} == {"reasoning", "instructions", "code", "unseen"}
    assert not set(prompts.FAMILIES) & set(prompts.UNSEEN_FAMILIES)
    for subject in (*prompts.HELD_OUT_TOPICS, *prompts.HELD_OUT_CODE_TASKS):
        assert not any(subject in text for text in large), subject


@pytest.mark.slow
def test_prompts_are_the_same_every_time_and_the_large_set_takes_in_the_small(prompts):
    small = prompts.training_prompts(prompts.SMALL)
    assert small == prompts.training_prompts(prompts.SMALL)
    assert texts(small) < texts(prompts.training_prompts(prompts.LARGE))
