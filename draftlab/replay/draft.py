"""Draft every anchor of one completion, once, for every budget, width and streak.

In:   a drafter with its ends, one stored sequence.  Out: AnchorDrafts, a few numbers per slot.

Anchors go through the drafter in batches that share the context's keys and values. Logits exist for
a few hundred rows at a time: on a CPU one compiled sweep (replay/sweep.py) takes from them what is
kept, elsewhere torch sorts each slot's best tokens (replay/scoring.py). The two agree to the token.

Shape letters: A anchors, B slots, D = B - 1 drafted slots, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftlab.base.errors import DrafterError
from draftlab.drafter.checkpoint import LoadedDrafter
from draftlab.drafter.model import DraftContext
from draftlab.hidden.store import StoredSequence
from draftlab.replay.scoring import RowScores, score_rows
from draftlab.replay.sweep import SlotLogits, sweep
from draftlab.tree.jit import COMPILES
from draftlab.tree.ranks import rank_reference_paths

MAX_BUDGET = 1024
"""Largest tree, in nodes below the root, that replay ranks for."""
FIRST_WIDTH = 128
"""Best tokens per slot that are tried first where tables are made by sorting."""

_ATTENTION_VALUES_AT_ONCE = 1 << 23
_ROWS_AT_ONCE = 4096
_LOGIT_VALUES_AT_ONCE = 1 << 22
_FEWEST_LOGIT_ROWS = 128

Ints = npt.NDArray[np.int32]
Columns = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True, slots=True)
class AnchorDrafts:
    """What was drafted at each anchor of one completion.

    Anchor `i` is completion token `i`; its slot `d` (0-based here) stands for completion token
    `i + d + 1`. Slots past the end of the completion hold -1 (rank) and are not scored.
    """

    drafted_AD: Ints
    """The drafter's best token for each slot."""
    path_token_ranks_AD: Ints
    """0-based rank of the reference token among all tokens of the slot; -1 past the end."""
    path_log_probs_AD: npt.NDArray[np.float32]
    """The drafter's log-probability of the reference token."""
    best_log_probs_AD: npt.NDArray[np.float32]
    """The drafter's log-probability of the token it drafted."""
    path_ranks_AD: Ints
    """Pop at which a best-first tree takes in the reference up to here; MAX_BUDGET + 1 if later."""

    @property
    def num_anchors(self) -> int:
        """A: completion tokens that can be committed by rounds (all but the first)."""
        return int(self.drafted_AD.shape[0])


def draft_anchors(loaded: LoadedDrafter, sequence: StoredSequence) -> AnchorDrafts:
    """Draft a block at every anchor of a completion of n tokens: n - 1 anchors."""
    drafter, device = loaded.drafter, loaded.drafter.device
    with torch.inference_mode():
        context = drafter.project_context(sequence.taps_SC, dtype=loaded.ends.dtype)
        completion_n = sequence.tokens_T[sequence.prompt_length :].to(device)
        parts = [
            _draft_batch(loaded, context, completion_n, sequence.prompt_length, span)
            for span in _batches(loaded, sequence)
        ]
    columns = zip(*parts, strict=True)
    return AnchorDrafts(*(np.concatenate(column) for column in columns))


