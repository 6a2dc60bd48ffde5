"""Recorded answers of machines, with the facts that somebody who reads them would write down."""

import json
from pathlib import Path

import pytest

from draftlab.host.answers import facts_of
from draftlab.host.script import Wish

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.txt"))
MARKER = "draftlab-0f1e2d3c"


def facts_from(path):
    """The facts of a recorded answer, as JSON; the recording has `@@` for the marker."""
    told = json.loads(path.with_suffix(".json").read_text())
    output = b"\n" + path.read_bytes()
    output = output.replace(b"\n@@ ", f"\n{MARKER} ".encode())
    wish = Wish(**{key: tuple(value) for key, value in told["wish"].items()})
    facts = facts_of("gpu1", output, MARKER, wish, seconds=0.5)
    return json.loads(facts.text()), told["facts"]


def look_up(facts, place):
    for step in place.split("."):
        facts = facts[int(step)] if isinstance(facts, list) else facts[step]
    return facts


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_answers_have_the_facts_that_were_written_down(path):
    facts, expected = facts_from(path)

    assert {place: look_up(facts, place) for place in expected} == expected


def test_there_are_recordings_of_at_least_twelve_kinds_of_machine():
    assert len(RECORDED) >= 12


def test_a_secret_on_a_command_line_is_in_no_record():
    path = next(path for path in RECORDED if path.stem == "serving_host")
    assert b"sk-never-show-this" in path.read_bytes()

    assert "sk-never-show-this" not in json.dumps(facts_from(path)[0])


def test_the_scripts_of_the_serving_host_are_eleven():
    path = next(path for path in RECORDED if path.stem == "serving_host")

    assert len(facts_from(path)[0]["scripts"]["value"]) == 11
