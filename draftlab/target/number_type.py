"""Which number type a target is computed in where nobody says: a rule, and its reason in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple, Self

from draftlab.base.cpu import NATIVE_BFLOAT16, native_bfloat16
from draftlab.base.quantities import listing
from draftlab.target.tensors import TensorFiles

NumberType = Literal["float32", "bfloat16"]

LARGE_BYTES = 2 * 10**9
"""From so many bytes of bfloat16 weights on, computing in it is worth it on a CPU: float32 would
take as much memory again, and time that is felt. Below, float32 costs little, and its texts are
those of other programs that compute in float32."""

_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


class Chosen(NamedTuple):
    """A number type and why it was taken."""

    dtype: NumberType
    why: str


@dataclass(frozen=True, slots=True)
class Weights:
    """What of a target's files decides."""

    num_values: int
    stored: str
    """Number type of most of them, as safetensors calls it."""

    @classmethod
    def of(cls, files: TensorFiles) -> Self:
        """Of a folder's headers."""
        counts: Counter[str] = Counter()
        for info in files.infos.values():
            counts[info.dtype] += prod(info.shape)
        return cls(counts.total(), counts.most_common(1)[0][0])


def choose_number_type(device: str, weights: Weights | None, flags: Collection[str]) -> Chosen:
    """The number type for `auto`.

    A GPU computes in bfloat16. A CPU computes in float32, but for a target that is stored in
    bfloat16 and takes 2 GB or more, where every processor multiplies that type itself. Half the
    memory and several times the speed are then worth the difference to other programs' texts.
    float16 is never chosen: many targets overflow it.

    Args:
        device: `cpu` or `cuda`.
        weights: the target's, if one is computed.
        flags: of the processors.
    """
    if device == "cuda":
        return Chosen("bfloat16", "a GPU computes")
    if weights is None:
        return Chosen("float32", "a CPU computes")
    num_bytes = 2 * weights.num_values
    size = f"{num_bytes / 1e9:.3g} GB of weights"
    if weights.stored != "BF16":
        stored = _NAMES.get(weights.stored, weights.stored)
        return Chosen("float32", f"the checkpoint is stored in {stored}")
    if num_bytes < LARGE_BYTES:
        return Chosen("float32", f"{size} are few")
    native = native_bfloat16(flags)
    if native is None:
        names = listing(NATIVE_BFLOAT16)
        return Chosen("float32", f"the CPU has no bfloat16 arithmetic (none of {names})")
    return Chosen("bfloat16", f"the CPU has {native}, and there are {size}")