def _batches(loaded: LoadedDrafter, sequence: StoredSequence) -> Iterator[tuple[int, int]]:
    """Ranges of anchors whose attention scores and rows stay within the bounds above."""
    config = loaded.drafter.config
    per_anchor = config.num_attention_heads * config.block_size * len(sequence.tokens_T)
    size = min(_ATTENTION_VALUES_AT_ONCE // per_anchor, _ROWS_AT_ONCE // config.block_size)
    last = sequence.entry.completion_tokens - 1
    for start in range(0, last, max(1, size)):
        yield start, min(start + max(1, size), last)


def _draft_batch(
    loaded: LoadedDrafter,
    context: DraftContext,
    completion_n: Tensor,
    prompt_length: int,
    span: tuple[int, int],
) -> Columns:
    """AnchorDrafts' columns for anchors span[0]..span[1]-1."""
    config, device = loaded.drafter.config, loaded.drafter.device
    anchors_A = torch.arange(*span, device=device)
    block_AB = torch.full((len(anchors_A), config.block_size), config.mask_token_id, device=device)
    block_AB[:, 0] = completion_n[span[0] : span[1]]
    hidden_ABH = loaded.drafter.draft_blocks(
        loaded.ends.embed(block_AB, config), anchors_A + prompt_length, context
    )
    places_AD = anchors_A[:, None] + torch.arange(1, config.block_size, device=device)
    ended_AD = places_AD >= len(completion_n)
    path_AD = completion_n[places_AD.clamp(max=len(completion_n) - 1)].masked_fill(ended_AD, -1)
    judge = _judge_compiled if device.type == "cpu" and COMPILES else _judge_anywhere
    vocab = loaded.ends.head_VH.shape[0]
    rows = max(_FEWEST_LOGIT_ROWS, _LOGIT_VALUES_AT_ONCE // vocab)
    step = max(1, rows // config.num_drafted)
    parts = [
        judge(loaded, hidden_ABH[start : start + step, 1:], path_AD[start : start + step])
        for start in range(0, len(anchors_A), step)
    ]
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _judge_compiled(loaded: LoadedDrafter, hidden_ADH: Tensor, path_AD: Tensor) -> Columns:
    """AnchorDrafts' columns by one compiled sweep over the logits."""
    logits_ADV = loaded.ends.logits(hidden_ADH, loaded.drafter.config)
    best_AD = logits_ADV.amax(dim=-1)
    _require_finite(best_AD)
    slots = SlotLogits(logits_ADV.numpy(), best_AD.numpy(), logits_ADV.logsumexp(dim=-1).numpy())
    facts = sweep(slots, _ints(path_AD), MAX_BUDGET, torch.get_num_threads())
    return (
        facts.best_tokens_ND,
        facts.token_ranks_ND,
        facts.path_log_probs_ND,
        facts.best_log_probs_ND,
        facts.path_ranks_ND,
    )


def _judge_anywhere(loaded: LoadedDrafter, hidden_ADH: Tensor, path_AD: Tensor) -> Columns:
    """The same by torch operations: on a GPU, or without numba."""
    shape, vocab = tuple(path_AD.shape), loaded.ends.head_VH.shape[0]
    ended_AD = path_AD < 0
    widths = [min(width, vocab) for width in (FIRST_WIDTH, MAX_BUDGET)]
    scores = _score(loaded, hidden_ADH, path_AD, widths[0])
    _require_finite(scores.top_log_probs_RK[:, 0])
    ranks_AD = _path_ranks(scores, ended_AD, vocab)
    again_A = (ranks_AD == 0).any(axis=1)
    if again_A.any():
        again = torch.from_numpy(again_A).to(path_AD.device)
        wider = _score(loaded, hidden_ADH[again], path_AD[again], widths[1])
        ranks_AD[again_A] = _path_ranks(wider, ended_AD[again], vocab)
    return (
        _ints(scores.best_token_R.view(shape)),
        _ints(scores.path_rank_R.view(shape).masked_fill(ended_AD, -1)),
        scores.path_log_prob_R.view(shape).masked_fill(ended_AD, 0.0).cpu().numpy(),
        scores.top_log_probs_RK[:, 0].reshape(shape).cpu().numpy(),
        ranks_AD,
    )


def _require_finite(best: Tensor) -> None:
    """Refuse logits that mean nothing; the best of each slot tells.

    Raises:
        DrafterError: a slot's best logit is infinite or not a number.
    """
    if not bool(torch.isfinite(best).all()):
        amiss = int((~torch.isfinite(best)).sum())
        raise DrafterError(
            f"the drafter's logits are not finite in {amiss} of {best.numel()} slots.",
            mend="Its weights are broken or overflow: try --dtype float32, else copy it again.",
        )


def _score(loaded: LoadedDrafter, hidden_ADH: Tensor, path_AD: Tensor, width: int) -> RowScores:
    logits_ADV = loaded.ends.logits(hidden_ADH, loaded.drafter.config)
    return score_rows(logits_ADV.flatten(0, 1), path_AD.clamp(min=0).flatten(), width)


def _ints(tensor: Tensor) -> Ints:
    return tensor.to(torch.int32).cpu().numpy()


def _path_ranks(scores: RowScores, ended_AD: Tensor, vocab: int) -> Ints:
    """Pop ranks [A, D]; 0 where the table was too narrow to tell."""
    shape = tuple(ended_AD.shape)
    token_ranks_AD = scores.path_rank_R.view(shape).masked_fill(ended_AD, -1)
    ranks = rank_reference_paths(
        scores.top_log_probs_RK.view(*shape, -1).cpu().numpy(),
        scores.path_log_prob_R.view(shape).cpu().numpy(),
        _ints(token_ranks_AD),
        vocab_size=vocab,
        max_budget=MAX_BUDGET,
        threads=torch.get_num_threads(),
    )
    return ranks.path_ranks_ND
