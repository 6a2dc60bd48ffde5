"""Asking again: does a server say the same alone and under load?

A server whose kernels or caches depend on what else is in flight gives texts that the target alone
would not have written, and a drafter is then judged by the wrong text. Each chosen prompt is asked
once with nothing beside it and once with others in flight all the time. Greedy decoding leaves no
room for chance: any difference is the server's. A late one between two near-tied tokens is common
where batches change the order of additions; early or many ones are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from draftlab.base.errors import DraftlabError
from draftlab.base.progress import Track
from draftlab.reference.answers import Answer, first_difference
from draftlab.reference.completions import Difference, Verification, When
from draftlab.reference.inflight import in_flight

T = TypeVar("T")
Ask = Callable[[int], Awaitable[Answer]]
"""By the prompt's number."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt that was answered before."""

    id: str
    number: int
    said: tuple[int, ...]


def spread(items: Sequence[T], at_most: int) -> list[T]:
    """Some of the items, spread evenly over all of them."""
    count = min(at_most, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def verify(
    runner: asyncio.Runner, ask: Ask, questions: Sequence[Question], at_once: int, track: Track
) -> Verification:
    """Ask all of these alone, then all of them with `at_once` in flight.

    Raises:
        DraftlabError: a question gets no answer.
    """
    numbers = [question.number for question in questions]
    alone = _asked(runner, ask, numbers, 1, track)
    # Some once more at the end, so that the last ones too have company.
    company = [numbers[i % len(numbers)] for i in range(at_once - 1)]
    loaded = _asked(runner, ask, [*numbers, *company], at_once, track)
    differences = []
    for question, one, other in zip(questions, alone, loaded, strict=False):
        found = _difference(question, one, other)
        if found is not None:
            differences.append(found)
    return Verification(
        num_prompts=len(questions), in_flight=at_once, differences=tuple(differences)
    )


def _asked(
    runner: asyncio.Runner, ask: Ask, numbers: Sequence[int], at_once: int, track: Track
) -> list[tuple[int, ...]]:
    """The completions, in the order of the numbers."""
    what = "again, alone" if at_once == 1 else f"again, {at_once} in flight"
    found: dict[int, tuple[int, ...]] = {}

    def ask_at(place: int) -> Awaitable[Answer]:
        return ask(numbers[place])

    with closing(in_flight(runner, ask_at, range(len(numbers)), at_once)) as stream:
        for place, outcome in track(stream, total=len(numbers), what=what, unit="prompts"):
            if isinstance(outcome, DraftlabError):
                raise outcome
            found[place] = outcome.completion_ids
    return [found[place] for place in range(len(numbers))]


def _difference(
    question: Question, alone: tuple[int, ...], loaded: tuple[int, ...]
) -> Difference | None:
    """The first difference between what was said, what is said alone and what under load."""
    pairs: tuple[tuple[tuple[int, ...], tuple[int, ...], When], ...] = (
        (question.said, alone, "asked again alone"),
        (alone, loaded, "asked again under load"),
    )
    for before, now, when in pairs:
        index = first_difference(before, now)
        if index is not None:
            return Difference(
                id=question.id,
                when=when,
                index=index,
                before=before[index] if index < len(before) else None,
                now=now[index] if index < len(now) else None,
            )
    return None
