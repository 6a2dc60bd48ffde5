"""The tensors of a model folder: which there are, in which file, read one by one.

Serves targets and drafters. A folder is checked against its own index before anything is read, so a
missing shard or a pointer file in place of one is an error and never a random weight. Only
safetensors are read here; they hold no code.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from draftlab.base.errors import TargetError
from draftlab.base.quantities import listing
from draftlab.base.records import read_json, sha256_json

if TYPE_CHECKING:
    import torch

_INDEX = "model.safetensors.index.json"
_POINTER_LIMIT_BYTES = 1024
_SAMPLE_BYTES = 1 << 14
_SAMPLES_PER_FILE = 16

EMBEDDING_NAMES = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "language_model.embed_tokens.weight",
    "model.text_model.embed_tokens.weight",
    "embed_tokens.weight",
    "backbone.embeddings.weight",
    "transformer.wte.weight",
)
HEAD_NAMES = (
    "lm_head.weight",
    "language_model.lm_head.weight",
    "model.lm_head.weight",
    "model.language_model.lm_head.weight",
)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies and what it looks like."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    """safetensors' name: BF16, F32, ..."""


class TensorFiles:
    """The safetensors files of one folder, opened lazily."""

    def __init__(self, folder: Path, infos: Mapping[str, TensorInfo]) -> None:
        self.folder = folder
        self.infos = dict(infos)

    @classmethod
    def open(cls, folder: Path) -> TensorFiles:
        """Read the headers of every shard.

        Raises:
            TargetError: no safetensors, a shard that the index names is missing, or a file is not
                safetensors (a pointer file, a broken copy).
        """
        infos: dict[str, TensorInfo] = {}
        for file in _shards(folder):
            for name, info in _headers(file).items():
                if name in infos:
                    raise TargetError(
                        f"tensor {name} is in both {infos[name].file.name} and {file.name}.",
                        mend="Remove the copy that does not belong to this folder.",
                    )
                infos[name] = info
        return cls(folder, infos)

    @property
    def num_values(self) -> int:
        """Numbers in all tensors together."""
        return sum(prod(info.shape) for info in self.infos.values())

    def read(self, name: str) -> torch.Tensor:
        """One whole tensor, as stored."""
        with safe_open(self.infos[name].file, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor

    def read_rows(self, name: str, count: int) -> torch.Tensor:
        """The first `count` rows of a tensor."""
        with safe_open(self.infos[name].file, framework="pt") as file:
            rows: torch.Tensor = file.get_slice(name)[:count]
            return rows

    def find(self, candidates: Iterable[str]) -> str | None:
        """The first of these names that the folder has."""
        return next((name for name in candidates if name in self.infos), None)

    def fingerprint(self) -> str:
        """A digest of names, shapes, types and sampled bytes of every shard.

        Sixteen stretches of 16 KiB a file are read, not all of it: enough to tell two trainings of
        one architecture apart in milliseconds, not a proof that no byte changed.
        """
        listed = {n: [list(i.shape), i.dtype] for n, i in sorted(self.infos.items())}
        digest = hashlib.sha256(sha256_json(listed).encode())
        for file in sorted({info.file for info in self.infos.values()}):
            size = file.stat().st_size
            with file.open("rb") as data:
                for part in range(_SAMPLES_PER_FILE):
                    data.seek(part * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES_PER_FILE - 1))
                    digest.update(data.read(_SAMPLE_BYTES))
        return digest.hexdigest()[:16]


def embedding_name(files: TensorFiles) -> str:
    """Name of the target's token embedding.

    Raises:
        TargetError: none of the known names; the nearest names are shown.
    """
    name = files.find(EMBEDDING_NAMES)
    if name is None:
        near = difflib.get_close_matches(EMBEDDING_NAMES[0], files.infos, n=3, cutoff=0.0)
        raise TargetError(
            f"{files.folder} has no token embedding under a known name; nearest: {listing(near)}.",
            mend=f"Known names: {', '.join(EMBEDDING_NAMES)}.",
        )
    return name


def head_name(files: TensorFiles, *, ties_embeddings: bool) -> str:
    """Name of the tensor that serves as the target's head; the embedding where the two are tied.

    A missing head is never replaced by anything else: untied and absent is an error.

    Raises:
        TargetError: no head in the files and the config does not tie it to the embedding.
    """
    name = files.find(HEAD_NAMES)
    if name is not None:
        return name
    if not ties_embeddings:
        raise TargetError(
            f"{files.folder} has no head tensor and config.json does not tie it to the embedding.",
            mend="Set tie_word_embeddings if the model ties them; else fetch the missing shard.",
        )
    return embedding_name(files)


def _shards(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise TargetError(f"no folder {folder}.", mend="Check the path.")
    if (folder / _INDEX).is_file():
        weight_map = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise TargetError(
                f"{folder / _INDEX} has no weight_map.", mend="Fetch the index again."
            )
        names = sorted({str(name) for name in weight_map.values()})
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise TargetError(
                f"{folder} has {len(names) - len(missing)} of {len(names)} shards; missing: "
                f"{listing(missing)}.",
                mend="Finish the download; the folder is incomplete.",
            )
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise TargetError(
            f"{folder} has no .safetensors file.", mend="Point at a whole model folder."
        )
    return files


def _headers(file: Path) -> dict[str, TensorInfo]:
    size = file.stat().st_size
    if size < _POINTER_LIMIT_BYTES and file.read_bytes().startswith(b"version https://git-lfs"):
        raise TargetError(
            f"{file} is a {size}-byte pointer, not the weights.", mend="Run `git lfs pull` there."
        )
    try:
        with safe_open(file, framework="numpy") as tensors:
            infos = {}
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                view: Any = tensors.get_slice(name)
                infos[name] = TensorInfo(file, tuple(view.get_shape()), str(view.get_dtype()))
            return infos
    except (SafetensorError, OSError) as error:
        raise TargetError(
            f"{file} is not a whole safetensors file ({error}).", mend="Copy it again."
        ) from error
