"""A real sshd on loopback, with keys, known hosts and a client configuration of its own.

Imports nothing of draftlab. Skips, with the reason, where OpenSSH's server is not installed
(`make test-tools` brings it on Debian).
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest


def sshd_program() -> str:
    found = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if found is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd on this machine (make test-tools)")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_key(path: Path) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, timeout=30)
    return path


class Server:
    """One sshd; `log` counts what came to it."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir()
        self.port = free_port()
        self.folder = folder
        self.host_key = make_key(folder / "host_key")
        self.user_key = make_key(folder / "user_key")
        self._log = folder / "log"
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where sshd parts from its privileges
        config = folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.host_key}\nPidFile none\n"
            f"AuthorizedKeysFile {self.user_key}.pub\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nLogLevel VERBOSE\n"
            "PermitRootLogin prohibit-password\n" + "".join(f"{line}\n" for line in options)
        )
        command = [sshd_program(), "-D", "-f", str(config), "-E", str(self._log)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and "Server listening" not in self.log():
            time.sleep(0.02)

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def connections(self) -> int:
        return self.log().count("Connection from 127.0.0.1")

    def public_host_key(self) -> str:
        return " ".join(self.host_key.with_suffix(".pub").read_text().split()[:2])

    def known(self) -> str:
        """The line of known_hosts for this server."""
        return f"[127.0.0.1]:{self.port} {self.public_host_key()}\n"

    def alias(self, name: str, *options: str) -> str:
        """A block of ssh_config."""
        lines = [
            f"Host {name}", "HostName 127.0.0.1", f"Port {self.port}", f"User {getpass.getuser()}",
            f"IdentityFile {self.user_key}", "IdentitiesOnly yes", *options,
        ]  # fmt: skip
        return "\n  ".join(lines) + "\n"

    def kill_sessions(self) -> None:
        """End every connection as a pulled cable or a dead machine would."""
        for pid in descendants(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        self.kill_sessions()
        self.process.kill()
        self.process.wait()


def descendants(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for kid in (task / "children").read_text().split():
                found += [int(kid), *descendants(int(kid))]
    return found


def client_config(path: Path, known_hosts: Path, *blocks: str) -> Path:
    """An ssh_config that reads nothing of the user's own."""
    path.write_text(
        f"UserKnownHostsFile {known_hosts}\nGlobalKnownHostsFile /dev/null\nIdentityAgent none\n"
        + "".join(blocks)
    )
    return path
