"""Several processes over one capture, on one machine or more: who does what, who is still alive.

torchrun's key-value store carries short messages; states and shards go through the folder that all
of them see. Nobody waits for somebody who is gone: each process shows signs of life, says so when
it fails, and is given up when it has been silent for too long. What is whole by then is kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from torch import distributed
from torch.distributed.rendezvous import rendezvous

from draftlab.base.errors import DraftlabError, Unfinished, Unreachable
from draftlab.base.quantities import one_line
from draftlab.base.ranks import Ranks

MEET_SECONDS = 600.0
BEAT_SECONDS = 5.0
SILENT_SECONDS = 300.0
"""After so long without a sign of life a process is given up."""
_POLL_SECONDS = 0.05
_LAST_SECONDS = 1.0
"""The board may be gone with the leading process: the others get a moment to read why."""
_AGAIN = "Run the same command again; whole shards are kept, however many processes go on."


class _Board(Protocol):
    """What is used of torch's stores."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...


class Meeting:
    """This process and the others of one capture; by default there are none."""

    def __init__(self, ranks: Ranks | None = None, board: _Board | None = None) -> None:
        self.ranks = ranks or Ranks()
        self._board = board

    @classmethod
    @contextmanager
    def join(cls, ranks: Ranks) -> Iterator[Meeting]:
        """Meet the others that torchrun has started, for as long as the body runs.

        Raises:
            Unreachable: they do not come together.
            Unfinished: another one is gone, and this one needed it.
        """
        if ranks.size == 1:
            yield cls()
            return
        meeting = cls(ranks, _open_board(ranks))
        over = threading.Event()
        threading.Thread(target=meeting._beat, args=(over,), daemon=True).start()
        try:
            yield meeting
        except BaseException as error:
            meeting._say_why(error)
            raise
        finally:
            over.set()

    @contextmanager
    def lead_first(self, what: str) -> Iterator[None]:
        """Let the leading process do the body before the others do; each says when it has.

        What is wrong for all of them is then said once.
        """
        if not self.ranks.leads:
            self.hear(what, 0)
        yield
        self.say(what)

    def say(self, what: str, text: str = "") -> None:
        """Let the others know something of this process."""
        if self._board is not None:
            with _board_is_there():
                self._board.set(f"{what}/{self.ranks.rank}", text)

    def hear(self, what: str, rank: int) -> str:
        """What another process says of itself, as soon as it does.

        Raises:
            Unfinished: it has failed, or has been silent for too long.
        """
        if self._board is None:
            raise RuntimeError("there is nobody to hear")
        with _board_is_there():
            return self._hear(self._board, what, rank)

    def hear_all(self, what: str) -> None:
        """Wait until every other process has said this."""
        for rank in range(self.ranks.size):
            if rank != self.ranks.rank:
                self.hear(what, rank)

    def _hear(self, board: _Board, what: str, rank: int) -> str:
        sign, since = b"", time.monotonic()
        while not board.check([f"{what}/{rank}"]):
            if board.check([f"failed/{rank}"]):
                why = board.get(f"failed/{rank}").decode()
                raise Unfinished(f"process {rank} of {self.ranks.size} stopped: {why}", mend=_AGAIN)
            last = board.get(f"alive/{rank}") if board.check([f"alive/{rank}"]) else b""
            if last != sign:
                sign, since = last, time.monotonic()
            elif time.monotonic() - since > SILENT_SECONDS:
                raise Unfinished(
                    f"process {rank} of {self.ranks.size} has given no sign of life for "
                    f"{SILENT_SECONDS:.0f} s.",
                    mend=_AGAIN,
                )
            time.sleep(_POLL_SECONDS)
        return board.get(f"{what}/{rank}").decode()

    def _beat(self, over: threading.Event) -> None:
        count = 0
        while not over.is_set():
            count += 1
            try:
                self.say("alive", str(count))
            except Unfinished:
                return  # the next that is said or heard says it
            over.wait(BEAT_SECONDS)

    def _say_why(self, error: BaseException) -> None:
        try:
            self.say("failed", one_line(str(error) or type(error).__name__, at_most=300))
        except Unfinished:
            return  # there is nobody left to tell
        if self.ranks.leads:
            time.sleep(_LAST_SECONDS)


def shares(sizes: Mapping[int, int], count: int) -> list[list[int]]:
    """Which shards each of so many processes takes: the largest first, each to whom has least.

    Every process ends up with at most one shard more work than any other. With fewer shards than
    processes, some get none.

    Args:
        sizes: padded tokens of each shard, by its number.
        count: processes.
    """
    loads = [0] * count
    taken: list[list[int]] = [[] for _ in range(count)]
    for number in sorted(sizes, key=lambda n: (-sizes[n], n)):
        least = min(range(count), key=lambda rank: (loads[rank], rank))
        loads[least] += sizes[number]
        taken[least].append(number)
    return [sorted(numbers) for numbers in taken]


@contextmanager
def _board_is_there() -> Iterator[None]:
    try:
        yield
    except distributed.DistError as error:
        raise Unfinished("the leading process cannot be reached any more.", mend=_AGAIN) from error


def _open_board(ranks: Ranks) -> _Board:
    limit = timedelta(seconds=MEET_SECONDS)
    address = f"env://?rank={ranks.rank}&world_size={ranks.size}"
    try:
        board: _Board = next(rendezvous(address, timeout=limit))[0]
    except distributed.DistError as error:
        raise Unreachable(
            f"{ranks} does not find the others: {one_line(str(error), at_most=200)}.",
            mend="Check that MASTER_ADDR and MASTER_PORT can be reached from every machine.",
        ) from error
    except ValueError as error:
        raise DraftlabError(
            f"{ranks} cannot tell where the others are: {one_line(str(error), at_most=200)}.",
            mend="Start several processes with torchrun, or unset WORLD_SIZE to run one.",
        ) from error
    return board
