"""The loss of drafted blocks, through the target's head, a few blocks at a time.

    ce          hard cross-entropy on the target's own tokens: what DFlash trains with
    argmax_ce   the same on the target's best token at each place, which sampled text need not be;
                for comparison
    kl          forward KL divergence from the target's distribution: a soft loss; for comparison

and what a slot weighs in it:

    dpace       D-PACE (arXiv:2605.18810): slot k weighs what its being right would add to the
                accepted length as the drafter stands now, sum over j >= k of the product over
                i <= j of (1 - alpha) q_i + alpha, q_i = exp(-ce_i); weights carry no gradient
    decay       exp(-(k - 1) / gamma) (arXiv:2602.06036, section 4.2)
    uniform     1

Logits are the largest thing in training: rows x vocabulary. Only labelled slots reach the head, in
pieces of whole blocks, and a piece's gradient with respect to its hidden states is taken at once,
so that no more than one piece of logits ever exists and nothing is computed twice. Everything is
returned as sums, so that pieces, documents, micro-batches and processes add up.

Shape letters: N blocks, D drafted slots, R labelled slots of a piece, V vocabulary, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from draftlab.train.blocks import NO_LABEL
from draftlab.train.options import STREAK_WIDTH, LossOptions


@dataclass(frozen=True, slots=True)
class Head:
    """The frozen matrix that makes logits, and what is done to them behind it."""

    weight_VH: Tensor
    multiplier: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's own last states, normed, and its head."""

    hidden_NDH: Tensor
    head: Head


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over blocks. The mean loss is `weighted_sum / weight`."""

    weighted_sum: Tensor
    """Sum of weight * loss over labelled slots; the only one that carries a gradient."""
    weight: Tensor
    """Sum of weights."""
    right: Tensor
    """Labelled slots whose label has the highest logit."""
    labelled: Tensor
    """Labelled slots."""
    streak: Tensor
    """Over blocks, leading slots whose label is among the STREAK_WIDTH best: with `blocks`, the
    all-anchor form of streak@8."""
    blocks: Tensor

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(LossSums)))


def block_loss(
    hidden_NDH: Tensor,
    labels_ND: Tensor,
    head: Head,
    options: LossOptions,
    teacher: Teacher | None = None,
) -> LossSums:
    """Loss of drafted hidden states against their labels.

    Args:
        hidden_NDH: drafted slots, the anchor's left out.
        labels_ND: NO_LABEL where a slot has none.
        head: makes logits of them.
        options: what is minimised, and how many rows at a time.
        teacher: for `kl`; the target's states at the same places.

    Returns:
        Sums in float32 at least; `weighted_sum` has the gradient with respect to `hidden_NDH`.
    """
    apply: Any = _HeadLoss.apply
    sums = apply(hidden_NDH, labels_ND, head, options, teacher)
    return LossSums(*sums)


def slot_weights(losses_ND: Tensor, labelled_ND: Tensor, options: LossOptions) -> Tensor:
    """What each slot weighs; 0 without a label.

    Args:
        losses_ND: cross-entropy of each slot's label; anything where there is none.
        labelled_ND: which slots have a label.
        options: how they are weighed.
    """
    mask_ND = labelled_ND.to(losses_ND.dtype)
    if options.weighting == "uniform":
        return mask_ND
    if options.weighting == "decay":
        slots_D = torch.arange(losses_ND.shape[1], device=losses_ND.device, dtype=losses_ND.dtype)
        return torch.exp(-slots_D / (options.gamma or 1.0)) * mask_ND
    chances_ND = (1 - options.alpha) * torch.exp(-losses_ND) + options.alpha
    chances_ND = torch.where(labelled_ND, chances_ND, torch.ones_like(chances_ND))
    reached_ND = torch.cumprod(chances_ND, dim=1) * mask_ND
    return reached_ND.flip(1).cumsum(dim=1).flip(1) * mask_ND


class _HeadLoss(torch.autograd.Function):
    """Forward computes the gradient too; backward only scales it."""

    @staticmethod
    def forward(  # the signature is autograd's
        ctx: Any,
        hidden_NDH: Tensor,
        labels_ND: Tensor,
        head: Head,
        options: LossOptions,
        teacher: Teacher | None,
    ) -> tuple[Tensor, ...]:
        num_blocks, slots = labels_ND.shape
        at_once = max(1, options.chunk_rows // slots)
        wants_gradient = ctx.needs_input_grad[0]
        gradient_NDH = torch.zeros_like(hidden_NDH) if wants_gradient else None
        total: tuple[Tensor, ...] | None = None
        for start in range(0, num_blocks, at_once):
            piece = slice(start, start + at_once)
            own = None if teacher is None else Teacher(teacher.hidden_NDH[piece], teacher.head)
            sums, gradient_RH, labelled_ND = _piece(
                hidden_NDH[piece], labels_ND[piece], head, options, own, wants_gradient
            )
            if gradient_NDH is not None:
                gradient_NDH[piece][labelled_ND] = gradient_RH
            total = sums if total is None else tuple(map(torch.add, total, sums))
        if total is None:
            total = tuple(hidden_NDH.new_zeros(()) for _ in fields(LossSums))
        ctx.save_for_backward(gradient_NDH)
        ctx.mark_non_differentiable(*total[1:])
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_NDH,) = ctx.saved_tensors
        scaled = gradient_NDH * gradients[0].to(gradient_NDH.dtype)
        return scaled, None, None, None, None


def _piece(
    hidden_NDH: Tensor,
    labels_ND: Tensor,
    head: Head,
    options: LossOptions,
    teacher: Teacher | None,
    wants_gradient: bool,  # noqa: FBT001
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Sums over some blocks, the gradient of their labelled slots, and which those are."""
    labelled_ND = labels_ND != NO_LABEL
    labels_R1 = labels_ND[labelled_ND][:, None]
    rows_RH = hidden_NDH[labelled_ND]
    logits_RV, bent_RV = _logits(rows_RH, head)
    own_R1 = logits_RV.gather(1, labels_R1)
    ranks_R = (logits_RV > own_R1).sum(dim=1)
    probabilities_RV, log_sum_R1 = _softmax_in_place(logits_RV)
    entropies_R = (log_sum_R1 - own_R1)[:, 0]
    losses_ND = entropies_R.new_zeros(labels_ND.shape)
    losses_ND[labelled_ND] = entropies_R
    weights_R = slot_weights(losses_ND, labelled_ND, options)[labelled_ND]
    minimised_R = entropies_R
    if teacher is None:
        probabilities_RV.scatter_add_(1, labels_R1, -torch.ones_like(own_R1))
    else:
        theirs_RV, _ = _logits(teacher.hidden_NDH[labelled_ND], teacher.head)
        minimised_R = _towards_teacher(probabilities_RV, theirs_RV)
    gradient_RH = rows_RH  # never read where no gradient is wanted
    if wants_gradient:
        slope_RV = probabilities_RV.mul_(weights_R[:, None])
        if bent_RV is not None:
            slope_RV *= bent_RV
        if head.multiplier != 1.0:
            slope_RV *= head.multiplier
        gradient_RH = slope_RV.to(rows_RH.dtype) @ head.weight_VH
    counted = _counts(ranks_R, labelled_ND)
    return ((weights_R * minimised_R).sum(), weights_R.sum(), *counted), gradient_RH, labelled_ND


