"""Which of several processes this is: the one place that reads what torchrun sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from draftlab.base.errors import DraftlabError


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that were started together; one alone by default."""

    rank: int = 0
    """Among all, from 0."""
    size: int = 1
    """Processes in all."""
    local_rank: int = 0
    """Among those of this machine, from 0; also the number of its GPU."""
    local_size: int = 1
    """Processes on this machine, which share its memory and cores."""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """From RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun sets them.

        Alone where WORLD_SIZE is not set; all on one machine where the local two are not.

        Raises:
            DraftlabError: one of them is missing or impossible.
        """
        if environment.get("WORLD_SIZE", "1") == "1":
            return cls()
        size = _number(environment, "WORLD_SIZE", environment["WORLD_SIZE"], above=1)
        rank = _number(environment, "RANK", "", above=0, below=size)
        local_size = _number(environment, "LOCAL_WORLD_SIZE", str(size), above=1)
        local_rank = _number(environment, "LOCAL_RANK", str(rank), above=0, below=local_size)
        return cls(rank, size, local_rank, local_size)

    @property
    def leads(self) -> bool:
        """Whether this is the process that plans, talks, and writes what there is one of."""
        return self.rank == 0

    def __str__(self) -> str:
        return f"process {self.rank} of {self.size}"


def _number(
    environment: Mapping[str, str], name: str, usual: str, *, above: int, below: int = 1 << 31
) -> int:
    text = environment.get(name, usual)
    if not text.isascii() or not text.isdigit() or not above <= int(text) < below:
        raise DraftlabError(
            f"the environment has WORLD_SIZE={environment.get('WORLD_SIZE')} and {name}={text}.",
            mend="Start several processes with torchrun, or unset WORLD_SIZE to run one.",
        )
    return int(text)
