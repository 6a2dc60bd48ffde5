"""The DFlash drafter: hidden states of the context in, hidden states of drafted blocks out.

One forward serves replay and training, so the two cannot drift apart. The context's keys and values
are computed once per sequence (`project_context`) and shared by every block drafted in it
(`draft_blocks`), however many anchors there are: a block costs its own B slots and one look at the
context, never a second projection of it.

No loss, no sampling and no vocabulary in here; the target's embedding and head are drafter/ends.py.

Source: DFlash, arXiv:2602.06036; z-lab/dflash@44947fb, model.py. Module names are those of z-lab's
checkpoints, so a state dict loads as it is.

Shape letters: N blocks, B slots per block, S context positions, C = taps * H, H hidden size,
K key-value heads, G query heads per key-value head, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from draftlab.drafter.config import DrafterConfig, LayerAttention
from draftlab.drafter.rotary import Rotary, rotate
from draftlab.drafter.visibility import block_visible, context_visible, oldest_visible


@dataclass(frozen=True, slots=True)
class DraftContext:
    """Keys and values of the context, per drafter layer.

    Of one sequence, at positions 0..S-1; or of several documents behind one another, each at
    positions from 0.
    """

    keys_KSD: tuple[Tensor, ...]
    values_KSD: tuple[Tensor, ...]
    lengths: tuple[int, ...]
    """Positions of each document; they add up to S."""


@dataclass(frozen=True, slots=True)
class DocumentBlocks:
    """Which of a batch's blocks belong to one document, and where its context lies."""

    blocks: slice
    context: slice
    first_anchor: int
    last_anchor: int
    """Positions, within the document, of the lowest and the highest anchor."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """What norms, rotary tables, softmax and logits are computed in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32 at least, times a plain weight (not 1 + weight)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        normed = F.rms_norm(x.to(wide(x.dtype)), x.shape[-1:], eps=self.eps)
        out: Tensor = self.weight * normed.to(x.dtype)
        return out


