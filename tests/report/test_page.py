"""The page: whole without torch, true to the run, and deaf to what the texts tell it to do."""

import base64
import gzip
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from hostile import HOSTILE

from draftlab.base.errors import DraftlabError
from draftlab.cli.main import code_of
from draftlab.replay.evaluate import write_run
from draftlab.replay.result import EvaluationRun
from draftlab.report.load import ReportedRun
from draftlab.report.page import render
from draftlab.report.pieces import byte_segments, segments, visible
from draftlab.report.rounds import completion_data, spread, starts_and_accepted
from draftlab.report.story import story_of
from draftlab.tree.walk import walk


class Parsed(HTMLParser):
    """Tags, attributes and shown text, as a browser would find them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.shown, self.within = [], [], [], None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.within = tag

    def handle_data(self, data):
        if self.within not in {"script", "style"}:
            self.shown.append(data)


@pytest.fixture(scope="module")
def reported(written):
    return ReportedRun.load(written.path)


@pytest.fixture(scope="module")
def html(reported):
    return render([reported]).html


@pytest.fixture
def copy(written, tmp_path):
    """A copy of the run to spoil."""
    return shutil.copytree(written.path.parent, tmp_path / "copy") / "run.json"


def packed(html):
    """What the script reads."""
    text = re.search('<script type="text/plain" id="data">([A-Za-z0-9+/=]+)</script>', html)[1]
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_the_command_writes_the_page_and_loads_no_torch(written, tmp_path):
    program = (
        "import sys; from draftlab.cli.main import code_of\n"
        "code = code_of(sys.argv[1:])\n"
        "print([name for name in ('torch', 'transformers', 'numba') if name in sys.modules])\n"
        "sys.exit(code)"
    )
    page = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-c", program, "report", written.path, "-o", page],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
    assert page.read_text().startswith("<!doctype html>")


def test_the_same_run_gives_the_same_bytes(written, html):
    assert render([ReportedRun.load(written.path)]).html == html


def test_the_first_screen_states_the_numbers_with_their_conditions(reported, html):
    text = " ".join(" ".join(Parsed(html).shown).split())
    run = reported.run
    assert f"On average {run.chain.tau:.3f} tokens are committed per target pass" in text
    assert f"macro mean {run.chain.tau_macro:.3f}" in text
    assert f"pooled over {run.chain.rounds} rounds" in text
    assert "thinking template temperature 0 (greedy) block 6 (the anchor and 5 drafted)" in text


def test_a_domain_with_few_rounds_is_marked_and_not_called_the_weakest(reported):
    domains = {
        name: result.model_copy(update={"too_few": i == 0})
        for i, (name, result) in enumerate(reported.run.domains.items())
    }
    story = story_of(reported.run.model_copy(update={"domains": domains}))
    assert story.domains.rows[0][2].endswith("(too few)")
    assert "Weakest" not in "".join(part for part, _ in story.verdict)


def test_text_from_outside_never_becomes_markup(html):
    page = Parsed(html)
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
    for text in (*HOSTILE[:2], "document.title", *"\u202e\u2028\x1b\x00\ufffd"):
        assert text not in html


def test_names_are_spelt_out_where_they_would_hide(html):
    assert "a<b>\\u202e\\u2028&'\"" in "".join(Parsed(html).shown)


def test_nothing_but_our_own_script_and_style_may_run_or_load(html):
    policy = next(v for k, v in Parsed(html).attributes if k == "content" and "default-src" in v)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.findall(r'(?:src|href)="(?!#)', html)


def test_the_data_holds_every_token_to_the_byte(written, html):
    (run,) = packed(html)["runs"]
    for made, tokens in zip(run["completions"], written.evaluation.tokens, strict=True):
        assert tuple(made["tokens"]) == tokens.completion
        assert tuple(made["prompt"]) == tokens.prompt
        for token in made["tokens"]:
            if token % 13 == 0:
                assert str(token) not in run["pieces"]
            elif token % 20 >= len(HOSTILE):
                assert run["pieces"][str(token)] == [f" w{token}"]


def test_each_round_on_the_page_is_what_was_drafted_there(written, reported):
    """Accepted drafts equal the text, the next one does not; read from the drafts anew."""
    for number, drafts in enumerate(written.evaluation.drafts):
        made = completion_data(reported, number)
        offset, width = 0, drafts.drafted_AD.shape[1]
        for start, accepted in zip(made["starts"], made["accepted"], strict=True):
            room = min(width, len(made["tokens"]) - 1 - start)
            ahead = made["tokens"][start + 1 : start + 1 + room]
            drafted = made["drafted"][offset : offset + room]
            assert drafted == drafts.drafted_AD[start, :room].tolist()
            assert tuple(drafted[:accepted]) == ahead[:accepted]
            assert accepted == room or drafted[accepted] != ahead[accepted]
            assert made["rank"][offset : offset + accepted] == [1] * accepted
            offset += room
        assert offset == len(made["drafted"]) == len(made["pop"]) == len(made["ownChance"])


def test_rounds_follow_from_the_record_as_the_walk_made_them():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 30))
        accepted = np.minimum(rng.integers(0, 6, n), np.arange(n, 0, -1))
        made = walk(accepted)
        starts, found = starts_and_accepted(made.committed_R.tolist(), cut=made.cut)
        assert starts.tolist() == made.starts_R.tolist()
        assert found.tolist() == made.accepted_R.tolist()


def test_a_page_of_some_completions_spans_worst_to_best(reported):
    committed = tuple(((i % 7) + 1,) for i in range(50))
    chain = reported.run.chain.model_copy(update={"committed": committed, "cut": (False,) * 50})
    run = reported.run.model_copy(update={"chain": chain})
    taus = [committed[i][0] for i in spread(run, 7)]
    assert (min(taus), max(taus), len(taus)) == (1, 7, 7)
    assert spread(run, 50) == list(range(50))
    assert spread(run, 0) == []


@pytest.mark.parametrize("suffix", ["rounds.safetensors", "texts.json"])
def test_a_changed_or_missing_file_beside_the_run_is_refused(copy, suffix, capsys):
    beside = copy.with_name(f"run.{suffix}")
    beside.write_bytes(beside.read_bytes().replace(b"1", b"2"))
    assert code_of(["report", str(copy)]) == 1
    assert f"run.{suffix} has changed since run.json was written" in capsys.readouterr().err
    beside.unlink()
    assert code_of(["report", str(copy)]) == 1
    assert "which is not there" in capsys.readouterr().err
    assert not copy.with_suffix(".html").exists()


def test_a_record_cannot_send_the_reader_to_other_folders(copy):
    run = EvaluationRun.load(copy)
    shutil.copy(copy.with_name(run.texts_file), copy.parent.parent / run.texts_file)
    run.model_copy(update={"texts_file": f"../{run.texts_file}"}).save(copy)
    with pytest.raises(DraftlabError, match="which is not there"):
        ReportedRun.load(copy)


def test_files_of_another_run_are_refused(copy):
    run = EvaluationRun.load(copy)
    swapped = run.chain.model_copy(update={"committed": run.chain.committed[:2]})
    run.model_copy(update={"chain": swapped}).save(copy)
    with pytest.raises(DraftlabError, match="other completions"):
        ReportedRun.load(copy)


def test_a_record_without_files_still_has_its_numbers(written, tmp_path):
    path = tmp_path / "run.json"
    write_free = {"rounds_file": "", "rounds_sha256": "", "texts_file": "", "texts_sha256": ""}
    written.evaluation.run.model_copy(update=write_free).save(path)
    page = render([ReportedRun.load(path)])
    assert page.completions_shown == 0
    assert "printed, not written" in page.html


def test_without_a_tokenizer_tokens_are_shown_as_ids(written, tmp_path):
    write_run(written.evaluation, tmp_path / "run.json")
    html = render([ReportedRun.load(tmp_path / "run.json")]).html
    assert packed(html)["runs"][0]["pieces"] == {}


def test_a_page_never_takes_the_place_of_the_record(copy, capsys):
    before = copy.read_bytes()
    assert code_of(["report", str(copy), "-o", str(copy)]) == 1
    assert "ends in .html" in capsys.readouterr().err
    assert copy.read_bytes() == before


def test_what_hides_is_shown_by_its_code():
    assert segments("a\n\tb") == ["a", "↵", "\n", "→", "\tb"]
    assert segments("\u202e") == ["", "\\u202e", ""]
    assert segments("\ufffd") == ["", "\\ufffd", ""]
    assert byte_segments(b" \xe6") == [" ", "\\xE6", ""]
    assert byte_segments("é".encode() + b"\xf0\x9f") == ["é", "\\xF0", "", "\\x9F", ""]
    assert visible("a\u00a0b\r\n\U000e0041") == "a\\u00a0b\\x0D\\x0A\\U000e0041"
