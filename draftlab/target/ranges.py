"""Parts of safetensors files, read into memory of our own: some rows, or one layer's tensors.

safetensors maps whole files; a model larger than memory (or a `ulimit` below the file's size) wants
reads of exactly the bytes that are needed, into memory that is given back when they are dropped.
Types that widen without loss (bfloat16 to float32) are widened piece by piece, so that a tensor is
never held twice.

The format: 8 bytes little-endian header length, a JSON header with `data_offsets` counted from its
end, the data (github.com/huggingface/safetensors, README "Format").
"""

from __future__ import annotations

import json
import mmap
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftlab.base.errors import TargetError
from draftlab.target.tensors import TensorFiles

PIECE_BYTES = 1 << 22
ALIGNMENT_BYTES = 64
"""Of torch's own memory on a CPU."""
_OWN_MEMORY_BYTES = 1 << 17
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Where the bytes of one tensor lie, and what they are."""

    name: str
    file: Path
    offset: int
    """From the start of the file."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Of the whole tensor, as stored."""
        return prod(self.shape) * self.dtype.itemsize


def byte_ranges(files: TensorFiles) -> dict[str, ByteRange]:
    """The range of every tensor of a folder.

    Raises:
        TargetError: a tensor has a number type that cannot be read here.
    """
    ranges = {}
    for file in sorted({info.file for info in files.infos.values()}):
        for name, (offset, shape, dtype) in _header(file).items():
            if dtype not in _DTYPES:
                raise TargetError(
                    f"{file}: {name} is of type {dtype}, which cannot be read layer by layer.",
                    mend="Use an unquantised copy of this target, or --no-stream.",
                )
            ranges[name] = ByteRange(name, file, offset, shape, _DTYPES[dtype])
    return ranges


def _header(file: Path) -> Mapping[str, tuple[int, tuple[int, ...], str]]:
    """Offset, shape and type of each tensor; the file has been checked by `TensorFiles.open`."""
    with file.open("rb") as data:
        length = int.from_bytes(data.read(8), "little")
        header = json.loads(data.read(length))
    header.pop("__metadata__", None)
    return {
        name: (8 + length + entry["data_offsets"][0], tuple(entry["shape"]), entry["dtype"])
        for name, entry in header.items()
    }


def read_rows(where: ByteRange, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Rows [start, stop) of a tensor, widened to `dtype` where that loses nothing.

    Raises:
        TargetError: the file is shorter than its header says.
    """
    row = prod(where.shape[1:])
    count = (stop - start) * row
    wanted = dtype if torch.promote_types(where.dtype, dtype) == dtype else where.dtype
    first = where.offset + start * row * where.dtype.itemsize
    with _opened(where.file) as descriptor:
        if wanted == where.dtype:
            out = _empty_placed(count, wanted, first)
            _fill(descriptor, out, first, where.file)
        else:
            out = _empty(count, wanted)
            _fill_widened(descriptor, out, first, where)
    return out.view(stop - start, *where.shape[1:])


def _empty_placed(count: int, dtype: torch.dtype, offset: int) -> Tensor:
    """Memory that lies as a mapped file's would: at the same place within 64 bytes.

    A model that is loaded whole in its own number type computes on the mapped file, and the last
    bit of small matrix products depends on how their operands are aligned.
    """
    place = offset % ALIGNMENT_BYTES
    return _empty(count, dtype, 0 if place % dtype.itemsize else place)


def _empty(count: int, dtype: torch.dtype, place: int = 0) -> Tensor:
    """Memory of its own, that goes back to the system with the tensor.

    What malloc is given back it may keep between others' pieces; after some layers that adds up.
    """
    size = count * dtype.itemsize + place
    if size < _OWN_MEMORY_BYTES:
        return torch.empty(size, dtype=torch.uint8)[place:].view(dtype)
    own = mmap.mmap(-1, size, flags=_PRIVATE)
    return torch.frombuffer(own, dtype=torch.uint8)[place:].view(dtype)


def read_whole(where: ByteRange, dtype: torch.dtype) -> Tensor:
    """A whole tensor, widened to `dtype` where that loses nothing."""
    if not where.shape:
        one = ByteRange(where.name, where.file, where.offset, (1,), where.dtype)
        return read_rows(one, 0, 1, dtype)[0]
    return read_rows(where, 0, where.shape[0], dtype)


def gather_rows(where: ByteRange, rows: Sequence[int]) -> Tensor:
    """These rows of a matrix, in this order, as stored."""
    width = where.shape[1]
    out = torch.empty(len(rows), width, dtype=where.dtype)
    with _opened(where.file) as descriptor:
        for place, row in enumerate(rows):
            offset = where.offset + row * width * where.dtype.itemsize
            _fill(descriptor, out[place], offset, where.file)
    return out


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, shared with it."""
    flat: Any = tensor.flatten().view(torch.uint8).numpy()
    return memoryview(flat)


def _fill(descriptor: int, out: Tensor, offset: int, file: Path) -> None:
    view = bytes_of(out)
    done = 0
    while done < len(view):
        got = os.preadv(descriptor, [view[done:]], offset + done)
        if got == 0:
            raise TargetError(
                f"{file} ends at byte {offset + done:,}, before its header says.",
                mend="Copy the file again.",
            )
        done += got


def _fill_widened(descriptor: int, out: Tensor, offset: int, where: ByteRange) -> None:
    size = where.dtype.itemsize
    piece = _empty(PIECE_BYTES // size, where.dtype)
    for start in range(0, len(out), len(piece)):
        part = piece[: min(len(piece), len(out) - start)]
        _fill(descriptor, part, offset + start * size, where.file)
        out[start : start + len(part)] = part


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def warming(ranges: Sequence[ByteRange]) -> Iterator[None]:
    """While the body runs, a thread brings these ranges into the page cache.

    The cache is the kernel's to take back: what is to come next costs no memory of this process,
    and the read that follows is a copy.
    """
    stop = threading.Event()
    thread = threading.Thread(target=_warm, args=(tuple(ranges), stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _warm(ranges: Sequence[ByteRange], stop: threading.Event) -> None:
    buffer = memoryview(bytearray(PIECE_BYTES))
    for where in ranges:
        with _opened(where.file) as descriptor:
            for start in range(0, where.num_bytes, PIECE_BYTES):
                size = min(PIECE_BYTES, where.num_bytes - start)
                if stop.is_set() or not os.preadv(
                    descriptor, [buffer[:size]], where.offset + start
                ):
                    return
