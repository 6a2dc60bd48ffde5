"""A training step of draftlab against one of speculators' model code: same problem, one run.

The drafter has SmolLM2-135M's widths (hidden 576, vocabulary 49,152), three layers, blocks of 8;
192 anchors in 6 documents of 200 tokens. A step is forward, backward, clipping and AdamW. Both
sides get the same weights, states and anchors and must arrive at the same loss, or the script
fails. speculators runs as its trainer runs it: float32 weights, bfloat16 by autocast, its own loss
and metrics; and in float32. It lives in an environment of its own, which the script makes. Steps of
all sides take turns; a child process each, so that peak memory is each side's own.

On one core of an AMD EPYC (Zen 5: avx512_bf16, no AMX), medians of 5 rounds:

    bfloat16   draftlab 0.92 s    speculators 2.86 s   3.1x    memory 1.01 of 2.26 GiB (0.45)
    float32    draftlab 2.84 s    speculators 4.92 s   1.7x    memory 1.25 of 2.31 GiB (0.54)

(Beside other work on the same machine all steps take about twice as long: 2.8x and 1.7x.)

The matrix products alone (267 GFLOP, which no code can leave out) take 0.53 s and 2.32 s here, so
five times is out of reach on such a core: it would mean running faster than they do. Before its
first step draftlab holds 0.44 GiB (0.34 of it torch and transformers), speculators 0.86, with three
copies of the table that is embedding, head and the verifier's head.

    python benchmarks/train.py               # makes .venv-speculators
    python benchmarks/train.py --rounds 2    # quicker
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import torch
from safetensors.torch import save_file

from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.model import Drafter
from draftlab.target.compute import Compute, best_operations_per_second

SIDES_FOLDER = Path(__file__).resolve().parent / "train_sides"
HIDDEN, VOCAB, LAYERS, BLOCK, GAMMA = 576, 49152, 3, 8, 4.0
TAPS, TARGET_LAYERS, MASK = (1, 8, 15, 21, 27), 30, 49151
SIDES = (
    ("draftlab", "bfloat16", ""),
    ("speculators", "bfloat16", "sdpa"),
    ("speculators", "bfloat16", "eager"),
    ("draftlab", "float32", ""),
    ("speculators", "float32", "sdpa"),
    ("speculators", "float32", "eager"),
)


def drafter_json() -> dict:
    """SmolLM2-135M's widths, three layers."""
    return {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "vocab_size": VOCAB,
        "hidden_size": HIDDEN, "intermediate_size": 1536, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64, "num_hidden_layers": LAYERS,
        "num_target_layers": TARGET_LAYERS, "rms_norm_eps": 1e-6, "rope_theta": 100000.0,
        "max_position_embeddings": 8192, "layer_types": ["full_attention"] * LAYERS,
        "block_size": BLOCK,
        "dflash_config": {"target_layer_ids": list(TAPS), "mask_token_id": MASK},
    }  # fmt: skip


def write_problem(folder: Path, documents: int, tokens: int, anchors: int) -> None:
    """Random weights and states; the tokens are those that the states make most probable."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, std: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * std

    tensors = {"table": normal(VOCAB, HIDDEN, std=HIDDEN**-0.5), "last_norm": torch.ones(HIDDEN)}
    for name, weight in Drafter(DrafterConfig.from_config(drafter_json())).state_dict().items():
        made = torch.ones_like(weight) if weight.ndim == 1 else normal(*weight.shape)
        tensors[f"weight.{name}"] = made if weight.ndim == 1 else made * weight.shape[1] ** -0.5
    prompt = tokens // 5
    for i in range(documents):
        last = normal(tokens, HIDDEN).bfloat16()
        normed = torch.nn.functional.rms_norm(last.float(), (HIDDEN,), eps=1e-6)
        said = (normed @ tensors["table"].T).argmax(dim=-1)
        tensors[f"tokens.{i}"] = torch.cat([said[:1], said[:-1]])
        tensors[f"taps.{i}"] = normal(tokens, len(TAPS) * HIDDEN).bfloat16()
        tensors[f"last.{i}"] = last
        room = tokens - BLOCK - prompt  # speculators trains on the next document's tokens past here
        drawn = torch.randperm(room, generator=generator)[:anchors].sort().values
        tensors[f"anchors.{i}"] = drawn + prompt
    save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "problem.safetensors")
    facts = {"shape": drafter_json(), "documents": documents, "prompt_length": prompt,
             "gamma": GAMMA}  # fmt: skip
    (folder / "problem.json").write_text(json.dumps(facts))


def speculators_python(folder: Path) -> Path:
    """An environment with speculators 0.9.0, made once."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder} with speculators 0.9.0 ...", flush=True)
        venv.create(folder, with_pip=True)
        for wanted in (["torch==2.13.0"], ["torch==2.13.0", "speculators==0.9.0"]):
            subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True)
        # Of no use to the model, and builds for another torch keep transformers from loading.
        unused = ["torchvision", "torchaudio"]
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *unused], check=True)
    return python


