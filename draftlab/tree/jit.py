"""Compile number loops with numba where it can be imported; leave them to Python where it cannot.

In:   functions written in the part of Python that numba compiles.
Out:  the same functions, compiled or unchanged. Which of the two is settled at import.

One source for both means that the interpreted answer is the compiled one.

Imports: numba, if there is one.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

try:
    import numba
except (ImportError, OSError):  # OSError: llvmlite is there, its shared library is not
    numba = None  # type: ignore[assignment]

Function = TypeVar("Function", bound=Callable[..., Any])

COMPILES = numba is not None
"""Whether the decorators below do anything."""


def kernel(function: Function) -> Function:
    """`function` compiled, without the interpreter lock, and kept on disk for the next start.

    A read-only installation or a full disk costs a compilation per start, never the work: numba
    raises RuntimeError here if it finds no directory to keep the code in, and OSError from the
    first call if it cannot write there. By then the code is compiled, so a second call runs it.
    """
    if numba is None:
        return function
    try:
        dispatcher = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        dispatcher = numba.njit(nogil=True)(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        try:
            return dispatcher(*args)
        except OSError:
            return dispatcher(*args)

    return cast("Function", call)


def part(function: Function) -> Function:
    """`function` compiled for use inside a kernel, with whose code it is kept."""
    return function if numba is None else cast("Function", numba.njit(nogil=True)(function))
