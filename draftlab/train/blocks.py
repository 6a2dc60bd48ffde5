"""Documents -> anchored blocks with labels.

A completion of n tokens has the anchors 0..n-2: a known token whose successor is the target's own.
Prompt tokens are never anchors and never labels. Slot k of the block anchored at completion token
`a` is labelled with completion token `a + k`; slots past the end have no label.

Shape letters: N blocks, B slots, D = B - 1 drafted slots, n completion tokens.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlab.train.documents import Document

NO_LABEL = -100
"""Label of a slot past the end; torch's cross-entropy skips it."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of one document."""

    tokens_NB: Tensor
    """The anchor, then mask tokens."""
    positions_N: Tensor
    """Position of each anchor in the document."""
    labels_ND: Tensor
    """The target's token for each drafted slot; NO_LABEL past the end."""


def draw_seed(seed: int, epoch: int, document: int, what: str) -> int:
    """A seed of its own for each draw, so that no draw depends on what was drawn before it."""
    key = f"{what}/{seed}/{epoch}/{document}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1


def num_anchors(completion_tokens: int) -> int:
    """How many anchors a completion has; a document without any must be left out beforehand."""
    return max(0, completion_tokens - 1)


def anchors_of(seed: int, epoch: int, document_index: int, n: int, count: int) -> Tensor:
    """`count` different anchors of a completion of `n` tokens, ascending; all if there are fewer.

    A function of its arguments alone: neither the order of documents nor a stop and resume nor the
    number of processes changes what is drawn.
    """
    generator = torch.Generator().manual_seed(draw_seed(seed, epoch, document_index, "anchors"))
    return torch.randperm(num_anchors(n), generator=generator)[:count].sort().values


def fixed_anchors(n: int, count: int, block_size: int) -> Tensor:
    """Anchors 0, B, 2B, ..., the same every epoch: uniform blocks, for comparison only.

    τ is 12 to 16 % lower with them (arXiv:2602.06036, Table 8).
    """
    return torch.arange(0, num_anchors(n), block_size)[:count]


def anchored_blocks(
    document: Document, anchors_N: Tensor, *, block_size: int, mask_token_id: int
) -> Blocks:
    """The blocks at these anchors (indices into the completion)."""
    completion_n = document.tokens_T[document.prompt_length :]
    tokens_NB = torch.full((len(anchors_N), block_size), mask_token_id)
    tokens_NB[:, 0] = completion_n[anchors_N]
    places_ND = anchors_N[:, None] + torch.arange(1, block_size)
    inside_ND = places_ND < len(completion_n)
    labels_ND = completion_n[places_ND.clamp(max=len(completion_n) - 1)]
    return Blocks(
        tokens_NB=tokens_NB,
        positions_N=anchors_N + document.prompt_length,
        labels_ND=labels_ND.masked_fill(~inside_ND, NO_LABEL),
    )
