"""Documents and anchors -> one packed batch of anchored blocks with labels.

Slot k of the block anchored at completion token `a` is labelled with completion token `a + k`;
slots past the end have no label, and neither has the anchor's own slot. Prompt tokens are never
labels.

Shape letters: N blocks, B slots, D = B - 1 drafted slots, S context positions, all over all
documents; n completion tokens, R labelled slots; C = taps * H, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from draftlab.base.errors import DraftlabError
from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.packing import Packing
from draftlab.train.documents import Document, require_width
from draftlab.train.loss import Labels
from draftlab.train.noise import noisy_taps
from draftlab.train.options import LossOptions
from draftlab.train.teacher import Lesson, Teacher

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Batch:
    """What one forward reads."""

    packing: Packing
    taps_SC: Tensor
    tokens_NB: Tensor
    """The anchor, then mask tokens."""
    positions_N: Tensor
    """Position of each anchor in its document."""
    labels: Labels


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks of one document."""

    tokens_NB: Tensor
    positions_N: Tensor
    places_ND: Tensor
    """Completion token of each drafted slot, the last one for slots past the end."""
    labelled_ND: Tensor


def pack(
    documents: Sequence[Document],
    anchors: Sequence[Tensor],
    shape: DrafterConfig,
    options: LossOptions,
    teacher: Teacher | None,
    device: torch.device,
) -> Batch | None:
    """The blocks at `anchors[i]` of `documents[i]`, or None if there are none at all.

    Raises:
        DrafterError: a document's states have another width than the drafter's taps.
        DraftlabError: the loss needs more of the target than there is.
        ValueError: an anchor is out of range.
    """
    pairs = [pair for pair in zip(documents, anchors, strict=True) if len(pair[1])]
    if not pairs:
        return None
    blocks = [_blocks_of(document, anchors_N, shape) for document, anchors_N in pairs]
    taps = [_read_taps(document, shape, options) for document, _ in pairs]
    return Batch(
        packing=Packing(tuple(map(len, taps)), tuple(len(b.positions_N) for b in blocks)),
        taps_SC=torch.cat([t.to(device) for t in taps]),
        tokens_NB=torch.cat([b.tokens_NB for b in blocks]).to(device),
        positions_N=torch.cat([b.positions_N for b in blocks]).to(device),
        labels=_labels([d for d, _ in pairs], blocks, options, teacher, device),
    )


def _blocks_of(document: Document, anchors_N: Tensor, shape: DrafterConfig) -> _Blocks:
    completion_n = document.tokens_T[document.prompt_length :]
    if int(anchors_N.min()) < 0 or int(anchors_N.max()) > len(completion_n) - 2:
        raise ValueError(
            f"anchors {anchors_N.tolist()} for a completion of {len(completion_n)} tokens"
        )
    tokens_NB = torch.full((len(anchors_N), shape.block_size), shape.mask_token_id)
    tokens_NB[:, 0] = completion_n[anchors_N]
    places_ND = anchors_N[:, None] + torch.arange(1, shape.block_size)
    return _Blocks(
        tokens_NB=tokens_NB,
        positions_N=anchors_N + document.prompt_length,
        places_ND=places_ND.clamp(max=len(completion_n) - 1),
        labelled_ND=places_ND < len(completion_n),
    )


def _read_taps(document: Document, shape: DrafterConfig, options: LossOptions) -> Tensor:
    require_width(document, shape)
    return noisy_taps(document, options) if options.has_noise else document.taps_SC


def _labels(
    documents: Sequence[Document],
    blocks: Sequence[_Blocks],
    options: LossOptions,
    teacher: Teacher | None,
    device: torch.device,
) -> Labels:
    pairs = list(zip(documents, blocks, strict=True))
    tokens_ND = torch.cat([d.tokens_T[d.prompt_length :][b.places_ND] for d, b in pairs])
    labelled_ND = torch.cat([b.labelled_ND for b in blocks])
    argmax_ND = lesson = None
    if options.loss == "argmax_ce":
        argmax_ND = torch.cat(
            [_needed(d.argmax_n, "the target's argmax")[b.places_ND] for d, b in pairs]
        ).to(device)
    if options.loss == "kl":
        lesson = _lesson(
            pairs, tokens_ND[labelled_ND], _needed(teacher, "the target's final norm"), device
        )
    return Labels(tokens_ND.to(device), labelled_ND.to(device), argmax_ND, lesson)


def _lesson(
    pairs: Sequence[tuple[Document, _Blocks]],
    tokens_R: Tensor,
    teacher: Teacher,
    device: torch.device,
) -> Lesson:
    """The state that makes a token's distribution is that of the position before it."""
    last, logprobs = [], []
    for document, blocks in pairs:
        places_R = blocks.places_ND[blocks.labelled_ND]
        states_SH = _needed(document.last_SH, "the output of the target's last layer")
        last.append(states_SH[document.prompt_length + places_R - 1])
        logprobs.append(_needed(document.logprobs_n, "captured log-probabilities")[places_R])
    return Lesson(
        teacher, torch.cat(last).to(device), tokens_R.to(device), torch.cat(logprobs).to(device)
    )


def _needed(value: _T | None, what: str) -> _T:
    if value is None:
        raise DraftlabError(
            f"this loss needs {what}, which the store does not hold.",
            mend="Capture the last layer too (--layers ...,T-1), or train with loss ce.",
        )
    return value
