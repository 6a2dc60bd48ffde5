"""What a run learns from: the completions of a store, by number, and which of them can be used."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftlab.base.errors import DrafterError, StoreError
from draftlab.base.quantities import listing
from draftlab.drafter.config import DrafterConfig
from draftlab.hidden.store import HiddenStore, StoredSequence
from draftlab.train.blocks import num_anchors
from draftlab.train.documents import Document


@dataclass(frozen=True, slots=True)
class Material:
    """A store, read as documents of one drafter's taps."""

    store: HiddenStore
    columns: slice | Tensor
    """Of the store's states, those that the drafter reads, in its order."""
    last_columns: slice | Tensor | None
    """Those of the target's last layer, for losses against its distribution."""
    usable: tuple[int, ...]
    """Sequence numbers with at least one anchor."""
    too_short: tuple[str, ...]
    """Ids of the others."""

    @classmethod
    def of(cls, store: HiddenStore, shape: DrafterConfig, *, with_last: bool = False) -> Material:
        """Look at a store with a drafter's eyes.

        Args:
            store: what to read.
            shape: the drafter that reads it.
            with_last: read the target's last layer beside its taps.

        Raises:
            DrafterError: the store lacks a layer that the drafter reads.
            StoreError: no completion has an anchor.
        """
        entries = store.index.sequences
        usable = [i for i, entry in enumerate(entries) if num_anchors(entry.completion_tokens)]
        if not usable:
            raise StoreError(
                f"none of the {len(entries)} completions has two tokens.",
                mend="Make a reference with longer completions.",
            )
        short = [e.id for e in entries if not num_anchors(e.completion_tokens)]
        stored, width = store.index.conditions.target_layer_ids, shape.hidden_size
        columns = _columns(stored, shape.target_layer_ids, width)
        last = _columns(stored, (shape.num_target_layers - 1,), width) if with_last else None
        return cls(store, columns, last, tuple(usable), tuple(short))

    def sequence(self, number: int) -> StoredSequence:
        """One sequence, with the states that the drafter reads."""
        sequence = self.store.read(number)
        return replace(sequence, taps_SC=sequence.taps_SC[:, self.columns])

    def read(self, number: int, noise_seed: int | None = None) -> Document:
        """One completion to train on."""
        sequence = self.store.read(number)
        last = None if self.last_columns is None else sequence.taps_SC[:, self.last_columns]
        return Document(
            tokens_T=sequence.tokens_T,
            taps_SC=sequence.taps_SC[:, self.columns],
            prompt_length=sequence.prompt_length,
            argmax_n=sequence.argmax_n,
            last_SH=last,
            logprobs_n=sequence.logprobs_n,
            noise_seed=noise_seed,
        )

    def num_tokens(self, number: int) -> int:
        """Completion tokens."""
        return self.store.index.sequences[number].completion_tokens

    @property
    def share_supervised(self) -> float:
        """Completion tokens among all tokens of the usable sequences."""
        entries = [self.store.index.sequences[number] for number in self.usable]
        learned = sum(entry.completion_tokens for entry in entries)
        return learned / sum(entry.prompt_tokens + entry.completion_tokens for entry in entries)


def require_disjoint(store: HiddenStore, heldout: HiddenStore) -> None:
    """Refuse a held-out store that shares a prompt or a text with the training store.

    Raises:
        StoreError: names what they share.
    """
    both = {e.id for e in store.index.sequences} & {e.id for e in heldout.index.sequences}
    if store.index.conditions.reference_digest == heldout.index.conditions.reference_digest:
        both = {e.id for e in heldout.index.sequences}
    if both:
        raise StoreError(
            f"{len(both)} completions are in the training store and held out: "
            f"{listing(sorted(both))}.",
            mend="Split by prompt before training: what was learned says nothing about the rest.",
        )


def _columns(stored: tuple[int, ...], wanted: tuple[int, ...], width: int) -> slice | Tensor:
    """Columns of these layers, picked by layer and never by place."""
    if wanted == stored:
        return slice(None)
    absent = sorted(set(wanted) - set(stored))
    if absent:
        raise DrafterError(
            f"layers {list(wanted)} are to be read; the store holds {list(stored)}.",
            mend=f"Capture with layers {','.join(map(str, absent))} too.",
        )
    places = [stored.index(layer) for layer in wanted]
    return torch.cat([torch.arange(place * width, (place + 1) * width) for place in places])
