"""Arguments that several commands share, and how lists of numbers are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, Token

from draftlab.base.errors import DraftlabError

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16"]


def _numbers(_type: object, tokens: Sequence[Token]) -> tuple[int, ...]:
    """`1,16,31` or repeated flags -> (1, 16, 31)."""
    parts = [part for token in tokens for part in token.value.split(",") if part.strip()]
    try:
        return tuple(int(part) for part in parts)
    except ValueError as error:
        raise ValueError(
            f"{','.join(parts)!r} is not a list of whole numbers like 1,16,31"
        ) from error


Numbers = Annotated[
    tuple[int, ...], Parameter(converter=_numbers, n_tokens=1, allow_leading_hyphen=True)
]
TargetFolder = Annotated[Path, Parameter(name="--target", help="Folder of the target model.")]
DeviceOption = Annotated[
    Device, Parameter(help="Where to compute; auto takes a GPU if there is one.")
]
DtypeOption = Annotated[
    Dtype,
    Parameter(
        help="Number type; auto follows the reference or store. What there is none to follow for "
        "is float32 on a CPU, but bfloat16 for 2 GB of weights and more if the CPU multiplies it."
    ),
]
Threads = Annotated[
    int | None, Parameter(help="CPU threads; by default the free cores of this machine.")
]


def key_from(variable: str) -> str:
    """A server's key from the environment variable of this name; none where no name is given."""
    key = os.environ.get(variable, "") if variable else ""
    if variable and not key:
        raise DraftlabError(
            f"the environment variable {variable} is empty or not set.",
            mend=f"export {variable}=...",
        )
    return key


def say(line: str) -> None:
    """A line for the person watching; never part of the result."""
    print(line, file=sys.stderr)
