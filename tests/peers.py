"""Other people's DFlash loops, run as they are on the same folders.

z-lab: PyPI `dflash` 0.1.0, its own `dflash_generate`. Native: `speculation_type="dflash"` of
transformers. Both keep caches, so they share neither code nor method with oracles.py. Imports
nothing of draftlab.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tiny
import torch
from safetensors.torch import load_file
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel, PreTrainedModel
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

ZLAB_VERSION = "0.1.0"

needs_zlab = pytest.mark.skipif(
    importlib.util.find_spec("dflash") is None,
    reason=f"needs z-lab's loop: pip install --no-deps dflash=={ZLAB_VERSION}",
)
"""Skips only where the package is absent; one that is there and broken fails."""


@dataclass(frozen=True, slots=True)
class PeerRun:
    """What a peer made of a prompt. The first token is the prefill's and in no round."""

    tokens: tuple[int, ...]
    committed: tuple[int, ...]
    """Tokens of each round, as the peer counts them."""
    draft_logits: tuple[torch.Tensor, ...]
    """[B - 1, V] of each round in which the peer drafted."""

    @property
    def accepted(self) -> list[int]:
        return [count - 1 for count in self.committed]

    def until(self, n_tokens: int) -> "PeerRun":
        """The same run, ended after `n_tokens`: its last round commits what was left.

        Ask a peer for a block more than you need and cut: then how it ends a run plays no part.
        """
        kept, left = [], n_tokens - 1
        for count in self.committed:
            if left <= 0:
                break
            kept.append(min(count, left))
            left -= count
        return PeerRun(self.tokens[:n_tokens], tuple(kept), self.draft_logits[: len(kept)])


def load_zlab_drafter(folder: Path) -> Any:
    """A `DFlashDraftModel` in which every tensor of the folder found its place."""
    version = importlib.metadata.version("dflash")
    if version != ZLAB_VERSION:
        raise RuntimeError(f"dflash {version} is installed; the oracle is {ZLAB_VERSION}")
    zlab = importlib.import_module("dflash.model")
    with tiny.quiet():
        drafter, info = zlab.DFlashDraftModel.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
    if any(info.values()):
        raise RuntimeError(f"{folder} does not fit z-lab's class: {info}")
    return drafter.eval()


def zlab_run(
    target: PreTrainedModel,
    drafter_folder: Path,
    prompt_ids: Sequence[int],
    n_tokens: int,
    *,
    block_size: int | None = None,
) -> PeerRun:
    """z-lab's loop, greedy. It takes its time from CUDA, which is not here.

    A block that would pass the end has fewer slots, so those rounds are not the naive loop's.
    """
    drafter = load_zlab_drafter(drafter_folder)
    logits: list[torch.Tensor] = []
    compute = drafter.compute_logits

    def compute_and_note(*inputs: Any) -> torch.Tensor:
        logits.append(compute(*inputs))
        return logits[-1]

    with (
        mock.patch.object(torch.cuda, "synchronize", return_value=None),
        mock.patch.object(drafter, "compute_logits", compute_and_note),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "`past_key_values` is deprecated", FutureWarning)
        run = importlib.import_module("dflash.model").dflash_generate(
            drafter,
            target=target,
            input_ids=torch.tensor([list(prompt_ids)]),
            max_new_tokens=n_tokens,
            stop_token_ids=None,
            block_size=block_size,
            return_stats=True,
        )
    return PeerRun(
        tuple(run.output_ids[0, len(prompt_ids) :].tolist()),
        tuple(run.acceptance_lengths),
        tuple(each[0] for each in logits),
    )


NATIVE_NAMES = {"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}


def native_config(config: dict[str, Any]) -> MuseGlimmerAssistantConfig:
    """A z-lab config in the words of transformers 5.24's one assistant class for DFlash.

    Its blocks are two-sided in every layer. Its window reaches one position further than z-lab's on
    both sides, distance <= sliding_window there and distance < sliding_window here, hence the - 1.
    """
    inner = config["dflash_config"]
    sliding = "sliding_attention" in config["layer_types"]
    if config.get("is_causal") or (sliding and config.get("is_causal") is None):
        raise ValueError("the native assistant has no causal layers")
    if config["attention_bias"] or {"output_multiplier", "final_logit_softcapping"} & inner.keys():
        raise ValueError("the native assistant has neither biases nor a rule for logits")
    rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"]}
    same = (
        "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
        "head_dim rms_norm_eps max_position_embeddings layer_types hidden_act"
    )
    return MuseGlimmerAssistantConfig(
        **{key: config[key] for key in same.split()},
        rope_parameters={"rope_type": "default", **rope},
        sliding_window=config["sliding_window"] - 1
        if sliding
        else config["max_position_embeddings"],
        target_layer_ids=inner["target_layer_ids"],
        mask_token_id=inner["mask_token_id"],
        block_size=inner.get("block_size", config.get("block_size")),
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def native_assistant(drafter_folder: Path, target: PreTrainedModel) -> MuseGlimmerAssistantModel:
    """The drafter as an assistant of `target`, whose own embedding module does any scaling."""
    config = json.loads((drafter_folder / "config.json").read_text())
    embedding = target.get_input_embeddings()
    scale = config["dflash_config"].get("input_embedding_scale", 1.0)
    if not torch.equal(embedding(torch.tensor(0)), embedding.weight[0] * scale):
        raise ValueError(f"the target does not scale its embedding by the drafter's {scale}")
    model = MuseGlimmerAssistantModel(native_config(config)).eval()
    weights = load_file(drafter_folder / "model.safetensors")
    for old, new in NATIVE_NAMES.items():
        weights = {
            new + name.removeprefix(old) if name.startswith(old) else name: weight
            for name, weight in weights.items()
        }
    model.load_state_dict(weights, strict=True)
    return model


def native_run(
    target: PreTrainedModel, drafter_folder: Path, prompt_ids: Sequence[int], n_tokens: int
) -> PeerRun:
    """The loop of `generate`, greedy; its rounds show in the lengths at which it asks to draft."""
    assistant = native_assistant(drafter_folder, target)
    ids = torch.tensor([list(prompt_ids)])
    lengths: list[int] = []
    ask = DFlashTokenCandidateGenerator.get_candidates

    logits: list[torch.Tensor] = []

    def ask_and_note(self: Any, input_ids: torch.Tensor, **rest: Any) -> Any:
        lengths.append(input_ids.shape[1])
        candidates, scores = ask(self, input_ids, **rest)
        if scores is not None:
            logits.append(scores[0])
        return candidates, scores

    with mock.patch.object(DFlashTokenCandidateGenerator, "get_candidates", ask_and_note):
        output = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=assistant,
            speculation_type="dflash",
            do_sample=False,
            max_new_tokens=n_tokens,
        )
    # The first time is the prefill's, and drafts nothing.
    lengths = [*lengths[1:], output.shape[1]]
    committed = tuple(after - before for before, after in pairwise(lengths))
    return PeerRun(tuple(output[0, len(prompt_ids) :].tolist()), committed, tuple(logits))
