"""Recorded answers of machines, with the facts that somebody who reads them would write down."""

import json

import pytest
import recordings
from recordings import RECORDED


def look_up(facts, place):
    for step in place.split("."):
        facts = facts[int(step)] if isinstance(facts, list) else facts[step]
    return facts


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers_have_the_facts_that_were_written_down(name):
    facts, expected = json.loads(recordings.facts(name).text()), recordings.told(name)["facts"]

    assert {place: look_up(facts, place) for place in expected} == expected


def test_there_are_recordings_of_at_least_twelve_kinds_of_machine():
    assert len(RECORDED) >= 12


def test_a_secret_on_a_command_line_is_in_no_record():
    assert b"sk-never-show-this" in recordings.output("serving_host")

    assert "sk-never-show-this" not in recordings.facts("serving_host").text()


def test_the_scripts_of_the_serving_host_are_eleven():
    assert len(recordings.facts("serving_host").scripts.value) == 11
