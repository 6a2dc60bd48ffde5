"""Many questions at a time, as a plain iterator of answers; an interruption cuts them off at once.

The event loop runs only while the caller waits for the next answer, so the caller may write files
or draw a bar between two answers, and Ctrl-C arrives like in any other loop: what is in flight is
cancelled, its connections are closed, and what was yielded before is the caller's to keep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import suppress
from itertools import islice
from typing import TypeVar

from draftlab.base.errors import DraftlabError, Unreachable
from draftlab.reference.replies import Refused

T = TypeVar("T")
R = TypeVar("R")


def require_no_event_loop(called: str) -> None:
    """Refuse to start a loop within a loop; a notebook runs one in the thread of its cells.

    Raises:
        DraftlabError: one runs here.
    """
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise DraftlabError(
            f"{called} was called where an event loop runs (a notebook?).",
            mend=f"Call it in a thread: await asyncio.to_thread({called}, ...).",
        )


def in_flight(
    runner: asyncio.Runner, ask: Callable[[T], Awaitable[R]], items: Iterable[T], at_once: int
) -> Generator[tuple[T, R | DraftlabError]]:
    """Ask about every item, `at_once` at a time; yield each with its answer as it comes.

    An item that gets no answer (Unreachable, Refused) comes with that error, and the rest goes on.
    Close this iterator when leaving early.

    Raises:
        Exception: any other that `ask` raised, once the answers that came with it are yielded.
    """
    waiting = iter(items)
    running: dict[asyncio.Task[R], T] = {}
    try:
        while True:
            for item in islice(waiting, at_once - len(running)):
                running[runner.get_loop().create_task(_awaited(ask(item)))] = item
            if not running:
                return
            done = runner.run(_first_done(set(running)))
            for task in sorted(done, key=_is_fatal):
                yield running.pop(task), _outcome(task)
    finally:
        runner.run(_cancelled(set(running)))


async def _awaited(answer: Awaitable[R]) -> R:
    return await answer


async def _first_done(tasks: set[asyncio.Task[R]]) -> set[asyncio.Task[R]]:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return done


async def _cancelled(tasks: set[asyncio.Task[R]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _is_fatal(task: asyncio.Task[R]) -> bool:
    error = task.exception()
    return error is not None and not isinstance(error, Unreachable | Refused)


def _outcome(task: asyncio.Task[R]) -> R | DraftlabError:
    error = task.exception()
    return error if isinstance(error, Unreachable | Refused) else task.result()
