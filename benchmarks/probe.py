"""Probe a machine over ssh against `ssh host true`: how much longer, and over how many connections.

Both sides talk to the same sshd on loopback, in turn, several times; medians are compared. The
sshd's log says how many connections each made. The probe is timed as a library call (what
`draftlab probe` adds for each machine) and as the whole command, Python's start included. What a
probe costs depends on what it finds: this one looks at this machine, its home folder and models.

Run:  python benchmarks/probe.py [--rounds 9]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import pytest
import sshd

from draftlab.host.probe import probe

MOST_SECONDS_MORE = 0.5


def run(command: list[str]) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)


def ask(config: Path) -> None:
    """Probe once."""
    _, errors = probe(["gpu1"], ssh_config=config)
    if errors:
        raise errors[0]


def seconds(work: Callable[[], None]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(config: Path, server: sshd.Server, rounds: int) -> bool:
    """Print the medians; whether the probe keeps to its limit."""
    command = [sys.executable, "-m", "draftlab.cli.main", "probe", "gpu1", "--ssh-config"]
    sides: dict[str, Callable[[], None]] = {
        "ssh host true": lambda: run(["ssh", "-F", str(config), "gpu1", "true"]),
        "probe, library call": lambda: ask(config),
        "draftlab probe": lambda: run([*command, str(config)]),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    connections = dict.fromkeys(sides, 0)
    for number in range(rounds + 1):
        for name, work in sides.items():
            before = server.connections
            took = seconds(work)
            if number:  # the first round warms caches
                times[name].append(took)
                connections[name] += server.connections - before
    medians = {name: statistics.median(took) for name, took in times.items()}
    base = medians["ssh host true"]
    for name, median in medians.items():
        each = connections[name] / rounds
        print(f"{name:<20} {median:6.3f} s  {median - base:+.3f} s  {each:g} connection(s)")
    return (
        medians["probe, library call"] - base <= MOST_SECONDS_MORE
        and connections["probe, library call"] == rounds
    )


def main() -> None:
    """Start the server, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        try:
            server = sshd.Server(place / "target")
        except pytest.skip.Exception as reason:
            print(f"skipped: {reason}")
            return
        try:
            known = place / "known_hosts"
            known.write_text(server.known())
            config = sshd.client_config(place / "config", known, server.alias("gpu1"))
            if not measure(config, server, rounds):
                sys.exit(f"more than {MOST_SECONDS_MORE} s more, or not one connection each")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
