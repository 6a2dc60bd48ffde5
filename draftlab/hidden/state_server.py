"""A server that gives hidden states: met, and asked for rows of a reference.

In:   an address and rows.  Out: what it gave of each, checked by exported.py, as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from draftlab.base.errors import DraftlabError, StoreError
from draftlab.hidden.export import (
    Exported,
    Exporter,
    Wanted,
    export_request,
    how_to_start,
    most_reply_bytes,
)
from draftlab.hidden.exported import read_exported
from draftlab.reference.client import Address, Patience, ServerClient
from draftlab.reference.inflight import in_flight
from draftlab.reference.replies import Refused
from draftlab.reference.servers import Probes, ServerFacts, identify

_EXPORTERS: dict[str, Exporter] = {"SGLang": "sglang", "vLLM": "vllm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSettings:
    """Whom to ask for states, and how."""

    url: str
    check_rows: int = 2
    """Rows that are captured here too and compared, before anything is kept."""
    concurrency: int = 2
    """Rows in flight at a time; each is as large as its states."""
    model: str = ""
    """Which of a server's models; needed where there are several."""
    time_limit_seconds: float = 600.0
    """For one row."""
    retries: int = 4
    keep_files: bool = False
    """Leave the files that vLLM writes where they are."""
    first_wait_seconds: float = 0.5
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name, value in (("check_rows", self.check_rows), ("concurrency", self.concurrency)):
            if value < 1:
                raise StoreError(
                    f"{name} is {value}.", mend=f"Pass --{name.replace('_', '-')} 1 or more."
                )
        if not self.time_limit_seconds > 0 or not 0 <= self.retries <= 20:
            raise StoreError(
                f"the time limit is {self.time_limit_seconds} s and retries are {self.retries}.",
                mend="Pass --time-limit with seconds, and --retries 0 to 20.",
            )

    @property
    def patience(self) -> Patience:
        """How long to wait, and how often to try."""
        return Patience(
            time_limit_seconds=self.time_limit_seconds,
            retries=self.retries,
            first_wait_seconds=self.first_wait_seconds,
        )


class StateServer:
    """One server, asked for the states of these rows."""

    def __init__(
        self, runner: asyncio.Runner, settings: ServedSettings, rows: Sequence[Wanted]
    ) -> None:
        self._runner = runner
        self._settings = settings
        self._rows = rows
        self._client = ServerClient(
            Address.read(settings.url),
            settings.patience,
            settings.api_key,
            most_reply_bytes=most_reply_bytes(rows),
        )

    def close(self) -> None:
        """Let go of all connections."""
        self._runner.run(self._client.close())

    def meet(self) -> ServerFacts:
        """Find out what the server is.

        Raises:
            Unreachable: nothing answers there.
            StoreError: it is none that gives hidden states.
        """
        probes = self._runner.run(self._client.look())
        self.facts = identify(probes, self._settings.model)
        self.stated_layer_ids = _stated(probes)
        if self.facts.name not in _EXPORTERS:
            raise StoreError(
                f"{self.facts.name} gives no hidden states that draftlab can read.",
                mend="Use SGLang or vLLM; or leave --server out and capture from the target.",
            )
        self.exporter = _EXPORTERS[self.facts.name]
        return self.facts

    def states(self, numbers: Sequence[int], at_once: int) -> Iterator[tuple[int, Exported]]:
        """What the server gives of these rows, as it comes.

        Raises:
            Unreachable: it does not answer.
            StoreError: what it gives cannot be that row's states.
        """
        with closing(in_flight(self._runner, self._ask, numbers, at_once)) as stream:
            for number, outcome in stream:
                if isinstance(outcome, DraftlabError):
                    raise self._no_answer(number, outcome)
                yield (
                    number,
                    read_exported(
                        self.exporter,
                        outcome,
                        self._rows[number],
                        time_limit_seconds=self._settings.time_limit_seconds,
                        keep_file=self._settings.keep_files,
                    ),
                )

    async def _ask(self, number: int) -> bytes:
        ids = self._rows[number].ids
        return await self._client.ask(export_request(self.exporter, self.facts.model_id, ids))

    def _no_answer(self, number: int, error: DraftlabError) -> DraftlabError:
        wanted = self._rows[number]
        if not isinstance(error, Refused):
            return error
        return StoreError(
            f"row {wanted.row.id!r} ({len(wanted.ids)} tokens): {error}",
            mend=how_to_start(self.exporter, wanted.target_layer_ids),
        )


def _stated(probes: Probes) -> tuple[int, ...] | None:
    """The layer ids that the server says it was started with; None where it does not say."""
    stated = (probes.server_info or {}).get("return_aux_hidden_state_layer_ids")
    if isinstance(stated, list) and all(type(k) is int for k in stated):
        return tuple(stated)
    return None
