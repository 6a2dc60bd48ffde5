"""Two gloo processes learn what one learns; an empty share or a dead process hangs nobody."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest
import training

from draftlab.train.checkpoints import FOLDER
from draftlab.train.record import LOG_NAME

TIME_LIMIT = 300


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(count, out, changes):
    """The command in so many processes, as torchrun starts them."""
    port = str(free_port())
    command = [sys.executable, "-m", "draftlab.cli.main", "train", *changes, "--out", str(out)]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(count)
    ]


def run_processes(count, out, changes):
    """Until all have ended well."""
    started = start(count, out, changes)
    said = [process.communicate(timeout=TIME_LIMIT)[1] for process in started]
    assert [process.returncode for process in started] == [0] * count, said


def losses(out):
    return [json.loads(line) for line in (out / LOG_NAME).read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_two_processes_have_the_losses_of_one(stores, tmp_path, parts):
    """Three completions a step over two processes: shares of two and of one."""
    changes = training.settings(stores, "schedule.steps=6", f"batch.micro_batches={parts}")
    for count in (1, 2):
        run_processes(count, tmp_path / str(count), changes)
    one, two = losses(tmp_path / "1"), losses(tmp_path / "2")
    for alone, together in zip(one, two, strict=True):
        assert together["loss"] == pytest.approx(alone["loss"], rel=2e-5)
        assert together["labelled"] == alone["labelled"]
        assert together["top1"] == pytest.approx(alone["top1"], abs=0.02)
    assert two[-1]["heldout_tau"] == pytest.approx(one[-1]["heldout_tau"], rel=0.05)


@pytest.mark.slow
def test_a_process_with_nothing_to_do_hangs_nobody(stores, tmp_path):
    """One completion a step over two processes: the second has none, ever."""
    changes = training.settings(stores, "schedule.steps=4", "batch.completions=1")
    for count in (1, 2):
        run_processes(count, tmp_path / str(count), changes)
    one, two = losses(tmp_path / "1"), losses(tmp_path / "2")
    assert [e["loss"] for e in two] == pytest.approx([e["loss"] for e in one], rel=2e-5)


@pytest.mark.slow
def test_another_number_of_processes_goes_on_with_the_same_data(stores, tmp_path):
    """Two are killed after a checkpoint; one makes the rest as if it had made them all."""
    changes = training.settings(stores, "schedule.steps=10", "checkpoints.every=5")
    run_processes(1, tmp_path / "whole", changes)
    out = tmp_path / "parts"
    both = start(2, out, changes)
    deadline = time.monotonic() + TIME_LIMIT
    while not (out / FOLDER / "step-000005").is_dir() and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in both:
        process.kill()
        process.communicate()
    run_processes(1, out, changes)
    whole, parts = losses(tmp_path / "whole"), losses(out)
    assert [e["step"] for e in parts] == list(range(1, 11))
    assert [e["loss"] for e in parts] == pytest.approx([e["loss"] for e in whole], rel=1e-4)
