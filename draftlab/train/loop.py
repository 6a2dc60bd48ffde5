"""Train a drafter on a hidden-state store; say its true held-out τ on the way.

In:   a store, the target's embedding and head, a drafter's shape, a TrainConfig.
Out:  a folder in z-lab's layout, and log.jsonl beside the weights.

Labels are the target's tokens as decoded; nothing is added to the states and nothing else reaches
the head, so what is learned is what is drafted at inference. The forward is the one that replay
uses.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftlab.base.errors import DrafterError
from draftlab.base.progress import Track, silent
from draftlab.drafter.checkpoint import Coverage, LoadedDrafter, save_drafter
from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.ends import TargetEnds, load_ends, open_target
from draftlab.drafter.model import Drafter
from draftlab.hidden.store import HiddenStore, StoredSequence
from draftlab.replay.draft import draft_anchors
from draftlab.replay.walks import chain_accepted, gather, walks_of
from draftlab.target.compute import Compute
from draftlab.target.facts import TargetFacts
from draftlab.target.tensors import embedding_name
from draftlab.train.blocks import anchors_of
from draftlab.train.config import TrainConfig
from draftlab.train.documents import document_of
from draftlab.train.forward import batch_loss
from draftlab.train.options import LossOptions

LOG_NAME = "log.jsonl"
"""One line per step, written as it happens."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of a run."""

    drafter: Drafter
    log: tuple[dict[str, float], ...]
    """One entry per logged step: step, loss, top1, and heldout_tau where replayed."""

    @property
    def heldout_tau(self) -> float:
        """Pooled chain τ on the held-out store after the last step; NaN if there was none."""
        return self.log[-1].get("heldout_tau", math.nan)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What every step needs."""

    drafter: Drafter
    ends: TargetEnds
    facts: TargetFacts
    target_fingerprint: str
    config: TrainConfig
    gamma: float
    generator: torch.Generator


def train(  # noqa: PLR0913  # six parts that form no group, three keyword-only options
    store: HiddenStore,
    target_folder: Path,
    shape: DrafterConfig,
    config: TrainConfig,
    out: Path,
    compute: Compute,
    *,
    heldout: HiddenStore | None = None,
    save_dtype: torch.dtype = torch.bfloat16,
    track: Track = silent,
) -> Trained:
    """Train a drafter from scratch and save it.

    Args:
        store: hidden states over the training completions, with the taps of `shape`.
        target_folder: the target of the store.
        shape: the drafter to make.
        config: how to train it.
        out: folder to write.
        compute: where and in which type.
        heldout: another store, replayed for the true τ.
        save_dtype: type of the saved weights; the trained module is rounded to it before the last
            replay, so that the τ in the log is that of the file.
        track: shows progress.

    Raises:
        DrafterError: shape, target and stores do not fit together.
    """
    compute.apply()
    parts = _prepare(store, target_folder, shape, config, compute)
    optimizers = _optimizers(parts.drafter, config)
    order = _sequence_order(len(store), parts.generator)
    log: list[dict[str, float]] = []
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOG_NAME).open("w", encoding="utf-8") as log_file:
        for step in track(
            range(1, config.steps + 1), total=config.steps, what="train", unit="steps"
        ):
            drawn = [next(order) for _ in range(config.sequences_per_step)]
            sequences = [(epoch, number, store.read(number)) for epoch, number in drawn]
            entry = _step(parts, sequences, optimizers, step)
            if step == config.steps:
                _round_weights(parts.drafter, save_dtype)
            if heldout is not None and _replays_after(step, config):
                entry["heldout_tau"] = _heldout_tau(parts, heldout)
            log.append(entry)
            log_file.write(json.dumps(entry) + "\n")
            log_file.flush()
    save_drafter(out, parts.drafter, dtype=save_dtype, vocab_size=parts.facts.vocab_size)
    return Trained(parts.drafter, tuple(log))


def _replays_after(step: int, config: TrainConfig) -> bool:
    return step == config.steps or bool(config.evaluate_every and step % config.evaluate_every == 0)


def _prepare(
    store: HiddenStore,
    target_folder: Path,
    shape: DrafterConfig,
    config: TrainConfig,
    compute: Compute,
) -> _Parts:
    facts, files = open_target(target_folder)
    shape.require_fit(facts, embedding_rows=files.infos[embedding_name(files)].shape[0])
    if store.index.conditions.target_layer_ids != shape.target_layer_ids:
        raise DrafterError(
            f"the drafter is to read layers {list(shape.target_layer_ids)}; the store holds "
            f"{list(store.index.conditions.target_layer_ids)}.",
            mend="Capture with --layers as the drafter needs them.",
        )
    if store.index.conditions.target_fingerprint != files.fingerprint():
        raise DrafterError(
            "the store is of another target.", mend="Point --target at the store's target."
        )
    generator = torch.Generator().manual_seed(config.seed)
    drafter = Drafter(shape)
    _initialise(drafter, generator)
    return _Parts(
        drafter=drafter.to(compute.torch_device, compute.torch_dtype),
        ends=load_ends(files, facts, compute.torch_dtype, compute.torch_device),
        facts=facts,
        target_fingerprint=files.fingerprint(),
        config=config,
        gamma=config.decay_constant(shape.block_size),
        generator=generator,
    )


def _initialise(drafter: Drafter, generator: torch.Generator) -> None:
    """Normal weights of variance 1 / fan-in; what writes to the residual stream is made smaller."""
    depth = len(drafter.config.layers)
    for name, module in drafter.named_modules():
        if isinstance(module, nn.Linear):
            scale = 1.0 / math.sqrt(2 * depth) if name.endswith(("o_proj", "down_proj")) else 1.0
            std = scale / math.sqrt(module.in_features)
            nn.init.normal_(module.weight, std=std, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _optimizers(drafter: Drafter, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """AdamW for all, or Muon for the matrices at AdamW's step size and AdamW for the rest."""
    rate, decay = config.learning_rate, config.weight_decay
    weights = list(drafter.parameters())
    if config.optimizer == "adamw":
        return [torch.optim.AdamW(weights, rate, config.betas, weight_decay=decay)]
    matrices = [weight for weight in weights if weight.ndim == 2]
    others = [weight for weight in weights if weight.ndim != 2]
    return [
        torch.optim.Muon(matrices, rate, decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, rate, config.betas, weight_decay=0.0),
    ]


