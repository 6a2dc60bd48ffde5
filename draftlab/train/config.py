"""What a training run does: the sections of its YAML or TOML file, checked on construction.

Defaults follow the DFlash paper's recipe (arXiv:2602.06036, App. A.1) where it states one; the
weighting of slots is D-PACE (arXiv:2605.18810) unless `loss.weighting` says otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from draftlab.base.errors import DraftlabError
from draftlab.train.options import LossOptions, Section


class DataConfig(Section):
    """What is learned from, and what is held out."""

    store: Path
    """Hidden-state store over the training completions."""
    heldout: Path | None = None
    """Store over other prompts, replayed for the true τ; it may share none with `store`."""
    target: Path | None = None
    """The store's target, if it has moved since the capture."""


class DrafterWish(Section):
    """The drafter to make."""

    start: Path | None = None
    """Folder of a drafter to go on from; its shape is taken over and the rest here left out."""
    target_layer_ids: tuple[int, ...] | None = None
    """Layers to read, counted from 0, all in the store; None reads those of the store."""
    mask_token_id: int | None = None
    """Reserved token for unknown slots; never guessed."""
    num_layers: int = 5
    block_size: int = 16
    """Slots per block, the anchor included."""
    head_dim: int | None = None
    """None: 128, or 32 below a hidden size of 1,024."""
    num_heads: int | None = None
    """Query heads. None: as many as give one and a half to two hidden sizes in all."""
    intermediate_size: int | None = None
    """None: three hidden sizes."""
    rope_theta: float | None = None
    """None: the target's."""
    allow_last_layer: bool = False
    """Whether the drafter may read the target's last layer, whose output makes the logits."""


class BatchConfig(Section):
    """What one optimizer step sees, over all processes together."""

    completions: int = 8
    """Completions per step, in an order that visits each once an epoch."""
    anchors: int = 32
    """Anchors per completion; at most all it has. The paper takes 512 of up to 3,072 tokens."""
    anchor_rule: Literal["random", "fixed"] = "random"
    """`random` draws anew every epoch. `fixed` cuts completions into blocks from their start; for
    comparison only, the paper measures it to lose 12 to 16 %."""
    micro_batches: int = 1
    """Forward and backward in so many parts, one after the other."""


class OptimizerConfig(Section):
    """How weights move."""

    name: Literal["adamw", "muon"] = "adamw"
    """`adamw` is the paper's; `muon` takes the matrices and leaves the rest to AdamW."""
    learning_rate: float = 6e-4
    """Peak."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip: float = 1.0
    """Largest gradient norm."""


class ScheduleConfig(Section):
    """For how long, and how the learning rate goes: linear warm-up, then a cosine to zero."""

    steps: int | None = None
    """Optimizer steps; or set epochs."""
    epochs: float | None = None
    """Passes over the store; or set steps."""
    warmup_ratio: float = 0.04

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise DraftlabError(
                f"schedule.steps is {self.steps} and schedule.epochs is {self.epochs}.",
                mend="Set one of the two.",
            )
        if not 0 <= self.warmup_ratio < 1:
            raise DraftlabError(
                f"schedule.warmup_ratio is {self.warmup_ratio}.", mend="Use 0 to below 1."
            )
        return self


class EvaluationConfig(Section):
    """When the held-out store is replayed, and what follows from it."""

    every: int = 0
    """Steps between replays; 0 replays at the end only."""
    budgets: tuple[int, ...] = (16, 128)
    """Tree budgets to log beside the chain."""
    reference_drafter: Path | None = None
    """A drafter whose τ on the same store is logged once, as the line to reach."""
    patience: int = 0
    """Stop after so many replays without a new best τ; 0 never stops early."""


class CheckpointConfig(Section):
    """When the state is saved. The last step is always saved."""

    every: int = 0
    """Steps between checkpoints; 0 goes by minutes alone."""
    minutes: float = 15.0
    """At most so long between two checkpoints; 0 goes by steps alone."""
    keep_last: int = 2
    """Checkpoints kept beside the one with the best τ."""


class EngineConfig(Section):
    """Where and how it is computed."""

    compute: Literal["float32", "bfloat16"] = "float32"
    """Of the passes; the weights that move are float32 either way."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None
    """CPU threads; None takes the free cores."""
    seed: int = 0
    """Of the first weights, the order of the completions and their anchors."""


class TrainConfig(Section):
    """One training run."""

    data: DataConfig
    drafter: DrafterWish = Field(default_factory=DrafterWish)
    loss: LossOptions = Field(default_factory=lambda: LossOptions(weighting="dpace"))
    batch: BatchConfig = Field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    checkpoints: CheckpointConfig = Field(default_factory=CheckpointConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)

    @model_validator(mode="after")
    def _check(self) -> Self:
        positive = {
            "batch.completions": self.batch.completions,
            "batch.anchors": self.batch.anchors,
            "batch.micro_batches": self.batch.micro_batches,
            "checkpoints.keep_last": self.checkpoints.keep_last,
            "schedule.steps": 1 if self.schedule.steps is None else self.schedule.steps,
        }
        for name, value in positive.items():
            if value < 1:
                raise DraftlabError(f"{name} is {value}.", mend="Use 1 or more.")
        return self
