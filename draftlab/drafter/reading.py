"""How slots read context and block: by plain matrix products, one document at a time.

Exact on any device, and all there is on a CPU. The context is never copied per block, and no scores
between documents are made. drafter/flex.py reads the same by one fused kernel.

Shape letters: N blocks, B slots per block, S context positions, K key-value heads, G query heads
per key-value head, D head dim.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from draftlab.drafter.config import LayerAttention
from draftlab.drafter.packing import Packing
from draftlab.drafter.visibility import block_visible, context_visible, oldest_visible

KeysValues = tuple[Tensor, Tensor]


class Reading(Protocol):
    """A way for the blocks of one forward to read."""

    def read(
        self, query_KNGBD: Tensor, block: KeysValues, context: KeysValues, rule: LayerAttention
    ) -> Tensor:
        """Softmax over context and own block together; [K, N, G, B, D].

        Args:
            query_KNGBD: scaled queries.
            block: keys and values [K, N, B, D] of the blocks.
            context: keys and values [K, S, D] of the context.
            rule: of the layer.
        """
        ...


class DenseReading:
    """Scores of every slot with every context row of its document, masked."""

    def __init__(self, anchors_N: Tensor, packing: Packing) -> None:
        self._anchors_N = anchors_N
        self._spans = [
            (rows, blocks, *_reach(anchors_N[blocks], rows)) for rows, blocks in packing.spans()
        ]

    def read(
        self, query_KNGBD: Tensor, block: KeysValues, context: KeysValues, rule: LayerAttention
    ) -> Tensor:
        """See Reading."""
        parts = []
        for rows, blocks, lowest, end in self._spans:
            first = oldest_visible(lowest, rule)
            near = slice(rows.start + first, rows.start + end)
            parts.append(
                _read_one(
                    query_KNGBD[:, blocks],
                    (block[0][:, blocks], block[1][:, blocks]),
                    (context[0][:, near], context[1][:, near]),
                    self._masks(blocks, (first, end), query_KNGBD.shape[3], rule),
                )
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _masks(
        self, blocks: slice, span: tuple[int, int], block_size: int, rule: LayerAttention
    ) -> tuple[Tensor, Tensor | None]:
        """What is hidden: [N, B or 1, S] of the context, [B, B] of the block or None."""
        anchors_N = self._anchors_N[blocks]
        positions_S = torch.arange(*span, device=anchors_N.device)
        hidden_NBS = ~context_visible(anchors_N, positions_S, block_size, rule)
        own = ~block_visible(block_size, rule, anchors_N.device) if rule.causal else None
        return hidden_NBS, own


def _reach(anchors_N: Tensor, rows: slice) -> tuple[int, int]:
    """The lowest anchor, and the end of what any block may read."""
    return int(anchors_N.min()), min(int(anchors_N.max()), rows.stop - rows.start)


def _read_one(
    query_KNGBD: Tensor,
    block: KeysValues,
    context: KeysValues,
    hidden: tuple[Tensor, Tensor | None],
) -> Tensor:
    """One document's blocks."""
    kv_heads, num_blocks, group, block_size, head_dim = query_KNGBD.shape
    keys_KSD, values_KSD = context
    length = keys_KSD.shape[1]
    query_KND = query_KNGBD.reshape(kv_heads, num_blocks, group * block_size, head_dim)
    flat = query_KND.view(kv_heads, -1, head_dim)
    to_context = (flat @ keys_KSD.transpose(1, 2)).view(
        kv_heads, num_blocks, group, block_size, length
    )
    to_block = (query_KND @ block[0].transpose(2, 3)).view(
        kv_heads, num_blocks, group, block_size, block_size
    )
    to_context = to_context.masked_fill(hidden[0][None, :, None], float("-inf"))
    if hidden[1] is not None:
        to_block = to_block.masked_fill(hidden[1], float("-inf"))
    scores = torch.cat([to_context, to_block], dim=-1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    weights = scores.softmax(dim=-1).to(query_KNGBD.dtype)
    on_context, on_block = torch.split(weights, [length, block_size], dim=-1)
    from_context = on_context.reshape(kv_heads, -1, length) @ values_KSD
    from_block = on_block.reshape(kv_heads, num_blocks, -1, block_size) @ block[1]
    return from_context.view_as(query_KNGBD) + from_block.view_as(query_KNGBD)
