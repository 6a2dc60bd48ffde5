"""How training measures error: which loss, which weights, and how it is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import ConfigDict, model_validator

from draftlab.base.errors import DraftlabError
from draftlab.base.records import Record

if TYPE_CHECKING:
    from torch import Tensor

    from draftlab.train.loss import LossSums

LossKind = Literal["ce", "argmax_ce", "kl"]
Weighting = Literal["decay", "dpace", "uniform"]
AttentionWish = Literal["auto", "dense", "flex"]
STREAK_WIDTH = 8
"""The k of the streak in training logs."""


class Section(Record):
    """A section of a training configuration; the text below each field explains it to users."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class LossOptions(Section):
    """What is summed over labelled slots; by default hard cross-entropy, weighted by D-PACE."""

    loss: LossKind = "ce"
    """`ce`: cross-entropy on the target's own tokens. For comparison only: `argmax_ce`, on the
    target's argmax where each token stands; `kl`, forward KL to the target's distribution."""
    weighting: Weighting = "dpace"
    """`decay`: slot k weighs exp(-(k - 1) / gamma). `dpace`: by the block's own confidence,
    arXiv:2605.18810. `uniform`: 1."""
    gamma: float | None = None
    """Decay constant; needed where weighting is `decay`."""
    alpha: float = 0.5
    """D-PACE's smoothing."""
    chunk_rows: int = 128
    """Rows whose logits exist at a time, at least one block's."""
    checkpointing: bool = False
    """Recompute each layer in the backward instead of keeping its activations."""
    attention: AttentionWish = "auto"
    """`dense`: plain products. `flex`: one fused kernel, on a GPU. `auto`: the kernel where it
    compiles and agrees with plain products on a trial; the log says which."""
    noise_std: float = 0.0
    """Standard deviation of normal noise on the taps."""
    noise_uniform: float = 0.0
    """Half-width of uniform noise on the taps."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.weighting == "decay" and (self.gamma is None or self.gamma <= 0):
            raise DraftlabError(
                f"weighting decay with gamma {self.gamma}.",
                mend="Set loss.gamma; the paper takes 7 for blocks of 16, 5 for 10 and 4 for 8.",
            )
        if not 0 <= self.alpha <= 1:
            raise DraftlabError(f"alpha is {self.alpha}.", mend="Use 0 to 1.")
        if self.chunk_rows < 1:
            raise DraftlabError(f"chunk_rows is {self.chunk_rows}.", mend="Use 1 or more.")
        if self.weighting == "dpace" and self.loss == "kl":
            raise DraftlabError(
                "D-PACE weighs by the probability of a label; kl has none.",
                mend="Use --weighting decay with kl, or the loss ce.",
            )
        if min(self.noise_std, self.noise_uniform) < 0 or self.noise_std * self.noise_uniform:
            raise DraftlabError(
                f"noise_std {self.noise_std} with noise_uniform {self.noise_uniform}.",
                mend="Use one of them, 0 or more.",
            )
        return self

    @property
    def has_noise(self) -> bool:
        """Whether noise is added to the taps."""
        return self.noise_std > 0 or self.noise_uniform > 0

    @property
    def warning(self) -> str | None:
        """What a log says each time such a loss is used; None for the recipe's own."""
        return {
            "ce": None,
            "argmax_ce": "loss argmax_ce, for comparison only: cross-entropy on the target's "
            "argmax, not on the tokens it emitted",
            "kl": "loss kl, for comparison only: forward KL to the target's distribution, not "
            "cross-entropy on its tokens",
        }[self.loss]

    def denominator(self, sums: LossSums) -> Tensor:
        """What the sum of a whole optimizer step is divided by.

        The sum of weights (SpecForge, NeMo); for D-PACE the number of labelled slots, since its
        weights carry the scale of what is learned (speculators).
        """
        return sums.labelled if self.weighting == "dpace" else sums.weight
