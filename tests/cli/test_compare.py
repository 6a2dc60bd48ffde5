"""`draftlab compare` and `leaderboard` as a user types them."""

import json

import pytest

from draftlab.cli.main import code_of


@pytest.fixture
def two(small_pair, tmp_path):
    """Two runs of one drafter, under two names."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    asked = ["evaluate", str(small_pair.store), "--drafter", str(small_pair.drafter)]
    assert code_of([*asked, "--out", str(first)]) == 0
    second.write_bytes(first.read_bytes())
    return str(first), str(second)


def test_tables_name_both_runs_and_their_ratio(two, capsys):
    assert code_of(["compare", *two]) == 0
    shown = capsys.readouterr().out
    assert "too few for an interval" in shown
    assert "chain" in shown
    assert "1.00×" in shown


def test_json_and_markdown_say_the_same(two, capsys):
    assert code_of(["compare", *two, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "draftlab.comparison/1"
    assert code_of(["compare", *two, "--markdown"]) == 0
    tau = body["results"][0]["methods"][0]["tau"]["value"]
    assert f"| chain | {tau:.3f} |" in capsys.readouterr().out


def test_gates_end_in_exit_code_3(two, capsys):
    assert code_of(["compare", *two, "--min-tau", "99"]) == 3
    assert "below the gate of 99" in capsys.readouterr().err
    assert code_of(["compare", *two, "--min-ratio", two[0], "1.5"]) == 3
    assert code_of(["compare", *two, "--min-ratio", two[0], "0.8"]) == 0
    assert code_of(["compare", *two, "--min-ratio", "nobody", "0.8"]) == 1


def test_one_run_alone_is_refused(two, capsys):
    assert code_of(["compare", two[0]]) == 1
    assert "one run alone" in capsys.readouterr().err


def test_the_leaderboard_lists_both(two, tmp_path, capsys):
    assert code_of(["leaderboard", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "first" in shown
    assert "second" in shown
