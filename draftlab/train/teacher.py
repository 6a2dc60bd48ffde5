"""The target's own distribution, from the output of its last layer; for the loss `kl` only.

The final norm is the target's own module, found by running its decoder, and applied exactly once:
neither its name nor its rule (w or 1 + w) is restated here. What comes out is held against the
log-probabilities that the capture stored, in every batch: a state that is off by a norm, a row or
some noise shows there, while its argmax may well survive.

Shape letters: R rows, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from draftlab.base.errors import StoreError, TargetError
from draftlab.drafter.ends import TargetEnds
from draftlab.target.compute import Compute
from draftlab.target.head import HeadPiece
from draftlab.target.layerwise import passing_through
from draftlab.target.loading import LoadedTarget
from draftlab.target.skeleton import Skeleton

_MEAN_ERROR = {torch.bfloat16: 0.05, torch.float32: 1e-3}
"""Largest mean difference of log-probabilities, by the coarser of the types computed in."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's final norm and head."""

    norm: Callable[[Tensor], Tensor]
    head: HeadPiece

    @classmethod
    def open(cls, target_folder: Path, ends: TargetEnds, compute: Compute) -> Teacher:
        """Read the target's final norm; its layers are not read.

        Raises:
            TargetError: the target cannot be built, or does more after its last layer than a norm
                and a linear head.
        """
        skeleton = Skeleton.open(target_folder, compute)
        head = skeleton.settle()
        if head.rows(0, 1)[1] is not None:
            raise TargetError(
                f"{skeleton.target.facts.architecture} has a bias in its head.",
                mend="The loss kl does not know it; use ce.",
            )
        norm = final_norm(skeleton.target).to(ends.dtype)
        return cls(norm, HeadPiece(0, ends.head_VH, None, head.softcap))

    def log_probs(self, last_RH: Tensor) -> Tensor:
        """Log-probabilities [R, V] of the next token, from outputs of the target's last layer."""
        normed_RH = self.norm(last_RH.to(self.head.weight_vH))
        return self.head.logits(normed_RH).log_softmax(dim=-1)


@torch.no_grad()
def final_norm(target: LoadedTarget) -> nn.Module:
    """The module whose output is the decoder's, once its layers are taken out.

    Raises:
        TargetError: no single module is.
    """
    decoder = target.model.get_decoder()
    outputs: list[tuple[nn.Module, object]] = []
    handles = [
        module.register_forward_hook(lambda module, _, output: outputs.append((module, output)))
        for module in decoder.children()
        if module is not target.layers
    ]
    try:
        with passing_through(target):
            ids_11 = torch.zeros(1, 1, dtype=torch.long, device=target.model.device)
            last = decoder(input_ids=ids_11, use_cache=False).last_hidden_state
    finally:
        for handle in handles:
            handle.remove()
    found = [module for module, output in outputs if output is last]
    if len(found) != 1:
        raise TargetError(
            f"{target.facts.architecture} ends in {len(found)} modules, not in one final norm.",
            mend="The loss kl does not know this architecture; use ce.",
        )
    return found[0]


class Lesson:
    """The target's distribution at some rows, chunk by chunk, held against the capture's."""

    def __init__(
        self, teacher: Teacher, last_RH: Tensor, tokens_R: Tensor, logprobs_R: Tensor
    ) -> None:
        """Of rows with these states, the tokens emitted after them, their captured log-probs."""
        self._teacher = teacher
        self._last_RH = last_RH
        self._tokens_R = tokens_R
        self._logprobs_R = logprobs_R
        self._found: list[Tensor] = []

    def log_probs(self, rows: slice) -> Tensor:
        """Log-probabilities [r, V] at these rows."""
        found_rV = self._teacher.log_probs(self._last_RH[rows])
        own_r = found_rV.gather(1, self._tokens_R[rows].unsqueeze(1)).squeeze(1)
        self._found.append((own_r - self._logprobs_R[rows]).abs())
        return found_rV

    def require_agreement(self) -> None:
        """Check all rows taught so far.

        Raises:
            StoreError: they give the emitted tokens other probabilities than the capture did.
        """
        error = float(torch.cat(self._found).mean())
        types = (self._last_RH.dtype, self._teacher.head.weight_vH.dtype)
        allowed = _MEAN_ERROR[torch.bfloat16 if torch.bfloat16 in types else torch.float32]
        if not error <= allowed:
            raise StoreError(
                "from the stored last layer the emitted tokens get log-probabilities that differ "
                f"from the captured ones by {error:.3g} on average; {allowed:g} is rounding.",
                mend="These states do not make the target's logits; capture the store again.",
            )