def _sequence_order(count: int, generator: torch.Generator) -> Iterator[tuple[int, int]]:
    """Epochs and sequence numbers, each once per epoch, in a new order every epoch."""
    for epoch in itertools.count():
        for number in torch.randperm(count, generator=generator).tolist():
            yield epoch, number


def _step(
    parts: _Parts,
    sequences: list[tuple[int, int, StoredSequence]],
    optimizers: Sequence[torch.optim.Optimizer],
    step: int,
) -> dict[str, float]:
    rate = parts.config.learning_rate * _schedule(step, parts.config)
    for group in itertools.chain.from_iterable(o.param_groups for o in optimizers):
        group["lr"] = rate
    options = LossOptions(gamma=parts.gamma)
    layers = parts.drafter.config.target_layer_ids
    sums = batch_loss(
        parts.drafter,
        parts.ends,
        [document_of(one, layers, parts.drafter.config) for _, _, one in sequences],
        [
            anchors_of(
                parts.config.seed,
                epoch,
                number,
                one.entry.completion_tokens,
                parts.config.anchors_per_sequence,
            )
            for epoch, number, one in sequences
        ],
        options,
    )
    parts.drafter.zero_grad(set_to_none=True)
    loss: Any = sums.weighted_sum / options.denominator(sums)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(parts.drafter.parameters(), parts.config.clip)
    for optimizer in optimizers:
        optimizer.step()
    return {
        "step": step,
        "loss": float(loss.detach()),
        "top1": float(sums.right / sums.labelled),
        "learning_rate": rate,
        "gradient_norm": float(norm),
    }


def _schedule(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then a cosine to 0."""
    warmup = config.steps * config.warmup_ratio
    if step <= warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (config.steps - warmup)))


@torch.no_grad()
def _round_weights(drafter: Drafter, dtype: torch.dtype) -> None:
    for parameter in drafter.parameters():
        parameter.copy_(parameter.to(dtype).to(parameter.dtype))


def _heldout_tau(parts: _Parts, heldout: HiddenStore) -> float:
    """Pooled chain τ by replay."""
    loaded = LoadedDrafter(
        drafter=parts.drafter,
        ends=parts.ends,
        target=parts.facts,
        coverage=Coverage(used=0, total=0, dtype=""),
        fingerprint="",
        target_fingerprint=parts.target_fingerprint,
        notes=(),
    )
    drafts = [draft_anchors(loaded, heldout.read(number)) for number in range(len(heldout))]
    return gather(walks_of([chain_accepted(d) for d in drafts])).tau
