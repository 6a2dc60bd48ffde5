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
class LossParts:
    """Loss of some blocks; the mean is `weighted_sum / weight`."""

    weighted_sum: Tensor
    weight: Tensor
    right: int
    """Labelled slots whose best token is the label."""
    labelled: int


def decayed_cross_entropy(logits_NDV: Tensor, labels_ND: Tensor, gamma: float) -> LossParts:
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
    return LossParts(
        weighted_sum=(losses.view_as(weights_ND) * weights_ND).sum(),
        weight=weights_ND.sum(),
        right=int(right),
        labelled=int((labels_ND != NO_LABEL).sum()),
    )
