"""The distribution that a token is drawn from, and the draw; the one place where both are defined.

Shape letters: X any leading axes, V vocabulary.

Order of the filters: temperature, then top-k, then top-p on what top-k has left, as in transformers
5.24 (`generation/utils.py`, `_get_logits_processor`) and vLLM 0.32 (`v1/sample/sampler.py`). Two
engines differ where nothing else is asked of them: llama.cpp applies the temperature last, and
SGLang 0.5 (`layers/sampler.py`) holds top-p against what top-k has not filtered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftlab.target.decoding import Decoding


def filtered_log_probs(logits_XV: Tensor, decoding: Decoding) -> Tensor:
    """Natural log-probabilities [..., V] that `decoding` draws from; -inf where it never draws.

    top-k keeps every token that is as probable as the k-th. top-p keeps the most probable tokens
    until their share reaches p; the one that crosses it is kept, so at least one always is. Of
    equally probable ones at that edge the lower ids are kept. In float32, or float64 where the
    logits are.

    Raises:
        ValueError: `decoding` is greedy: there is no distribution.
    """
    if decoding.is_greedy:
        raise ValueError("greedy decoding draws from no distribution")
    wide = torch.promote_types(logits_XV.dtype, torch.float32)
    scores_XV = logits_XV.to(wide) / decoding.temperature
    if 0 < decoding.top_k < scores_XV.shape[-1]:
        kth_X1 = scores_XV.topk(decoding.top_k, dim=-1).values[..., -1:]
        scores_XV = scores_XV.masked_fill(scores_XV < kth_X1, -torch.inf)
    if decoding.top_p < 1:
        scores_XV = _within_top_p(scores_XV, decoding.top_p)
    return scores_XV.log_softmax(dim=-1)


def _within_top_p(scores_XV: Tensor, top_p: float) -> Tensor:
    """Scores with -inf for each token before which, in falling order, the share is p already."""
    falling_XV, order_XV = scores_XV.sort(dim=-1, descending=True, stable=True)
    probs_XV = falling_XV.double().softmax(dim=-1)
    before_XV = probs_XV.cumsum(dim=-1) - probs_XV
    before_XV[..., 0] = 0.0  # exactly: the most probable token stays, whatever rounding does
    falling_XV = falling_XV.masked_fill(before_XV >= top_p, -torch.inf)
    return torch.empty_like(scores_XV).scatter_(-1, order_XV, falling_XV)


def draw(log_probs_XV: Tensor, uniform_X: Tensor) -> Tensor:
    """Tokens [...] drawn by inverting the cumulated probabilities at numbers from [0, 1).

    Tokens are cumulated in the order of their ids, in float64: a number and a row of logits decide
    the token, and nothing beside them.
    """
    cumulated_XV = log_probs_XV.double().exp().cumsum(dim=-1)
    height_X1 = (uniform_X * cumulated_XV[..., -1]).unsqueeze(-1)
    # The first token whose cumulated probability is above the height has a probability above 0.
    token_X = torch.searchsorted(cumulated_XV, height_X1, right=True).squeeze(-1)
    # uniform * total may round up to the total: the last token that can be drawn is meant then.
    last_X = (cumulated_XV < cumulated_XV[..., -1:]).sum(dim=-1)
    return token_X.minimum(last_X)
