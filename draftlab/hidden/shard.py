"""A shard: one safetensors file whose tensors are written as they come, in any order.

All shapes are known before a capture starts, so the header is too. The states of one layer can
then go to their place at once, and no shard is ever held in memory. The bytes are those that
safetensors' own writer would give for the same tensors.

What is in it: `draftlab/hidden/store.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from draftlab.hidden.store import CaptureConditions
from draftlab.reference.completions import Completion
from draftlab.target.ranges import bytes_of

# safetensors puts wider types first, in the order of its own list, then names in byte order
# (github.com/huggingface/safetensors, safetensors/src/tensor.rs, `prepare` and `Dtype`).
_ORDER = {torch.float32: 0, torch.int32: 1, torch.bfloat16: 2}
_NAMES = {torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16"}
_ALIGNMENT = 8
NUMBER_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""What the number types of a capture are to torch."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Type and shape of one tensor to come."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Of its data."""
        return prod(self.shape) * self.dtype.itemsize


def group_slots(
    group: Sequence[int], completions: Sequence[Completion], conditions: CaptureConditions
) -> dict[str, Slot]:
    """What a shard holds of these sequences."""
    width = len(conditions.target_layer_ids) * conditions.hidden_size
    number_type = NUMBER_TYPES[conditions.dtype]
    slots: dict[str, Slot] = {}
    for i in group:
        prompt, n = len(completions[i].prompt_ids), len(completions[i].completion_ids)
        slots[f"{i}.tokens"] = Slot(torch.int32, (prompt + n,))
        slots[f"{i}.taps"] = Slot(number_type, (prompt + n - 1, width))
        slots[f"{i}.argmax"] = Slot(torch.int32, (n,))
        slots[f"{i}.logprobs"] = Slot(torch.float32, (n,))
        slots[f"{i}.margins"] = Slot(torch.float32, (n,))
    return slots


class ShardFile:
    """A shard under construction."""

    def __init__(self, path: Path, slots: Mapping[str, Slot]) -> None:
        self.path = path
        self._slots = dict(slots)
        names = sorted(slots, key=lambda name: (_ORDER[slots[name].dtype], name.encode()))
        offsets: dict[str, int] = {}
        end = 0
        for name in names:
            offsets[name] = end
            end += slots[name].num_bytes
        header = json.dumps(
            {
                name: {
                    "dtype": _NAMES[slots[name].dtype],
                    "shape": list(slots[name].shape),
                    "data_offsets": [offsets[name], offsets[name] + slots[name].num_bytes],
                }
                for name in names
            },
            separators=(",", ":"),
        ).encode()
        header += b" " * (-len(header) % _ALIGNMENT)
        self._header = len(header).to_bytes(8, "little") + header
        self._offsets = {name: len(self._header) + offset for name, offset in offsets.items()}
        self.num_bytes = len(self._header) + end

    @property
    def is_laid_out(self) -> bool:
        """Whether the file is there in its full size."""
        return self.path.is_file() and self.path.stat().st_size == self.num_bytes

    def begin(self) -> None:
        """Lay the file out, unless an earlier run has."""
        if not self.is_laid_out:
            with self.path.open("wb") as file:
                file.write(self._header)
                file.truncate(self.num_bytes)

    def write(self, name: str, tensor: Tensor) -> None:
        """Put a whole tensor in its place."""
        with self._opened() as descriptor:
            _write(descriptor, bytes_of(tensor.cpu().contiguous()), self._offsets[name])

    def write_columns(self, name: str, first: int, tensor_SC: Tensor) -> None:
        """Put some columns of a matrix in their place."""
        slot = self._slots[name]
        size = slot.dtype.itemsize
        view, rows = bytes_of(tensor_SC.cpu().contiguous()), len(tensor_SC)
        width = len(view) // rows
        with self._opened() as descriptor:
            for row in range(rows):
                at = self._offsets[name] + (row * slot.shape[1] + first) * size
                _write(descriptor, view[row * width : (row + 1) * width], at)

    def sync(self) -> None:
        """Return when the disk has it."""
        with self._opened() as descriptor:
            os.fsync(descriptor)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _write(descriptor: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)
