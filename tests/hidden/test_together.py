"""Several processes make the store of one; one that dies or is idle hangs nobody."""

import os
import signal
import subprocess
import sys
import time

import pipeline
import processes
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from pipeline import content

from draftlab.base.errors import DraftlabError
from draftlab.base.ranks import Ranks
from draftlab.hidden.together import shares

TIME_LIMIT = 120
WAYS = ("--no-stream", "--stream")
QUICKLY_GIVEN_UP = {**processes.QUICK, "draftlab.hidden.together.SILENT_SECONDS": 2.0}


@given(st.lists(st.integers(1, 9999), max_size=40), st.integers(1, 9))
def test_every_shard_is_taken_once_and_nobody_has_a_shard_more_than_needed(tokens, count):
    taken = shares(dict(enumerate(tokens)), count)
    assert sorted(number for numbers in taken for number in numbers) == list(range(len(tokens)))
    loads = [sum(tokens[number] for number in numbers) for numbers in taken]
    for load, numbers in zip(loads, taken, strict=True):
        assert load - min((tokens[n] for n in numbers), default=0) <= min(loads)


def test_what_torchrun_sets_is_read():
    set_by_it = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert Ranks.read(set_by_it) == Ranks(5, 8, 1, 4)
    assert Ranks.read({"RANK": "3", "WORLD_SIZE": "4"}) == Ranks(3, 4, 3, 4)
    assert Ranks.read({}) == Ranks.read({"WORLD_SIZE": "1", "RANK": "0"}) == Ranks(0, 1, 0, 1)


@pytest.mark.parametrize("rank", ["2", "-1", "", "one", "²"])
def test_an_impossible_environment_is_refused(rank):
    with pytest.raises(DraftlabError, match=f"WORLD_SIZE=2 and RANK={rank}"):
        Ranks.read({"RANK": rank, "WORLD_SIZE": "2"})


@pytest.fixture(scope="module")
def forker(tmp_path_factory):
    started = processes.Forker(tmp_path_factory.mktemp("said"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def job(tmp_path_factory, forker):
    """Five shards of two completions each, how to capture them, and what one process made."""
    root = tmp_path_factory.mktemp("job")
    target = tiny.write_target(root / "target", "qwen3_5", tied=False)
    pipeline.short_reference(root / "ref", target, count=10)

    def command(out, *more, layers="1,3,5"):
        return ["capture", root / "ref", "--target", target, "--layers", layers, "--out", out,
                "--threads", "1", *more]  # fmt: skip

    forker.run([command(root / "one", "--no-stream")])
    return command, content(root / "one")


def wait_for(path):
    deadline = time.monotonic() + TIME_LIMIT
    while not path.is_file():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_make_the_bytes_of_one(job, forker, tmp_path, way, count):
    command, whole = job
    ended = forker.run([command(tmp_path / "store", way)] * count)
    assert [one.code for one in ended] == [0] * count, ended
    assert content(tmp_path / "store") == whole
    assert "10 sequences, layers 1,3,5" in ended[0].out
    assert f"capture: {count} processes" in ended[0].err
    assert [one.out + one.err for one in ended[1:]] == [""] * (count - 1)


@pytest.mark.parametrize("way", WAYS)
def test_a_process_with_nothing_to_do_hangs_nobody(job, forker, tmp_path, way):
    command, whole = job
    ended = forker.run([command(tmp_path / "store", way)] * 7)  # of five shards
    assert [one.code for one in ended] == [0] * 7, ended
    assert content(tmp_path / "store") == whole


def test_a_store_that_is_finished_is_left_as_it_is(job, forker, tmp_path):
    command, whole = job
    for _ in range(2):
        ended = forker.run([command(tmp_path / "store")] * 2)
        assert [one.code for one in ended] == [0, 0], ended
    assert content(tmp_path / "store") == whole


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("killed", "afterwards"), [(1, 1), (1, 3), (0, 2)])
def test_a_killed_process_ends_the_run_and_any_number_goes_on(
    job, forker, tmp_path, way, killed, afterwards
):
    command, whole = job
    out = tmp_path / "store"
    pids = forker.start([command(out, way)] * 2, QUICKLY_GIVEN_UP)
    wait_for(out / "job.json")
    os.kill(pids[killed], signal.SIGKILL)
    ended = forker.end(pids)
    assert ended[killed].code == -signal.SIGKILL
    assert ended[1 - killed].code == 6, ended
    gone = "the leading process cannot be reached" if killed == 0 else "process 1 of 2 has given"
    assert gone in ended[1 - killed].err
    assert not (out / "index.json").exists()
    ended = forker.run([command(out, way)] * afterwards)
    assert [one.code for one in ended] == [0] * afterwards, ended
    assert content(out) == whole


@pytest.mark.slow
def test_a_process_that_hangs_is_given_up(job, forker, tmp_path):
    command, _ = job
    pids = forker.start([command(tmp_path / "store")] * 2, QUICKLY_GIVEN_UP)
    wait_for(tmp_path / "store" / "job.json")
    os.kill(pids[1], signal.SIGSTOP)
    [first] = forker.end(pids[:1])
    os.kill(pids[1], signal.SIGKILL)
    forker.end(pids[1:])
    assert first.code == 6
    assert "process 1 of 2 has given no sign of life for 2 s" in first.err


def test_what_is_wrong_for_all_is_said_by_the_first_and_named_by_the_others(job, forker, tmp_path):
    command, _ = job
    first, second = forker.run([command(tmp_path / "store", layers="99")] * 2)
    assert (first.code, second.code) == (1, 6)
    assert "error: layers [99] cannot be tapped" in first.err
    assert "process 0 of 2 stopped: layers [99] cannot be tapped" in second.err


def test_processes_that_would_not_capture_the_same_are_refused(job, forker, tmp_path):
    command, _ = job
    out = tmp_path / "store"
    first, second = forker.run([command(out), command(out, layers="1,3,6")])
    assert (first.code, second.code) == (6, 1)
    assert "process 1 of 2 would capture with target_layer_ids (1, 3, 6)" in second.err
    assert "process 1 of 2 stopped: process 1 of 2 would capture" in first.err


@pytest.mark.slow
def test_torchrun_runs_the_command(job, forker, tmp_path):
    command, _ = job
    forker.run([command(tmp_path / "one")], {})
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                "--master-port", str(processes.free_port()), "-m", "draftlab"]  # fmt: skip
    done = subprocess.run(
        [*torchrun, *map(str, command(tmp_path / "two"))],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sequences, layers 1,3,5") == 1
    assert content(tmp_path / "two") == content(tmp_path / "one")
