"""Drafter folders: read with every tensor accounted for, written in z-lab's layout.

A drafter that is only partly loaded drafts badly and says nothing, so coverage is enforced: every
tensor the model has must be in the file, and every tensor in the file must be used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from draftlab.base.errors import DrafterError
from draftlab.base.quantities import listing
from draftlab.base.records import Record, whole_file, write_atomic
from draftlab.drafter.config import NESTED, DrafterConfig
from draftlab.drafter.ends import TargetEnds, load_ends, open_target
from draftlab.drafter.model import Drafter
from draftlab.target.facts import TargetFacts
from draftlab.target.tensors import TensorFiles, embedding_name

WEIGHTS_NAME = "model.safetensors"


class Coverage(Record):
    """How much of a checkpoint was used."""

    used: int
    total: int
    dtype: str
    """The stored type of the tensors, as safetensors names it."""

    def __str__(self) -> str:
        return f"{self.used} of {self.total} tensors, stored as {self.dtype}"


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A drafter with the ends of its target, ready to draft."""

    drafter: Drafter
    ends: TargetEnds
    target: TargetFacts
    coverage: Coverage
    fingerprint: str
    target_fingerprint: str
    notes: tuple[str, ...]


def load_drafter(
    folder: Path,
    target_folder: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int | None = None,
) -> LoadedDrafter:
    """Read a drafter, and the embedding and head of its target.

    Args:
        folder: the drafter: config.json and safetensors in a layout of z-lab's.
        target_folder: the target; only its config, embedding and head are read.
        dtype: what to compute in.
        device: where to compute.
        block_size: run the drafter at another block size than it was trained with.

    Raises:
        DrafterError: the drafter is incomplete, or does not fit the target.
        TargetError: the target folder cannot be used.
    """
    config = DrafterConfig.from_folder(folder)
    if block_size is not None:
        config = config.with_block_size(block_size)
    facts, target_files = open_target(target_folder)
    rows = target_files.infos[embedding_name(target_files)].shape[0]
    notes = config.require_fit(facts, embedding_rows=rows)
    files = TensorFiles.open(folder)
    with torch.device("meta"):
        drafter = Drafter(config)
    coverage = _load_weights(drafter, files, dtype=dtype, device=device)
    return LoadedDrafter(
        drafter=drafter.eval().requires_grad_(requires_grad=False),
        ends=load_ends(target_files, facts, dtype, device),
        target=facts,
        coverage=coverage,
        fingerprint=files.fingerprint(),
        target_fingerprint=target_files.fingerprint(),
        notes=notes,
    )


def _load_weights(
    drafter: Drafter, files: TensorFiles, *, dtype: torch.dtype, device: torch.device
) -> Coverage:
    """Fill a drafter made on the meta device; every tensor in exactly one place."""
    wanted = {name: tuple(tensor.shape) for name, tensor in drafter.state_dict().items()}
    names = _plain_names(files)
    missing = sorted(set(wanted) - set(names))
    unknown = sorted(set(names) - set(wanted))
    if missing or unknown:
        parts = [f"{len(set(wanted) & set(names))} of {len(wanted)} tensors found"]
        parts += [f"missing: {listing(missing)}"] if missing else []
        parts += [f"not understood: {listing(unknown)}"] if unknown else []
        raise DrafterError(
            f"{files.folder}: {'; '.join(parts)}.",
            mend="The checkpoint and its config.json do not describe the same drafter; "
            "copy it whole.",
        )
    for name, shape in wanted.items():
        found = files.infos[names[name]].shape
        if found != shape:
            raise DrafterError(
                f"{files.folder}: {name} is {_times(found)}; config.json implies {_times(shape)}.",
                mend="Check hidden_size, the heads and the number of target_layer_ids in "
                "config.json.",
            )
    state = {name: files.read(names[name]).to(device, dtype) for name in wanted}
    drafter.load_state_dict(state, assign=True)
    stored = sorted({files.infos[stored_name].dtype for stored_name in names.values()})
    return Coverage(used=len(wanted), total=len(names), dtype="/".join(stored))


def _plain_names(files: TensorFiles) -> dict[str, str]:
    """Plain name -> stored name; trainers like to put one `model.` before everything."""
    prefix = "model."
    stored = list(files.infos)
    if stored and all(name.startswith(prefix) for name in stored):
        return {name[len(prefix) :]: name for name in stored}
    return {name: name for name in stored}


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


def save_drafter(folder: Path, drafter: Drafter, *, dtype: torch.dtype, vocab_size: int) -> None:
    """Write weights and config.json in z-lab's nested layout; each file whole or not at all."""
    state = {
        name: t.detach().to("cpu", dtype).contiguous() for name, t in drafter.state_dict().items()
    }
    with whole_file(folder / WEIGHTS_NAME) as beside:
        save_file(state, beside, metadata={"format": "pt"})
    config = zlab_config(
        drafter.config, dtype=str(dtype).removeprefix("torch."), vocab_size=vocab_size
    )
    write_atomic(folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())


def zlab_config(config: DrafterConfig, *, dtype: str, vocab_size: int) -> dict[str, object]:
    """The config.json that z-lab's own loader reads.

    Block size at both levels for older readers.
    """
    windows = {layer.window for layer in config.layers if layer.window}
    causal = {layer.causal for layer in config.layers}
    nested: dict[str, object] = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
    }
    for key, value, neutral in (
        ("input_embedding_scale", config.input_embedding_scale, 1.0),
        ("output_multiplier", config.output_multiplier, 1.0),
    ):
        if value != neutral:
            nested[key] = value
    body: dict[str, object] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": config.attention_bias,
        "block_size": config.block_size,
        NESTED: nested,
        "dtype": dtype,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "layer_types": [
            "sliding_attention" if layer.window else "full_attention" for layer in config.layers
        ],
        "max_position_embeddings": config.max_positions,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": len(config.layers),
        "num_key_value_heads": config.num_key_value_heads,
        "num_target_layers": config.num_target_layers,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {
            "rope_theta": config.rope.theta,
            "rope_type": config.rope.kind,
            **config.rope.scaling,
        },
        "rope_theta": config.rope.theta,
        "sliding_window": next(iter(windows), None),
        "use_sliding_window": bool(windows),
        "tie_word_embeddings": False,
        "vocab_size": vocab_size,
    }
    if config.logit_softcap is not None:
        body["final_logit_softcapping"] = config.logit_softcap
    follows_kind = all(layer.causal == (layer.window is not None) for layer in config.layers)
    if not follows_kind:
        body["is_causal"] = causal == {True}
    return body
