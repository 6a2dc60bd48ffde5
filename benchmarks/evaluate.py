"""draftlab's evaluation against decoding loops with the real target: same prompts, one run.

One side decodes: z-lab's own loop (PyPI `dflash`) for the chain, a plain DDTree loop for the trees
of 16 to 1,024 nodes, each prompt by itself, as the public scripts do. The other replays: reference
and capture once, then one `evaluate` that yields the chain, every budget 1..1024, every verify
width and every streak. Accepted lengths must be identical in every round but those the end of the
text touches; the script fails if they are not.

    python benchmarks/evaluate.py              # a small Qwen3 pair, made and fitted on the spot
    python benchmarks/evaluate.py --prompts 8  # quicker
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import decode_loops
import torch
import transformers

from draftlab.drafter.config import DrafterConfig
from draftlab.hidden.capture import capture
from draftlab.hidden.store import HiddenStore
from draftlab.reference.generate import DecodeSettings, generate_reference
from draftlab.reference.prompts import Prompt
from draftlab.replay.evaluate import DEFAULT_BUDGETS, evaluate
from draftlab.target.compute import Compute
from draftlab.train.config import (
    BatchConfig,
    DataConfig,
    DrafterWish,
    EngineConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from draftlab.train.loop import train
from draftlab.train.options import LossOptions

TAPS, BLOCK, MASK = (1, 6, 11), 16, 4090


def make_target(folder: Path) -> None:
    """A random Qwen3 whose greedy text wanders: 14 layers, hidden 256, vocabulary 4,096.

    Seven layers to one of the drafter's, as Qwen3-4B and its published drafter have it (36 to 5).
    """
    config = transformers.Qwen3Config(
        vocab_size=4096, hidden_size=256, intermediate_size=768, num_hidden_layers=14,
        num_attention_heads=8, num_key_value_heads=4, head_dim=32, max_position_embeddings=4096,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                table = name.endswith(("embed_tokens.weight", "lm_head.weight"))
                weight.normal_(std=4 / 16 if table else 0.08)
    model.save_pretrained(folder)


def prompts_of(count: int) -> list[Prompt]:
    """Random prompts of 16 to 47 tokens."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(16, 48, (count,), generator=generator).tolist()
    return [
        Prompt(input_ids=tuple(torch.randint(0, 4000, (n,), generator=generator).tolist()))
        for n in lengths
    ]


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Wall seconds of one call, and what it returned."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def require_same(what: str, ours: Sequence[int], theirs: Sequence[int], block: int) -> int:
    """Rounds compared: all but those in which the end of the text may cut block or round."""
    left, compared = sum(ours), 0
    for mine, other in zip(ours, theirs, strict=False):
        left -= mine
        if left < block:
            break
        if mine != other:
            raise SystemExit(f"{what}: round {compared + 1} commits {mine} here and {other} there")
        compared += 1
    return compared


