"""The target's head, a few rows of its vocabulary at a time.

All logits of a long text do not fit where one layer fits. Whether the head lies in memory or on
disk, the same rows make a piece, so both give the same bits.

Shape letters: T positions, H hidden size, v rows of the head in a piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftlab.base.errors import TargetError
from draftlab.target.facts import TargetFacts
from draftlab.target.loading import LoadedTarget


class HeadRows(Protocol):
    """Where the rows of a head come from."""

    def __call__(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """Weights [v, H] and biases [v], if there are any, of the rows from `start` to `stop`."""
        ...


@dataclass(frozen=True, slots=True)
class HeadPiece:
    """Some rows of the head, ready to score states."""

    start: int
    weight_vH: Tensor
    bias_v: Tensor | None
    softcap: float | None

    def logits(self, normed_TH: Tensor) -> Tensor:
        """Logits [T, v], float32 or finer, from the hidden states after the final norm."""
        logits = functional.linear(normed_TH, self.weight_vH, self.bias_v)
        if self.softcap:  # in the head's own number type, as transformers does
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one target."""

    rows: HeadRows
    softcap: float | None
    vocab_size: int

    @classmethod
    def of(cls, target: LoadedTarget, rows: HeadRows) -> Head:
        """The head of `target`, with rows from wherever they lie."""
        softcap = getattr(target.model.config.get_text_config(), "final_logit_softcapping", None)
        return cls(rows, softcap, target.facts.vocab_size)

    def piece(self, start: int, stop: int) -> HeadPiece:
        """The rows from `start` to `stop`."""
        weight_vH, bias_v = self.rows(start, stop)
        return HeadPiece(start, weight_vH, bias_v, self.softcap)

    def spans(self, rows_per_piece: int) -> list[tuple[int, int]]:
        """First row and end of each piece of the vocabulary."""
        return [
            (start, min(start + rows_per_piece, self.vocab_size))
            for start in range(0, self.vocab_size, rows_per_piece)
        ]


def linear_head(model: Any, facts: TargetFacts) -> nn.Linear:
    """The module that turns normed states into logits.

    Raises:
        TargetError: it is not a linear layer.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise TargetError(
            f"{facts.architecture} has a {type(head).__name__} for a head, not a linear layer.",
            mend="This architecture needs a rule of its own in draftlab/target/head.py.",
        )
    return head


def head_in_memory(target: LoadedTarget) -> Head:
    """The head of a target that is loaded whole."""
    module = linear_head(target.model, target.facts)

    def rows(start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        bias = None if module.bias is None else module.bias[start:stop]
        return module.weight[start:stop], bias

    return Head.of(target, rows)


def check_head(target: LoadedTarget, head: Head, ids_1T: Tensor) -> None:
    """Compare the head's logits with the model's own on a few positions.

    Only norm and head run in a capture; whether that is all that this model does is checked here.

    Raises:
        TargetError: they differ, so log-probabilities computed from states would be wrong.
    """
    whole = target.model(input_ids=ids_1T, use_cache=False).logits[0].float()
    base = target.model.get_decoder()
    normed_TH = base(input_ids=ids_1T, use_cache=False).last_hidden_state[0]
    ours = head.piece(0, whole.shape[-1]).logits(normed_TH)
    if not torch.allclose(whole, ours, rtol=1e-3, atol=1e-3):
        raise TargetError(
            f"{target.facts.architecture} does more to its logits than its head and softcap: they "
            f"differ by {float((whole - ours).abs().max()):.3g}.",
            mend="This architecture needs a rule of its own in draftlab/target/head.py.",
        )
