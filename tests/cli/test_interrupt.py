"""Ctrl-C ends a command at once, says how to go on, and leaves what is whole."""

import json
import signal
import subprocess
import sys
import time

import pipeline
import tiny


def test_an_interrupted_reference_says_how_to_go_on(tmp_path, small_pair):
    prompts = pipeline.write_prompts(tmp_path / "p.jsonl", tiny.random_prompts(40, seed=11))
    command = [sys.executable, "-m", "draftlab.cli.main", "reference", "--prompts", str(prompts),
               "--target", str(small_pair.target), "--max-new-tokens", "200", "--ignore-eos",
               "--batch-size", "1", "--out", str(tmp_path / "ref")]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    partial = tmp_path / "ref" / "partial.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (partial.exists() and rows(partial) >= 1):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "run the same command again to continue" in said
    assert "Traceback" not in said
    assert rows(partial) >= 1


def rows(path):
    lines = path.read_text().split("\n")[1:-1]
    return sum(bool(json.loads(line)["id"]) for line in lines)
