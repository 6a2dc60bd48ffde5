"""What training reads of a stored sequence: tokens, the drafter's taps, and for soft losses more.

A store may hold more layers than the drafter taps; the drafter's columns are picked by layer, never
by place.

Shape letters: T tokens, S = T - 1 context positions, C = taps * H, H hidden size, n completion
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftlab.base.errors import DrafterError
from draftlab.drafter.config import DrafterConfig


@dataclass(frozen=True, slots=True)
class Document:
    """One prompt with its completion, as training reads it."""

    tokens_T: Tensor
    """Prompt and completion, int64."""
    taps_SC: Tensor
    """The drafter's taps, in its order, for every position but the last."""
    prompt_length: int
    """Also the position of the first completion token, the first possible anchor."""
    argmax_n: Tensor | None = None
    """The target's own choice where each completion token stands; for `argmax_ce` only."""
    last_SH: Tensor | None = None
    """Output of the target's last layer, before its final norm; for `kl` only."""
    logprobs_n: Tensor | None = None
    """Captured log-probability of each completion token, which `last_SH` must reproduce."""
    noise_seed: int | None = None
    """Seed of the noise on the taps, where there is noise: `draw_seed` of seed, epoch, number."""


def require_width(document: Document, shape: DrafterConfig) -> None:
    """Refuse states of another width than the drafter's taps have together.

    Raises:
        DrafterError: says how many states there are for how many taps.
    """
    width, hidden = document.taps_SC.shape[1], shape.hidden_size
    if width != shape.num_taps * hidden:
        raise DrafterError(
            f"the states are {width} wide, {width / hidden:g} x {hidden}; the drafter has "
            f"{shape.num_taps} taps.",
            mend="A dump with the last layer beside the taps is split first; Material picks "
            "columns by layer.",
        )


def require_clean_taps(shape: DrafterConfig, *, allow_last_layer: bool = False) -> None:
    """Refuse a drafter that reads the state which makes the target's logits.

    Args:
        shape: of the drafter.
        allow_last_layer: MiMo's and Laguna's drafters tap the last layer on purpose.

    Raises:
        DrafterError: it taps the last layer and that is not allowed.
    """
    last = shape.num_target_layers - 1
    if last in shape.target_layer_ids and not allow_last_layer:
        raise DrafterError(
            f"the drafter is to tap layer {last}, the target's last, whose output makes its "
            "logits: a dump of n + 1 states is not n taps.",
            mend=f"Leave layer {last} out, or set drafter.allow_last_layer if that is meant.",
        )
