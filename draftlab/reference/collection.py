"""What is written of how rows were gathered: asked of a server, or taken from given text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from draftlab.base.records import Record

When = Literal["asked again alone", "asked again under load"]
"""Alone: compared with the row of the reference. Under load: with what was said alone."""
NoMargin = Literal[
    "the server gives no log-probabilities",
    "they are not both among the most probable tokens that the server gives",
    "one of the two had ended",
]
Reason = Literal[
    "empty",
    "too short",
    "cut off",
    "split away",
    "prompt read differently",
    "goes on after its end",
    "nothing stands before it",
]
"""Why an answer is no reference row; `draftlab.reference.answers` defines those of a server, and
`draftlab.reference.given` those of given text."""


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


class GivenCounts(Record):
    """How given conversations became rows; each of the assistant's turns is one, or left out."""

    num_conversations: int
    num_prompt_tokens: int
    """Of all rows; those of an early turn count again in the rows of later ones."""
    num_empty_thoughts: int
    """Rows whose template put an empty think block before the turn; it belongs to the prompt."""
    num_parted: int
    """Rows whose prompt alone is encoded to other tokens than it has before its answer."""
    marks: Literal["agree", "none"]
    """Whether the template marks what the assistant said; where it does, all marks agreed."""
    excluded: tuple[Excluded, ...]


def reasons_text(excluded: Sequence[Excluded]) -> str:
    """How many prompts were left out for which reason: `9 cut off, 2 empty`."""
    counts = Counter(one.reason for one in excluded)
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
