"""Which runs are compared, and that every number comes from their rounds."""

import json

import pytest

from draftlab.base.errors import DraftlabError
from draftlab.compare.comparison import Comparison, compare, open_runs
from draftlab.compare.leaderboard import ranked
from draftlab.replay.result import EvaluationRun


def altered(path, to, **changes):
    """A copy of a run whose conditions or fields are others."""
    body = json.loads(path.read_text())
    for name, value in changes.items():
        (body["conditions"] if name in body["conditions"] else body)[name] = value
    to.write_text(json.dumps(body))
    return to


def by_hand(run, completions=None):
    """Pooled τ, straight from the rounds."""
    rounds = run.chain.committed
    chosen = range(len(rounds)) if completions is None else completions
    return sum(sum(rounds[i]) for i in chosen) / sum(len(rounds[i]) for i in chosen)


def test_numbers_are_those_of_the_runs(runs):
    base, other = open_runs([runs.bundled, runs.shaken])
    comparison = compare(base, [other])
    (result,) = comparison.results
    mine, theirs = by_hand(other.run), by_hand(base.run)
    assert mine < theirs - 0.2  # the noise did something
    assert result.chain.tau.value == pytest.approx(mine)
    assert result.chain.difference.value == pytest.approx(mine - theirs)
    assert result.chain.ratio.value == pytest.approx(mine / theirs)
    assert result.chain.ratio.high < 1
    methods = {m.method: m for m in result.methods}
    for budget, counts in other.run.trees.items():
        assert methods[f"tree of {budget} nodes"].tau.value == pytest.approx(counts.tau)
    for domain in result.domains:
        members = [i for i, d in enumerate(base.run.prompt_domains) if d == domain.domain]
        assert domain.prompts == len(members) == 8
        assert domain.tau.value == pytest.approx(by_hand(other.run, members))
        assert not domain.ratio.has_interval


def test_a_run_against_its_copy_has_no_difference_and_no_width(runs, tmp_path):
    copy = tmp_path / "copy.json"
    copy.write_bytes(runs.bundled.read_bytes())
    comparison = compare(*(lambda a, b: (a, [b]))(*open_runs([runs.bundled, copy])))
    for method in comparison.results[0].methods:
        assert (method.difference.value, method.difference.low, method.difference.high) == (0, 0, 0)
        assert (method.ratio.low, method.ratio.high) == (1, 1)


def test_blocks_of_different_size_meet_at_the_narrower_ones_width(runs):
    """The narrow run drafts 8 slots anew; the wide one is cut to verify 8 of its 16."""
    base, narrow = open_runs([runs.bundled, runs.narrow])
    result = compare(base, [narrow]).results[0]
    methods = {m.method: m for m in result.methods}
    meeting = methods["chain cut to 8"]
    assert meeting.tau.value == pytest.approx(narrow.run.chain.tau)
    assert meeting.base_tau.value == pytest.approx(base.run.widths["8"].tau)
    assert "tree of 16 nodes" in methods
    assert "tree of 100 nodes" not in methods
    assert any("blocks of 8 against 16" in note for note in result.notes)
    assert any("only one of the two has" in note and "100" in note for note in result.notes)
    assert len(result.slots) == 7


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"thinking": "on"}, "thinking mode (off against on)"),
        ({"temperature": 1.0}, "temperature (0.0 against 1.0)"),
        ({"target_fingerprint": "ff"}, "target"),
        ({"prompts_digest": "ff"}, "prompts"),
        ({"reference_digest": "ff"}, "completions"),
        ({"max_new_tokens": 7}, "token limit (160 against 7)"),
    ],
)
def test_unlike_runs_are_refused_by_what_differs(runs, tmp_path, changes, named):
    other = altered(runs.bundled, tmp_path / "other.json", **changes)
    base, different = open_runs([runs.bundled, other])
    with pytest.raises(DraftlabError) as caught:
        compare(base, [different])
    assert named in str(caught.value)


def test_the_same_file_twice_is_refused(runs):
    with pytest.raises(DraftlabError, match="given twice"):
        open_runs([runs.bundled, runs.bundled])


def test_a_comparison_survives_saving(runs, tmp_path):
    base, other = open_runs([runs.bundled, runs.shaken])
    made = compare(base, [other])
    made.save(tmp_path / "comparison.json")
    assert Comparison.load(tmp_path / "comparison.json") == made


def test_a_leaderboard_ranks_comparable_runs_and_keeps_others_apart(runs, tmp_path):
    for path in (runs.bundled, runs.shaken):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    altered(runs.bundled, tmp_path / "thinking.json", thinking="on")
    (tmp_path / "notes.json").write_text("{not json")
    (tmp_path / "other.json").write_text('{"schema": "other/1"}')
    boards = ranked(tmp_path)
    assert [len(board.places) for board in boards] == [2, 1]
    first, second = boards[0].places
    better = max(EvaluationRun.load(p).chain.tau for p in (runs.bundled, runs.shaken))
    assert first.tau.value == pytest.approx(better)
    assert first.ratio_to_first is None
    assert second.ratio_to_first.value < 1


def test_a_folder_without_runs_is_said(tmp_path):
    with pytest.raises(DraftlabError, match="holds no"):
        ranked(tmp_path)
