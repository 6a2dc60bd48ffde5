"""Commands of draftlab in several processes, as torchrun starts them, without its start-up time.

The processes are forked from one that has imported everything. It is run as a script: reads a JSON
line a request, answers a JSON line each.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

QUICK = {
    "draftlab.hidden.capture.SEQUENCES_PER_SHARD": 2,
    "draftlab.hidden.stream.SAVE_SECONDS": 0,
    "draftlab.hidden.stream.SAVE_TIMES": 0,
    "draftlab.hidden.together.SILENT_SECONDS": 10.0,
    "draftlab.hidden.together.MEET_SECONDS": 10.0,
    "draftlab.hidden.together.BEAT_SECONDS": 0.2,
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str


class Forker:
    """Starts groups of processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(
        self, commands: Sequence[Sequence[object]], settings: Mapping[str, object] = QUICK
    ) -> list[int]:
        """One process for each command; the first leads. Their process ids."""
        self._count += 1
        port, pids = str(free_port()), []
        for rank, command in enumerate(commands):
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank),
                     "WORLD_SIZE": str(len(commands))}  # fmt: skip
            files = str(self._folder / f"{self._count}-{rank}")
            pids.append(self._ask("fork", [*map(str, command)], dict(settings), place, files))
        return pids

    def end(self, pids: Sequence[int]) -> list[Ended]:
        """Wait for each."""
        return [Ended(*self._ask("wait", pid)) for pid in pids]

    def run(
        self, commands: Sequence[Sequence[object]], settings: Mapping[str, object] = QUICK
    ) -> list[Ended]:
        """Until all have ended."""
        return self.end(self.start(commands, settings))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def _ask(self, *question: object) -> object:
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def serve() -> None:
    """Fork and wait, as asked on standard input."""
    from draftlab.cli.main import code_of  # noqa: PLC0415 (this half runs as a script)
    from draftlab.hidden import capture, stream, together  # noqa: F401, PLC0415

    files: dict[int, str] = {}
    for line in sys.stdin:
        kind, *rest = json.loads(line)
        if kind == "wait":
            code = os.waitstatus_to_exitcode(os.waitpid(rest[0], 0)[1])
            texts = [Path(f"{files[rest[0]]}.{name}").read_text() for name in ("out", "err")]
            answer: object = [code, *texts]
        else:
            command, settings, environment, path = rest
            answer = os.fork()
            if answer == 0:
                for number, name in ((1, "out"), (2, "err")):
                    os.dup2(os.open(f"{path}.{name}", os.O_WRONLY | os.O_CREAT), number)
                os.environ.update(environment)
                for name, value in settings.items():
                    module, _, attribute = name.rpartition(".")
                    setattr(sys.modules[module], attribute, value)
                code = 1
                try:
                    code = code_of(command)
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            files[answer] = path
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
