"""What is written of how a server's rows were gathered, left out and asked for again."""

from __future__ import annotations

from typing import Literal

from draftlab.base.records import Record

When = Literal["asked again alone", "asked again under load"]
"""Alone: compared with the row of the reference. Under load: with what was said alone."""
NoMargin = Literal[
    "the server gives no log-probabilities",
    "they are not both among the most probable tokens that the server gives",
    "one of the two had ended",
]
Reason = Literal["empty", "too short", "cut off", "split away", "prompt read differently"]
"""Why a server's answer is no reference row; `draftlab.reference.answers` defines them."""


class Excluded(Record):
    """A prompt without a completion, and why."""

    id: str
    reason: Reason


class Difference(Record):
    """Where one prompt's two completions part."""

    id: str
    when: When
    index: int
    """Completion tokens before it that are the same."""
    before: int | None
    """Token id in the first of the two; None where it has ended."""
    now: int | None
    margin: float | None
    """Log-probability of `before` less that of `now`, both as one of the verifying answers has
    them; near 0 is a near tie."""
    no_margin: NoMargin | None
    """Why there is none."""


class Verification(Record):
    """What came of asking some prompts again, alone and then with others in flight."""

    num_prompts: int
    in_flight: int
    differences: tuple[Difference, ...]
    """The first one of each prompt that has any."""


class Collection(Record):
    """How a server's rows were gathered; nothing here decides what they are."""

    address: str
    """Scheme and host only."""
    concurrency: int
    time_limit_seconds: float
    """For one answer."""
    retries: int
    """How often a request was repeated at most."""
    num_retried: int
    """Requests of the last run that were repeated, each time counted."""
    excluded: tuple[Excluded, ...]
    num_retokenised: int
    num_not_round_trip: int
    """Of the retokenised completions, those whose text changes when encoded and decoded again."""
    num_repeats: int
    """Samples that say what an earlier one of their prompt says: many where a server heeds neither
    temperature nor seed."""
    verification: Verification | None
