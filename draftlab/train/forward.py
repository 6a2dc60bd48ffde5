"""Documents and anchors in, sums of loss out: one forward over a packed batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from draftlab.drafter.ends import TargetEnds
from draftlab.drafter.model import Drafter
from draftlab.train.blocks import anchored_blocks
from draftlab.train.documents import Document
from draftlab.train.loss import LossSums, decayed_cross_entropy
from draftlab.train.options import LossOptions

if TYPE_CHECKING:
    from draftlab.train.teacher import Teacher


def batch_loss(
    drafter: Drafter,
    ends: TargetEnds,
    documents: Sequence[Document],
    anchors: Sequence[Tensor],
    options: LossOptions,
    *,
    teacher: Teacher | None = None,
) -> LossSums:
    """Loss of the blocks at `anchors[i]` of `documents[i]`, as sums.

    Args:
        drafter: its weights are the masters; what is computed in is the type of `ends`.
        ends: embedding and head of the target.
        documents: any number; they are packed, and no block sees another document.
        anchors: of each document, indices into its completion (`anchors_of`).
        options: the loss.
        teacher: needed for `kl` only.
    """
    parts = [
        _document_loss(drafter, ends, document, anchors_N, options)
        for document, anchors_N in zip(documents, anchors, strict=True)
    ]
    return sum(parts[1:], start=parts[0])


def _document_loss(
    drafter: Drafter, ends: TargetEnds, document: Document, anchors_N: Tensor, options: LossOptions
) -> LossSums:
    shape = drafter.config
    blocks = anchored_blocks(
        document, anchors_N, block_size=shape.block_size, mask_token_id=shape.mask_token_id
    )
    context = drafter.project_context(document.taps_SC)
    embedded_NBH = ends.embed(blocks.tokens_NB.to(drafter.device), shape)
    hidden_NBH = drafter.draft_blocks(embedded_NBH, blocks.positions_N.to(drafter.device), context)
    logits_NDV = ends.logits(hidden_NBH[:, 1:], shape)
    if options.loss != "ce" or options.gamma is None:
        raise NotImplementedError(options)
    return decayed_cross_entropy(logits_NDV, blocks.labels_ND.to(drafter.device), options.gamma)
