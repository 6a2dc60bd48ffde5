"""Hidden states of drafted slots in, sums of loss out; logits exist for a few blocks at a time.

One pass per chunk of whole blocks makes logits, losses, weights and the gradient with respect to
the hidden states, which is all the backward needs: it is kept, rows x hidden size, and scaled
later. So memory is chunk x vocabulary + rows x hidden size, and no logits are made twice. Slots
without a label never reach the head.

Logits are made in the type of the head, everything from there to the loss in float32 or finer.

Shape letters: N blocks, D drafted slots, R labelled slots, r of them in a chunk, V vocabulary,
H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.ends import TargetEnds
from draftlab.train.options import STREAK_WIDTH, LossOptions
from draftlab.train.teacher import Lesson
from draftlab.train.weighting import slot_weights


@dataclass(frozen=True, slots=True)
class LossSums:
    """Every field is a plain sum, so micro-batches, ranks and blocks add up."""

    weighted_sum: Tensor
    """Sum of weight * loss over labelled slots; the only field with a gradient."""
    weight: Tensor
    """Sum of weights."""
    right: Tensor
    """Labelled slots whose best token is the target's own."""
    labelled: Tensor
    """Labelled slots."""
    streak: Tensor
    """Over blocks, leading slots whose token is among the 8 best: with `blocks`, the all-anchor
    form of streak@8."""
    blocks: Tensor

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            self.weighted_sum + other.weighted_sum,
            self.weight + other.weight,
            self.right + other.right,
            self.labelled + other.labelled,
            self.streak + other.streak,
            self.blocks + other.blocks,
        )

    def detached(self) -> LossSums:
        """The same numbers without the gradient's graph."""
        return LossSums(*(getattr(self, f.name).detach() for f in fields(LossSums)))

    def stacked(self) -> Tensor:
        """All numbers in one float64 tensor, to be added up with others'."""
        return torch.stack([getattr(self, f.name).double() for f in fields(LossSums)])

    @classmethod
    def unstacked(cls, numbers: Tensor) -> LossSums:
        """What `stacked` gave."""
        return cls(*numbers.unbind())

    @classmethod
    def zeros(cls, device: torch.device) -> LossSums:
        """Of no blocks at all."""
        return cls(*(torch.zeros((), device=device) for _ in fields(cls)))


@dataclass(frozen=True, slots=True)
class Labels:
    """What the drafted slots of some blocks should have said."""

    tokens_ND: Tensor
    """The target's own tokens; anything where there is no label."""
    labelled_ND: Tensor
    """Where there is a label: leading slots of each block, at least one."""
    argmax_ND: Tensor | None = None
    """The target's argmax at the same places, for `argmax_ce`."""
    lesson: Lesson | None = None
    """The target's distribution at the labelled slots, for `kl`."""


def head_loss(
    hidden_NDH: Tensor, labels: Labels, ends: TargetEnds, shape: DrafterConfig, options: LossOptions
) -> LossSums:
    """Loss of drafted slots, by way of the target's head."""
    job = _Job(labels, ends, shape, options)
    mask_ND = labels.labelled_ND
    apply: Any = _ChunkedHead.apply
    weighted_sum, weight_R, rank_R = apply(hidden_NDH[mask_ND], job)
    if labels.lesson is not None:
        labels.lesson.require_agreement()
    hits_ND = torch.zeros_like(mask_ND)
    hits_ND[mask_ND] = rank_R < STREAK_WIDTH
    return LossSums(
        weighted_sum=weighted_sum,
        weight=weight_R.sum(),
        right=(rank_R == 0).sum(),
        labelled=mask_ND.sum(),
        streak=hits_ND.long().cumprod(dim=1).sum(),
        blocks=torch.tensor(len(mask_ND), device=mask_ND.device),
    )


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Whole blocks, and their labelled slots."""

    blocks: slice
    rows: slice


@dataclass(frozen=True, slots=True)
class _Job:
    """All that the head needs beside hidden states."""

    labels: Labels
    ends: TargetEnds
    shape: DrafterConfig
    options: LossOptions

    def chunks(self) -> Iterator[_Chunk]:
        """As many blocks at a time as have at most `chunk_rows` labelled slots, at least one."""
        ends = self.labels.labelled_ND.sum(dim=1).cumsum(dim=0).tolist()
        first, start = 0, 0
        for block, end in enumerate(ends):
            following = ends[block + 1] if block + 1 < len(ends) else None
            if following is None or following - start > self.options.chunk_rows:
                yield _Chunk(slice(first, block + 1), slice(start, end))
                first, start = block + 1, end

    def loss_and_slope(self, chunk: _Chunk, logits_rV: Tensor) -> tuple[Tensor, Tensor]:
        """Loss [r] of each row, and its derivative [r, V] with respect to the logits."""
        probs_rV = logits_rV.softmax(dim=-1)
        # The largest probability is exp(best - logsumexp): exact where it matters, and no new exps.
        logsumexp_r = logits_rV.amax(dim=-1) - probs_rV.amax(dim=-1).log()
        if self.options.loss == "kl":
            if self.labels.lesson is None:
                raise ValueError("kl needs the target's distribution")
            taught_rV = self.labels.lesson.log_probs(chunk.rows)
            given_rV = taught_rV.exp()
            loss_r = (given_rV * (taught_rV - logits_rV)).sum(dim=-1) + logsumexp_r
            return loss_r, probs_rV.sub_(given_rV)
        labels_r1 = self._trained_on(chunk).unsqueeze(1)
        loss_r = logsumexp_r - logits_rV.gather(1, labels_r1).squeeze(1)
        slope_rV = probs_rV.scatter_add_(1, labels_r1, -torch.ones_like(loss_r).unsqueeze(1))
        return loss_r, slope_rV

    def tokens(self, chunk: _Chunk) -> Tensor:
        """The target's own token of each row."""
        return self.labels.tokens_ND[chunk.blocks][self.labels.labelled_ND[chunk.blocks]]

    def weights(self, chunk: _Chunk, loss_r: Tensor) -> Tensor:
        """Weight of each row, from nothing but its own block."""
        labelled_ND = self.labels.labelled_ND[chunk.blocks]
        loss_ND = torch.zeros(labelled_ND.shape, dtype=loss_r.dtype, device=loss_r.device)
        loss_ND[labelled_ND] = loss_r
        return slot_weights(loss_ND, labelled_ND, self.options)[labelled_ND]

    def _trained_on(self, chunk: _Chunk) -> Tensor:
        if self.options.loss == "ce":
            return self.tokens(chunk)
        if self.labels.argmax_ND is None:
            raise ValueError("argmax_ce needs the target's argmax")
        return self.labels.argmax_ND[chunk.blocks][self.labels.labelled_ND[chunk.blocks]]


