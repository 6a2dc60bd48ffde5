"""What the target itself thinks of each completion token, from a head read in pieces.

Full logits never exist: each piece of the vocabulary updates a running choice, runner-up and sum.
The order of the pieces is part of the result's last bit, so every capture uses the same.

Shape letters: n completion tokens of one sequence, H hidden size, v rows of the head in a piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from draftlab.target.head import HeadPiece

LOGITS_AT_ONCE = 1 << 24
HEAD_VALUES_PER_PIECE = 1 << 24


def head_rows_per_piece(hidden_size: int) -> int:
    """Rows of the head that are read at once; the same however much memory there is.

    In sixty-fours, so that a piece begins on a 64-byte boundary wherever it is cut from: the last
    bit of a matrix product may depend on that.
    """
    return max(1, HEAD_VALUES_PER_PIECE // hidden_size // 64) * 64


@dataclass(slots=True)
class Verdict:
    """The pieces seen so far, for the completion tokens of one sequence."""

    best_n: Tensor
    """Largest logit."""
    second_n: Tensor
    """Largest but one."""
    argmax_n: Tensor
    """Where the largest is; the first of equals."""
    total_n: Tensor
    """Sum of exp(logit - best)."""
    said_n: Tensor
    """Logit of the token that the completion has."""

    @classmethod
    def none(cls, count: int) -> Self:
        """Before the first piece."""
        lowest = torch.full((count,), -torch.inf)
        return cls(
            best_n=lowest,
            second_n=lowest.clone(),
            argmax_n=torch.zeros(count, dtype=torch.int32),
            total_n=torch.zeros(count),
            said_n=lowest.clone(),
        )

    def see(self, piece: HeadPiece, normed_nH: Tensor, completion_n: Tensor) -> None:
        """Take one piece of the head into account, in rows that bound the logits in memory."""
        step = max(1, LOGITS_AT_ONCE // len(piece.weight_vH))
        for start in range(0, len(normed_nH), step):
            rows = slice(start, start + step)
            self._see_rows(rows, piece, normed_nH[rows], completion_n[rows])

    def _see_rows(self, rows: slice, piece: HeadPiece, normed: Tensor, completion: Tensor) -> None:
        logits = piece.logits(normed)
        width = logits.shape[-1]
        first, where = logits.max(dim=-1)
        runner_up = logits.topk(min(2, width), dim=-1).values[:, -1]
        runner_up = runner_up if width > 1 else torch.full_like(first, -torch.inf)
        index = completion.to(logits.device) - piece.start
        said = logits.gather(1, index.clamp(0, width - 1)[:, None])[:, 0]
        inside = (index >= 0) & (index < width)
        best = torch.maximum(self.best_n[rows].to(logits.device), first)
        total = logits.sub_(best[:, None]).exp_().sum(dim=-1)

        first, where, runner_up = first.cpu(), where.cpu(), runner_up.cpu()
        earlier, best = self.best_n[rows], best.cpu()
        self.total_n[rows] = self.total_n[rows] * (earlier - best).exp() + total.cpu()
        self.second_n[rows] = torch.maximum(
            torch.minimum(earlier, first), torch.maximum(self.second_n[rows], runner_up)
        )
        found = (where + piece.start).to(torch.int32)
        self.argmax_n[rows] = torch.where(first > earlier, found, self.argmax_n[rows])
        self.said_n[rows] = torch.where(inside.cpu(), said.cpu(), self.said_n[rows])
        self.best_n[rows] = best

    def stored(self) -> dict[str, Tensor]:
        """What a store keeps, once every piece has been seen."""
        return {
            "argmax": self.argmax_n,
            "logprobs": self.said_n - (self.best_n + self.total_n.log()),
            "margins": self.best_n - self.second_n,
        }
