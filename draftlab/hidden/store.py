"""The hidden-state store: what the target was thinking over each reference completion.

    STORE/index.json              what is in it, with the digest of every shard; written last
    STORE/states-00000.safetensors  a few sequences each
    STORE/provenance.json         when and by which command
    STORE/job.json, journal.jsonl   only while unfinished

The index and the shards are functions of their inputs alone: a capture that was killed and
continued ends in the same bytes as one that was not. When and how it ran is in provenance.json.

Of sequence `i`, with P prompt and n completion tokens, a shard holds

    i.tokens     int32 [P + n]
    i.taps       [P + n - 1, taps * H]  outputs of the tapped layers, concatenated in tap order, for
                 every position but the last (whose token no pass has read yet)
    i.argmax     int32 [n]    the target's own choice where each completion token stands
    i.logprobs   float32 [n]  log-probability of the completion token under the target
    i.margins    float32 [n]  log-probability of the argmax less that of the runner-up
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from safetensors import safe_open
from torch import Tensor

from draftlab.base.errors import StoreError
from draftlab.base.records import Document, Provenance, Record, sha256_file, sha256_json
from draftlab.reference.completions import IdsFrom, SameTarget, Thinking

INDEX_NAME = "index.json"
PROVENANCE_NAME = "provenance.json"
TAP_MEANING = "output of the 0-based decoder layer, before any final norm"


class ShardEntry(Record):
    """One file of states."""

    file: str
    num_bytes: int
    sha256: str


class SequenceEntry(Record):
    """One sequence of the store."""

    id: str
    domain: str
    shard: int
    prompt_tokens: int
    completion_tokens: int
    finish: Literal["stop", "length"]
    agreeing: int
    """Completion tokens that equal the target's argmax in this capture."""


class CaptureConditions(Record):
    """What the states are states of."""

    reference_digest: str
    prompts_digest: str
    target_fingerprint: str
    target_architecture: str
    num_target_layers: int
    hidden_size: int
    vocab_size: int
    target_layer_ids: tuple[int, ...]
    tap_meaning: str
    dtype: Literal["float32", "bfloat16"]
    """Of the pass and of the stored states."""
    device: str
    temperature: float
    thinking: Thinking
    template_digest: str
    max_new_tokens: int
    ignore_eos: bool
    ids_from: IdsFrom = "target"
    """Whose token ids the completions are; `retokenised` ones need not be those that were said."""
    same_target: SameTarget = "checked"
    """Whether this target is known to be the one that wrote the reference. Stores from before there
    were server references lack both: all of them were the target's own, and checked."""


class CaptureProvenance(Document):
    """When and from where a store was made; no part of its content."""

    SCHEMA: ClassVar[str] = "draftlab.store-provenance/1"

    provenance: Provenance
    target_folder: str
    """Where the target was. If it has moved, commands take --target."""


class StoreIndex(Document):
    """The record that makes a folder a store."""

    SCHEMA: ClassVar[str] = "draftlab.store/1"

    conditions: CaptureConditions
    shards: tuple[ShardEntry, ...]
    sequences: tuple[SequenceEntry, ...]

    @property
    def num_tokens(self) -> int:
        """Completion tokens in all."""
        return sum(entry.completion_tokens for entry in self.sequences)

    @property
    def agreement(self) -> float:
        """Share of completion tokens that equal the target's argmax."""
        return sum(entry.agreeing for entry in self.sequences) / self.num_tokens


@dataclass(frozen=True, slots=True)
class StoredSequence:
    """One sequence read back."""

    entry: SequenceEntry
    tokens_T: Tensor
    """int64 [P + n]"""
    taps_SC: Tensor
    """[P + n - 1, taps * H], as stored."""
    argmax_n: Tensor
    logprobs_n: Tensor
    margins_n: Tensor

    @property
    def prompt_length(self) -> int:
        """P, which is also the position of the first completion token, the first anchor."""
        return self.entry.prompt_tokens


