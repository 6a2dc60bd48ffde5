"""Why a machine gave no answer, in one plain sentence each; from what ssh said, no process here.

OpenSSH's messages are not translated. Behind a jump host they name the hop that failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from draftlab.base.errors import HostKeyChanged, HostKeyUnknown, LoginRefused, Unreachable
from draftlab.base.quantities import one_line
from draftlab.host.ssh import Conversation, Limits

SSH_FAILED = 255
"""Exit status of ssh for its own failures; any other one is the remote command's."""


def refusal(host: str, said: Conversation, limits: Limits) -> Unreachable:
    """The error for a conversation in which the script never spoke.

    Args:
        host: as given.
        said: what came instead.
        limits: of the conversation.
    """
    for find in (_changed_key, _unknown_key, _login, _network):
        error = find(host, said.errors)
        if error is not None:
            return error
    if said.limit:
        return Unreachable(
            f"{host}: no answer in {limits.first_word:g} s, neither an error.",
            mend=f"Try `ssh {host} true`; a start-up file may wait for input there.",
        )
    if said.status == SSH_FAILED or not said.output.strip():
        return Unreachable(
            f"{host}: ssh failed: {_last(said.errors)}.", mend=f"Try `ssh -v {host} true`."
        )
    shown = one_line(said.output[:400].decode(errors="replace"), at_most=120)
    return Unreachable(
        f"{host}: logged in, but `sh -s` was not run there (status {said.status}); "
        f"it said: {shown}",
        mend="This login seems to allow one command only, or no shell; use another user.",
    )


def _changed_key(host: str, errors: str) -> Unreachable | None:
    if "HOST IDENTIFICATION HAS CHANGED" not in errors:
        return None
    place = re.search(r"^Offending .*?key in (.+):(\d+)\s*$", errors, re.MULTILINE)
    name = re.search(r"^Host key for (\S+) has changed", errors, re.MULTILINE)
    who = one_line(name[1]) if name else host
    if place is None:
        return HostKeyChanged(
            f"{host}: the host key of {who} changed.", mend=f"Look with `ssh -v {host}`."
        )
    file, line = one_line(place[1]), place[2]
    return HostKeyChanged(
        f"{host}: host key changed: {who} shows another key than line {line} of {file}.",
        mend=f"If you expected that (the machine was installed anew), remove it yourself: "
        f"ssh-keygen -f '{file}' -R '{who}'; then `ssh {host}` once.",
    )


def _unknown_key(host: str, errors: str) -> Unreachable | None:
    unknown = re.search(r"No (\S+) host key is known for (\S+) and", errors)
    if unknown is None and "Host key verification failed" not in errors:
        return None
    who = one_line(unknown[2]) if unknown else host
    return HostKeyUnknown(
        f"{host}: the host key of {who} is not known here.",
        mend=f"Log in once with `ssh {host}` and compare the fingerprint it shows with the "
        "machine's own; draftlab accepts no key for you.",
    )


def _login(host: str, errors: str) -> Unreachable | None:
    denied = re.search(r"^(?:(\S+): )?Permission denied \(([\w,-]+)\)", errors, re.MULTILINE)
    if denied is None and "Too many authentication failures" not in errors:
        return None
    who = one_line(denied[1] or host) if denied else host
    ways = f" (it takes {denied[2].replace(',', ', ')})" if denied else ""
    return LoginRefused(
        f"{host}: {who} refuses the login without a password{ways}.",
        mend=f"Load the right key (`ssh-add -l` lists them) or install it: ssh-copy-id {host}",
    )


def _network(host: str, errors: str) -> Unreachable | None:
    rules: tuple[tuple[str, Callable[[re.Match[str]], str], str], ...] = (
        (
            r"Could not resolve hostname (\S+): (.*)",
            lambda found: f"the name {found[1]} is not known ({found[2].strip()})",
            "Check the name, or give it an alias in your ssh configuration.",
        ),
        (
            r"connect to host (\S+) port (\d+): (.*)",
            lambda found: f"{found[1]} port {found[2]}: {found[3].strip()}",
            "Check that the machine runs, its port, and the network or VPN.",
        ),
        (
            r"(open failed: .*)",
            lambda found: f"the jump host cannot reach it ({found[1]})",
            "Check the name and the port as the jump host sees them.",
        ),
        (
            r"(Connection timed out during banner exchange|Connection to \S+ port \d+ timed out)",
            lambda _: "it takes the connection and does not answer in time",
            "The machine or a jump host hangs; try again, then look at it from its console.",
        ),
        (
            r"(Connection closed by .*|Connection reset by .*|kex_exchange_identification: .*)",
            lambda found: f"the connection ended before the login: {found[1]}",
            "Its sshd refuses this machine or is overloaded; try again.",
        ),
    )
    for pattern, sentence, mend in rules:
        found = re.search(pattern, errors)
        if found:
            return Unreachable(f"{host}: {one_line(sentence(found))}.", mend=mend)
    return None


def _last(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else "it said nothing"
