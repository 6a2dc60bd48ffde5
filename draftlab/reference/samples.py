"""Which completions a reference needs: each prompt, as often as it is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftlab.base.errors import CompletionsError
from draftlab.reference.prompts import Prompt
from draftlab.target.decoding import Decoding

Key = tuple[tuple[int, ...], int]
"""What a completion is known by: its prompt's token ids, and which of the samples it is."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion that is wanted."""

    id: str
    """Of the row: the prompt's, with #0, #1, … where a prompt has several samples."""
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    index: int
    seed: int
    """For its draws; 0 where decoding is greedy."""

    @property
    def key(self) -> Key:
        """Known by its content, so that neither order nor names matter."""
        return self.prompt_ids, self.index


def samples_of(
    prompts: Sequence[Prompt], encoded: Sequence[tuple[int, ...]], decoding: Decoding
) -> list[Sample]:
    """Every completion of a reference, in the order of its rows.

    Raises:
        CompletionsError: two rows would have the same id.
    """
    samples = [
        Sample(
            id=f"{prompt.key}#{index}" if decoding.num_samples > 1 else prompt.key,
            prompt=prompt,
            prompt_ids=ids,
            index=index,
            seed=0 if decoding.is_greedy else decoding.row_seed(ids, index),
        )
        for prompt, ids in zip(prompts, encoded, strict=True)
        for index in range(decoding.num_samples)
    ]
    seen: set[str] = set()
    for sample in samples:
        if sample.id in seen:
            raise CompletionsError(
                f"two rows would have the id {sample.id!r}.",
                mend="Give prompts ids that do not end in # and a number.",
            )
        seen.add(sample.id)
    return samples