class Side:
    """One child process that takes a step each time it is asked."""

    def __init__(self, side, problem: Path, threads: int, peer: Path) -> None:
        self.name, self.dtype, self.attention = side
        ours = self.name == "draftlab"
        parts = [problem, self.dtype, threads, *([] if ours else [self.attention])]
        script = SIDES_FOLDER / f"{self.name}_side.py"
        paths = [str(SIDES_FOLDER), *([str(SIDES_FOLDER.parents[1])] if ours else [])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths),
                       "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}  # fmt: skip
        self.child = subprocess.Popen(
            [sys.executable if ours else peer, script, *map(str, parts)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.seconds: list[float] = []
        self.loss = self.peak = self.before = float("nan")

    @property
    def label(self) -> str:
        """For the table."""
        return " ".join(filter(None, (self.name, self.dtype, self.attention)))

    def step(self, *, counts: bool) -> None:
        """One step; the first, which warms up, gives the loss that all sides must share."""
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.label} has died: exit code {self.child.wait()}")
        found = json.loads(line)
        self.peak, self.before = found["peak_bytes"], found["before_bytes"]
        if counts:
            self.seconds.append(found["seconds"])
        else:
            self.loss = found["loss"]

    def close(self) -> None:
        """Let the child end."""
        self.child.stdin.close()
        self.child.wait()


def operations(documents: int, tokens: int, blocks: int) -> float:
    """Of a step's matrix products; trained weights count three times, the frozen head twice."""
    rows, width = blocks * BLOCK, 64
    context = documents * (tokens - 1) * (len(TAPS) * HIDDEN + LAYERS * 2 * 3 * width)
    drafted = rows * LAYERS * (2 * 9 * width + 2 * 3 * width + 3 * 1536)
    head = blocks * (BLOCK - 1) * VOCAB
    return 2.0 * HIDDEN * (3 * (context + drafted) + 2 * head)


def main() -> None:
    """Alternate the sides and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--anchors", type=int, default=32, help="of each document")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--environment", type=Path, default=Path(".venv-speculators"))
    arguments = parser.parse_args()
    peer = speculators_python(arguments.environment.absolute())
    with tempfile.TemporaryDirectory() as folder:
        write_problem(Path(folder), arguments.documents, arguments.tokens, arguments.anchors)
        sides = [Side(side, Path(folder), arguments.threads, peer) for side in SIDES]
        for number in range(arguments.rounds + 1):
            for side in sides:
                side.step(counts=number > 0)
        for side in sides:
            side.close()
    report(sides, arguments)


def report(sides: list[Side], arguments: argparse.Namespace) -> None:
    """Check that all sides computed the same loss; print times, memory and ratios."""
    blocks = arguments.documents * arguments.anchors
    flops = operations(arguments.documents, arguments.tokens, blocks)
    print(f"{blocks} anchors x {BLOCK} slots in {arguments.documents} documents of "
          f"{arguments.tokens} tokens, {arguments.threads} threads, {arguments.rounds} rounds; "
          f"{flops / 1e9:.0f} GFLOP of matrix products")  # fmt: skip
    print(f"{'side':>28} {'step s':>8} {'slots/s':>8} {'peak GiB':>9} {'before':>7} {'loss':>8}")
    median = {side: statistics.median(side.seconds) for side in sides}
    for side in sides:
        rate = blocks * (BLOCK - 1) / median[side]
        print(f"{side.label:>28} {median[side]:8.2f} {rate:8.0f} {side.peak / 2**30:9.2f} "
              f"{side.before / 2**30:7.2f} "
              f"{side.loss:8.4f}")  # fmt: skip
        off = abs(side.loss / sides[0].loss - 1)
        if off > 5e-3:
            raise SystemExit(f"{side.label} computes another loss: off by {off:.1%}")
    for dtype in ("bfloat16", "float32"):
        ours = next(s for s in sides if s.name == "draftlab" and s.dtype == dtype)
        theirs = [s for s in sides if s.name != "draftlab" and s.dtype == dtype]
        fastest = min(theirs, key=lambda s: median[s])
        smallest = min(theirs, key=lambda s: s.peak)
        print(f"{dtype}: {median[fastest] / median[ours]:.1f}x the speed of {fastest.label}, "
              f"{ours.peak / smallest.peak:.2f} of the memory of {smallest.label}")  # fmt: skip
        compute = Compute(device="cpu", dtype=dtype, threads=arguments.threads)
        compute.apply()
        floor = flops / best_operations_per_second(compute)
        print(f"  its matrix products alone, at the rate of square ones here: {floor:.2f} s")


if __name__ == "__main__":
    main()
