"""Names, banners and answers made to mislead: nothing runs, nothing becomes a wrong fact."""

import json
import re

import pytest
import recordings
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recordings import MARKER, RECORDED

from draftlab.base.errors import DraftlabError
from draftlab.host.names import require_host
from draftlab.host.probe import file_name, probe
from draftlab.host.questions.deep import dd_rate
from draftlab.host.questions.disks import df_row
from draftlab.host.refusals import refusal
from draftlab.host.script import Wish, marks, new_marker, probe_script, quoted
from draftlab.host.ssh import Conversation, Limits

FOR_SHELLS = set(" \t\n\r;&|<>$`\"'\\(){}*?!#~^=,") | {chr(code) for code in range(32)} | {"\x7f"}


@settings(max_examples=600)
@given(st.one_of(st.text(max_size=20), st.from_regex(r"[a-z0-9@.:;$`' -]{1,12}", fullmatch=True)))
@example("-oProxyCommand=touch CANARY")
@example("user@-oProxyCommand=x")
@example("ssh://-oProxyCommand=x")
@example("gpu1\nHost *")
@example("gpu1\n")
@example("`touch CANARY`.example")
def test_a_name_that_passes_is_no_option_and_means_nothing_to_a_shell(name):
    if passes(name):
        assert name
        assert not FOR_SHELLS & set(name)
        assert not re.search(r"(^|@|//)-", name)


def passes(name):
    try:
        require_host(name)
    except DraftlabError:
        return False
    return True


@pytest.mark.parametrize(
    "name",
    [
        "gpu1",
        "user@gpu-1.lab.example",
        "10.0.0.7",
        "fe80::1%eth0",
        "ssh://u@h:2222",
        "büro_2",
        "[::1]",
    ],
)
def test_ordinary_names_pass(name):
    assert require_host(name) == name
    assert "/" not in file_name(name)


@pytest.mark.parametrize("name", ["-v", "a b", "a;b", "", "$(id)", "u@-v", "a\x00b"])
def test_a_refused_name_starts_nothing(name, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)  # calling it would be a TypeError
    with pytest.raises(DraftlabError, match="is not a host name"):
        probe(["gpu1", name])


def test_a_path_with_a_nul_is_refused():
    with pytest.raises(DraftlabError, match="NUL"):
        quoted("a\0b")


@settings(max_examples=300)
@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=4))
def test_outside_the_quotes_the_script_is_the_same_for_every_path(paths):
    """What a path could change is only what stands between single quotes."""
    plain = outside_quotes(
        probe_script(MARKER, Wish(paths=("x",) * len(paths), models=())).decode()
    )
    hostile = probe_script(MARKER, Wish(paths=tuple(paths), models=())).decode()
    assert outside_quotes(hostile) == plain


def outside_quotes(script):
    body = script.split("each_path() {\n")[1].split("\n}\neach_root")[0]
    return re.sub(r"'[^']*'", "'x'", re.sub(r"'[^']*'(?:\\''[^']*')+", "'x'", body))


def test_no_two_markers_are_alike():
    assert len({new_marker() for _ in range(1000)}) == 1000
    assert all(len(new_marker()) >= 32 for _ in range(10))


def shown(facts):
    """The facts as JSON, without what depends on when they were read."""
    return {**json.loads(facts.text()), "provenance": None}


@settings(max_examples=400)
@given(name=st.sampled_from(sorted(RECORDED)), banner=st.binary(max_size=200))
@example("serving_host", b"{\nMemTotal: 1 kB\nMemAvailable: 1 kB\n")
@example("serving_host", b"\ndraftlab-0000 begin memory\n\ndraftlab-0000 meminfo\nMemTotal: 1 kB\n")
def test_no_banner_changes_a_fact(name, banner):
    """CASES G04."""
    told = recordings.facts(name)
    after = recordings.facts(name, banner + recordings.output(name))
    assert shown(after) == shown(told)


