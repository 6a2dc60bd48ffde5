"""Logits of drafted slots -> what replay needs of them; the logits themselves are dropped at once.

Shape letters: R rows (one drafted slot of one anchor each), V vocabulary, K best tokens per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowScores:
    """What is kept of a batch of rows.

    Token order is: larger logit first, then smaller token id.
    """

    best_token_R: Tensor
    """int64: the drafted token."""
    path_rank_R: Tensor
    """int64: how many tokens come before the reference token."""
    path_log_prob_R: Tensor
    """float32, normalised over the whole vocabulary."""
    top_log_probs_RK: Tensor
    """float32, descending."""


def score_rows(logits_RV: Tensor, path_tokens_R: Tensor, width: int) -> RowScores:
    """Rank the reference tokens and keep the `width` >= 2 best log-probabilities.

    Log-probabilities are float32 logits less a float32 log-sum-exp over the vocabulary, as
    liranringel/ddtree@c96427a computes them.
    """
    total_R1 = logits_RV.logsumexp(dim=-1, keepdim=True)
    path_logit_R1 = logits_RV.gather(1, path_tokens_R[:, None])
    top = logits_RV.topk(width, dim=-1)
    rank_R = (top.values > path_logit_R1).sum(dim=-1)
    lowest_R = top.values[:, -1]
    far = torch.nonzero(path_logit_R1[:, 0] < lowest_R)[:, 0]
    if far.numel():
        rank_R[far] = (logits_RV[far] > path_logit_R1[far]).sum(dim=-1)
    # Equal logits are rare in float32 and common in bfloat16; only then do token ids decide.
    equals_R = (top.values == path_logit_R1).sum(dim=-1)
    tied = torch.nonzero((path_logit_R1[:, 0] <= lowest_R) | (equals_R > 1))[:, 0]
    if tied.numel():
        rank_R[tied] += _smaller_equals(logits_RV[tied], path_tokens_R[tied])
    best_R = top.indices[:, 0].clone()
    shared = torch.nonzero(top.values[:, 0] == top.values[:, 1])[:, 0]
    if shared.numel():
        is_best = logits_RV[shared] == top.values[shared, :1]
        best_R[shared] = is_best.to(torch.uint8).argmax(dim=-1)
    return RowScores(
        best_token_R=best_R,
        path_rank_R=rank_R,
        path_log_prob_R=(path_logit_R1 - total_R1)[:, 0],
        top_log_probs_RK=top.values - total_R1,
    )


def _smaller_equals(logits_RV: Tensor, tokens_R: Tensor) -> Tensor:
    """How many tokens with a smaller id have exactly the logit of this token."""
    ids_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    equal_RV = logits_RV == logits_RV.gather(1, tokens_R[:, None])
    return (equal_RV & (ids_V < tokens_R[:, None])).sum(dim=-1)
