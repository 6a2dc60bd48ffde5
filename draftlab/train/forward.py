"""Documents and anchors in, sums of loss out: one forward over a packed batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from draftlab.drafter.ends import TargetEnds
from draftlab.drafter.model import Drafter
from draftlab.train.blocks import anchored_blocks
from draftlab.train.documents import Document
from draftlab.train.loss import Head, LossSums, block_loss
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
    shape, device = drafter.config, drafter.device
    blocks = [
        anchored_blocks(
            document, own, block_size=shape.block_size, mask_token_id=shape.mask_token_id
        )
        for document, own in zip(documents, anchors, strict=True)
    ]
    context = drafter.project_context(*(document.taps_SC for document in documents))
    embedded_NBH = ends.embed(torch.cat([b.tokens_NB for b in blocks]).to(device), shape)
    hidden_NBH = drafter.draft_blocks(
        embedded_NBH.to(drafter.dtype),
        torch.cat([b.positions_N for b in blocks]).to(device),
        context,
        [len(own) for own in anchors],
        checkpointing=options.checkpointing,
    )
    return block_loss(
        hidden_NBH[:, 1:],
        torch.cat([b.labels_ND for b in blocks]).to(device),
        Head(ends.head_VH, shape.output_multiplier, shape.logit_softcap),
        options,
    )