@settings(max_examples=400)
@given(name=st.sampled_from(sorted(RECORDED)), share=st.floats(0, 1))
def test_an_answer_cut_anywhere_has_the_facts_of_the_whole_or_none(name, share):
    """The connection may die at any byte; what then is known is what was known."""
    output = recordings.output(name)
    cut = output[: int(share * len(output))]
    whole = shown(recordings.facts(name, output))
    part = shown(recordings.facts(name, cut))
    for fact in ("system", "memory", "cpu", "gpus", "tools", "servers", "scripts"):
        assert part[fact] == whole[fact] or part[fact]["state"] == "not answered", fact
    for one, other in zip(part["disks"], whole["disks"], strict=True):
        assert one["disk"] == other["disk"] or one["disk"]["state"] == "not answered"
    if part["models"]["state"] == "known":
        for one, other in zip(part["models"]["value"], whole["models"]["value"], strict=False):
            assert one == other or one["folders"]["state"] == "not answered"
    if part["pythons"]["state"] == "known":
        without = [json.dumps(drop_sight(facts)) for facts in (part, whole)]
        assert without[0] == without[1]


def drop_sight(facts):
    """Pythons without whether torch sees a GPU: that is not known before the GPUs are."""
    pythons = json.loads(json.dumps(facts["pythons"]))
    for python in pythons["value"]:
        if python["torch"]["state"] == "known":
            python["torch"]["value"]["sees_gpu"] = None
    return pythons


@settings(max_examples=600, deadline=None)
@given(name=st.sampled_from(sorted(RECORDED)), data=st.data())
def test_a_spoiled_answer_is_never_a_crash(name, data):
    """Lines that are missing, doubled or replaced give facts, or facts that were not answered."""
    lines = recordings.output(name).split(b"\n")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        noise = st.sampled_from(
            [b"", b"-1", b"max", b"9" * 40, b"{", b"[]", b"a b c d e", b"\xff\xfe", b"GPU 0: x",
             b"0, x, y", b'{"data": 3}', b'{"data": [{"id": null}]}', b"null", b"1e999", b"0 0",
             f"{MARKER} end x".encode(), f"{MARKER} begin".encode(), f"{MARKER} ".encode(),
             f"{MARKER} file 1 x 3".encode(), f"{MARKER} group".encode()]
        )  # fmt: skip
        kind = data.draw(st.sampled_from(["drop", "double", "replace", "digits"]))
        if kind == "drop":
            lines[at : at + 1] = []
        elif kind == "double":
            lines[at:at] = [lines[at]]
        elif kind == "replace":
            lines[at] = data.draw(noise)
        else:
            lines[at] = re.sub(rb"\d+", data.draw(st.sampled_from([b"", b"0", b"x"])), lines[at])
        lines = lines or [b""]
    recordings.facts(name, b"\n".join(lines)).text()


@settings(max_examples=300)
@given(st.text(max_size=300), st.text(max_size=200), st.one_of(st.none(), st.integers(0, 255)))
@example("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "", 255)
@example("Permission denied (publickey).\r\n", "", 255)
def test_whatever_ssh_says_becomes_one_plain_sentence(errors, output, status):
    said = Conversation(
        output.encode(errors="replace"), errors, status, is_complete=False, limit="", seconds=1.0
    )
    error = refusal("gpu1", said, Limits())
    assert error.exit_code == 4
    assert str(error).startswith("gpu1: ")
    assert error.mend
    assert str(error).isprintable()


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1+0 records out\n134217728 bytes (134 MB, 128 MiB) copied, 0.5 s, 268 MB/s\n", 268435456),
        ("134217728 bytes (128.0MB) copied, 0.250000 seconds, 512.0MB/s\n", 536870912),
        ("134217728 bytes (134 MB, 128 MiB) copied, 5e-2 s, 2.7 GB/s\n", 2684354560),
        ("0 bytes copied, 0.1 s, 0 B/s", None),
        ("dd: failed to open 'x': No such file", None),
    ],
)  # fmt: skip
def test_the_closing_line_of_dd(text, rate):
    assert dd_rate(text) == rate


def test_a_row_of_df_that_can_be_read_in_two_ways_is_not_read():
    head = "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
    assert df_row(f"{head}//nas/my share 100 50 50 50% /mnt/a b")[0] == "//nas/my share"
    with pytest.raises(ValueError, match="two ways"):
        df_row(f"{head}a 1 2 3 4% /b 100 50 50 50% /c")


def test_the_marks_are_lines():
    assert marks("m") == (b"\nm hello\n", b"\nm bye\n")
