"""The door to a server: HTTP with time limits, bounded repeats and a bound on what comes back.

What is repeated, after waits that double from `first_wait_seconds` (with up to half as much again,
so that many clients do not return together; a Retry-After of at most a minute is honoured): a
connection that fails or is cut, an answer that takes longer than `time_limit_seconds`, and the
statuses 408, 429, 500, 502, 503 and 504. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from draftlab import __version__
from draftlab.base.errors import CompletionsError, Unreachable
from draftlab.base.quantities import bytes_text
from draftlab.reference.replies import Refused, excerpt
from draftlab.reference.servers import Probes, Request

MAX_REPLY_BYTES = 64 << 20
CONNECT_SECONDS = 10.0
PROBE_SECONDS = 20.0
LONGEST_WAIT_SECONDS = 60.0
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
NOT_READY = frozenset({429, 502, 503, 504})
_KEY_WANTED = frozenset({401, 403})
_PROMPT_REFUSED = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    base: str
    """Without a trailing slash or /v1."""

    @classmethod
    def read(cls, url: str) -> Address:
        """Check what the user gave.

        Raises:
            CompletionsError: it is no http or https address, or holds more than one may show.
        """
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname)
            sound = sound and (parts.port is None or parts.port > 0)
        except ValueError:
            sound = False
        if not sound or not url.isprintable() or " " in url:
            raise CompletionsError(
                f"{url!r} is not the address of a server.",
                mend="Give it as http://host:port.",
            )
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise CompletionsError(
                "the address holds a user, a password or a query; command lines are recorded.",
                mend="Put the key into an environment variable and name it: --api-key-env NAME.",
            )
        return cls(url.rstrip("/").removesuffix("/v1").rstrip("/"))

    @property
    def shown(self) -> str:
        """What records say of it: scheme and host."""
        parts = urlsplit(self.base)
        host = parts.hostname or ""
        return f"{parts.scheme}://[{host}]" if ":" in host else f"{parts.scheme}://{host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for a server, and how often to try."""

    time_limit_seconds: float
    retries: int
    first_wait_seconds: float


