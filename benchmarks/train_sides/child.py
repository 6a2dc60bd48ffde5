"""What both sides of benchmarks/train.py share: the problem as tensors, and a step on demand.

Runs in two environments, so it knows neither draftlab nor speculators.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """One training step: a drafter of z-lab's layout, and documents with anchors."""

    shape: dict
    """config.json of the drafter, with the number of target layers and the vocabulary."""
    weights: dict[str, Tensor]
    table_VH: Tensor
    """Embedding and head."""
    last_norm_H: Tensor
    documents: list[dict[str, Tensor]]
    """tokens [T], taps [T, C] and last [T, H] (bfloat16, as stores hold them), anchors [N]
    (positions)."""
    prompt_length: int
    gamma: float
    dtype: torch.dtype

    @classmethod
    def read(cls, folder: Path, dtype: str) -> Problem:
        """What the parent wrote."""
        facts = json.loads((folder / "problem.json").read_text())
        tensors = load_file(folder / "problem.safetensors")
        names = ("tokens", "taps", "last", "anchors")
        return cls(
            shape=facts["shape"],
            weights={k[7:]: t for k, t in tensors.items() if k.startswith("weight.")},
            table_VH=tensors["table"],
            last_norm_H=tensors["last_norm"],
            documents=[
                {name: tensors[f"{name}.{i}"] for name in names} for i in range(facts["documents"])
            ],
            prompt_length=facts["prompt_length"],
            gamma=facts["gamma"],
            dtype=getattr(torch, dtype),
        )


def serve(step: Callable[[], float], threads: int) -> None:
    """Answer each line on stdin with a step: its seconds, its loss, memory at its height.

    And what was held before the first step: libraries, weights, the problem.
    """
    torch.set_num_threads(threads)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    for _line in sys.stdin:
        started = time.perf_counter()
        loss = step()
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found = {"seconds": seconds, "loss": loss, "peak_bytes": peak, "before_bytes": before}
        print(json.dumps(found), flush=True)
