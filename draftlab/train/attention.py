"""Which way blocks read in training: plain products, or one fused kernel where it works.

The fused kernel is compiled for the card and the shapes; on some cards it does not compile (too
little shared memory), and what compiles may still be wrong. So it is tried on a small batch, output
and gradients, against plain products, before a run relies on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from draftlab.base.errors import DraftlabError
from draftlab.base.quantities import one_line
from draftlab.drafter.config import DrafterConfig, LayerAttention
from draftlab.drafter.flex import FlexReading
from draftlab.drafter.packing import Packing
from draftlab.drafter.reading import DenseReading, Reading
from draftlab.train.options import AttentionWish

_CONTEXTS, _ANCHORS = (300, 90), ((1, 7, 150, 300), (90,))
"""A trial of two documents, over more than one tile."""
_TOLERANCE = {torch.bfloat16: 3e-2, torch.float32: 1e-3}
"""Of the trial, relative to the largest value."""


@dataclass(frozen=True, slots=True)
class Attention:
    """How blocks read, and why so."""

    fused: bool
    why: str

    def reading(self, anchors_N: Tensor, packing: Packing, block_size: int) -> Reading:
        """Of one batch."""
        if self.fused:
            compiled = anchors_N.device.type == "cuda"
            return FlexReading(anchors_N, packing, block_size, compiled=compiled)
        return DenseReading(anchors_N, packing)


@dataclass(frozen=True, slots=True)
class _Trial:
    """What decides whether a kernel compiles."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    rules: tuple[tuple[int | None, bool], ...]
    device: torch.device
    dtype: torch.dtype

    def difference(self) -> float:
        """Largest difference of fused and plain, relative to the largest value."""
        packing = Packing(_CONTEXTS, tuple(map(len, _ANCHORS)))
        anchors_N = torch.tensor([a for own in _ANCHORS for a in own], device=self.device)
        readings = (
            DenseReading(anchors_N, packing),
            FlexReading(anchors_N, packing, self.block_size, compiled=True),
        )
        worst = 0.0
        for window, causal in self.rules:
            rule = LayerAttention(window=window, causal=causal)
            plain, fused = (self._run(reading, rule) for reading in readings)
            for mine, theirs in zip(plain, fused, strict=True):
                gap = (mine - theirs).abs().max() / mine.abs().max()
                worst = max(worst, float(gap.nan_to_num(nan=float("inf"))))
        return worst

    def _run(self, reading: Reading, rule: LayerAttention) -> list[Tensor]:
        """Output and gradients, in float32."""
        generator = torch.Generator().manual_seed(0)
        blocks, rows = sum(map(len, _ANCHORS)), sum(_CONTEXTS)
        group = self.heads // self.kv_heads
        drafted = (self.kv_heads, blocks, self.block_size, self.head_dim)
        context = (self.kv_heads, rows, self.head_dim)
        queries = (self.kv_heads, blocks, group, self.block_size, self.head_dim)
        made = [
            torch.randn(shape, generator=generator).to(self.device, self.dtype).requires_grad_()
            for shape in (queries, drafted, drafted, context, context)
        ]
        scaled = made[0] * self.head_dim**-0.5
        out = reading.read(scaled, (made[1], made[2]), (made[3], made[4]), rule)
        aim = torch.randn(out.shape, generator=generator).to(out)
        gradients = torch.autograd.grad((out * aim).sum(), made)
        return [tensor.detach().float() for tensor in (out, *gradients)]


def choose_attention(
    wish: AttentionWish, shape: DrafterConfig, device: torch.device, dtype: torch.dtype
) -> Attention:
    """Plain products on a CPU; on a GPU the fused kernel if it compiles and is right, else plain.

    The trial of a kernel is made once per process.

    Args:
        wish: `auto`, or one of the two by name.
        shape: of the drafter.
        device: where it trains.
        dtype: what it computes in.

    Raises:
        DraftlabError: `flex` is asked for by name and does not work here.
    """
    if wish == "dense":
        return Attention(fused=False, why="attention: plain products, as asked for")
    if device.type != "cuda":
        if wish == "flex":
            raise DraftlabError(
                f"torch has no fused attention with gradients on {device.type}.",
                mend="Leave loss.attention at auto.",
            )
        return Attention(fused=False, why=f"attention: plain products on {device.type}")
    trial = _Trial(
        heads=shape.num_attention_heads,
        kv_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        block_size=shape.block_size,
        rules=tuple(dict.fromkeys((rule.window, rule.causal) for rule in shape.layers)),
        device=device,
        dtype=dtype,
    )
    trouble = _trouble(trial)
    if trouble and wish == "flex":
        raise DraftlabError(
            f"the fused kernel does not work here: {trouble}.", mend="Leave loss.attention at auto."
        )
    if trouble:
        return Attention(fused=False, why=f"attention: plain products; fused kernel: {trouble}")
    return Attention(fused=True, why="attention: fused kernel, equal to plain products on a trial")


@lru_cache
def _trouble(trial: _Trial) -> str:
    """Why the fused kernel cannot be used; empty if it can."""
    try:
        gap = trial.difference()
    except Exception as error:  # noqa: BLE001  # of compiler, driver or card; it is told, not lost
        return one_line(f"{type(error).__name__}: {error}", at_most=200)
    coarse = torch.bfloat16 if trial.dtype == torch.bfloat16 else torch.float32
    return "" if gap <= _TOLERANCE[coarse] else f"differs from plain products by {gap:.2g}"
