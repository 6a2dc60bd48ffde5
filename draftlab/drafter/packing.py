"""Several documents in one forward: their context rows and their blocks lie one after another.

What works row by row (projections, norms, MLPs, head) runs on all rows together; attention is the
only thing that must know whose row is whose.

Shape letters: N blocks, S context positions, over all documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packing:
    """Rows of each document, in order."""

    context_lengths: tuple[int, ...]
    block_counts: tuple[int, ...]

    @classmethod
    def single(cls, context_length: int, num_blocks: int) -> Packing:
        """One document."""
        return cls((context_length,), (num_blocks,))

    def spans(self) -> Iterator[tuple[slice, slice]]:
        """Context rows and blocks of each document that has blocks."""
        contexts = accumulate(self.context_lengths, initial=0)
        blocks = accumulate(self.block_counts, initial=0)
        pairs = zip(self.context_lengths, self.block_counts, strict=True)
        for start, first, (length, count) in zip(contexts, blocks, pairs, strict=False):
            if count:
                yield slice(start, start + length), slice(first, first + count)

    def document_of_context(self, device: torch.device) -> Tensor:
        """Number of the document of each context row, [S]."""
        return _repeat(self.context_lengths, device)

    def document_of_block(self, device: torch.device) -> Tensor:
        """Number of the document of each block, [N]."""
        return _repeat(self.block_counts, device)


def positions_of(context_lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Position of each context row in its own document, [S]."""
    return torch.cat([torch.arange(length, device=device) for length in context_lengths])


def _repeat(counts: tuple[int, ...], device: torch.device) -> Tensor:
    numbers = torch.arange(len(counts), device=device)
    return numbers.repeat_interleave(torch.tensor(counts, device=device))
