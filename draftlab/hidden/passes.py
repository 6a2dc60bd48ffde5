"""Which sequences share a pass, and what a pass reads.

Sequences of like length share a pass. They are padded on the right and no mask is given: every
decoder-only target is causal, in attention and in linear attention alike, so what stands to the
right of a token cannot change its state.

Shape letters: R sequences of a pass, T padded length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlab.base.errors import StoreError
from draftlab.reference.completions import Completion


@dataclass(frozen=True, slots=True)
class Pass:
    """Sequences that run together."""

    shard: int
    numbers: tuple[int, ...]
    """Of the sequences, in the order of the rows."""
    width: int
    """Positions of the longest."""

    @property
    def num_tokens(self) -> int:
        """Positions that are computed, padding included."""
        return len(self.numbers) * self.width


def positions(row: Completion) -> int:
    """Positions that a pass reads: all tokens but the last, which no pass has read yet."""
    return len(row.prompt_ids) + len(row.completion_ids) - 1


def judged_positions(row: Completion) -> slice:
    """Positions whose states say what the target thinks of each completion token."""
    return slice(len(row.prompt_ids) - 1, positions(row))


def tokens_of(row: Completion) -> Tensor:
    """All tokens, as a store keeps them."""
    return torch.tensor(row.prompt_ids + row.completion_ids, dtype=torch.int32)


def shard_groups(completions: Sequence[Completion], size: int) -> list[list[int]]:
    """Sequence numbers per shard, in order; a completion of one token has nothing to draft.

    Raises:
        StoreError: a completion is that short.
    """
    short = [c.id for c in completions if len(c.completion_ids) < 2]
    if short:
        raise StoreError(
            f"{len(short)} completions have fewer than 2 tokens ({short[0]!r} first): "
            "nothing to draft.",
            mend="Leave these prompts out of the reference.",
        )
    numbers = list(range(len(completions)))
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def passes_of(
    shard: int, group: Sequence[int], completions: Sequence[Completion], tokens_per_pass: int
) -> Iterator[Pass]:
    """The passes of one shard: of like length, at most `tokens_per_pass` padded tokens each."""
    lengths = {i: positions(completions[i]) for i in group}
    batch: list[int] = []
    for i in sorted(group, key=lambda i: (-lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens_per_pass:
            yield Pass(shard, tuple(batch), lengths[batch[0]])
            batch = []
        batch.append(i)
    yield Pass(shard, tuple(batch), lengths[batch[0]])


def padded_ids(this: Pass, completions: Sequence[Completion]) -> Tensor:
    """Token ids [R, T]; a short row repeats the last token it reads."""
    texts = [(completions[i].prompt_ids + completions[i].completion_ids)[:-1] for i in this.numbers]
    return torch.tensor([[*text, *([text[-1]] * (this.width - len(text)))] for text in texts])


def first_ids(completions: Sequence[Completion]) -> Tensor:
    """A few tokens [1, 8] to try the target on."""
    first = completions[0]
    return torch.tensor([(first.prompt_ids + first.completion_ids)[:8]])
