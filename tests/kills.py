"""Kill a streamed capture with signal 9 at random moments, and look at what comes of it.

    python tests/kills.py 20            # kills; a run that ends before its kill is begun anew
    python tests/kills.py 20 --seed 1   # at other moments

Processes are forked, so that each starts at once and kills fall into the work.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import pipeline
import tiny
import torch

from draftlab.hidden import capture, judge, stream
from draftlab.hidden.capture import carry_out, plan_capture
from draftlab.reference.completions import Reference
from draftlab.target.skeleton import Skeleton

LAYERS = (1, 3, 5)
load_layer = Skeleton.layer


def main() -> int:
    """Capture once undisturbed and once through kills; 0 if both are the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    capture.SEQUENCES_PER_SHARD, capture.TOKENS_PER_PASS = 4, 60
    stream.SAVE_SECONDS = stream.SAVE_TIMES = 0
    judge.HEAD_VALUES_PER_PIECE = 64 * tiny.HIDDEN_SIZE
    with tempfile.TemporaryDirectory() as folder:
        return run(arguments.root or Path(folder), arguments.kills, arguments.seed)


def run(root: Path, kills: int, seed: int) -> int:
    target = tiny.write_target(root / "target", "qwen3_5", tied=False)
    pipeline.short_reference(root / "ref", target, count=12)
    started = time.monotonic()
    require_end(begin(root, root / "whole"))
    whole_seconds = time.monotonic() - started
    (root / "layers.log").unlink()
    moments: Counter[str] = Counter()
    draw = random.Random(seed)
    while moments.total() < kills:
        process = begin(root, root / "killed")
        time.sleep(draw.uniform(0, whole_seconds))
        os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        if os.WIFSIGNALED(status):
            moments[moment(root / "killed" / "scratch" / "00000" / "progress.json")] += 1
        elif status == 0:
            begin_anew(root)
        else:
            raise SystemExit("a capture that was to be killed has failed")
    require_end(begin(root, root / "killed"))
    is_same = pipeline.content(root / "killed") == pipeline.content(root / "whole")
    runs = [text.split() for text in (root / "layers.log").read_text().split("anew")]
    is_forward = all(begun == sorted(begun) for begun in runs)
    for name, count in sorted(moments.items()):
        sys.stdout.write(f"{count:5} killed {name}\n")
    sys.stdout.write(
        f"{kills} kills, {'same' if is_same else 'OTHER'} bytes, "
        f"{'no' if is_forward else 'SOME'} layer begun again after it was done\n"
    )
    return 0 if is_same and is_forward else 1


def begin(root: Path, out: Path) -> int:
    """Fork a process that captures into `out`, noting each layer that it begins."""

    def noted(self: Skeleton, number: int) -> object:
        with (root / "layers.log").open("a") as log:
            print(number, file=log)
        return load_layer(self, number)

    process = os.fork()
    if process == 0:
        try:
            Skeleton.layer = noted
            reference = Reference.open(root / "ref")
            target = root / "target"
            carry_out(plan_capture(reference, target, LAYERS, out, pipeline.FP32, stream=True))
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    return process


def require_end(process: int) -> None:
    if os.waitpid(process, 0)[1] != 0:
        raise SystemExit("a capture that nobody killed has failed")


def begin_anew(root: Path) -> None:
    """It was done before it could be killed."""
    shutil.rmtree(root / "killed")
    with (root / "layers.log").open("a") as log:
        print("anew", file=log)


def moment(path: Path) -> str:
    if not path.is_file():
        return "before the first layer or after the last shard"
    progress = json.loads(path.read_text())
    rows = progress["head_rows_done"]
    return f"with {progress['layers_done']} layers" + (f" and {rows} rows of the head" * bool(rows))


if __name__ == "__main__":
    sys.exit(main())
