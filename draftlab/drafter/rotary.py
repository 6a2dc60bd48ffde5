"""Rotary position tables of a drafter, for the plain kind and for scaled ones.

Plain rotary: frequencies theta ** (-2i / head_dim), the two halves of a head rotated against each
other (NEOX layout), the whole head rotated. Scaled kinds (YaRN, linear, llama3) take their
frequencies from transformers' own functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from draftlab.base.errors import DrafterError
from draftlab.drafter.config import DrafterConfig
from draftlab.target.rope import PLAIN


class Rotary:
    """Turns positions into cosine and sine tables, in float32 or finer."""

    def __init__(self, config: DrafterConfig, device: torch.device, dtype: torch.dtype) -> None:
        """Tables for a model that computes in `dtype`."""
        fine = torch.promote_types(dtype, torch.float32)
        self._inverse, self._attention_factor = _frequencies(config, device, fine)

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cos and sin [..., head_dim] for integer positions [...]."""
        angles = positions.to(self._inverse.dtype)[..., None] * self._inverse
        both = torch.cat([angles, angles], dim=-1)
        return both.cos() * self._attention_factor, both.sin() * self._attention_factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply tables [..., 1, d] to heads [..., heads, d]."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return x * cos.to(x.dtype) + turned * sin.to(x.dtype)


def _frequencies(
    config: DrafterConfig, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, float]:
    rope = config.rope
    if rope.kind == PLAIN:
        exponents = torch.arange(0, config.head_dim, 2, dtype=dtype, device=device)
        return 1.0 / rope.theta ** (exponents / config.head_dim), 1.0
    if rope.kind not in ROPE_INIT_FUNCTIONS:
        raise DrafterError(
            f"config.json: rope_type {rope.kind!r} is not known; known are "
            f"{', '.join(['default', *ROPE_INIT_FUNCTIONS])}.",
            mend="Check rope_parameters.",
        )
    untyped: Any = PretrainedConfig  # its settings are not declared as arguments
    shape = untyped(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        rope_parameters={"rope_theta": rope.theta, "rope_type": rope.kind, **rope.scaling},
    )
    inverse, factor = ROPE_INIT_FUNCTIONS[rope.kind](shape, device)
    return inverse.to(dtype), float(factor)
