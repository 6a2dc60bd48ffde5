"""The target itself, through transformers: loaded whole, or not at all.

Shape letters: R sequences, T positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
)

from draftlab.base.errors import TargetError
from draftlab.base.quantities import listing
from draftlab.target.compute import Compute
from draftlab.target.facts import TargetFacts
from draftlab.target.tensors import TensorFiles


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
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=compute.torch_dtype, output_loading_info=True, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise TargetError(
            f"transformers cannot load {folder}: {str(error).splitlines()[0][:300]}.",
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
    model.generation_config = GenerationConfig()
    return LoadedTarget(model, facts, fingerprint, _decoder_layers(model, facts))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The target's tokenizer.

    Raises:
        TargetError: the folder has none that transformers can read.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise TargetError(
            f"{folder} has no tokenizer that transformers can read: {str(error).splitlines()[0][:200]}.",
            mend='Copy the tokenizer files, or give prompts as {"input_ids": [...]}.',
        ) from error
    return tokenizer


def next_token_logits(target: LoadedTarget, normed_TH: Tensor) -> Tensor:
    """Float32 logits [T, V] from the hidden states after the final norm.

    Only the head runs; whether that is all that this model does after its final norm is checked by
    `check_head` once per capture.
    """
    logits: Tensor = target.model.get_output_embeddings()(normed_TH).float()
    softcap = getattr(target.model.config.get_text_config(), "final_logit_softcapping", None)
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def check_head(target: LoadedTarget, ids_1T: Tensor) -> None:
    """Compare `next_token_logits` with the model's own logits on a few positions.

    Raises:
        TargetError: they differ, so log-probabilities computed from states would be wrong.
    """
    whole = target.model(input_ids=ids_1T, use_cache=False).logits[0].float()
    base = target.model.get_decoder()
    ours = next_token_logits(target, base(input_ids=ids_1T, use_cache=False).last_hidden_state[0])
    if not torch.allclose(whole, ours, rtol=1e-3, atol=1e-3):
        raise TargetError(
            f"{target.facts.architecture} does more to its logits than its head and softcap: they "
            f"differ by {float((whole - ours).abs().max()):.3g}.",
            mend="This architecture needs a rule of its own in draftlab/target/loading.py.",
        )


def _decoder_layers(model: Any, facts: TargetFacts) -> nn.ModuleList:
    """The list of decoder layers, told by its length and its name."""
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", None)
    if isinstance(layers, nn.ModuleList) and len(layers) == facts.num_layers:
        return layers
    raise TargetError(
        f"{facts.architecture}: no list of {facts.num_layers} decoder layers under `layers`.",
        mend="This architecture is not supported yet.",
    )
