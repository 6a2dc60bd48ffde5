"""Putting tensors of a checkpoint into part of a model, by transformers' own loading rule.

Which tensor goes where (renamed prefixes, experts that are merged, fused projections) is decided
in transformers for each architecture and changes with its versions; it is used here, not restated.
These names are not in its documented interface, so they are imported in this file alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import conversion_mapping, core_model_loading, modeling_utils

from draftlab.base.errors import TargetError
from draftlab.base.quantities import listing
from draftlab.target.loading import without_bars
from draftlab.target.ranges import ByteRange, read_whole

_conversion: Any = conversion_mapping
_loading: Any = core_model_loading
_modeling: Any = modeling_utils


@dataclass(frozen=True, slots=True)
class _Lazy:
    """A tensor that is read when the loader comes to it."""

    where: ByteRange
    dtype: torch.dtype

    def __getitem__(self, _everything: object) -> Tensor:
        return read_whole(self.where, self.dtype)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A tensor that is never read: for trying whether the files fill the model."""

    where: ByteRange

    def __getitem__(self, _everything: object) -> Tensor:
        return torch.empty(self.where.shape, dtype=self.where.dtype, device="meta")


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one tensor of the files goes."""

    parameter: str
    """Name in the model; the first one, where a tensor is split into several."""
    as_it_is: bool
    """Whether it becomes that parameter without being merged, split or turned."""


class Filler:
    """Fills parts of one model that is on the meta device."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._model = model
        self._dtype = dtype
        self._mapping = _conversion.get_model_conversion_mapping(model)

    def destinations(self, names: Iterable[str]) -> dict[str, Destination]:
        """Where each of these tensors goes; those that the model has no place for are left out."""
        places = self._model.state_dict()
        renamings = [m for m in self._mapping if isinstance(m, _loading.WeightRenaming)]
        converters = [m for m in self._mapping if isinstance(m, _loading.WeightConverter)]
        prefix = self._model.base_model_prefix
        found = {}
        for name in names:
            parameter, pattern = _loading.rename_source_key(
                name, renamings, converters, prefix, places
            )
            if parameter not in places and name in places:  # the loader's own second try
                parameter, pattern = _loading.rename_source_key(name, [], [], prefix, places)
            if parameter in places:
                found[name] = Destination(parameter, pattern is None)
        return found

    def fill(self, ranges: Iterable[ByteRange], device: torch.device) -> None:
        """Read these tensors and put them in their places.

        Raises:
            TargetError: one has another shape than its place, or cannot be converted.
        """
        self._load({r.name: _Lazy(r, self._dtype) for r in ranges}, device)

    def missing_after_all(self, ranges: Iterable[ByteRange]) -> set[str]:
        """Places that would stay empty if all of these were filled in; nothing is read.

        Raises:
            TargetError: one has another shape than its place, or cannot be converted.
        """
        missing: set[str] = self._load({r.name: _Shape(r) for r in ranges}, torch.device("meta"))
        return missing

    def _load(self, tensors: Mapping[str, _Lazy | _Shape], device: torch.device) -> Any:
        settings = _modeling.LoadStateDictConfig(
            device_map={"": device},
            dtype=self._dtype,
            dtype_plan=self._model._get_dtype_plan(self._dtype),  # noqa: SLF001 (see above)
            weight_mapping=self._mapping,
        )
        with without_bars():
            info, _ = _loading.convert_and_load_state_dict_in_model(self._model, tensors, settings)
        amiss = [*(str(key) for key in info.mismatched_keys), *map(str, info.conversion_errors)]
        if amiss:
            raise TargetError(
                f"{len(amiss)} weights have another shape than config.json says: {listing(amiss)}.",
                mend="The checkpoint is incomplete or its config.json is of another model.",
            )
        return info.missing_keys
