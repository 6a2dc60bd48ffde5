"""Whose states are these? A server's, compared with those of the target's own layers.

Servers count layers in different ways, and a shift by one costs a drafter a few percent without
any error. So some rows are captured here too, each tapped layer with both of its neighbours, and
what a server gave is looked for among all of them.

    distance    of one position: |served - own| / |own|, Euclidean over the H values
    typical     median of the distances of a row's positions: which layer is nearest
    nearly all  their 95 % quantile: whether the row is that row under that target

A tap is recognised where one layer is nearest, nearly all of its positions are within the
tolerance, and every other layer is typically at least twice as far.

Shape letters: S positions of one sequence, H hidden size, C taps x H.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from draftlab.base.errors import StoreError
from draftlab.base.records import Record

TOLERANCE = {"float32": 5e-3, "bfloat16": 0.2}
"""By the number type of the states. bfloat16 rounds to 1/256 in every layer, and every kernel in
its own order: on a small random target with sharp attention, 0.06 for nearly all positions and
0.02 for the typical one, where the next layer is 0.5 away and another row more than 1. In float32
a GPU may multiply in TF32."""
CLEARLY = 2.0
"""How much farther every other layer must be."""
NEARLY_ALL = 0.95


class TapCheck(Record):
    """One tapped layer of one row, found again."""

    row: str
    layer: int
    nearly_all: float
    """Distance within which 95 % of the positions lie."""
    typical: float
    typical_of_next_best: float
    """Of the other layers that were compared, the nearest."""


def layers_around(target_layer_ids: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """The tapped layers and their neighbours, those that exist."""
    around = {k + step for k in target_layer_ids for step in (-1, 0, 1)}
    return tuple(sorted(k for k in around if 0 <= k < num_layers))


def recognise(
    served_SC: Tensor,
    own: Mapping[int, Tensor],
    target_layer_ids: Sequence[int],
    *,
    row: str,
    dtype: str,
) -> list[TapCheck]:
    """Find each served layer among the target's own.

    Args:
        served_SC: what a server gave of one row, as float32.
        own: outputs [S, H] of the target's layers on the same row, by layer.
        target_layer_ids: the layers that the served ones should be.
        row: its id, for messages.
        dtype: number type of the states.

    Raises:
        OtherLayers: they are the outputs of other layers.
        StoreError: they are those of none, or which they are cannot be told.
    """
    tolerance, checks, found = TOLERANCE[dtype], [], []
    for layer, served_SH in zip(
        target_layer_ids, served_SC.chunk(len(target_layer_ids), dim=-1), strict=True
    ):
        distances = {k: _distances(served_SH, own_SH.float()) for k, own_SH in own.items()}
        typical = {k: float(distance_S.median()) for k, distance_S in distances.items()}
        first, second = sorted(typical, key=lambda k: (typical[k], k))[:2]
        nearly_all = float(distances[first].quantile(NEARLY_ALL))
        if not nearly_all <= tolerance:
            raise StoreError(
                f"row {row!r}: what the server gives for layer {layer} is the output of no layer "
                f"of {_named(own)}: nearest is {first}, and nearly all positions are within "
                f"{nearly_all:.2g} of it, not {tolerance:g}.",
                mend="Is --target the model that is served, unquantised, and --layers what the "
                "server was started for? A server that mixes up requests gives this too.",
            )
        if typical[second] < CLEARLY * typical[first]:
            raise StoreError(
                f"row {row!r}: what the server gives for layer {layer} may be the output of layer "
                f"{first} or {second}: they are {typical[first]:.2g} and {typical[second]:.2g} "
                "away.",
                mend="Compare in a wider number type: --dtype float32, on a server that computes "
                "in it.",
            )
        found.append(first)
        checks.append(
            TapCheck(
                row=row,
                layer=layer,
                nearly_all=nearly_all,
                typical=typical[first],
                typical_of_next_best=typical[second],
            )
        )
    if found != list(target_layer_ids):
        raise OtherLayers(target_layer_ids, found)
    return checks


class OtherLayers(StoreError):
    """A server gives the outputs of other layers than those that were asked for."""

    def __init__(self, wanted: Sequence[int], found: Sequence[int]) -> None:
        self.wanted = tuple(wanted)
        self.found = tuple(found)
        shifts = {b - a for a, b in zip(wanted, found, strict=True)}
        shift = f", shifted by {shifts.pop():+d}" if len(shifts) == 1 else ""
        super().__init__(
            f"the server gives the outputs of layers {_named(found)} where {_named(wanted)} are "
            f"wanted{shift}.",
            mend="Start it with the ids that give the wanted ones.",
        )


def require_same(again_SC: Tensor, before_SC: Tensor, *, row: str, dtype: str) -> None:
    """Refuse states of a row that another request for the same row did not give.

    Raises:
        StoreError: they differ by more than rounding.
    """
    nearly_all = float(_distances(again_SC, before_SC).quantile(NEARLY_ALL))
    if not nearly_all <= TOLERANCE[dtype]:
        raise StoreError(
            f"row {row!r}: the server gave other states with more requests in flight; nearly all "
            f"positions are within {nearly_all:.2g}, not {TOLERANCE[dtype]:g}.",
            mend="Pass --concurrency 1, and look for what the server shares between requests.",
        )


def _distances(served_SH: Tensor, own_SH: Tensor) -> Tensor:
    """One for each position."""
    length_S = torch.linalg.vector_norm(own_SH, dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    away_S: Tensor = torch.linalg.vector_norm(served_SH - own_SH, dim=-1)
    distance_S: Tensor = away_S / length_S
    return distance_S


def _named(layers: Mapping[int, Tensor] | Sequence[int]) -> str:
    return ", ".join(map(str, layers))
