"""A streamed capture that is stopped, at any moment, costs one layer and ends in the same bytes."""

import errno
import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise

import kills
import pipeline
import pytest
import tiny
from pipeline import capture_by_layers, content, short_reference

from draftlab.base.errors import Unfinished
from draftlab.hidden import capture as capturing
from draftlab.hidden import journal
from draftlab.hidden import stream as streaming
from draftlab.hidden.capture import capture, plan_capture


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A target of four layers, twelve completions in three shards, and the store they make."""
    root = tmp_path_factory.mktemp("small")
    target = tiny.write_target(root / "target", "llama", tied=False)
    return target, short_reference(root / "ref", target, count=12), root


@pytest.fixture
def stopped(small, tmp_path, monkeypatch):
    """Start a streamed capture that breaks in layer `when`; then what to run it again with."""
    target, reference, root = small
    monkeypatch.setattr(capturing, "SEQUENCES_PER_SHARD", 4)
    monkeypatch.setattr(streaming, "SAVE_SECONDS", 0)
    monkeypatch.setattr(streaming, "SAVE_TIMES", 0)
    out = tmp_path / "store"
    if not (root / "whole").exists():
        capture(reference, target, (0, 2), root / "whole", pipeline.FP32)

    def start(when, after_passes=0, held_bytes=None):
        run, left = streaming.run_layer, [after_passes]

        def breaking(target, number, ids, states):
            if number == when:
                left[0] -= 1
                if left[0] < 0:
                    raise Broken
            return run(target, number, ids, states)

        with monkeypatch.context() as context:
            context.setattr(streaming, "run_layer", breaking)
            with pytest.raises(Broken):
                capture_by_layers(reference, target, (0, 2), out, held_bytes=held_bytes)
        return out, lambda: capture_by_layers(reference, target, (0, 2), out)

    return start, content(root / "whole")


class Broken(Exception):
    """Stands for whatever stops a run."""


def test_a_stopped_run_goes_on_after_the_last_whole_layer(stopped, monkeypatch):
    start, whole = stopped
    out, again = start(3)
    for shard in ("00000", "00001", "00002"):
        assert sorted(path.name for path in (out / "scratch" / shard).iterdir()) == [
            "after-0002.bin", "progress.json", f"states-{shard}.safetensors",
        ]  # fmt: skip
    numbers = []
    run = streaming.run_layer
    monkeypatch.setattr(
        streaming,
        "run_layer",
        lambda t, n, ids, states: numbers.append(n) or run(t, n, ids, states),
    )
    again()
    assert set(numbers) == {3}
    assert content(out) == whole


def test_shards_that_are_at_different_layers_go_on_from_where_each_is(stopped, monkeypatch):
    """States on disk, broken in the third of three passes: two shards have done the layer."""
    start, whole = stopped
    out, again = start(2, after_passes=2, held_bytes=0)
    depths = [
        json.loads((out / "scratch" / shard / "progress.json").read_text())["layers_done"]
        for shard in ("00000", "00001", "00002")
    ]
    assert depths == [3, 3, 2]
    numbers = []
    run = streaming.run_layer
    monkeypatch.setattr(
        streaming,
        "run_layer",
        lambda t, n, ids, states: numbers.append(n) or run(t, n, ids, states),
    )
    again()
    assert numbers == [2, 3, 3, 3]
    assert content(out) == whole


def test_states_that_fit_into_memory_are_saved_only_from_time_to_time(stopped, monkeypatch):
    start, whole = stopped
    monkeypatch.setattr(streaming, "SAVE_SECONDS", 3600)
    out, again = start(3)
    assert not list((out / "scratch").rglob("after-*.bin"))
    again()
    assert content(out) == whole


def test_saving_takes_a_small_part_of_the_time(monkeypatch):
    """Ten times what the last one took must pass before the next."""
    now = [0.0]
    monkeypatch.setattr(streaming.time, "monotonic", lambda: now[0])

    class Slow:
        saved = 0

        def save(self):
            self.saved += 1
            now[0] += 7

    slow, clock = Slow(), streaming.Clock(last=0.0)
    times = []
    for _ in range(100):
        now[0] += 5
        before = slow.saved
        clock.save_if_due([slow])
        if slow.saved > before:
            times.append(now[0] - 7)
    assert times[0] == streaming.SAVE_SECONDS
    assert all(later - (earlier + 7) >= 70 for earlier, later in pairwise(times))


def test_the_plan_of_a_rerun_counts_what_is_left(small, stopped):
    target, reference, _ = small
    out, _ = stopped[0](3)
    fresh = plan_capture(
        reference, target, (0, 2), out.parent / "other", pipeline.FP32, stream=True
    )
    rerun = plan_capture(reference, target, (0, 2), out, pipeline.FP32, stream=True)
    assert "3 of 4 layers are done" in rerun.estimate.lines()[0]
    assert rerun.estimate.stream.read_bytes < fresh.estimate.stream.read_bytes
    assert rerun.estimate.disk_bytes < fresh.estimate.disk_bytes


@pytest.mark.parametrize(
    "spoil",
    [
        lambda shard: (shard / "states-00001.safetensors").unlink(),
        lambda shard: (shard / "after-0002.bin").unlink(),
        lambda shard: (shard / "after-0002.bin").write_bytes(
            (shard / "after-0002.bin").read_bytes()[:-4] + bytes(4)
        ),
        lambda shard: (shard / "progress.json").write_text("{}"),
        lambda shard: shutil.rmtree(shard),
        lambda shard: shutil.rmtree(shard.parent),
    ],
    ids=[
        "taps gone",
        "states gone",
        "states changed",
        "progress unreadable",
        "one gone",
        "all gone",
    ],
)
def test_scratch_files_that_are_not_whole_are_not_built_on(stopped, spoil):
    start, whole = stopped
    out, again = start(3)
    spoil(out / "scratch" / "00001")
    again()
    assert content(out) == whole


def test_what_killed_processes_leave_is_swept(stopped):
    start, whole = stopped
    out, again = start(2)
    dead = subprocess.Popen(["true"])
    dead.wait()
    for left in (out, out / "scratch" / "00000"):
        (left / f".half.{dead.pid}.part").write_bytes(b"half")
    (out / "scratch" / "00000" / "after-0000.bin").write_bytes(b"older")
    again()
    assert content(out) == whole
    assert not list(out.rglob(".*.part"))


def test_a_kill_between_the_index_and_the_sweeping_leaves_nothing_for_good(stopped, monkeypatch):
    start, whole = stopped
    out, again = start(1)

    def broken(_):
        raise Broken

    with monkeypatch.context() as context:
        context.setattr(journal, "clear", broken)
        with pytest.raises(Broken):
            again()
    assert (out / "index.json").is_file()
    assert (out / "scratch").is_dir()
    again()
    assert content(out) == whole


def test_a_run_may_go_on_from_memory_and_one_from_memory_by_layers(small, stopped, monkeypatch):
    target, reference, _ = small
    start, whole = stopped
    out, again = start(2)
    capture(reference, target, (0, 2), out, pipeline.FP32)
    assert content(out) == whole

    (out / "index.json").unlink()
    (out / "states-00002.safetensors").unlink()
    monkeypatch.setattr(journal, "receipts", lambda _: {})
    again()
    assert content(out) == whole


def test_a_full_disk_is_said_and_the_run_goes_on_when_there_is_room(stopped, monkeypatch):
    start, whole = stopped
    out, again = start(2)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "pwrite", full)
        with pytest.raises(Unfinished, match=f"the disk of {out} is full"):
            again()
    again()
    assert content(out) == whole


def test_killed_at_random_moments_it_redoes_one_layer_at_most_and_ends_in_the_same_bytes(tmp_path):
    """`kill -9`, five times; `python tests/kills.py 20` does it as often as it is told."""
    command = [sys.executable, kills.__file__, "5", "--root", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "5 kills, same bytes, no layer begun again after it was done" in done.stdout