class ServerClient:
    """One server, asked by many at a time."""

    def __init__(
        self,
        address: Address,
        patience: Patience,
        api_key: str,
        *,
        most_reply_bytes: int | None = None,
    ) -> None:
        self._patience = patience
        self._most_reply_bytes = most_reply_bytes or MAX_REPLY_BYTES
        self._base = address.base
        self.num_retried = 0
        # Identity: a small compressed body could unfold to any size.
        headers = {"User-Agent": f"draftlab/{__version__}", "Accept-Encoding": "identity"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._http = httpx2.AsyncClient(
            base_url=address.base,
            headers=headers,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None),
        )

    async def close(self) -> None:
        """Let go of all connections."""
        await self._http.aclose()

    async def look(self) -> Probes:
        """What the server says of itself; asked once each, so that a wrong address ends at once.

        Raises:
            Unreachable: nothing answers there, or it is not ready.
        """
        models = await self._get("/v1/models")
        return Probes(
            models=models,
            model_info=await self._get("/model_info", "/get_model_info"),
            server_info=await self._get("/server_info", "/get_server_info"),
            props=await self._get("/props"),
            version=await self._get("/version"),
        )

    async def ask(self, request: Request) -> bytes:
        """The body of the answer to a request.

        Raises:
            Unreachable: no answer, however often it was tried.
            Refused: the server does not take this prompt.
            CompletionsError: the server answers in no way that fits.
        """
        return self.judged(request, *await self.post(request))

    def judged(self, request: Request, status: int, body: bytes) -> bytes:
        """The body of an answer that is one; raises like `ask` by any other status."""
        if status == 200:
            return body
        said = f"{self._base}{request.path}: HTTP {status}: {excerpt(body)}"
        if status in _PASSING:
            raise Unreachable(
                f"{said} ({self._tries()}).", mend="Look at the server; then run this again."
            )
        if status in _PROMPT_REFUSED:
            raise Refused(f"{said}.", mend="Take this prompt out, or mend the server's limits.")
        raise CompletionsError(f"{said}.", mend=_mend(status))

    async def post(self, request: Request) -> tuple[int, bytes]:
        """Status and body; what passes is waited for, and the last status is given as it is.

        Raises:
            Unreachable: no answer, however often it was tried.
        """
        limit = self._patience.time_limit_seconds
        for attempt in range(self._patience.retries + 1):
            asked_to_wait = 0.0
            try:
                status, body, asked_to_wait = await self._send("POST", request, limit)
                if status not in _PASSING or attempt == self._patience.retries:
                    return status, body
            except (httpx2.HTTPError, TimeoutError) as error:
                if attempt == self._patience.retries:
                    raise self._unreachable(error, limit) from error
            self.num_retried += 1
            await asyncio.sleep(max(asked_to_wait, self._wait(attempt)))
        raise AssertionError("the last attempt returns or raises")

    async def _get(self, *paths: str) -> Mapping[str, Any] | None:
        """The JSON object under the first of these paths that has one."""
        for path in paths:
            try:
                status, body, _ = await self._send("GET", Request(path, {}), PROBE_SECONDS)
            except (httpx2.HTTPError, TimeoutError) as error:
                raise self._unreachable(error, PROBE_SECONDS, tries="asked once") from error
            said = f"{self._base}{path}: HTTP {status}: {excerpt(body)}."
            if status in NOT_READY:
                raise Unreachable(said, mend="Wait until the server is ready; then run this again.")
            if status in _KEY_WANTED:
                raise CompletionsError(said, mend=_mend(status))
            found = _json_object(body) if status == 200 else None
            if found is not None:
                return found
        return None

    async def _send(self, method: str, request: Request, limit: float) -> tuple[int, bytes, float]:
        """Status, body and the wait in seconds that the server asks for."""
        content = json.dumps(request.body).encode() if method == "POST" else None
        headers = {"Content-Type": "application/json"} if content else {}
        async with (
            asyncio.timeout(limit),  # of the whole answer: a server that drips is cut off too
            self._http.stream(method, request.path, content=content, headers=headers) as response,
        ):
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > self._most_reply_bytes:
                    most = bytes_text(self._most_reply_bytes)
                    raise CompletionsError(
                        f"{self._base}{request.path}: more than {most} in one reply.",
                        mend="Is this an inference server?",
                    )
            return response.status_code, bytes(body), _seconds(response.headers.get("retry-after"))

    def _wait(self, attempt: int) -> float:
        doubled: float = self._patience.first_wait_seconds * 2.0**attempt
        return min(LONGEST_WAIT_SECONDS, doubled * random.uniform(1, 1.5))

    def _tries(self) -> str:
        return f"tried {self._patience.retries + 1} times"

    def _unreachable(self, error: Exception, limit: float, *, tries: str = "") -> Unreachable:
        what = (
            f"no whole answer within {limit:g} s"
            if isinstance(error, TimeoutError)
            else f"{str(error) or type(error).__name__}"
        )
        return Unreachable(
            f"{self._base} does not answer: {what} ({tries or self._tries()}).",
            mend="Check that the server runs and that --server is its address; then run this "
            "again.",
        )


def _mend(status: int) -> str:
    if status in _KEY_WANTED:
        return "Put the server's key into an environment variable and name it: --api-key-env NAME."
    if 300 <= status < 400:
        return "Redirects are not followed: give the final address as --server."
    return "Check --server and --model."


def _seconds(retry_after: str | None) -> float:
    """A Retry-After in seconds, within bounds; dates and nonsense count as none."""
    digits = (retry_after or "").strip()[:6]
    return min(LONGEST_WAIT_SECONDS, float(digits)) if re.fullmatch("[0-9]+", digits) else 0.0


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
