"""Some rows captured here as well, to know whose states a server gives; and the record of it.

STORE/served.json   per run: the server, the layer ids that it states, what was compared
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from torch import Tensor

from draftlab.base.errors import StoreError
from draftlab.base.progress import Track
from draftlab.base.records import Document, Provenance, Record, sha256_json
from draftlab.hidden.capture import capture
from draftlab.hidden.export import Exported, how_to_start
from draftlab.hidden.identity import (
    TOLERANCE,
    OtherLayers,
    TapCheck,
    layers_around,
    recognise,
)
from draftlab.hidden.journal import SCRATCH_NAME
from draftlab.hidden.state_server import StateServer
from draftlab.reference.completions import Reference
from draftlab.target.compute import Compute
from draftlab.target.facts import TargetFacts

SERVED_NAME = "served.json"


class ServedRun(Record):
    """One run of a capture from a server."""

    server: str
    version: str
    model_id: str
    stated_layer_ids: tuple[int, ...] | None
    """The ids that the server says it was started with, in its own counting."""
    dtype: Literal["float32", "bfloat16"]
    """Of the states, as they came."""
    tolerance: float
    checks: tuple[TapCheck, ...]
    provenance: Provenance


class ServedRecord(Document):
    """What the states of a store were believed on; no part of its content."""

    SCHEMA: ClassVar[str] = "draftlab.served/1"

    runs: tuple[ServedRun, ...]


def note_run(out: Path, run: ServedRun) -> None:
    """Add a run to the record of a store."""
    path = out / SERVED_NAME
    earlier = ServedRecord.load(path).runs if path.is_file() else ()
    ServedRecord(runs=(*earlier, run)).save(path)


def dtype_of(rows: Mapping[int, Exported]) -> Literal["float32", "bfloat16"]:
    """The number type that holds these states exactly."""
    return "bfloat16" if all(row.is_bfloat16 for row in rows.values()) else "float32"


@dataclass(frozen=True, slots=True)
class OwnLayers:
    """The target that a server should serve, and the rows to know it by."""

    reference: Reference
    target_folder: Path
    target_layer_ids: tuple[int, ...]
    out: Path
    compute: Compute
    track: Track

    def check(self, alone: Mapping[int, Exported], server: StateServer) -> ServedRun:
        """Compare what the server gave of some rows with this target's own layers.

        Raises:
            StoreError: they are not the states of these layers.
        """
        own, checks = self._states(sorted(alone)), []
        for number, exported in sorted(alone.items()):
            row = self.reference.completions[number].id
            served_SC = exported.states_TC[:-1]  # no pass here has read the last token
            try:
                checks += recognise(
                    served_SC, own[number], self.target_layer_ids, row=row, dtype=self.compute.dtype
                )
            except OtherLayers as error:
                mend = _other_ids(server, error)
                raise StoreError(f"row {row!r}: {error}", mend=mend) from error
        return ServedRun(
            server=server.facts.name,
            version=server.facts.version,
            model_id=server.facts.model_id,
            stated_layer_ids=server.stated_layer_ids,
            dtype=self.compute.dtype,
            tolerance=TOLERANCE[self.compute.dtype],
            checks=tuple(checks),
            provenance=Provenance.now(),
        )

    def _states(self, numbers: Sequence[int]) -> dict[int, dict[int, Tensor]]:
        """Outputs [S, H] of the layers to compare with, by row and layer."""
        facts = TargetFacts.from_folder(self.target_folder)
        layers = layers_around(self.target_layer_ids, facts.num_layers)
        rows = [self.reference.completions[number] for number in numbers]
        digest = sha256_json([row.model_dump(mode="json") for row in rows])
        record = self.reference.record.model_copy(update={"completions_sha256": digest})
        some = Reference(self.reference.folder, record, rows)
        name = f"own-{sha256_json([digest, layers, self.compute.dtype])[:16]}"
        folder = self.out / SCRATCH_NAME / name
        store = capture(some, self.target_folder, layers, folder, self.compute, track=self.track)
        return {
            number: dict(zip(layers, store.read(k).taps_SC.chunk(len(layers), dim=-1), strict=True))
            for k, number in enumerate(numbers)
        }


def _other_ids(server: StateServer, error: OtherLayers) -> str:
    """What to start the server with, in its own counting where it says that."""
    stated = server.stated_layer_ids
    if stated is None or len(stated) != len(error.found):
        return how_to_start(server.exporter, error.wanted)
    ids = [
        said + wanted - found
        for said, wanted, found in zip(sorted(stated), error.wanted, error.found, strict=True)
    ]
    return (
        f"It says that it was started with the ids {_spaced(stated)}; start it with "
        f"{_spaced(ids)}: --return-aux-hidden-state-layer-ids {_spaced(ids)}."
    )


def _spaced(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))
