"""What a streamed capture keeps on disk between layers, so that a kill costs little.

    STORE/scratch/00012/progress.json          how far shard 12 is; replaced whole
    STORE/scratch/00012/after-0007.bin         its states after layer 7, pass by pass
    STORE/scratch/00012/verdicts-32768.safetensors  the head's first 32,768 rows, for each token
    STORE/scratch/00012/states-00012.safetensors    the shard under construction

A folder per shard, so that another number of processes can go on. Each file is whole before
progress.json names it, and the one before is removed after that. Its digest is compared when a
rerun takes it up.

Shape letters: R sequences of a pass, T padded length, H hidden size.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftlab.base.records import (
    Record,
    read_json,
    sha256_file,
    sha256_json,
    sweep,
    whole_file,
    write_atomic,
)
from draftlab.hidden.journal import CaptureJob
from draftlab.hidden.judge import Verdict
from draftlab.hidden.passes import Pass
from draftlab.target.ranges import bytes_of

PROGRESS_NAME = "progress.json"
_VERDICT_PARTS = ("best_n", "second_n", "argmax_n", "total_n", "said_n")


class FileReceipt(Record):
    """A file that is whole."""

    file: str
    num_bytes: int
    sha256: str

    def is_there(self, folder: Path) -> bool:
        """Whether the file is what it was when it was written."""
        path = folder / self.file
        return (
            path.is_file()
            and path.stat().st_size == self.num_bytes
            and sha256_file(path) == self.sha256
        )


class Progress(Record):
    """How far one shard is."""

    job_digest: str
    layers_done: int = 0
    states: FileReceipt | None = None
    """After the last layer that is done; after the last of all, normed."""
    head_rows_done: int = 0
    verdicts: FileReceipt | None = None

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """What an earlier run says; None where there is nothing that this version can read."""
        if not (folder / PROGRESS_NAME).is_file():
            return None
        try:
            return cls.model_validate(read_json(folder / PROGRESS_NAME))
        except ValidationError:
            return None

    def is_whole(self, folder: Path) -> bool:
        """Whether the files it names are what they were."""
        files = [file for file in (self.states, self.verdicts) if file is not None]
        return all(file.is_there(folder) for file in files)

    def save(self, folder: Path) -> None:
        """Replace the record, then drop the files that it no longer names."""
        write_atomic(folder / PROGRESS_NAME, (self.model_dump_json(indent=1) + "\n").encode())
        named = {file.file for file in (self.states, self.verdicts) if file is not None}
        for path in (*folder.glob("after-*.bin"), *folder.glob("verdicts-*.safetensors")):
            if path.name not in named:
                path.unlink(missing_ok=True)


def job_digest(job: CaptureJob) -> str:
    """What scratch files are of."""
    return sha256_json(job.model_dump(mode="json"))


def folder_of(scratch: Path, shard: int) -> Path:
    """Where one shard keeps what it needs."""
    return scratch / f"{shard:05d}"


def layers_done(scratch: Path, shard: int, job: CaptureJob) -> int:
    """Layers of a shard that an earlier run of the same job says it has done."""
    found = Progress.read(folder_of(scratch, shard))
    return found.layers_done if found and found.job_digest == job_digest(job) else 0


def open_scratch(folder: Path, job: CaptureJob, *, anew: bool = False) -> Progress:
    """Progress of an earlier run of the same job, or a fresh start in an empty folder."""
    found = None if anew else Progress.read(folder)
    if found is None or found.job_digest != job_digest(job) or not found.is_whole(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        found = Progress(job_digest=job_digest(job))
    sweep(folder)
    found.save(folder)
    return found


class Allowance:
    """Memory for states between layers."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes

    def take(self, num_bytes: int) -> bool:
        """Take so much of it, if there is so much left."""
        if num_bytes > self._left:
            return False
        self._left -= num_bytes
        return True


class States:
    """The states of every pass of one shard between two layers, in memory or on disk.

    In memory they are written only when `save` says so; on disk, after each layer.
    """

    def __init__(
        self, folder: Path, passes: Sequence[Pass], hidden_size: int, dtype: torch.dtype
    ) -> None:
        self._folder = folder
        self._dtype = dtype
        self._shapes = [(len(p.numbers), p.width, hidden_size) for p in passes]
        sizes = [p.num_tokens * hidden_size * dtype.itemsize for p in passes]
        self._offsets = [sum(sizes[:k]) for k in range(len(sizes))]
        self._memory: list[Tensor | None] = [None] * len(sizes)
        self.num_bytes = sum(sizes)
        self.are_held = False
        self.receipt: FileReceipt | None = None
        """The file that holds them; None while memory alone does."""

    def read(self, number: int) -> Tensor:
        """The states [R, T, H] of one pass."""
        held = self._memory[number]
        if held is not None:
            return held
        if self.receipt is None:
            raise RuntimeError("no layer has been written")
        out_RTH = torch.empty(self._shapes[number], dtype=self._dtype)
        with (self._folder / self.receipt.file).open("rb") as file:
            file.seek(self._offsets[number])
            file.readinto(bytes_of(out_RTH))
        return out_RTH

    @contextmanager
    def replaced(self, name: str) -> Iterator[Callable[[int, Tensor], None]]:
        """Put the states of the next layer, pass by pass in order, while these are read."""
        if not self.are_held:
            with self._written(name) as put:
                yield put
            return

        def hold(number: int, states_RTH: Tensor) -> None:
            self._memory[number] = states_RTH.to("cpu", self._dtype).contiguous()

        yield hold
        self.receipt = None

    def save(self, name: str) -> None:
        """Write those that memory alone holds."""
        if self.receipt is None:
            with self._written(name) as put:
                for number in range(len(self._memory)):
                    put(number, self.read(number))

    @contextmanager
    def _written(self, name: str) -> Iterator[Callable[[int, Tensor], None]]:
        digest = hashlib.sha256()
        with whole_file(self._folder / name) as beside:
            with beside.open("wb") as file:

                def put(_number: int, states_RTH: Tensor) -> None:
                    view = bytes_of(states_RTH.to("cpu", self._dtype).contiguous())
                    digest.update(view)
                    file.write(view)

                yield put
            size = beside.stat().st_size
        self.receipt = FileReceipt(file=name, num_bytes=size, sha256=digest.hexdigest())


def save_verdicts(folder: Path, rows: int, verdicts: Mapping[int, Verdict]) -> FileReceipt:
    """Write the running choices of every sequence, after so many rows of the head."""
    path = folder / f"verdicts-{rows}.safetensors"
    joined = {
        part: torch.cat([getattr(verdicts[i], part) for i in sorted(verdicts)])
        for part in _VERDICT_PARTS
    }
    with whole_file(path) as beside:
        save_file(joined, beside)
    return FileReceipt(file=path.name, num_bytes=path.stat().st_size, sha256=sha256_file(path))


def load_verdicts(
    folder: Path, receipt: FileReceipt, counts: Mapping[int, int]
) -> dict[int, Verdict]:
    """Read them back; `counts` are the completion tokens of each sequence."""
    joined = load_file(folder / receipt.file)
    lengths = [counts[i] for i in sorted(counts)]
    parts = {name: torch.split(joined[name], lengths) for name in _VERDICT_PARTS}
    return {
        i: Verdict(**{name: parts[name][k].clone() for name in _VERDICT_PARTS})
        for k, i in enumerate(sorted(counts))
    }


def move_into_place(source: Path, place: Path) -> None:
    """Rename a synced file, and return when the folder's entry is on disk."""
    source.replace(place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
