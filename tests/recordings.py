"""Answers of machines as they are kept in tests/host/recorded: text, what was asked, and facts.

In the text, `@@` at the start of a line stands for the marker of the script.
"""

import json
from pathlib import Path

from draftlab.host.answers import facts_of
from draftlab.host.facts import HostFacts
from draftlab.host.script import Wish

MARKER = "draftlab-77aa"
RECORDED = {path.stem: path for path in sorted(Path(__file__).parent.glob("host/recorded/*.txt"))}


def told(name: str) -> dict:
    """What was asked of a machine and which facts somebody wrote down."""
    return json.loads(RECORDED[name].with_suffix(".json").read_text())


def wish(name: str) -> Wish:
    return Wish(**{key: tuple(value) for key, value in told(name)["wish"].items()})


def output(name: str) -> bytes:
    """The raw answer."""
    text = b"\n" + RECORDED[name].read_bytes()
    return text.replace(b"\n@@ ", f"\n{MARKER} ".encode())


def facts(name: str, raw: bytes | None = None) -> HostFacts:
    """The facts of a recorded answer, or of what was made of it."""
    answer = output(name) if raw is None else raw
    return facts_of("atlas", answer, MARKER, wish(name), seconds=0.4)
