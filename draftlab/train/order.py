"""Which completions an optimizer step sees: a function of seed and step alone.

So a stopped run goes on with the very batches that it would have had, and any number of processes
see the same ones.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from draftlab.train.blocks import draw_seed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Drawn:
    """One completion of a step."""

    number: int
    """In the store."""
    epoch: int


class Order:
    """Every completion once an epoch, in a new order every epoch."""

    def __init__(self, numbers: Sequence[int], per_step: int, seed: int) -> None:
        self._numbers = tuple(numbers)
        self._per_step = per_step
        self._seed = seed
        self._epoch = functools.lru_cache(maxsize=2)(self._order_of)

    def step(self, step: int) -> list[Drawn]:
        """The completions of optimizer step 1, 2, ..."""
        first = (step - 1) * self._per_step
        return [self._at(place) for place in range(first, first + self._per_step)]

    def epoch_after(self, step: int) -> float:
        """Passes over the data that are done after a step."""
        return step * self._per_step / len(self._numbers)

    def _at(self, place: int) -> Drawn:
        epoch, inside = divmod(place, len(self._numbers))
        return Drawn(self._numbers[self._epoch(epoch)[inside]], epoch)

    def _order_of(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(draw_seed(self._seed, epoch, 0, "order"))
        order: list[int] = torch.randperm(len(self._numbers), generator=generator).tolist()
        return order


def split_evenly(items: Sequence[T], parts: int) -> list[list[T]]:
    """Consecutive parts whose sizes differ by one at most; some are empty if there are too few."""
    edges = [round(i * len(items) / parts) for i in range(parts + 1)]
    return [list(items[a:b]) for a, b in itertools.pairwise(edges)]
