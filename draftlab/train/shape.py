"""The shape of a new drafter for a target: as wide as the target, a few layers deep."""

from __future__ import annotations

from pathlib import Path

from draftlab.base.errors import DrafterError
from draftlab.drafter.config import DrafterConfig, LayerAttention
from draftlab.target.facts import TargetFacts, target_rope
from draftlab.target.rope import PLAIN, Rope
from draftlab.train.config import DrafterWish


def wished_shape(
    target_folder: Path, wish: DrafterWish, stored_layer_ids: tuple[int, ...]
) -> DrafterConfig:
    """The shape to start from, or one of full-attention layers with plain rotary positions.

    Rotary settings that belong to the target only (partial, multi-axis) are left behind: a drafter
    that inherits them is rotated one way by its trainer and another by engines.

    Raises:
        DrafterError: the values do not make a drafter.
    """
    if wish.start is not None:
        return DrafterConfig.from_folder(wish.start)
    if wish.mask_token_id is None:
        raise DrafterError(
            "no mask token: which reserved token stands for unknown slots is never guessed.",
            mend="Set drafter.mask_token_id.",
        )
    facts = TargetFacts.from_folder(target_folder)
    hidden = facts.hidden_size
    head_dim = wish.head_dim or (128 if hidden >= 1024 else 32)
    heads = wish.num_heads or 4 * max(1, round(1.6 * hidden / head_dim / 4))
    theta = wish.rope_theta or target_rope(target_folder).theta
    return DrafterConfig(
        block_size=wish.block_size,
        mask_token_id=wish.mask_token_id,
        target_layer_ids=wish.target_layer_ids or stored_layer_ids,
        num_target_layers=facts.num_layers,
        hidden_size=hidden,
        intermediate_size=wish.intermediate_size or 3 * hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4 if heads % 4 == 0 else heads,
        head_dim=head_dim,
        rms_norm_eps=1e-6,
        rope=Rope(theta=theta, kind=PLAIN, partial_rotary_factor=1.0, scaling={}, warnings=()),
        max_positions=40960,
        attention_bias=False,
        layers=(LayerAttention(window=None, causal=False),) * wish.num_layers,
        input_embedding_scale=1.0,
        output_multiplier=1.0,
        logit_softcap=None,
    )
