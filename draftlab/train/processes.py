"""One training run over several processes, as torchrun starts them; or one alone.

Every process holds all weights, works on its share of each step's completions, and adds up sums and
gradients with the others. What a step learns from does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self, TypeVar

import torch
from torch import Tensor, distributed

from draftlab.base.ranks import Ranks

T = TypeVar("T")

TIME_LIMIT = timedelta(minutes=30)
"""For one exchange; a process that died ends the others instead of keeping them waiting."""


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those of the run."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> Self:
        """Meet the others that torchrun started; alone where it did not."""
        if Ranks.read().size == 1:
            return cls()
        if not distributed.is_initialized():
            backend = "nccl" if device.type == "cuda" else "gloo"
            distributed.init_process_group(backend, timeout=TIME_LIMIT)
        return cls(distributed.get_rank(), distributed.get_world_size())

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """This process's part of the items; may be empty."""
        return list(items[self.rank :: self.size])

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes.

        All processes must call this with tensors of the same shapes, those with an empty share too.
        """
        if self.size == 1:
            return
        given = list(tensors)
        flat = torch.cat([tensor.reshape(-1).to(given[0].dtype) for tensor in given])
        distributed.all_reduce(flat)
        start = 0
        for tensor in given:
            piece = flat[start : start + tensor.numel()]
            tensor.copy_(piece.view_as(tensor))
            start += tensor.numel()

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            distributed.barrier()

    def part(self) -> None:
        """Leave together: a process that ends while others still talk to it takes them down."""
        if self.size > 1:
            distributed.barrier()
            distributed.destroy_process_group()

    def tell(self, value: float) -> float:
        """What the leading process says."""
        if self.size == 1:
            return value
        told = torch.tensor([value], dtype=torch.float64)
        distributed.broadcast(told, src=0)
        return float(told.item())
