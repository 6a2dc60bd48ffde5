"""A file of hidden states that a server names in its reply, waited for and read.

vLLM's connectors for `extract_hidden_states` write, per request, a safetensors file with
`token_ids` [T] and `hidden_states` [T, layers, H], and hold an exclusive lock on PATH.lock while
they do. The reply may come first.
"""

from __future__ import annotations

import fcntl
import time
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftlab.base.errors import StoreError
from draftlab.base.quantities import one_line

_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class StateFile:
    """Where a server has put the states of one request."""

    path: Path

    @property
    def lock(self) -> Path:
        """What the server locks while it writes."""
        return self.path.with_name(self.path.name + ".lock")

    def read(self, time_limit_seconds: float) -> tuple[tuple[int, ...], Tensor]:
        """Token ids, and states [T, layers, H] as stored.

        Raises:
            StoreError: it does not come in time, or is no such file.
        """
        self._wait(time_limit_seconds)
        shown = one_line(str(self.path))
        try:
            with safe_open(self.path, framework="pt") as file:
                tokens = tuple(file.get_tensor("token_ids").flatten().tolist())
                states = file.get_tensor("hidden_states")
        except (OSError, SafetensorError) as error:
            raise StoreError(
                f"{shown} is no file of hidden states: {one_line(str(error))}.",
                mend="Look at the server's connector.",
            ) from error
        if states.ndim != 3 or not states.is_floating_point():
            raise StoreError(
                f"{shown} holds states of {states.dtype} {list(states.shape)}, not numbers "
                "[tokens, layers, hidden].",
                mend="Look at the server's connector.",
            )
        return tokens, states

    def remove(self) -> None:
        """Give the disk back; for files that were made for us alone."""
        self.path.unlink(missing_ok=True)
        self.lock.unlink(missing_ok=True)

    def _wait(self, time_limit_seconds: float) -> None:
        deadline = time.monotonic() + time_limit_seconds
        while not (self.path.is_file() and self._is_unlocked()):
            if time.monotonic() > deadline:
                raise StoreError(
                    f"the server names {one_line(str(self.path))}, which was not there and whole "
                    f"within {time_limit_seconds:g} s.",
                    mend="Run this on the server's machine, or where its folder of states is "
                    "mounted under the same path.",
                )
            time.sleep(_POLL_SECONDS)

    def _is_unlocked(self) -> bool:
        if not self.lock.is_file():
            return True
        with self.lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True
