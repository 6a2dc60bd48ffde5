"""How slots read context and block: by torch's flex attention, one fused kernel for all documents.

No scores are ever stored, so long contexts with many blocks fit. The mask is the rule of
drafter/visibility.py, put to row numbers; which tiles of it hold anything is worked out from each
block's first and last visible row, so that the whole mask never exists either.

Compiled on CUDA. Elsewhere torch runs it unfused and without gradients: of use to tests.

Shape letters: N blocks, B slots per block, S context positions, Q = N * B, K key-value heads,
G query heads per key-value head, D head dim, q and k tiles of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from draftlab.drafter.config import LayerAttention
from draftlab.drafter.packing import Packing, positions_of
from draftlab.drafter.reading import KeysValues
from draftlab.drafter.visibility import oldest_visible, sees_context, sees_slot

TILE = 128
"""Rows of a tile of the mask, in both directions."""


class FlexReading:
    """All blocks in one kernel."""

    def __init__(
        self, anchors_N: Tensor, packing: Packing, block_size: int, *, compiled: bool
    ) -> None:
        self._rows = Rows(anchors_N, packing, block_size)
        self._attention: Any = _compiled() if compiled else flex_attention
        self._masks: dict[LayerAttention, BlockMask] = {}

    def read(
        self, query_KNGBD: Tensor, block: KeysValues, context: KeysValues, rule: LayerAttention
    ) -> Tensor:
        """See Reading."""
        kv_heads, num_blocks, group, block_size, head_dim = query_KNGBD.shape
        if rule not in self._masks:
            self._masks[rule] = self._rows.mask(rule)
        query = query_KNGBD.transpose(1, 2).reshape(1, kv_heads * group, -1, head_dim)
        keys, values = (
            torch.cat([of_context, of_block.flatten(1, 2)], dim=1).unsqueeze(0)
            for of_context, of_block in zip(context, block, strict=True)
        )
        mixed: Tensor = self._attention(
            query, keys, values, block_mask=self._masks[rule], scale=1.0, enable_gqa=True
        )
        return mixed.view(kv_heads, group, num_blocks, block_size, head_dim).transpose(1, 2)


@cache
def _compiled() -> Any:
    """Batches differ in length, so lengths are left open."""
    return torch.compile(flex_attention, dynamic=True)


class Rows:
    """Queries are the blocks' slots; keys are the context's rows, then the blocks' slots."""

    def __init__(self, anchors_N: Tensor, packing: Packing, block_size: int) -> None:
        device = anchors_N.device
        self.anchors_N = anchors_N
        self.packing = packing
        self.block_size = block_size
        self.context = sum(packing.context_lengths)
        self.document_of_block_N = packing.document_of_block(device)
        self.document_of_context_S = packing.document_of_context(device)
        self.positions_S = positions_of(packing.context_lengths, device)

    def sees(self, rule: LayerAttention) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Whether query row q reads key row k."""

        def mask(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            block, slot = q // self.block_size, q % self.block_size
            row = k.clamp(max=self.context - 1)
            in_context = (
                (k < self.context)
                & (self.document_of_context_S[row] == self.document_of_block_N[block])
                & sees_context(self.anchors_N[block], slot, self.positions_S[row], rule)
            )
            other = (k - self.context).clamp(min=0)
            in_block = (
                (k >= self.context)
                & (other // self.block_size == block)
                & sees_slot(slot, other % self.block_size, rule)
            )
            return in_context | in_block

        return mask

    def mask(self, rule: LayerAttention) -> BlockMask:
        """The rule, and which tiles hold anything of it."""
        blocks, rows = len(self.anchors_N), self.context + len(self.anchors_N) * self.block_size
        filled_qk = self.filled(rule, TILE)
        order_qk = torch.argsort(filled_qk.int(), dim=1, descending=True, stable=True)
        return BlockMask.from_kv_blocks(
            filled_qk.sum(dim=1, dtype=torch.int32)[None, None],
            order_qk.int()[None, None],
            BLOCK_SIZE=TILE,
            mask_mod=self.sees(rule),
            seq_lengths=(blocks * self.block_size, rows),
        )

    def filled(self, rule: LayerAttention, tile: int) -> Tensor:
        """Tiles that hold something visible, and perhaps some more; bool [q, k]."""
        slots = len(self.anchors_N) * self.block_size
        filled_qk = torch.zeros(
            -(-slots // tile),
            -(-(self.context + slots) // tile),
            dtype=torch.bool,
            device=self.anchors_N.device,
        )

        def tiles(start: int, stop: int) -> slice:
            return slice(start // tile, -(-max(stop, start) // tile))

        for rows, blocks in self.packing.spans():
            anchors = self.anchors_N[blocks].tolist()
            for block, anchor in enumerate(anchors, start=blocks.start):
                first, oldest = block * self.block_size, oldest_visible(anchor, rule)
                queries = tiles(first, first + self.block_size)
                seen = min(anchor, rows.stop - rows.start)
                filled_qk[queries, tiles(rows.start + oldest, rows.start + seen)] = True
                own = self.context + first
                filled_qk[queries, tiles(own, own + self.block_size)] = True
        return filled_qk
