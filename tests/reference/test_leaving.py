"""Rows that have ended leave the batch, and nothing of what the others say changes.

The oracle decodes each prompt alone, token by token, without a cache (tests/oracles.py).
"""

import functools
from dataclasses import dataclass

import oracles
import pipeline
import pytest
import tiny

from draftlab.reference.leaving import decode_together
from draftlab.target.loading import LoadedTarget, load_target

TOKENS = 24
STOPS = (3, 8, 21, 34, 55, 77, 102, 130)


@dataclass(frozen=True)
class Case:
    """A target, prompts of uneven lengths, and what it says to each of them alone."""

    target: LoadedTarget
    prompts: list[tuple[int, ...]]
    alone: list[list[int]]


@pytest.fixture(scope="module")
def case_of(tmp_path_factory):
    @functools.cache
    def make(architecture):
        folder = tiny.write_target(
            tmp_path_factory.mktemp(architecture) / "target", architecture, tied=True
        )
        prompts = [tuple(ids) for ids in tiny.random_prompts(12, seed=4)]
        oracle = oracles.Target(folder, tiny.TAPS[architecture])
        alone = [oracles.greedy(oracle, ids, TOKENS) for ids in prompts]
        return Case(load_target(folder, pipeline.FP32), prompts, alone)

    return make


def up_to_a_stop(text):
    ends = [index for index, token in enumerate(text) if token in STOPS]
    return tuple(text[: ends[0] + 1] if ends else text)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_completions_are_those_of_each_prompt_alone(case_of, architecture):
    case = case_of(architecture)
    expected = [up_to_a_stop(text) for text in case.alone]
    ends = {len(text) for text in expected}
    assert len(ends) >= 4  # rows leave at different times
    assert max(ends) == TOKENS  # and one stays to the end
    assert decode_together(case.target, case.prompts, TOKENS, STOPS) == expected


def test_without_stop_tokens_every_completion_is_full(case_of):
    case = case_of("llama")
    said = decode_together(case.target, case.prompts, TOKENS, ())
    assert said == [tuple(text) for text in case.alone]


def test_a_stop_token_in_a_prompt_ends_nothing(case_of):
    case = case_of("llama")
    prompts = [(*STOPS, *ids) for ids in case.prompts]
    oracle = oracles.Target(case.target.model.name_or_path, tiny.TAPS["llama"])
    expected = [up_to_a_stop(oracles.greedy(oracle, ids, TOKENS)) for ids in prompts]
    assert decode_together(case.target, prompts, TOKENS, STOPS) == expected


def test_rows_that_have_ended_cost_little(case_of):
    """Counted where the work is: rows that the first decoder layer is given."""
    case = case_of("llama")
    rows = []
    hook = case.target.layers[0].register_forward_pre_hook(
        lambda _layer, given: rows.append(len(given[0]))
    )
    said = decode_together(case.target, case.prompts, TOKENS, STOPS)
    hook.remove()
    needed = sum(map(len, said))
    assert len(rows) == TOKENS
    assert needed <= sum(rows) < needed + len(case.prompts) * 3
    assert sum(rows) < 0.8 * len(case.prompts) * TOKENS


def test_the_head_is_never_given_a_view(case_of):
    """On a view, torch copies the head's weight for every row."""
    case = case_of("llama")
    contiguous = []
    head = case.target.model.get_output_embeddings()
    hook = head.register_forward_hook(
        lambda _head, given, _logits: contiguous.append(given[0].is_contiguous())
    )
    decode_together(case.target, case.prompts, 3, ())
    hook.remove()
    assert contiguous == [True] * 3
    assert not head._forward_pre_hooks  # noqa: SLF001 (nothing of it stays on the model)