def main() -> None:
    """Run both sides and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of the replay side")
    parser.add_argument("--loop-rounds", type=int, default=1, help="repetitions of the loops")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--fit", type=int, default=60, help="training steps; more accept more")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)  # of transformers, about z-lab's call
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), arguments)


def compare(root: Path, arguments: argparse.Namespace) -> None:
    """Both sides in one process, on the same threads."""
    compute = Compute(device="cpu", dtype="float32", threads=arguments.threads)
    compute.apply()
    make_target(root / "target")
    prompts = prompts_of(arguments.prompts)
    settings = DecodeSettings(max_new_tokens=arguments.tokens, ignore_eos=True)
    reference_s, reference = timed(
        lambda: generate_reference(prompts, root / "target", root / "ref", settings, compute)
    )
    capture_s, store = timed(
        lambda: capture(reference, root / "target", TAPS, root / "store", compute)
    )
    fit = TrainConfig(
        data=DataConfig(store=root / "store"),
        drafter=DrafterWish(mask_token_id=MASK, block_size=BLOCK, num_layers=2),
        loss=LossOptions(weighting="decay", gamma=7.0),
        batch=BatchConfig(completions=8, anchors=24),
        optimizer=OptimizerConfig(learning_rate=2e-3),
        schedule=ScheduleConfig(steps=arguments.fit),
        engine=EngineConfig(threads=arguments.threads),
    )
    folder = train(fit, root / "run").drafter
    shape = DrafterConfig.from_folder(folder)

    replay_s, run = [], None
    for _ in range(arguments.rounds + 1):  # the first warms up: compiled kernels, page cache
        seconds, evaluation = timed(lambda: evaluate(store, folder, root / "target", compute))
        replay_s.append(seconds)
        run = evaluation.run
    replay = statistics.median(replay_s[1:])

    model = transformers.AutoModelForCausalLM.from_pretrained(root / "target", dtype=torch.float32)
    drafter = decode_loops.load_zlab_drafter(folder)
    print(
        f"{arguments.prompts} prompts x {arguments.tokens} tokens, block {BLOCK}, "
        f"{arguments.threads} threads, chain τ {run.chain.tau:.2f}"
    )
    print(f"{'method':>12} {'rounds':>7} {'compared':>9} {'loop s':>8}")
    loops = []
    loops.append(
        time_loop("chain", run.chain, prompts, arguments,
                  lambda ids, n: decode_loops.chain_loop(drafter, model, ids, n))
    )  # fmt: skip
    for budget in DEFAULT_BUDGETS:
        loops.append(
            time_loop(f"tree {budget}", run.trees[str(budget)], prompts, arguments,
                      lambda ids, n, b=budget: decode_loops.tree_loop(drafter, model, ids, n, b))
        )  # fmt: skip
    report(sum(loops), replay, floor_seconds(shape, store), reference_s + capture_s)


def report(loops: float, replay: float, floor: float, once: float) -> None:
    """Print the ratios and what is left above the floor."""
    print()
    print(f"loops, all eight methods      {loops:8.1f} s")
    print(f"replay (evaluate)             {replay:8.2f} s   {loops / replay:6.0f}x")
    print(f"  its matrix products alone   {floor:8.2f} s   of {replay:.2f} s")
    print(
        f"reference and capture, once   {once:8.2f} s   {loops / (replay + once):6.0f}x with them"
    )
    print("replay also gives every budget 1..1024, every verify width and every streak")


def floor_seconds(shape: DrafterConfig, store: HiddenStore) -> float:
    """Seconds that the unavoidable matrix products take at the rate measured here.

    Every anchor is drafted once, B slots through the layers and B - 1 through the head.
    """
    hidden, vocab = shape.hidden_size, store.index.conditions.vocab_size
    heads = 2 * (shape.num_attention_heads + shape.num_key_value_heads) * shape.head_dim
    layer = hidden * heads + 3 * hidden * shape.intermediate_size
    anchors = sum(entry.completion_tokens - 1 for entry in store.index.sequences)
    slots = shape.block_size * len(shape.layers) * layer
    products = 2 * anchors * (slots + shape.num_drafted * hidden * vocab)
    left, right = torch.randn(2048, hidden), torch.randn(vocab, hidden)
    rates = []
    for _ in range(9):
        seconds, _ = timed(lambda: left @ right.T)
        rates.append(2 * left.shape[0] * hidden * vocab / seconds)
    return products / statistics.median(rates)


def time_loop(name, counts, prompts, arguments, loop) -> float:
    """Seconds of a decoding loop over all prompts; fails where a round differs from replay's."""
    seconds, compared = [], 0
    for _ in range(arguments.loop_rounds):
        took, results = timed(lambda: [loop(p.input_ids, arguments.tokens) for p in prompts])
        seconds.append(took)
    for i, theirs in enumerate(results):
        compared += require_same(f"{name}, prompt {i}", counts.committed[i], theirs, BLOCK)
    print(
        f"{name:>12} {counts.rounds:7} {compared:9} {statistics.median(seconds):8.1f}", flush=True
    )
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
