"""Stored sequences -> anchored blocks with labels.

A completion of n tokens has the anchors 0..n-2: a known token whose successor is the target's own.
Prompt tokens are never anchors and never labels. Slot k of the block anchored at completion token
`a` is labelled with completion token `a + k`; slots past the end have no label.

Shape letters: N blocks, B slots, D = B - 1 drafted slots, n completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftlab.hidden.store import StoredSequence

NO_LABEL = -100
"""Label of a slot past the end; torch's cross-entropy skips it."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of one sequence."""

    tokens_NB: Tensor
    """The anchor, then mask tokens."""
    positions_N: Tensor
    """Position of each anchor in the sequence."""
    labels_ND: Tensor
    """The target's token for each drafted slot; NO_LABEL past the end."""


def random_anchors(num_tokens: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` different anchors of a completion of `num_tokens`, ascending.

    All if there are fewer.
    """
    order = torch.randperm(num_tokens - 1, generator=generator)
    return order[:count].sort().values


def anchored_blocks(
    sequence: StoredSequence, anchors_N: Tensor, *, block_size: int, mask_token_id: int
) -> Blocks:
    """The blocks at these anchors (indices into the completion)."""
    completion_n = sequence.tokens_T[sequence.prompt_length :]
    tokens_NB = torch.full((len(anchors_N), block_size), mask_token_id)
    tokens_NB[:, 0] = completion_n[anchors_N]
    places_ND = anchors_N[:, None] + torch.arange(1, block_size)
    inside_ND = places_ND < len(completion_n)
    labels_ND = completion_n[places_ND.clamp(max=len(completion_n) - 1)]
    return Blocks(
        tokens_NB=tokens_NB,
        positions_N=anchors_N + sequence.prompt_length,
        labels_ND=labels_ND.masked_fill(~inside_ND, NO_LABEL),
    )
