"""Batched decoding, greedy or drawn, whose rows leave when they have ended.

In:   a loaded target, prompts as token ids.  Out: their completions.

A row that has ended would be decoded on to the end of the longest one. Here the batch pauses when
an eighth of its rows have ended, goes on without them, and so on; what decides is only what the
target says, so the same prompts are decoded in the same company every time.

R rows of the batch, r rows that go on, T tokens so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, StoppingCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from draftlab.reference.draws import Draws
from draftlab.target.loading import LoadedTarget

# transformers gives it two names within the versions that are allowed.
_CACHE_NAMES = ("cache", "past_key_values")
_CACHE = next(f.name for f in fields(GenerateDecoderOnlyOutput) if f.name in _CACHE_NAMES)


@torch.inference_mode()
def decode_together(
    target: LoadedTarget,
    batch: Sequence[tuple[int, ...]],
    max_new_tokens: int,
    stops: Sequence[int],
    draws: Draws | None = None,
) -> list[tuple[int, ...]]:
    """Completions of prompts decoded together, up to and with their first stop token.

    Greedy without `draws`; with them, what each row draws.
    """
    pad = target.facts.pad_token_id or 0
    width = max(map(len, batch))
    untyped: Any = GenerationConfig
    settings = {
        "generation_config": untyped(
            do_sample=False,  # a draw leaves one token to choose from
            max_length=width + max_new_tokens,
            eos_token_id=list(stops) or None,
            pad_token_id=pad,
            return_dict_in_generate=True,
        ),
        "logits_processor": [] if draws is None else [draws],
        "stopping_criteria": [_EnoughEnded(stops, width)] if stops else [],
    }
    ids_RT, mask_RT = _padded_left(batch, width, pad, target.model.device)
    texts: dict[int, tuple[int, ...]] = {}
    going = list(range(len(batch)))
    with _contiguous_to_head(target):
        while going:
            if draws is not None:
                draws.follow(going, width)
            out = target.model.generate(input_ids=ids_RT, attention_mask=mask_RT, **settings)
            said = [_cut_after_stop(row[width:].tolist(), stops) for row in out.sequences]
            left = [
                r
                for r, text in enumerate(said)
                if len(text) < max_new_tokens and text[-1] not in stops
            ]
            texts |= {going[r]: said[r] for r in range(len(said)) if r not in set(left)}
            going = [going[r] for r in left]
            if going:
                kept_r = torch.tensor(left, device=ids_RT.device)
                ids_RT, mask_RT = out.sequences[kept_r], _grown(mask_RT, kept_r, out.sequences)
                out[_CACHE].reorder_cache(kept_r)
                settings[_CACHE] = out[_CACHE]
    return [texts[r] for r in range(len(batch))]


class _EnoughEnded(StoppingCriteria):
    """Whether an eighth of the rows have ended."""

    def __init__(self, stops: Sequence[int], width: int) -> None:
        self._stops = stops
        self._width = width

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """For each row, whether to pause: all of them or none."""
        stops = torch.tensor(self._stops, device=input_ids.device)
        ended_R = torch.isin(input_ids[:, self._width :], stops).any(dim=1)
        return (8 * ended_R.sum() >= len(ended_R)).expand(len(ended_R))


@contextmanager
def _contiguous_to_head(target: LoadedTarget) -> Iterator[None]:
    """Give the head its states one after the other in memory.

    transformers hands it a view of every row's last position. From that, torch's product (2.13,
    CPU) copies the head's weight once for each row: gigabytes, and half the time that reading the
    prompts takes.
    """
    head = target.model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _head, given: (given[0].contiguous(),))
    try:
        yield
    finally:
        hook.remove()


def _padded_left(
    batch: Sequence[tuple[int, ...]], width: int, pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Token ids, and which of them are real."""
    ids = [[pad] * (width - len(row)) + list(row) for row in batch]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in batch]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _grown(mask_RT: Tensor, kept_r: Tensor, sequences_RT: Tensor) -> Tensor:
    """The mask of the rows that go on, over what they have said too."""
    said = sequences_RT.shape[1] - mask_RT.shape[1]
    return nn.functional.pad(mask_RT[kept_r], (0, said), value=1)


def _cut_after_stop(ids: list[int], stops: Sequence[int]) -> tuple[int, ...]:
    """The tokens up to and with the first stop token."""
    for index, token in enumerate(ids):
        if token in stops:
            return tuple(ids[: index + 1])
    return tuple(ids)
