"""Who may read whom, stated once; the masks of replay and of training derive from it.

A slot of the block anchored at `a` sits at position a + slot. It reads

- context strictly before its anchor: the anchor has just been sampled and has no hidden state yet;
- slots of its own block: all of them, or only itself and earlier ones in a causal layer;
- in a sliding layer of window W, only what lies at most W - 1 positions behind itself.

It never reads another block. Source: z-lab/dflash, SGLang and SpecForge agree on the window's edge
a + slot - (W - 1); speculators trains with a - W for every slot.

Shape letters: N blocks, B slots, S context positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftlab.drafter.config import LayerAttention


def context_visible(
    anchors_N: Tensor, context_positions_S: Tensor, block_size: int, rule: LayerAttention
) -> Tensor:
    """Which context positions each slot may read; bool [N, B or 1, S].

    The middle axis is 1 where the rule is the same for all slots of a block.
    """
    before_N1S = context_positions_S < anchors_N[:, None, None]
    if rule.window is None:
        return before_N1S
    slots_B = torch.arange(block_size, device=anchors_N.device)
    oldest_NB1 = (anchors_N[:, None] + slots_B - (rule.window - 1))[:, :, None]
    return before_N1S & (context_positions_S >= oldest_NB1)


def block_visible(block_size: int, rule: LayerAttention, device: torch.device) -> Tensor:
    """Which slots of its own block each slot may read; bool [B, B], rows are readers.

    A window is at least the block wide (DrafterConfig checks that), so it hides none of them.
    """
    slots_B = torch.arange(block_size, device=device)
    if rule.causal:
        return slots_B[None, :] <= slots_B[:, None]
    return torch.ones(block_size, block_size, dtype=torch.bool, device=device)


def oldest_visible(first_anchor: int, rule: LayerAttention) -> int:
    """The lowest context position that any block anchored at `first_anchor` or later can read."""
    return 0 if rule.window is None else max(0, first_anchor - (rule.window - 1))
