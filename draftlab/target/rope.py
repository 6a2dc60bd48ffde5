"""One reader for rotary settings, for targets and drafters alike.

Newer configs keep the base in `rope_parameters` (sometimes one entry per layer type), older ones in
a flat `rope_theta` with `rope_scaling` beside it. Reading only one of the two is a bug seen in five
projects: nothing errors, the base is 100 times off, and acceptance quietly falls. Nested wins; a
different flat value beside it is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftlab.base.errors import DraftlabError
from draftlab.base.records import Record

PLAIN = "default"
_LAYER_KINDS = ("full_attention", "sliding_attention", "linear_attention")


class Rope(Record):
    """Rotary position settings of one model (or of one of its layer types)."""

    theta: float
    """Base of the rotary frequencies."""
    kind: str
    """`default`, `yarn`, `linear`, `llama3`, ..."""
    partial_rotary_factor: float
    """Share of each head that is rotated; 1.0 is all of it."""
    scaling: dict[str, Any]
    """What else the kind needs (factor, original_max_position_embeddings, ...)."""
    warnings: tuple[str, ...]
    """Contradictions found while reading."""


def read_rope(scope: Mapping[str, Any], *, layer_kind: str = "full_attention") -> Rope:
    """Rotary settings from one level of a config.

    Args:
        scope: the config object that holds the layer settings (already un-nested).
        layer_kind: which entry to take where `rope_parameters` has one per layer type.

    Raises:
        DraftlabError: no base anywhere; the message names the keys that were looked for.
    """
    nested = _nested(scope, layer_kind)
    flat = scope.get("rope_theta")
    theta = nested.get("rope_theta", flat)
    if theta is None:
        raise DraftlabError(
            "no RoPE base: looked for `rope_parameters.rope_theta`, `rope_scaling.rope_theta` and "
            "`rope_theta`.",
            mend="Add the base the model was trained with; it is never guessed.",
        )
    warnings = []
    if flat is not None and float(flat) != float(theta):
        warnings.append(
            f"rope_theta is {float(flat):g} at the flat level and {float(theta):g} nested; "
            "the nested value is used."
        )
    known = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}
    partial = nested.get("partial_rotary_factor", scope.get("partial_rotary_factor", 1.0))
    return Rope(
        theta=float(theta),
        kind=str(nested.get("rope_type", nested.get("type", PLAIN))),
        partial_rotary_factor=float(partial),
        scaling={key: value for key, value in nested.items() if key not in known},
        warnings=tuple(warnings),
    )


def _nested(scope: Mapping[str, Any], layer_kind: str) -> dict[str, Any]:
    """`rope_parameters` or `rope_scaling` as one flat mapping, whatever its shape."""
    for key in ("rope_parameters", "rope_scaling"):
        value = scope.get(key)
        if not isinstance(value, Mapping):
            continue
        if any(kind in value for kind in _LAYER_KINDS):
            chosen = value.get(layer_kind) or value.get("full_attention") or {}
            return dict(chosen)
        return dict(value)
    return {}
