"""The only file of this package that starts a process: `sh` here, or `ssh` to another machine.

The user's own OpenSSH set-up is honoured (configuration, agent, ProxyJump, known hosts, a running
ControlMaster). On top of it a few options are laid through a configuration file that includes the
user's, because ssh hands that file, unlike options of its command line, on to the ssh of a jump
host: no host key is accepted, nothing asks for input, every hop has the connection limit.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO

from draftlab.base.errors import DraftlabError, MissingTool

MAX_OUTPUT_BYTES = 64 << 20
_POLL_SECONDS = 0.2
_GOODBYE_SECONDS = 2.0

_OPTIONS = """\
BatchMode yes
StrictHostKeyChecking yes
UpdateHostKeys no
ConnectTimeout {seconds}
ConnectionAttempts 1
ControlMaster no
ServerAliveInterval 5
ServerAliveCountMax 3
LogLevel ERROR
RequestTTY no
RemoteCommand none
ForwardAgent no
ForwardX11 no
ClearAllForwardings yes
PermitLocalCommand no
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a conversation may take, in seconds."""

    connect: int = 5
    """For each hop, until its server has introduced itself."""
    first_word: float = 30
    """Until the script on the machine speaks: connection, login and start-up files together."""
    whole: float = 300
    """Until the end."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a machine answered."""

    output: bytes
    errors: str
    status: int | None
    """Exit status of ssh or sh; None where it was stopped from here."""
    is_complete: bool
    """Whether the end that was waited for came."""
    limit: str
    """The limit that ended it (`first word`, `whole`, `size`); empty if none did."""
    seconds: float


@contextmanager
def ssh_command(host: str, *, config: Path | None, limits: Limits) -> Iterator[list[str]]:
    """The command that runs `sh -s` on a host; inside this context only.

    Args:
        host: a checked name (`names.require_host`).
        config: the user's ssh configuration in place of the usual files, as with `ssh -F`.
        limits: of which `connect` is used.
    """
    with tempfile.TemporaryDirectory(prefix="draftlab-ssh-") as folder:
        path = Path(folder) / "config"
        path.write_text(_OPTIONS.format(seconds=limits.connect) + _includes(config))
        yield ["ssh", "-F", str(path), "-T", "--", host, "sh -s"]


def _includes(config: Path | None) -> str:
    if config is None:
        return "Include ~/.ssh/config\nInclude /etc/ssh/ssh_config\n"
    place = str(config.resolve())
    if not config.is_file() or not place.isprintable() or '"' in place:
        raise DraftlabError(
            f"{config} is not a file that ssh can include.", mend="Check --ssh-config."
        )
    return f'Include "{place}"\n'


def converse(
    command: Sequence[str], script: bytes, *, first: bytes, last: bytes, limits: Limits, stop: Event
) -> Conversation:
    """Run a command with a script on its standard input, until its output holds `last`.

    Nothing that the command starts outlives this on this machine, and nothing of it can ask for
    input: it has no terminal. A master connection that runs already is used, none is started.

    Args:
        command: program and arguments; no shell reads them.
        script: for its standard input.
        first: output that must come within `limits.first_word`.
        last: output that ends the conversation.
        limits: for all of it.
        stop: set from another thread to end it at once.

    Raises:
        MissingTool: there is no such program.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(script)
        stdin.seek(0)
        started = time.monotonic()
        process = _start(command, stdin, stderr)
        assert process.stdout is not None  # noqa: S101  # a pipe was asked for
        try:
            output, limit = _listen(process.stdout, first, last, limits, stop)
            is_complete = last in output
            status = _goodbye(process) if not limit else None
            seconds = time.monotonic() - started
        finally:
            _end(process)
            process.stdout.close()
        stderr.seek(0)
        errors = stderr.read(1 << 16).decode("utf-8", errors="replace")
    return Conversation(output, errors, status, is_complete, limit, seconds)


def _start(command: Sequence[str], stdin: IO[bytes], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            start_new_session=True,  # no terminal to ask on, and a group to end
        )
    except FileNotFoundError as error:
        raise MissingTool(command[0], f"Install the program `{command[0]}`.") from error


def _listen(
    stdout: IO[bytes], first: bytes, last: bytes, limits: Limits, stop: Event
) -> tuple[bytes, str]:
    """All output up to `last` or its end, and the limit that cut it."""
    output = bytearray()
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while not stop.is_set():
            passed = time.monotonic() - began
            if passed > limits.whole:
                return bytes(output), "whole"
            if passed > limits.first_word and first not in output:
                return bytes(output), "first word"
            if not selector.select(_POLL_SECONDS):
                continue
            data = os.read(stdout.fileno(), 1 << 16)
            output += data
            if not data or last in output[-len(data) - len(last) :]:
                return bytes(output), ""
            if len(output) > MAX_OUTPUT_BYTES:
                return bytes(output), "size"
    return bytes(output), "stopped"


def _goodbye(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status, if it comes by itself; what a stuck driver holds may keep ssh waiting."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_GOODBYE_SECONDS)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