class HiddenStore:
    """A finished store, read one sequence at a time."""

    def __init__(self, folder: Path, index: StoreIndex) -> None:
        self.folder = folder
        self.index = index
        self._verified: set[int] = set()

    @classmethod
    def open(cls, folder: Path) -> HiddenStore:
        """Read the index and check that every shard is there in its full size.

        Raises:
            StoreError: no store, an unfinished one, or a shard missing or cut short.
        """
        if not folder.is_dir():
            raise StoreError(
                f"no folder {folder}.", mend="Make a store: draftlab capture REF --out ..."
            )
        if not (folder / INDEX_NAME).is_file():
            raise StoreError(
                f"{folder} has no {INDEX_NAME}: it is not a store, or its capture is unfinished.",
                mend="Run the same draftlab capture command again; it continues where it stopped.",
            )
        index = StoreIndex.load(folder / INDEX_NAME)
        for shard in index.shards:
            path = folder / shard.file
            size = path.stat().st_size if path.is_file() else 0
            if size != shard.num_bytes:
                raise StoreError(
                    f"{path} has {size:,} of {shard.num_bytes:,} bytes.",
                    mend="Copy the store again, or capture it again.",
                )
        return cls(folder, index)

    @property
    def digest(self) -> str:
        """Identifies the content: a digest of the index, which holds the shards' digests."""
        return sha256_json(self.index.model_dump(mode="json"))

    @property
    def target_folder(self) -> Path:
        """Where the target was when the store was captured.

        Raises:
            StoreError: the record of it is gone.
        """
        path = self.folder / PROVENANCE_NAME
        if not path.is_file():
            raise StoreError(f"{path} is gone.", mend="Pass --target.")
        return Path(CaptureProvenance.load(path).target_folder)

    def __len__(self) -> int:
        return len(self.index.sequences)

    def read(self, number: int) -> StoredSequence:
        """One sequence; the digest of its shard is checked the first time the shard is read.

        Raises:
            StoreError: the shard's bytes are not those that were written, or a state is not finite.
        """
        entry = self.index.sequences[number]
        path = self.folder / self.index.shards[entry.shard].file
        self._verify(entry.shard, path)
        with safe_open(path, framework="pt") as file:
            tensors = {
                name: file.get_tensor(f"{number}.{name}")
                for name in ("tokens", "taps", "argmax", "logprobs", "margins")
            }
        sequence = StoredSequence(
            entry=entry,
            tokens_T=tensors["tokens"].long(),
            taps_SC=tensors["taps"],
            argmax_n=tensors["argmax"].long(),
            logprobs_n=tensors["logprobs"],
            margins_n=tensors["margins"],
        )
        self._check_shapes(sequence)
        return sequence

    def _verify(self, shard: int, path: Path) -> None:
        if shard in self._verified:
            return
        if sha256_file(path) != self.index.shards[shard].sha256:
            raise StoreError(
                f"{path} has changed since it was captured (digest differs).",
                mend="Copy the store again, or capture it again.",
            )
        self._verified.add(shard)

    def _check_shapes(self, sequence: StoredSequence) -> None:
        entry, conditions = sequence.entry, self.index.conditions
        width = len(conditions.target_layer_ids) * conditions.hidden_size
        wanted = (entry.prompt_tokens + entry.completion_tokens - 1, width)
        if tuple(sequence.taps_SC.shape) != wanted:
            raise StoreError(
                f"sequence {entry.id!r} has states {tuple(sequence.taps_SC.shape)} for {wanted}.",
                mend="Capture it again.",
            )
        require_finite(sequence.taps_SC, entry.id, conditions.target_layer_ids)


def require_finite(taps_SC: Tensor, name: str, target_layer_ids: Sequence[int]) -> None:
    """Refuse states with infinities or NaN, saying where.

    Raises:
        StoreError: names the sequence, the first bad position and the tap.
    """
    if bool(torch.isfinite(taps_SC).all()):
        return
    row, column = torch.nonzero(~torch.isfinite(taps_SC))[0].tolist()
    layer = target_layer_ids[column // (taps_SC.shape[1] // len(target_layer_ids))]
    raise StoreError(
        f"sequence {name!r}, position {row}: the output of layer {layer} is not finite.",
        mend="Capture with --dtype float32 or bfloat16; float16 overflows on many targets.",
    )