class _ChunkedHead(torch.autograd.Function):
    """Hidden states [R, H] -> weighted sum of losses, weights [R], ranks of the tokens [R]."""

    @staticmethod
    def forward(ctx: Any, hidden_RH: Tensor, job: _Job) -> tuple[Tensor, Tensor, Tensor]:
        """All of the work; see the top of this file."""
        fine = torch.promote_types(hidden_RH.dtype, torch.float32)
        count, device = len(hidden_RH), hidden_RH.device
        gradient_RH = torch.empty_like(hidden_RH) if ctx.needs_input_grad[0] else None
        loss_R, weight_R = torch.empty(2, count, dtype=fine, device=device)
        rank_R = torch.empty(count, dtype=torch.long, device=device)
        for chunk in job.chunks():
            logits_rV = job.ends.logits(hidden_RH[chunk.rows], job.shape)
            rank_R[chunk.rows] = leading_ranks(logits_rV, job.tokens(chunk))
            loss_r, slope_rV = job.loss_and_slope(chunk, logits_rV)
            weight_r = job.weights(chunk, loss_r)
            loss_R[chunk.rows], weight_R[chunk.rows] = loss_r, weight_r
            if gradient_RH is not None:
                slope_rV.mul_(weight_r.unsqueeze(1))
                gradient_RH[chunk.rows] = job.ends.pull_back(slope_rV, logits_rV, job.shape)
        ctx.save_for_backward(*([] if gradient_RH is None else [gradient_RH]))
        ctx.mark_non_differentiable(weight_R, rank_R)
        return (loss_R * weight_R).sum(), weight_R, rank_R

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Scale what the forward has kept."""
        (gradient_RH,) = ctx.saved_tensors
        return gradient_RH * gradients[0], None


def leading_ranks(logits_rV: Tensor, tokens_r: Tensor) -> Tensor:
    """How many tokens stand before each of these, exact below STREAK_WIDTH.

    A larger logit goes first, then a smaller id, as in replay. Ties are common in bfloat16; they
    are told apart only where that decides something. Counted in float32, exact below 2^24;
    comparing into a float buffer is several times faster on a CPU than summing booleans.
    """
    own_r1 = logits_rV.gather(1, tokens_r.unsqueeze(1))
    buffer_rV = torch.empty_like(logits_rV)
    above_r = torch.gt(logits_rV, own_r1, out=buffer_rV).sum(dim=-1).long()
    level_r = torch.ge(logits_rV, own_r1, out=buffer_rV).sum(dim=-1).long() - above_r
    tied = torch.nonzero((level_r > 1) & (above_r < STREAK_WIDTH)).squeeze(1)
    if len(tied):
        ids_V = torch.arange(logits_rV.shape[1], device=logits_rV.device)
        before = (logits_rV[tied] == own_r1[tied]) & (ids_V < tokens_r[tied].unsqueeze(1))
        above_r[tied] += before.sum(dim=-1)
    return above_r
