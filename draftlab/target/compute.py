"""Where and how to compute: device, number type, threads; chosen on purpose, and said.

Threads: one per core this process may use, less what other processes keep busy. Waiting threads
that spin beside a busy process make torch several times slower than one thread alone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal, Self

import torch

from draftlab.base.cpu import read_flags
from draftlab.base.errors import DraftlabError
from draftlab.base.ranks import Ranks
from draftlab.base.records import Record
from draftlab.target.number_type import Weights, choose_number_type
from draftlab.target.tensors import TensorFiles

DeviceChoice = Literal["auto", "cpu", "cuda"]
DtypeChoice = Literal["auto", "float32", "bfloat16"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Compute(Record):
    """The device, number type and threads that a result was computed with."""

    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    threads: int

    @classmethod
    def choose(
        cls,
        device: DeviceChoice = "auto",
        dtype: DtypeChoice = "auto",
        *,
        threads: int | None = None,
    ) -> Self:
        """Resolve `auto`: a GPU if torch sees one; bfloat16 there, float32 on a CPU.

        Raises:
            DraftlabError: a GPU is asked for and torch sees none.
        """
        chosen = _device(device)
        number = choose_number_type(chosen, None, ()).dtype if dtype == "auto" else dtype
        return cls.model_validate(
            {"device": chosen, "dtype": number, "threads": threads or free_cores()}
        )

    @classmethod
    def choose_for(
        cls,
        target_folder: Path,
        device: DeviceChoice = "auto",
        dtype: DtypeChoice = "auto",
        *,
        threads: int | None = None,
    ) -> tuple[Self, str]:
        """Resolve `auto` for running a target, by `choose_number_type`; the second is why, if so.

        Raises:
            DraftlabError: a GPU is asked for and torch sees none.
            TargetError: the target's files are not whole.
        """
        why = ""
        if dtype == "auto":
            weights = Weights.of(TensorFiles.open(target_folder))
            dtype, why = choose_number_type(_device(device), weights, read_flags())
            why = f"{dtype}, since {why}"
        return cls.choose(device, dtype, threads=threads), why

    def apply(self) -> None:
        """Set torch's thread count, and full float32 precision where float32 was asked for.

        Of several processes on one machine (torchrun), each takes a GPU of its own.
        """
        torch.set_num_threads(self.threads)
        if self.device == "cuda":
            torch.cuda.set_device(Ranks.read().local_rank)
        torch.set_float32_matmul_precision("highest")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The number type as torch names it."""
        return _DTYPES[self.dtype]

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        return torch.device(self.device)

    def __str__(self) -> str:
        plural = "" if self.threads == 1 else "s"
        return f"{self.device}, {self.dtype}, {self.threads} thread{plural}"


def _device(wish: DeviceChoice) -> Literal["cpu", "cuda"]:
    sees_gpu = torch.cuda.is_available()
    if wish == "cuda" and not sees_gpu:
        raise DraftlabError(
            f"torch {torch.__version__} sees no GPU.",
            mend="Pass --device cpu, or install a CUDA build.",
        )
    return "cuda" if wish == "cuda" or (wish == "auto" and sees_gpu) else "cpu"


def operations_per_second(compute: Compute, *, seconds: float = 0.5) -> float:
    """What matrix products reach here and now, other processes' load included."""
    size = 1024
    left = torch.ones(size, size, dtype=compute.torch_dtype, device=compute.torch_device)
    rounds, started = 0, time.perf_counter()
    while rounds < 2 or time.perf_counter() - started < seconds:
        product = left @ left
        float(product[0, 0])  # waits for a GPU
        rounds += 1
        if rounds == 1:  # the first one warms up
            started = time.perf_counter()
    return 2.0 * size**3 * (rounds - 1) / (time.perf_counter() - started)


def best_operations_per_second(compute: Compute, *, rounds: int = 20) -> float:
    """What matrix products reach at best: the fastest of a few; other load counts less."""
    size = 1024
    left = torch.ones(size, size, dtype=compute.torch_dtype, device=compute.torch_device)
    fastest = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        float((left @ left)[0, 0])  # waits for a GPU
        fastest = min(fastest, time.perf_counter() - started)
    return 2.0 * size**3 / fastest


def free_cores() -> int:
    """Cores this process may use, less the load of the last minute; at least one.

    Processes that were started together (torchrun) share them in equal parts. `OMP_NUM_THREADS`
    wins where it is set, as torchrun does for several processes.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, round((cores - os.getloadavg()[0]) / Ranks.read().local_size))
