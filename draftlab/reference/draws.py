"""Draws within transformers' decoding loop: each row from a generator of its own.

Shape letters: R rows of a batch, r rows that go on, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor

from draftlab.target.decoding import Decoding
from draftlab.target.sampling import draw, filtered_log_probs


class Draws(LogitsProcessor):
    """Leaves of each row's logits the token that was drawn, so that a greedy loop takes it.

    The numbers that decide the draws are fixed before the first: one for each row and step.
    """

    def __init__(self, decoding: Decoding, seeds: Sequence[int], num_steps: int) -> None:
        self._decoding = decoding
        numbers = []
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)  # on the CPU: the same on any device
            numbers.append(torch.rand(num_steps, dtype=torch.float64, generator=generator))
        self._uniform_RT = torch.stack(numbers)
        self._log_probs_RT = torch.zeros(len(seeds), num_steps)
        self._rows: Sequence[int] = range(len(seeds))
        self._width = 0

    def follow(self, rows: Sequence[int], width: int) -> None:
        """From now on these rows are decoded, by their places; prompts are `width` tokens wide."""
        self._rows, self._width = tuple(rows), width

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [r, V] with 0 for the token that was drawn and -inf elsewhere."""
        log_probs_rV = filtered_log_probs(scores, self._decoding)
        step = input_ids.shape[1] - self._width
        uniform_r = self._uniform_RT[list(self._rows), step].to(scores.device)
        token_r1 = draw(log_probs_rV, uniform_r).unsqueeze(-1)
        drawn_r = log_probs_rV.gather(-1, token_r1).squeeze(-1)
        self._log_probs_RT[list(self._rows), step] = drawn_r.float().cpu()
        return torch.full_like(scores, -torch.inf).scatter_(-1, token_r1, 0.0)

    def log_probs(self, lengths: Sequence[int]) -> list[tuple[float, ...]]:
        """What each row's first so many tokens were drawn with."""
        return [tuple(row[:n].tolist()) for row, n in zip(self._log_probs_RT, lengths, strict=True)]
