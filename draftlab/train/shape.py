"""The shape of a new drafter for a target: as wide as the target, a few layers deep."""

from __future__ import annotations

from pathlib import Path

from draftlab.drafter.config import DrafterConfig, LayerAttention
from draftlab.target.facts import TargetFacts, target_rope
from draftlab.target.rope import PLAIN, Rope

_HEAD_DIMS = (128, 64, 48, 32, 16)


def shape_for_target(  # noqa: PLR0913  # one target, then keyword-only settings of a shape
    target_folder: Path,
    *,
    target_layer_ids: tuple[int, ...],
    mask_token_id: int,
    num_layers: int,
    block_size: int,
    rope_theta: float | None = None,
    intermediate_size: int | None = None,
) -> DrafterConfig:
    """A drafter of full-attention layers with plain rotary positions over the whole head.

    Heads are as wide as the largest of 128, 64, 48, 32, 16 that divides the hidden size into at
    least two; every query head has its own key-value head below 1,024, and four share one above.
    Rotary settings that belong to the target only (partial, multi-axis) are left behind: a drafter
    that inherits them is rotated one way by its trainer and another by engines.

    Raises:
        DrafterError: the values do not make a drafter.
    """
    facts = TargetFacts.from_folder(target_folder)
    hidden = facts.hidden_size
    head_dim = next((d for d in _HEAD_DIMS if hidden % d == 0 and hidden // d >= 2), hidden)
    heads = hidden // head_dim
    return DrafterConfig(
        block_size=block_size,
        mask_token_id=mask_token_id,
        target_layer_ids=target_layer_ids,
        num_target_layers=facts.num_layers,
        hidden_size=hidden,
        intermediate_size=intermediate_size or 3 * hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4 if hidden >= 1024 and heads % 4 == 0 else heads,
        head_dim=head_dim,
        rms_norm_eps=1e-6,
        rope=Rope(
            theta=rope_theta or target_rope(target_folder).theta,
            kind=PLAIN,
            partial_rotary_factor=1.0,
            scaling={},
            warnings=(),
        ),
        max_positions=40960,
        attention_bias=False,
        layers=(LayerAttention(window=None, causal=False),) * num_layers,
        input_embedding_scale=1.0,
        output_multiplier=1.0,
        logit_softcap=None,
    )
