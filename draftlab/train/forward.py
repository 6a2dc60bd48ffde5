"""Documents and anchors in, sums of loss out: one forward over a packed batch.

It is the forward that replay uses, on the same rule of visibility.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftlab.drafter.ends import TargetEnds
from draftlab.drafter.model import Drafter
from draftlab.train.attention import choose_attention
from draftlab.train.batch import pack
from draftlab.train.documents import Document
from draftlab.train.loss import LossSums, head_loss
from draftlab.train.options import LossOptions
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

    Without a single anchor all sums are 0 and so is the gradient, which is there all the same: a
    process with nothing to do takes its step with the others.

    Args:
        drafter: its weights are the masters; what is computed in is the type of `ends`.
        ends: embedding and head of the target.
        documents: any number; they are packed, and no block sees another document.
        anchors: of each document, indices into its completion (`anchors_of`).
        options: the loss.
        teacher: needed for `kl` only.

    Raises:
        DrafterError: states have another width than the drafter's taps.
        DraftlabError: the loss needs more of the target than there is.
        StoreError: for `kl`: the stored last layer does not make the target's distribution.
    """
    shape = drafter.config
    batch = pack(documents, anchors, shape, options, teacher, drafter.device)
    if batch is None:
        return _nothing(drafter)
    attention = choose_attention(options.attention, shape, drafter.device, ends.dtype)
    context = drafter.project_context(
        batch.taps_SC, lengths=batch.packing.context_lengths, dtype=ends.dtype
    )
    hidden_NBH = drafter.draft_blocks(
        ends.embed(batch.tokens_NB, shape),
        batch.positions_N,
        context,
        reading=attention.reading(batch.positions_N, batch.packing, shape.block_size),
        checkpointing=options.checkpointing,
    )
    return head_loss(hidden_NBH[:, 1:], batch.labels, ends, shape, options)


def _nothing(drafter: Drafter) -> LossSums:
    weighted_sum = torch.stack([(weight * 0).sum() for weight in drafter.parameters()]).sum()
    zero = torch.zeros((), dtype=torch.long, device=drafter.device)
    return LossSums(weighted_sum, torch.zeros_like(weighted_sum).detach(), zero, zero, zero, zero)
