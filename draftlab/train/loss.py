"""Hard cross-entropy on the target's own tokens, earlier slots weighing more.

Slot k weighs exp(-(k - 1) / gamma): an early miss ends the round, a late one costs little
(arXiv:2602.06036, section 4.2). Returned as (sum, weight), so that batches of any shape add up.

Shape letters: N blocks, D drafted slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from draftlab.train.blocks import NO_LABEL


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


def decayed_cross_entropy(logits_NDV: Tensor, labels_ND: Tensor, gamma: float) -> LossSums:
    """Weighted sum of the slots' cross-entropies, and the weights' sum."""
    slots_D = torch.arange(labels_ND.shape[1], device=labels_ND.device)
    weights_ND = torch.exp(-slots_D / gamma) * (labels_ND != NO_LABEL)
    losses = F.cross_entropy(
        logits_NDV.flatten(0, 1).float(),
        labels_ND.flatten(),
        ignore_index=NO_LABEL,
        reduction="none",
    )
    right = (logits_NDV.detach().argmax(dim=-1) == labels_ND).sum()
    among = logits_NDV.detach().topk(min(8, logits_NDV.shape[-1]), dim=-1).indices
    hits = (among == labels_ND[..., None]).any(dim=-1)
    return LossSums(
        weighted_sum=(losses.view_as(weights_ND) * weights_ND).sum(),
        weight=weights_ND.sum(),
        right=right,
        labelled=(labels_ND != NO_LABEL).sum(),
        streak=hits.long().cumprod(dim=1).sum(),
        blocks=torch.tensor(len(labels_ND)),
    )