class Attention(nn.Module):
    """Block slots read the context and their own block; one set of projections serves both."""

    def __init__(self, config: DrafterConfig, rule: LayerAttention) -> None:
        super().__init__()
        self.rule = rule
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        bias, hidden = config.attention_bias, config.hidden_size
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def project_context(
        self, context_SH: Tensor, tables: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Keys and values [K, S, D] of the context."""
        keys, values = self._keys_values(context_SH, tables)
        return keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()

    def _keys_values(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [..., K, D] of hidden states [..., H]."""
        shape = (*x.shape[:-1], self.kv_heads, self.head_dim)
        keys = rotate(self.k_norm(self.k_proj(x).view(shape)), *tables)
        return keys, self.v_proj(x).view(shape)

    def forward(
        self,
        x_NBH: Tensor,
        anchors_N: Tensor,
        context: tuple[Tensor, Tensor],
        documents: Sequence[DocumentBlocks],
        tables: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Attention output [N, B, H]."""
        num_blocks, block_size, _ = x_NBH.shape
        query = self.q_norm(
            self.q_proj(x_NBH).view(num_blocks, block_size, self.heads, self.head_dim)
        )
        query = rotate(query, *tables) * self.head_dim**-0.5
        keys, values = self._keys_values(x_NBH, tables)
        query_KNGBD = query.view(num_blocks, block_size, self.kv_heads, -1, self.head_dim).permute(
            2, 0, 3, 1, 4
        )
        keys_KNBD, values_KNBD = keys.permute(2, 0, 1, 3), values.permute(2, 0, 1, 3)
        # Documents one by one: scores of a block against another's context would all be masked.
        parts = [
            self._read(
                query_KNGBD[:, doc.blocks],
                (keys_KNBD[:, doc.blocks], values_KNBD[:, doc.blocks]),
                (context[0][:, doc.context], context[1][:, doc.context]),
                anchors_N[doc.blocks],
                (doc.first_anchor, doc.last_anchor),
            )
            for doc in documents
        ]
        mixed_KNGBD = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        mixed = mixed_KNGBD.permute(1, 3, 0, 2, 4).reshape(num_blocks, block_size, -1)
        out: Tensor = self.o_proj(mixed)
        return out

    def _read(
        self,
        query_KNGBD: Tensor,
        block: tuple[Tensor, Tensor],
        context: tuple[Tensor, Tensor],
        anchors_N: Tensor,
        span: tuple[int, int],
    ) -> Tensor:
        """Softmax over context and own block together, without copying the context per block."""
        kv_heads, num_blocks, group, block_size, head_dim = query_KNGBD.shape
        first, last = oldest_visible(span[0], self.rule), span[1]
        keys_KSD, values_KSD = context[0][:, first:last], context[1][:, first:last]
        query_KND = query_KNGBD.reshape(kv_heads, num_blocks, group * block_size, head_dim)
        flat = query_KND.view(kv_heads, -1, head_dim)
        to_context = (flat @ keys_KSD.transpose(1, 2)).view(
            kv_heads, num_blocks, group, block_size, last - first
        )
        to_block = (query_KND @ block[0].transpose(2, 3)).view(
            kv_heads, num_blocks, group, block_size, block_size
        )
        positions_S = torch.arange(first, last, device=anchors_N.device)
        seen_NBS = context_visible(anchors_N, positions_S, block_size, self.rule)
        to_context = to_context.masked_fill(~seen_NBS[None, :, None], float("-inf"))
        if self.rule.causal:
            own_BB = block_visible(block_size, self.rule, anchors_N.device)
            to_block = to_block.masked_fill(~own_BB, float("-inf"))
        scores = torch.cat([to_context, to_block], dim=-1)
        scores = scores.to(wide(scores.dtype))
        weights = scores.softmax(dim=-1).to(query_KNGBD.dtype)
        on_context, on_block = torch.split(weights, [last - first, block_size], dim=-1)
        from_context = on_context.reshape(kv_heads, -1, last - first) @ values_KSD
        from_block = on_block.reshape(kv_heads, num_blocks, -1, block_size) @ block[1]
        return from_context.view_as(query_KNGBD) + from_block.view_as(query_KNGBD)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Pre-norm attention and MLP.

    The context enters below `input_layernorm`, as z-lab trains it.
    """

    def __init__(self, config: DrafterConfig, rule: LayerAttention) -> None:
        super().__init__()
        self.self_attn = Attention(config, rule)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        x_NBH: Tensor,
        anchors_N: Tensor,
        context: tuple[Tensor, Tensor],
        documents: Sequence[DocumentBlocks],
        tables: tuple[Tensor, Tensor],
    ) -> Tensor:
        """[N, B, H] -> [N, B, H]."""
        x_NBH = x_NBH + self.self_attn(
            self.input_layernorm(x_NBH), anchors_N, context, documents, tables
        )
        out_NBH: Tensor = x_NBH + self.mlp(self.post_attention_layernorm(x_NBH))
        return out_NBH


class Drafter(nn.Module):
    """One DFlash drafter, without the embedding and head it borrows from its target."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.num_taps * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config, rule) for rule in config.layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What the weights compute in."""
        return self.fc.weight.dtype

    def project_context(self, *taps_SC: Tensor) -> DraftContext:
        """Keys and values of every layer for context positions 0..S-1.

        Args:
            taps_SC: the target's tapped hidden states, concatenated in tap order; of one sequence,
                or of several documents, which share the projections and nothing else.
        """
        lengths = tuple(taps.shape[0] for taps in taps_SC)
        joined_SC = taps_SC[0] if len(taps_SC) == 1 else torch.cat(taps_SC)
        context_SH = self.hidden_norm(self.fc(joined_SC.to(self.device, self.dtype)))
        positions_S = torch.cat([torch.arange(length, device=self.device) for length in lengths])
        tables = self._tables(positions_S)
        pairs = [layer.self_attn.project_context(context_SH, tables) for layer in self._layers()]
        return DraftContext(tuple(k for k, _ in pairs), tuple(v for _, v in pairs), lengths)

    def draft_blocks(
        self,
        embedded_NBH: Tensor,
        anchors_N: Tensor,
        context: DraftContext,
        blocks_by_document: Sequence[int] | None = None,
        *,
        checkpointing: bool = False,
    ) -> Tensor:
        """Hidden states [N, B, H] of blocks anchored at `anchors_N`, ready for the head.

        Args:
            embedded_NBH: embedded block tokens: the anchor, then masks.
            anchors_N: position of each block's anchor in its document, 1..S; the block reads
                context before it.
            context: of the same documents; may be longer than any block may read.
            blocks_by_document: how many of the blocks each document has, in order; None where
                there is one document.
            checkpointing: keep no activations of the layers, and compute them again when the
                gradient is.
        """
        block_size = embedded_NBH.shape[1]
        documents = _documents(anchors_N, context.lengths, blocks_by_document)
        positions_NB = anchors_N[:, None] + torch.arange(block_size, device=self.device)
        tables = self._tables(positions_NB)
        x_NBH = embedded_NBH
        for index, layer in enumerate(self._layers()):
            pair = (context.keys_KSD[index], context.values_KSD[index])
            if checkpointing:
                x_NBH = checkpoint(
                    layer, x_NBH, anchors_N, pair, documents, tables, use_reentrant=False
                )
            else:
                x_NBH = layer(x_NBH, anchors_N, pair, documents, tables)
        out_NBH: Tensor = self.norm(x_NBH)
        return out_NBH

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary tables with an axis for the heads."""
        cos, sin = Rotary(self.config, self.device).tables(positions, wide(self.dtype))
        return cos.unsqueeze(-2), sin.unsqueeze(-2)


def _documents(
    anchors_N: Tensor, lengths: Sequence[int], blocks_by_document: Sequence[int] | None
) -> list[DocumentBlocks]:
    """Where each document's blocks and context lie; documents without a block are left out."""
    counts = [len(anchors_N)] if blocks_by_document is None else blocks_by_document
    anchors = anchors_N.tolist()
    found, block, position = [], 0, 0
    for count, length in zip(counts, lengths, strict=True):
        own = anchors[block : block + count]
        if own:
            found.append(
                DocumentBlocks(
                    blocks=slice(block, block + count),
                    context=slice(position, position + length),
                    first_anchor=min(own),
                    last_anchor=min(max(own), length),
                )
            )
        block, position = block + count, position + length
    return found
