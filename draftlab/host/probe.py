"""Ask machines what they have, one round trip each, all at once.

In:   host names, or none for this machine.  Out: a `Probe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event
from typing import ClassVar
from urllib.parse import quote

from draftlab.base.errors import Unreachable
from draftlab.base.progress import Track, silent
from draftlab.base.records import Document, Record
from draftlab.host.answers import facts_of
from draftlab.host.facts import HostFacts
from draftlab.host.names import require_host
from draftlab.host.refusals import refusal
from draftlab.host.script import SECONDS, Wish, marks, new_marker, probe_script
from draftlab.host.ssh import Conversation, Limits, converse, ssh_command

THIS_MACHINE = "this-machine"
_AT_ONCE = 32


class NotReached(Record):
    """A machine that gave no answer."""

    host: str
    kind: str
    """Class of the error: `Unreachable`, `HostKeyChanged`, `HostKeyUnknown`, `LoginRefused`."""
    why: str
    mend: str


class Probe(Document):
    """What was learned of the machines that were asked, in the order they were named."""

    SCHEMA: ClassVar[str] = "draftlab.probe/1"

    hosts: tuple[HostFacts, ...]
    not_reached: tuple[NotReached, ...]


def probe(
    hosts: Sequence[str] = (),
    wish: Wish | None = None,
    *,
    ssh_config: Path | None = None,
    limits: Limits | None = None,
    track: Track = silent,
) -> tuple[Probe, tuple[Unreachable, ...]]:
    """Ask the machines, this one if none is named.

    Args:
        hosts: names as for `ssh`; checked before anything is started.
        wish: what to ask.
        ssh_config: in place of the user's usual ssh configuration, as with `ssh -F`.
        limits: of each conversation.
        track: shows how many have answered.

    Returns:
        What was learned, and an error for each machine that was not reached.

    Raises:
        DraftlabError: a host name or a path that cannot be used.
        MissingTool: there is no ssh, or no sh, on this machine.
    """
    wanted = wish or Wish()
    limits = limits or Limits(whole=30 + sum(SECONDS[name] for name in wanted.questions))
    names = list(dict.fromkeys(require_host(host) for host in hosts)) or [THIS_MACHINE]
    stop = Event()
    found: dict[str, HostFacts] = {}
    refused: dict[str, Unreachable] = {}
    with ThreadPoolExecutor(min(len(names), _AT_ONCE)) as pool:
        asked = {pool.submit(_ask, name, wanted, ssh_config, limits, stop): name for name in names}
        try:
            done = as_completed(asked)
            for answer in track(done, total=len(names), what="probe", unit="hosts"):
                _sort(answer, asked[answer], found, refused)
        finally:
            stop.set()  # after Ctrl-C the other conversations end too
    errors = tuple(refused[name] for name in names if name in refused)
    missing = tuple(
        NotReached(host=name, kind=type(error).__name__, why=str(error), mend=error.mend)
        for name, error in zip((n for n in names if n in refused), errors, strict=True)
    )
    hosts_found = tuple(found[name] for name in names if name in found)
    return Probe(hosts=hosts_found, not_reached=missing), errors


def _sort(
    answer: Future[HostFacts],
    name: str,
    found: dict[str, HostFacts],
    refused: dict[str, Unreachable],
) -> None:
    try:
        found[name] = answer.result()
    except Unreachable as error:
        refused[name] = error


def _ask(name: str, wish: Wish, ssh_config: Path | None, limits: Limits, stop: Event) -> HostFacts:
    marker = new_marker()
    if name == THIS_MACHINE:
        wish = _from_here(wish)
        said = _converse(["sh", "-s"], marker, wish, limits, stop)
    else:
        with ssh_command(name, config=ssh_config, limits=limits) as command:
            said = _converse(command, marker, wish, limits, stop)
    if marks(marker)[0] not in said.output:
        raise refusal(name, said, limits)
    return facts_of(name, said.output, marker, wish, seconds=said.seconds)


def _converse(
    command: list[str], marker: str, wish: Wish, limits: Limits, stop: Event
) -> Conversation:
    first, last = marks(marker)
    script = probe_script(marker, wish)
    return converse(command, script, first=first, last=last, limits=limits, stop=stop)


def _from_here(wish: Wish) -> Wish:
    """Relative paths mean the folder that the command was started in, on this machine only."""
    return Wish(
        paths=tuple(_absolute(path) for path in wish.paths),
        models=tuple(_absolute(path) for path in wish.models),
        hub_cache=wish.hub_cache,
        deep=wish.deep,
    )


def _absolute(path: str) -> str:
    return path if path.startswith(("/", "~")) else str(Path.cwd() / path)


def file_name(host: str) -> str:
    """A file name for a host's record: its name, with what file systems dislike escaped."""
    return f"{quote(host, safe='@')}.json"
