"""The target itself, through transformers: loaded whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from draftlab.base.errors import TargetError
from draftlab.base.quantities import listing, one_line
from draftlab.target.compute import Compute
from draftlab.target.facts import TargetFacts
from draftlab.target.tensors import TensorFiles

# transformers' auto-classes are untyped; past this line they are Any.
_auto_model: Any = AutoModelForCausalLM
_auto_tokenizer: Any = AutoTokenizer
_generation_config: Any = GenerationConfig
_bars: Any = logging


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """What is known of a target before any weight is read."""

    facts: TargetFacts
    fingerprint: str

    @classmethod
    def of(cls, folder: Path) -> TargetIdentity:
        """Of the target in `folder`.

        Raises:
            TargetError: the folder is incomplete.
        """
        return cls(TargetFacts.from_folder(folder), TensorFiles.open(folder).fingerprint())


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target in memory with what was read about it."""

    model: Any
    """The transformers model; its classes are not typed."""
    facts: TargetFacts
    fingerprint: str
    layers: nn.ModuleList
    """Its decoder layers, in order."""


def load_target(folder: Path, compute: Compute) -> LoadedTarget:
    """Load the target in `folder` for inference.

    Raises:
        TargetError: the folder is incomplete, or transformers cannot load it as a causal language
            model with every weight in place.
    """
    facts = TargetFacts.from_folder(folder)
    fingerprint = TensorFiles.open(folder).fingerprint()
    try:
        with without_bars():
            model, info = _auto_model.from_pretrained(
                folder, dtype=compute.torch_dtype, output_loading_info=True, local_files_only=True
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise TargetError(
            f"transformers cannot load {folder}: {one_line(str(error), at_most=300)}.",
            mend="Check config.json, and that the installed transformers knows this architecture.",
        ) from error
    missing = sorted(info["missing_keys"])
    if missing or info["mismatched_keys"]:
        amiss = [*missing, *(str(key) for key in info["mismatched_keys"])]
        raise TargetError(
            f"{folder}: {len(amiss)} weights are missing or have another shape: {listing(amiss)}.",
            mend="The checkpoint is incomplete or its config.json is of another model.",
        )
    model = model.eval().requires_grad_(requires_grad=False).to(compute.torch_device)
    # The folder's generation settings (penalties, sampling) would bend greedy decoding silently.
    model.generation_config = _generation_config()
    return LoadedTarget(model, facts, fingerprint, decoder_layers(model, facts))


@contextmanager
def without_bars() -> Iterator[None]:
    """Loading shows no progress bar of its own."""
    shown = _bars.is_progress_bar_enabled()
    _bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            _bars.enable_progress_bar()


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The target's tokenizer.

    A folder without tokenizer files is refused here: transformers would hand out an empty one.

    Raises:
        TargetError: the folder has none that transformers can read.
    """
    mend = 'Copy the tokenizer files there, or give prompts as {"input_ids": [...]}.'
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise TargetError(f"{folder} has no tokenizer files.", mend=mend)
    try:
        tokenizer: PreTrainedTokenizerBase = _auto_tokenizer.from_pretrained(
            folder, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        why = one_line(str(error))
        raise TargetError(
            f"{folder}: transformers cannot read its tokenizer: {why}.", mend=mend
        ) from error
    return tokenizer


def load_tokenizer_if_any(folder: Path) -> PreTrainedTokenizerBase | None:
    """The target's tokenizer, or None where there is none to read; texts stay token ids then."""
    try:
        return load_tokenizer(folder)
    except TargetError:
        return None


def decoder_layers(model: Any, facts: TargetFacts) -> nn.ModuleList:
    """The list of decoder layers, told by its length and its name."""
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", None)
    if isinstance(layers, nn.ModuleList) and len(layers) == facts.num_layers:
        return layers
    raise TargetError(
        f"{facts.architecture}: no list of {facts.num_layers} decoder layers under `layers`.",
        mend="This architecture is not supported yet.",
    )