def _logits(rows_RH: Tensor, head: Head) -> tuple[Tensor, Tensor | None]:
    """Logits in float32 at least, and the slope of the softcap where there is one."""
    logits_RV = rows_RH.to(head.weight_VH.dtype) @ head.weight_VH.T
    logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
    if head.multiplier != 1.0:
        logits_RV = logits_RV * head.multiplier
    if head.softcap is None:
        return logits_RV, None
    bent_RV = torch.tanh(logits_RV / head.softcap)
    return head.softcap * bent_RV, 1 - bent_RV**2


def _softmax_in_place(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, in the memory of the logits, and the logarithm of the sum that made them."""
    highest_R1 = logits_RV.amax(dim=1, keepdim=True)
    exponentials_RV = logits_RV.sub_(highest_R1).exp_()
    sums_R1 = exponentials_RV.sum(dim=1, keepdim=True)
    return exponentials_RV.div_(sums_R1), sums_R1.log() + highest_R1


def _towards_teacher(probabilities_RV: Tensor, teacher_logits_RV: Tensor) -> Tensor:
    """KL(teacher || drafter) of each row; the drafter's probabilities become q - p."""
    teacher_log_RV = teacher_logits_RV.log_softmax(dim=1)
    teacher_RV = teacher_log_RV.exp()
    tiny = torch.finfo(probabilities_RV.dtype).tiny
    divergence_R = (teacher_RV * (teacher_log_RV - probabilities_RV.clamp_min(tiny).log())).sum(1)
    probabilities_RV.sub_(teacher_RV)
    return divergence_R


def _counts(ranks_R: Tensor, labelled_ND: Tensor) -> tuple[Tensor, ...]:
    """Everything of LossSums behind `weight`, in its order."""
    ranks_ND = torch.full(labelled_ND.shape, 1 << 30, device=ranks_R.device)
    ranks_ND[labelled_ND] = ranks_R
    streak = (ranks_ND < STREAK_WIDTH).to(torch.long).cumprod(dim=1).sum()
    blocks = torch.tensor(len(labelled_ND), device=ranks_R.device)
    return (ranks_R == 0).sum(), labelled_ND.sum(), streak, blocks
