"""`draftlab capture --server`: what only a server that gives hidden states needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from draftlab.base.errors import StoreError
from draftlab.base.progress import bar
from draftlab.cli.options import Device, Dtype, key_from, say

if TYPE_CHECKING:
    from draftlab.hidden.state_server import ServedSettings
    from draftlab.hidden.store import HiddenStore
    from draftlab.reference.completions import Reference

_Switch = Annotated[bool, Parameter(negative="")]


@Parameter(name="*", group=Group("Asking a server"))
@dataclass(frozen=True)
class StateFlags:
    """What only a server needs."""

    model: str = ""
    """Which of the server's models, where it has several."""
    check_rows: int = 2
    """Rows that are captured here too and compared, before anything is kept."""
    concurrency: int = 2
    """Rows in flight at a time; SGLang sends each as text, ten times the size of its states."""
    time_limit: float = 600.0
    """Seconds that one row may take."""
    retries: int = 4
    """How often a request is repeated at most, after growing waits."""
    keep_files: _Switch = False
    """Leave the files that vLLM writes; by default each is removed once it has been read."""
    api_key_env: str = ""
    """Name of the environment variable that holds the server's key."""

    def settings(self, server: str) -> ServedSettings:
        """Whom to ask for states, and how."""
        from draftlab.hidden.state_server import ServedSettings

        return ServedSettings(
            url=server,
            check_rows=self.check_rows,
            concurrency=self.concurrency,
            model=self.model,
            time_limit_seconds=self.time_limit,
            retries=self.retries,
            keep_files=self.keep_files,
            api_key=key_from(self.api_key_env),
        )


NO_STATE_FLAGS = StateFlags()


def refuse_flags_of_the_other(server: str, dtype: Dtype, stream: bool | None) -> None:  # noqa: FBT001
    """Say what does not go together."""
    if not server:
        raise StoreError(
            "--model, --check-rows, --concurrency, --time-limit, --retries, --keep-files and "
            "--api-key-env are for a server; --server was not given.",
            mend="Pass --server http://host:port, or leave them out.",
        )
    if dtype != "auto" or stream is not None:
        raise StoreError(
            "--dtype and --stream are for a target that computes here; --server was given, whose "
            "states are kept in the number type they come in.",
            mend="Leave them out.",
        )


def capture_served(
    reference: Reference,
    target: Path,
    taps: tuple[int, ...],
    out: Path,
    settings: ServedSettings,
    device: Device,
    threads: int | None,
) -> HiddenStore:
    """Capture from a server, telling the person who waits."""
    from draftlab.hidden.served import ServedPlan, capture_from_server
    from draftlab.target.compute import Compute

    compute = Compute.choose(device, "float32", threads=threads)
    compute.apply()
    return capture_from_server(
        ServedPlan(reference, target, taps, out, compute),
        settings,
        track=bar,
        tell=lambda line: say(f"capture: {line}"),
    )
