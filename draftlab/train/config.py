"""What a training run does. Checked on construction; every value has a reason in its docstring.

Defaults follow the DFlash paper's recipe (arXiv:2602.06036, App. A.1) where it states one.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from draftlab.base.errors import DraftlabError
from draftlab.base.records import Record

_GAMMA_BY_BLOCK = {16: 7.0, 10: 5.0, 8: 4.0}


class TrainConfig(Record):
    """One training run."""

    steps: int
    """Optimizer steps."""
    sequences_per_step: int = 8
    """Completions drawn per step, in a shuffled order that visits each once an epoch."""
    anchors_per_sequence: int = 32
    """Random anchors drawn anew for each completion each time; at most all it has."""
    learning_rate: float = 6e-4
    """Peak of the cosine schedule."""
    warmup_ratio: float = 0.04
    """Share of the steps over which the rate rises from 0."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`adamw` is the paper's; `muon` takes the matrices and leaves norms and biases to AdamW."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    """Largest gradient norm."""
    gamma: float | None = None
    """Slot k weighs exp(-(k - 1) / gamma); None takes the paper's value for the block size."""
    seed: int = 0
    """Of the weights, the order of completions and the anchors."""
    evaluate_every: int = 0
    """Steps between replays of the held-out store; 0 replays at the end only."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("steps", "sequences_per_step", "anchors_per_sequence"):
            if getattr(self, name) < 1:
                raise DraftlabError(f"{name} is {getattr(self, name)}.", mend="Use 1 or more.")
        if not 0 <= self.warmup_ratio < 1:
            raise DraftlabError(f"warmup_ratio is {self.warmup_ratio}.", mend="Use 0 to below 1.")
        if self.gamma is not None and self.gamma <= 0:
            raise DraftlabError(f"gamma is {self.gamma}.", mend="Use a positive decay constant.")
        return self

    def decay_constant(self, block_size: int) -> float:
        """Gamma for this block size.

        Raises:
            DraftlabError: none is set and the paper gives none for this block size.
        """
        if self.gamma is not None:
            return self.gamma
        if block_size not in _GAMMA_BY_BLOCK:
            raise DraftlabError(
                f"the paper gives gamma for blocks of {sorted(_GAMMA_BY_BLOCK)}, not {block_size}.",
                mend="Set gamma.",
            )
        return _GAMMA_BY_BLOCK[block_size]
