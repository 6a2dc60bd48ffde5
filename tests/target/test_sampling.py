"""The distribution that tokens are drawn from, against transformers and against a plain loop."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import plain_distribution

from draftlab.base.errors import CompletionsError
from draftlab.target.decoding import GREEDY, Decoding
from draftlab.target.sampling import draw, filtered_log_probs

FILTERS = [
    (1.0, 0, 1.0),
    (0.7, 0, 1.0),
    (1.3, 5, 1.0),
    (1.0, 0, 0.8),
    (0.6, 20, 0.95),
    (2.0, 7, 0.3),
    (1.0, 1, 0.01),
    (1.0, 500, 0.999),
]


def decoding(temperature, top_k, top_p):
    return Decoding(temperature=temperature, top_k=top_k, top_p=top_p)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_the_distribution_is_that_of_a_plain_loop(filters):
    logits = torch.randn(6, 4, 50, generator=torch.Generator().manual_seed(1)).double() * 3
    found = filtered_log_probs(logits, decoding(*filters)).exp().numpy()
    expected = np.stack([[plain_distribution(row, *filters) for row in rows] for rows in logits])

    np.testing.assert_array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_the_distribution_is_that_of_transformers(filters, dtype):
    """Its own list of processors, in its own order, is asked for; not one that is built here."""
    logits = torch.randn(32, 300, generator=torch.Generator().manual_seed(2)).mul(3).to(dtype)
    temperature, top_k, top_p = filters
    config = transformers.GenerationConfig(
        do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p
    )
    small = transformers.Qwen3Config(
        vocab_size=300, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(small)
    processors = model._get_logits_processor(config)  # noqa: SLF001 (its order is the question)
    theirs = processors(torch.zeros(32, 1, dtype=torch.long), logits.float()).log_softmax(dim=-1)
    ours = filtered_log_probs(logits, decoding(*filters))

    if dtype is torch.bfloat16:  # which of equal logits is kept at the edge of p is left open
        ours, theirs = ours.sort().values, theirs.sort().values
    torch.testing.assert_close(ours, theirs)


def test_the_token_that_crosses_p_is_kept_and_ties_with_the_kth_are_too():
    logits = torch.tensor([0.5, 0.3, 0.1, 0.1]).log()

    def kept(**filters):
        found = filtered_log_probs(logits, Decoding(temperature=1.0, **filters))
        return found.isfinite().tolist()

    assert kept(top_p=0.45) == [True, False, False, False]
    assert kept(top_p=0.55) == [True, True, False, False]
    assert kept(top_k=3) == [True, True, True, True]
    assert kept(top_k=2, top_p=0.6) == [True, False, False, False], "0.625 after top-k"


def test_greedy_has_no_distribution():
    with pytest.raises(ValueError, match="greedy"):
        filtered_log_probs(torch.zeros(3), GREEDY)


# Draws -----------------------------------------------------------------------------------------


def test_draws_follow_the_distribution():
    """Chi-square with a fixed seed; 11 degrees of freedom: above 31.3 once in a thousand runs."""
    how = Decoding(temperature=0.8, top_k=12, top_p=0.97)
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3)) * 1.5
    log_probs = filtered_log_probs(logits, how)
    count = 200_000
    uniform = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    tokens = draw(log_probs.expand(count, -1), uniform)

    drawn = torch.bincount(tokens, minlength=40).double()
    expected = log_probs.double().exp() * count
    assert int((drawn[expected == 0]).sum()) == 0
    possible = expected > 0
    assert 8 <= int(possible.sum()) <= 12
    chi_square = ((drawn - expected)[possible] ** 2 / expected[possible]).sum()
    assert float(chi_square) < 31.3


@settings(deadline=None, max_examples=200)
@given(
    probs=st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda p: sum(p) > 1e-6),
    uniform=st.one_of(
        st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53, 1 - 2**-30])
    ),
)
def test_no_number_draws_a_token_that_cannot_be(probs, uniform):
    log_probs = (torch.tensor(probs, dtype=torch.float64) / sum(probs)).log()
    token = int(draw(log_probs, torch.tensor(uniform, dtype=torch.float64)))
    assert log_probs[token].isfinite()


# Settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"temperature": -1}, "--temperature 0 or more"),
        ({"temperature": float("nan")}, "--temperature"),
        ({"temperature": float("inf")}, "--temperature"),
        ({"temperature": 0.001}, "0.01 or more"),
        ({"temperature": 1, "top_p": 0}, "--top-p"),
        ({"temperature": 1, "top_p": 1.1}, "--top-p"),
        ({"temperature": 1, "top_k": -1}, "--top-k"),
        ({"temperature": 1, "seed": -1}, "--seed"),
        ({"temperature": 1, "seed": 2**31}, "--seed"),
        ({"temperature": 1, "num_samples": 0}, "--samples"),
        ({"top_p": 0.9}, "--temperature 1"),
        ({"seed": 3, "num_samples": 2}, "--temperature 1"),
    ],
)
def test_settings_that_cannot_be_say_what_to_pass(wrong, said):
    with pytest.raises(CompletionsError) as error:
        Decoding(**wrong)
    assert said in error.value.mend


def test_the_seed_of_a_row_depends_on_all_that_it_should():
    how = Decoding(temperature=1, seed=5)
    seeds = [
        how.row_seed((1, 2, 3), 0),
        how.row_seed((1, 2, 3), 1),
        how.row_seed((12, 3), 0),
        how.row_seed((3, 2, 1), 0),
        Decoding(temperature=1, seed=6).row_seed((1, 2, 3), 0),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert Decoding(temperature=0.5, top_k=3, seed=5).row_seed([1, 2, 3], 0) == seeds[0]
