"""The two ends a drafter borrows from its target: token embedding and head.

Shape letters: V vocabulary, H hidden size, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from draftlab.base.errors import TargetError
from draftlab.drafter.config import DrafterConfig
from draftlab.target.facts import TargetFacts
from draftlab.target.tensors import TensorFiles, embedding_name, head_name


@dataclass(frozen=True, slots=True)
class TargetEnds:
    """Embedding and head of one target, frozen, in the type that the drafter computes in."""

    embedding_VH: Tensor
    """All rows that the target stores; mask tokens may lie beyond the vocabulary."""
    head_VH: Tensor
    """The vocabulary's rows only: padding rows beyond it can never be drafted."""
    tied: bool
    """Whether the head is the embedding matrix."""

    @property
    def dtype(self) -> torch.dtype:
        """What the drafter computes in."""
        return self.head_VH.dtype

    def embed(self, ids: Tensor, config: DrafterConfig) -> Tensor:
        """Embedding rows of token ids, times the drafter's input scale."""
        rows = F.embedding(ids, self.embedding_VH)
        return rows if config.input_embedding_scale == 1.0 else rows * config.input_embedding_scale

    def logits(self, hidden: Tensor, config: DrafterConfig) -> Tensor:
        """Logits [..., V] of drafted hidden states [..., H], in float32 or finer.

        Rows are laid out flat first: with a strided slice torch would multiply block by block.
        """
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits = F.linear(rows, self.head_VH).view(*hidden.shape[:-1], -1)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if config.output_multiplier != 1.0:
            logits = logits * config.output_multiplier
        if config.logit_softcap is not None:
            logits = config.logit_softcap * torch.tanh(logits / config.logit_softcap)
        return logits

    def pull_back(self, gradient_RV: Tensor, logits_RV: Tensor, config: DrafterConfig) -> Tensor:
        """Gradient [R, H] with respect to hidden states, from that with respect to their logits.

        Args:
            gradient_RV: overwritten.
            logits_RV: what `logits` gave; overwritten.
            config: as given to `logits`.
        """
        if config.logit_softcap is not None:  # d/dx c tanh(x / c) = 1 - tanh(x / c)²
            slope_RV = logits_RV.div_(config.logit_softcap).square_().neg_().add_(1)
            gradient_RV.mul_(slope_RV)
        if config.output_multiplier != 1.0:
            gradient_RV.mul_(config.output_multiplier)
        return gradient_RV.to(self.dtype) @ self.head_VH


def load_ends(
    files: TensorFiles, facts: TargetFacts, dtype: torch.dtype, device: torch.device
) -> TargetEnds:
    """Read embedding and head from a target's tensors; nothing else of it is read.

    Raises:
        TargetError: a tensor is missing or has another shape than config.json says.
    """
    embedding = embedding_name(files)
    head = head_name(files, ties_embeddings=facts.ties_embeddings)
    for name in {embedding, head}:
        rows, width = files.infos[name].shape
        if width != facts.hidden_size or rows < facts.vocab_size:
            raise TargetError(
                f"{name} is {rows} x {width}; config.json says at least {facts.vocab_size} x "
                f"{facts.hidden_size}.",
                mend="config.json and weights are of different models.",
            )
    embedding_VH = files.read(embedding).to(device, dtype)
    own_head = embedding_VH if head == embedding else files.read(head).to(device, dtype)
    if facts.ties_embeddings and head != embedding and not torch.equal(own_head, embedding_VH):
        raise TargetError(
            f"config.json ties head and embedding, yet {head} differs from {embedding}.",
            mend="Set tie_word_embeddings to false if the head is the model's own.",
        )
    return TargetEnds(embedding_VH, own_head[: facts.vocab_size], tied=head == embedding)


def open_target(folder: Path) -> tuple[TargetFacts, TensorFiles]:
    """A target folder's facts and tensors, both checked."""
    return TargetFacts.from_folder(folder), TensorFiles.open(folder)
