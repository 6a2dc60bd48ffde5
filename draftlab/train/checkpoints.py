"""Checkpoints of a run: each a drafter that any stage reads, with all that a resume needs.

    RUN/checkpoints/step-000500/
        config.json, model.safetensors   the drafter, in z-lab's layout, bfloat16
        trainer.safetensors              weights that move and optimizer state, float32
        trainer.json                     step, digests of configuration and data; digests of the
                                         files beside it

A checkpoint is written under another name and renamed, so a folder named step-... is whole. Resume
takes the newest one whose digests hold.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftlab.base.errors import DraftlabError
from draftlab.base.records import Document, Record, sha256_file, write_atomic
from draftlab.drafter.checkpoint import WEIGHTS_NAME, save_drafter
from draftlab.drafter.model import Drafter
from draftlab.train.optimize import Optimizer

FOLDER = "checkpoints"
STATE_NAME, RECORD_NAME = "trainer.safetensors", "trainer.json"
_NAME = re.compile(r"step-(\d+)")
_WEIGHT, _MEMORY = "weight.", "optimizer."


class BestTau(Record):
    """The best held-out chain τ so far."""

    step: int
    tau: float


class TrainerRecord(Document):
    """What a checkpoint says about itself."""

    SCHEMA: ClassVar[str] = "draftlab.trainer/1"

    step: int
    run_digest: str
    """Of everything that decides what is learned; resume refuses another."""
    threads: int
    """The order of additions may depend on it, so a resume keeps it."""
    heldout_tau: float | None
    """Of this step, where it was replayed."""
    best: BestTau | None
    stale: int
    """Replays since the best one."""
    files: dict[str, str]
    """SHA-256 of the files beside this one, by name."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    folder: Path
    record: TrainerRecord

    def restore(self, drafter: Drafter, optimizer: Optimizer) -> None:
        """Put weights and optimizer state back, bit for bit."""
        tensors = load_file(self.folder / STATE_NAME)
        weights = {
            name[len(_WEIGHT) :]: t for name, t in tensors.items() if name.startswith(_WEIGHT)
        }
        drafter.load_state_dict(weights)
        optimizer.restore(
            {name[len(_MEMORY) :]: t for name, t in tensors.items() if name.startswith(_MEMORY)}
        )


def checkpoint_name(step: int) -> str:
    """Sorts by step."""
    return f"step-{step:06d}"


def save_checkpoint(
    run: Path, record: TrainerRecord, drafter: Drafter, optimizer: Optimizer, vocab_size: int
) -> Checkpoint:
    """Write one, whole or not at all; `record.files` is filled in here."""
    folder = run / FOLDER / checkpoint_name(record.step)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    save_drafter(beside, drafter, dtype=torch.bfloat16, vocab_size=vocab_size)
    state: dict[str, Tensor] = {
        f"{_WEIGHT}{name}": tensor.detach().cpu().contiguous()
        for name, tensor in drafter.state_dict().items()
    }
    state |= {f"{_MEMORY}{name}": t.detach().cpu().contiguous() for name, t in optimizer.tensors()}
    save_file(state, beside / STATE_NAME)
    _sync(beside / STATE_NAME)
    names = (WEIGHTS_NAME, "config.json", STATE_NAME)
    whole = record.model_copy(update={"files": {n: sha256_file(beside / n) for n in names}})
    whole.save(beside / RECORD_NAME)
    if folder.exists():  # of a run that went on from an earlier one
        shutil.rmtree(folder)
    beside.rename(folder)
    _sync(folder.parent)
    return Checkpoint(folder, whole)


def newest_checkpoint(run: Path, run_digest: str) -> Checkpoint | None:
    """The newest whole checkpoint of a run; None if there is none.

    Raises:
        DraftlabError: it is of another configuration or other data.
    """
    for folder in reversed(_folders(run)):
        checkpoint = _read(folder)
        if checkpoint is None:
            continue
        if checkpoint.record.run_digest != run_digest:
            raise DraftlabError(
                f"{folder} was made by another configuration or on other data.",
                mend="Give another --out, or the configuration of config.resolved.yaml beside it.",
            )
        return checkpoint
    return None


def copy_drafter(run: Path, step: int, out: Path) -> None:
    """Put a checkpoint's drafter, without the trainer's state, into a folder of its own."""
    source = run / FOLDER / checkpoint_name(step)
    for name in ("config.json", WEIGHTS_NAME):
        write_atomic(out / name, (source / name).read_bytes())


def drop_old_checkpoints(run: Path, keep_last: int, best: BestTau | None) -> None:
    """Keep the newest ones and the best one."""
    kept = {folder.name for folder in _folders(run)[-keep_last:]}
    if best is not None:
        kept.add(checkpoint_name(best.step))
    for folder in _folders(run):
        if folder.name not in kept:
            gone = folder.with_name(f".{folder.name}.part")
            folder.rename(gone)  # never half a folder under a checkpoint's name
            shutil.rmtree(gone)


def sweep_parts(run: Path) -> None:
    """Remove what killed processes left half-written."""
    for part in (run / FOLDER).glob(".step-*.part"):
        shutil.rmtree(part, ignore_errors=True)


def _folders(run: Path) -> list[Path]:
    found = [p for p in (run / FOLDER).glob("step-*") if _NAME.fullmatch(p.name) and p.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def _read(folder: Path) -> Checkpoint | None:
    """A checkpoint, if its files are those that its record names."""
    if not (folder / RECORD_NAME).is_file():
        return None
    record = TrainerRecord.load(folder / RECORD_NAME)
    for name, digest in record.files.items():
        if not (folder / name).is_file() or sha256_file(folder / name) != digest:
            return None
    return Checkpoint(folder, record)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
