"""The DFlash drafter: hidden states of the context in, hidden states of drafted blocks out.

One forward serves replay and training, so the two cannot drift apart. The context's keys and values
are computed once per sequence (`project_context`) and shared by every block drafted in it
(`draft_blocks`), however many anchors there are: a block costs its own B slots and one look at the
context, never a second projection of it. Several documents may be packed one after another.

Weights follow what they meet: a layer computes in the type of the states it is given, so float32
weights train in bfloat16 where taps and embeddings are. Norms, rotary tables, softmax and logits
are in float32 at least.

No loss, no sampling and no vocabulary in here; the target's embedding and head are drafter/ends.py.

Source: DFlash, arXiv:2602.06036; z-lab/dflash@44947fb, model.py. Module names are those of z-lab's
checkpoints, so a state dict loads as it is.

Shape letters: N blocks, B slots per block, S context positions, C = taps * H, H hidden size,
K key-value heads, G query heads per key-value head, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from draftlab.drafter.config import DrafterConfig, LayerAttention
from draftlab.drafter.packing import Packing, positions_of
from draftlab.drafter.reading import DenseReading, Reading
from draftlab.drafter.rotary import Rotary, rotate


@dataclass(frozen=True, slots=True)
class DraftContext:
    """Keys and values of the context, per drafter layer, at positions 0.. of each document."""

    keys_KSD: tuple[Tensor, ...]
    values_KSD: tuple[Tensor, ...]
    lengths: tuple[int, ...]
    """Rows of each document; one where nothing is packed."""


class Linear(nn.Linear):
    """Computes in the type of its input, whatever type its weights are kept in."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32 or finer, times a plain weight (not 1 + weight)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        fine = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = F.rms_norm(fine, x.shape[-1:], eps=self.eps).to(x.dtype)
        return self.weight.to(x.dtype) * normed


class Attention(nn.Module):
    """Block slots read the context and their own block; one set of projections serves both."""

    def __init__(self, config: DrafterConfig, rule: LayerAttention) -> None:
        super().__init__()
        self.rule = rule
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        bias, hidden = config.attention_bias, config.hidden_size
        self.q_proj = Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.k_proj = Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = Linear(self.heads * self.head_dim, hidden, bias=bias)
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
        context: tuple[Tensor, Tensor],
        reading: Reading,
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
        block = (keys.permute(2, 0, 1, 3), values.permute(2, 0, 1, 3))
        mixed_KNGBD = reading.read(query_KNGBD, block, context, self.rule)
        mixed = mixed_KNGBD.permute(1, 3, 0, 2, 4).reshape(num_blocks, block_size, -1)
        out: Tensor = self.o_proj(mixed)
        return out


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(hidden, inner, bias=False)
        self.up_proj = Linear(hidden, inner, bias=False)
        self.down_proj = Linear(inner, hidden, bias=False)

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
        context: tuple[Tensor, Tensor],
        reading: Reading,
        tables: tuple[Tensor, Tensor],
    ) -> Tensor:
        """[N, B, H] -> [N, B, H]."""
        x_NBH = x_NBH + self.self_attn(self.input_layernorm(x_NBH), context, reading, tables)
        out_NBH: Tensor = x_NBH + self.mlp(self.post_attention_layernorm(x_NBH))
        return out_NBH


class Drafter(nn.Module):
    """One DFlash drafter, without the embedding and head it borrows from its target."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = Linear(config.num_taps * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config, rule) for rule in config.layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are kept in."""
        return self.fc.weight.dtype

    def project_context(
        self,
        taps_SC: Tensor,
        *,
        lengths: tuple[int, ...] | None = None,
        dtype: torch.dtype | None = None,
    ) -> DraftContext:
        """Keys and values of every layer for all context positions.

        Args:
            taps_SC: the target's tapped hidden states, concatenated in tap order.
            lengths: rows of each packed document; None where all are of one.
            dtype: what to compute in; None is the weights' own type.
        """
        lengths = lengths or (taps_SC.shape[0],)
        taps_SC = taps_SC.to(self.device, dtype or self.dtype)
        context_SH = self.hidden_norm(self.fc(taps_SC))
        tables = self._tables(positions_of(lengths, self.device), taps_SC.dtype)
        pairs = [layer.self_attn.project_context(context_SH, tables) for layer in self._layers()]
        return DraftContext(tuple(k for k, _ in pairs), tuple(v for _, v in pairs), lengths)

    def draft_blocks(
        self,
        embedded_NBH: Tensor,
        anchors_N: Tensor,
        context: DraftContext,
        *,
        reading: Reading | None = None,
        checkpointing: bool = False,
    ) -> Tensor:
        """Hidden states [N, B, H] of blocks anchored at `anchors_N`, ready for the head.

        Args:
            embedded_NBH: embedded block tokens: the anchor, then masks.
            anchors_N: position of each block's anchor in its document, 1..S; the block reads
                context before it.
            context: of the same documents; may be longer than any block may read.
            reading: how blocks read; None is dense, all blocks in the one document there is.
            checkpointing: recompute each layer in the backward instead of keeping activations.
        """
        num_blocks, block_size, _ = embedded_NBH.shape
        if reading is None:
            (length,) = context.lengths
            reading = DenseReading(anchors_N, Packing.single(length, num_blocks))
        positions_NB = anchors_N[:, None] + torch.arange(block_size, device=self.device)
        tables = self._tables(positions_NB, embedded_NBH.dtype)
        x_NBH = embedded_NBH
        for index, layer in enumerate(self._layers()):
            given = ((context.keys_KSD[index], context.values_KSD[index]), reading, tables)
            if checkpointing:
                x_NBH = checkpoint(layer, x_NBH, *given, use_reentrant=False)
            else:
                x_NBH = layer(x_NBH, *given)
        out_NBH: Tensor = self.norm(x_NBH)
        return out_NBH

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def _tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rotary tables with an axis for the heads."""
        cos, sin = Rotary(self.config, self.device, dtype).tables(positions)
        return cos.unsqueeze(-2), sin.unsqueeze(-2)
