"""The target's own distribution, from the output of its last layer; for `kl` only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's final norm and head."""
