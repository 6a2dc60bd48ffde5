"""Ranks of reference tokens, drafted tokens and log-probabilities from logits; ties by token id."""

import math

import pytest
import torch

from draftlab.replay.scoring import score_rows


def by_sorting(logits, token):
    """Oracle: sort the whole vocabulary in plain Python, larger logit first, then smaller id."""
    order = sorted(range(len(logits)), key=lambda t: (-logits[t], t))
    total = math.log(math.fsum(math.exp(x) for x in logits))
    return order[0], order.index(token), logits[token] - total, [logits[t] - total for t in order]


@pytest.mark.parametrize("coarseness", [None, 0.5, 2.0])
@pytest.mark.parametrize("width", [2, 5, 17, 40])
def test_rows_are_scored_as_by_sorting_the_vocabulary(width, coarseness):
    """Coarse logits have many equal values, as bfloat16 ones have."""
    generator = torch.Generator().manual_seed(width)
    logits = torch.randn(60, 40, generator=generator) * 2
    if coarseness is not None:
        logits = (logits / coarseness).round() * coarseness
    path = torch.randint(0, 40, (60,), generator=generator)
    scores = score_rows(logits, path, width)
    for row in range(60):
        best, rank, log_prob, all_sorted = by_sorting(logits[row].tolist(), int(path[row]))
        assert int(scores.best_token_R[row]) == best
        assert int(scores.path_rank_R[row]) == rank
        assert float(scores.path_log_prob_R[row]) == pytest.approx(log_prob, abs=1e-5)
        assert scores.top_log_probs_RK[row].tolist() == pytest.approx(all_sorted[:width], abs=1e-5)


def test_a_listed_reference_token_has_the_very_value_of_the_list():
    """The tree kernel compares the two for equality."""
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    path = logits.topk(3).indices[:, 2]
    scores = score_rows(logits, path, 8)
    assert torch.equal(scores.path_log_prob_R, scores.top_log_probs_RK[:, 2])
