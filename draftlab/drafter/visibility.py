"""Who may read whom, stated once; every mask of replay and of training derives from it.

A slot of the block anchored at `a` sits at position a + slot. It reads

- context strictly before its anchor: the anchor has just been sampled and has no hidden state yet;
- slots of its own block: all of them, or only itself and earlier ones in a causal layer;
- in a sliding layer of window W, only what lies at most W - 1 positions behind itself.

It never reads another block, nor another document's context. Positions count from the start of its
document. Source: z-lab/dflash, SGLang and SpecForge agree on the window's edge a + slot - (W - 1);
speculators trains with a - W for every slot.

No slot reads nothing: it reads itself at least. So no softmax runs over an empty row, whatever the
anchor; an anchor at position 0 would merely draft without context, and does not occur, since a
target says its first token after at least one token of prompt.

Shape letters: N blocks, B slots, S context positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftlab.drafter.config import LayerAttention


def sees_context(anchors: Tensor, slots: Tensor, positions: Tensor, rule: LayerAttention) -> Tensor:
    """Whether a slot may read a context position of its own document; shapes broadcast."""
    seen = positions < anchors
    if rule.window is not None:
        seen = seen & (positions >= anchors + slots - (rule.window - 1))
    return seen


def sees_slot(readers: Tensor, slots: Tensor, rule: LayerAttention) -> Tensor:
    """Whether slot `readers` may read slot `slots` of its own block; shapes broadcast.

    A window is at least the block wide (DrafterConfig checks that), so it hides none of them.
    """
    return slots <= readers if rule.causal else torch.ones_like(slots <= readers)


def context_visible(
    anchors_N: Tensor, context_positions_S: Tensor, block_size: int, rule: LayerAttention
) -> Tensor:
    """Which context positions each slot may read; bool [N, B or 1, S].

    The middle axis is 1 where the rule is the same for all slots of a block.
    """
    slots_B = torch.arange(1 if rule.window is None else block_size, device=anchors_N.device)
    return sees_context(anchors_N[:, None, None], slots_B[:, None], context_positions_S, rule)


def block_visible(block_size: int, rule: LayerAttention, device: torch.device) -> Tensor:
    """Which slots of its own block each slot may read; bool [B, B], rows are readers."""
    slots_B = torch.arange(block_size, device=device)
    return sees_slot(slots_B[:, None], slots_B[None, :], rule)


def oldest_visible(first_anchor: int, rule: LayerAttention) -> int:
    """The lowest context position that any block anchored at `first_anchor` or later can read."""
    return 0 if rule.window is None else max(0, first_anchor - (rule.window - 1))
