"""How much each drafted slot counts. An early miss ends the round, a late one costs little.

Shape letters: N blocks, D drafted slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftlab.train.options import LossOptions


def slot_weights(loss_ND: Tensor, labelled_ND: Tensor, options: LossOptions) -> Tensor:
    """Weights [N, D], 0 where there is no label; never part of the gradient.

    Args:
        loss_ND: cross-entropy of each slot; anything where there is no label.
        labelled_ND: where there is one.
        options: which weighting.
    """
    if options.weighting == "dpace":
        return _dpace(loss_ND, labelled_ND, options.alpha)
    ones_ND = labelled_ND.to(loss_ND.dtype)
    if options.gamma is None or options.weighting == "uniform":
        return ones_ND
    slots_D = torch.arange(loss_ND.shape[1], device=loss_ND.device, dtype=loss_ND.dtype)
    return torch.exp(-slots_D / options.gamma) * ones_ND


def _dpace(loss_ND: Tensor, labelled_ND: Tensor, alpha: float) -> Tensor:
    """The smoothed chance that the draft lives to each slot, summed over slots from here on.

    Source: D-PACE, arXiv:2605.18810; SpecForge and speculators agree.
    """
    chance_ND = (1 - alpha) * torch.exp(-loss_ND) + alpha
    alive_ND = chance_ND.masked_fill(~labelled_ND, 1.0).cumprod(dim=1) * labelled_ND
    return alive_ND.flip(1).cumsum(dim=1).flip(1) * labelled_ND
