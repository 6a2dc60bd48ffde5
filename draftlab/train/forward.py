"""Documents and anchors in, sums of loss out: one forward over a packed batch.

The forward is the one that replay uses. Noise goes to a copy of the taps, after everything that
must stay clean (labels, the teacher's states) has been taken; that nothing else changed is looked
at, not believed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftlab.base.errors import DraftlabError
from draftlab.drafter.ends import TargetEnds
from draftlab.drafter.model import Drafter
from draftlab.drafter.packing import Packing
from draftlab.drafter.reading import DenseReading
from draftlab.train.blocks import NO_LABEL, Blocks, anchored_blocks
from draftlab.train.documents import Document
from draftlab.train.loss import Labels, LossSums, head_loss
from draftlab.train.options import LossOptions
from draftlab.train.teacher import Lesson, Teacher


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

    Raises:
        DraftlabError: something changed states that are not a copy, or `kl` lacks the target's.
    """
    shape, device = drafter.config, drafter.device
    blocks = [
        anchored_blocks(
            document, own, block_size=shape.block_size, mask_token_id=shape.mask_token_id
        )
        for document, own in zip(documents, anchors, strict=True)
    ]
    taps_SC = torch.cat([noisy_taps(document, options) for document in documents])
    packing = Packing(
        tuple(len(document.taps_SC) for document in documents), tuple(map(len, anchors))
    )
    context = drafter.project_context(taps_SC, lengths=packing.context_lengths, dtype=ends.dtype)
    anchors_N = torch.cat([each.positions_N for each in blocks]).to(device)
    embedded_NBH = ends.embed(torch.cat([each.tokens_NB for each in blocks]).to(device), shape)
    hidden_NBH = drafter.draft_blocks(
        embedded_NBH,
        anchors_N,
        context,
        reading=DenseReading(anchors_N, packing),
        checkpointing=options.checkpointing,
    )
    labels = _labels(documents, blocks, options, teacher, device)
    return head_loss(hidden_NBH[:, 1:], labels, ends, shape, options)


def noisy_taps(document: Document, options: LossOptions) -> Tensor:
    """The taps that the drafter reads: a copy where noise is added, since they are the store's.

    Raises:
        DraftlabError: noise is asked for and the document has no seed for it.
    """
    if not options.has_noise:
        return document.taps_SC
    if document.noise_seed is None:
        raise DraftlabError("noise without a seed.", mend="Give the document a noise_seed.")
    generator = torch.Generator().manual_seed(document.noise_seed)
    shape = document.taps_SC.shape
    if options.noise_std:
        noise_SC = torch.randn(shape, generator=generator) * options.noise_std
    else:
        noise_SC = (torch.rand(shape, generator=generator) * 2 - 1) * options.noise_uniform
    return document.taps_SC + noise_SC.to(document.taps_SC.dtype)


def _labels(
    documents: Sequence[Document],
    blocks: Sequence[Blocks],
    options: LossOptions,
    teacher: Teacher | None,
    device: torch.device,
) -> Labels:
    labels_ND = torch.cat([each.labels_ND for each in blocks]).to(device)
    labelled_ND = labels_ND != NO_LABEL
    places = [
        (
            own.positions_N[:, None]
            - document.prompt_length
            + torch.arange(1, labels_ND.shape[1] + 1)
        ).clamp(max=len(document.tokens_T) - document.prompt_length - 1)
        for document, own in zip(documents, blocks, strict=True)
    ]
    argmax_ND = lesson = None
    if options.loss == "argmax_ce":
        argmax_ND = _gathered([document.argmax_n for document in documents], places).to(device)
    if options.loss == "kl":
        if teacher is None:
            raise DraftlabError("loss kl without the target's norm.", mend="Open a Teacher.")
        before = [
            each + document.prompt_length - 1
            for document, each in zip(documents, places, strict=True)
        ]
        last_NDH = _gathered([document.last_SH for document in documents], before).to(device)
        logprobs_ND = _gathered([document.logprobs_n for document in documents], places).to(device)
        lesson = Lesson(
            teacher, last_NDH[labelled_ND], labels_ND[labelled_ND], logprobs_ND[labelled_ND]
        )
    return Labels(labels_ND, labelled_ND, argmax_ND, lesson)


def _gathered(columns: Sequence[Tensor | None], places: Sequence[Tensor]) -> Tensor:
    """Rows of each document's column at its places, one document behind the other.

    Raises:
        DraftlabError: a document lacks the column.
    """
    found = [column[own] for column, own in zip(columns, places, strict=True) if column is not None]
    if len(found) < len(columns):
        raise DraftlabError(
            "this loss needs more of the target than its tokens, which the store does not hold.",
            mend="Capture the last layer too (--layers ...,T-1), or train with loss ce.",
        )
    return torch.cat(found)
