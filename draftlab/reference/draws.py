"""Draws within transformers' decoding loop: each row from a generator of its own.

Shape letters: R rows of a batch, T new tokens, V vocabulary.
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
        self._drawn: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [R, V] with 0 for the token that was drawn and -inf elsewhere."""
        log_probs_RV = filtered_log_probs(scores, self._decoding)
        uniform_R = self._uniform_RT[:, len(self._drawn)].to(scores.device)
        token_R1 = draw(log_probs_RV, uniform_R).unsqueeze(-1)
        self._drawn.append(log_probs_RV.gather(-1, token_R1).squeeze(-1))
        return torch.full_like(scores, -torch.inf).scatter_(-1, token_R1, 0.0)

    def log_probs(self, lengths: Sequence[int]) -> list[tuple[float, ...]]:
        """What each row's first so many tokens were drawn with."""
        drawn_RT = torch.stack(self._drawn, dim=-1)
        return [tuple(row[:n].tolist()) for row, n in zip(drawn_RT, lengths, strict=True)]
