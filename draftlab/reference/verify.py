"""Asking again: does a server say the same alone and under load?

A server whose kernels or caches depend on what else is in flight gives texts that the target alone
would not have written, and a drafter is then judged by the wrong text. Each chosen prompt is asked
once with nothing beside it and once with others in flight all the time. Greedy decoding leaves no
room for chance: any difference is the server's. A late one between two near-tied tokens is common
where batches change the order of additions; early or many ones are not. So these requests, and only
these, ask for log-probabilities too: at the first difference the margin between the two tokens
tells a near tie from another text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from draftlab.base.errors import DraftlabError
from draftlab.base.progress import Track
from draftlab.reference.answers import first_difference
from draftlab.reference.collection import Difference, NoMargin, Verification, When
from draftlab.reference.inflight import in_flight
from draftlab.reference.replies import Alternatives

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SaidAgain:
    """A verifying answer."""

    ids: tuple[int, ...]
    alternatives: Alternatives | None

    def chances(self, index: int) -> Mapping[int, float]:
        """Log-probabilities of the most probable tokens at a place; empty where not given."""
        places = self.alternatives or ()
        return places[index] if index < len(places) else {}


Ask = Callable[[int], Awaitable[SaidAgain]]
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
) -> list[SaidAgain]:
    """The answers, in the order of the numbers."""
    what = "again, alone" if at_once == 1 else f"again, {at_once} in flight"
    found: dict[int, SaidAgain] = {}

    def ask_at(place: int) -> Awaitable[SaidAgain]:
        return ask(numbers[place])

    with closing(in_flight(runner, ask_at, range(len(numbers)), at_once)) as stream:
        for place, outcome in track(stream, total=len(numbers), what=what, unit="prompts"):
            if isinstance(outcome, DraftlabError):
                raise outcome
            found[place] = outcome
    return [found[place] for place in range(len(numbers))]


def _difference(question: Question, alone: SaidAgain, loaded: SaidAgain) -> Difference | None:
    """The first difference between what was said, what is said alone and what under load."""
    pairs: tuple[tuple[tuple[int, ...], tuple[int, ...], When], ...] = (
        (question.said, alone.ids, "asked again alone"),
        (alone.ids, loaded.ids, "asked again under load"),
    )
    for before, now, when in pairs:
        index = first_difference(before, now)
        if index is not None:
            one = before[index] if index < len(before) else None
            other = now[index] if index < len(now) else None
            same = [said for said in (alone, loaded) if said.ids[:index] == before[:index]]
            margin, why = _margin(one, other, [said.chances(index) for said in same])
            return Difference(
                id=question.id,
                when=when,
                index=index,
                before=one,
                now=other,
                margin=margin,
                no_margin=why,
            )
    return None


def _margin(
    one: int | None, other: int | None, chances: Sequence[Mapping[int, float]]
) -> tuple[float | None, NoMargin | None]:
    """How much likelier one token is than the other, by the first answer that can tell; or why not.

    Args:
        one: what stood there before.
        other: what stands there now.
        chances: log-probabilities at that place, of each answer with the same text up to there.
    """
    if one is None or other is None:
        return None, "one of the two had ended"
    if not any(chances):
        return None, "the server gives no log-probabilities"
    margins = [known[one] - known[other] for known in chances if one in known and other in known]
    if not margins:
        return None, "they are not both among the most probable tokens that the server gives"
    return margins[0], None
