"""A fact about a machine is known, absent, or not answered: three different things.

Known: the machine said it. Absent: the machine was asked and has none. Not answered: it was asked
and did not say (a time limit, a missing program, an answer that cannot be read); nothing follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Generic, Literal, TypeAlias, TypeVar

from pydantic import Field

from draftlab.base.records import Record

T = TypeVar("T")


class Known(Record, Generic[T]):
    """The machine said it."""

    state: Literal["known"] = "known"
    value: T


class Absent(Record):
    """The machine was asked and has none."""

    state: Literal["absent"] = "absent"
    why: str


class NotAnswered(Record):
    """The machine was asked and did not say."""

    state: Literal["not answered"] = "not answered"
    why: str


if TYPE_CHECKING:
    Fact: TypeAlias = Known[T] | Absent | NotAnswered
else:

    class Fact:
        """`Fact[int]` for annotations; pydantic's `Known[T]` hides T from a generic alias."""

        def __class_getitem__(cls, kind):  # noqa: ANN001, ANN204
            states = Known[kind] | Absent | NotAnswered
            return Annotated[states, Field(discriminator="state")]


def known_or(fact: Fact[T], other: T) -> T:
    """The value of a known fact, else `other`."""
    return fact.value if isinstance(fact, Known) else other
