"""Capture from memory and layer by layer, against plain forwards and transformers' disk offload.

All sides load the target, run the same passes of the same texts in the same number type, and are
timed with the loading. The plain forward and the offload only run the model
(`output_hidden_states`, logits); the two captures also write a store, whose bytes must be the same.
Disk offload needs the package `accelerate`; without it that side is left out.

    python benchmarks/capture.py                                # tiny, under a minute
    python benchmarks/capture.py --hidden 1024 --layers 24 --sequences 32 --tokens 64
    python benchmarks/capture.py --cold   # the files leave the page cache whenever they were read
                                          # through, as those of a model larger than memory do
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from draftlab.base.quantities import bytes_text
from draftlab.base.records import Provenance
from draftlab.hidden import capture
from draftlab.hidden.capture import carry_out, plan_capture
from draftlab.hidden.passes import padded_ids, passes_of, shard_groups
from draftlab.reference.completions import (
    Completion,
    LocalTarget,
    Reference,
    ReferenceJob,
    write_reference,
)
from draftlab.target.compute import Compute
from draftlab.target.decoding import GREEDY
from draftlab.target.loading import TargetIdentity

VOCAB = 4096
COLD = False
OFFLOAD = {
    "model.embed_tokens": "cpu",
    "model.layers": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}


def make_target(folder: Path, arguments: argparse.Namespace) -> None:
    """A random Qwen3; bfloat16 files, as targets have."""
    config = transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=arguments.hidden, intermediate_size=4 * arguments.hidden,
        num_hidden_layers=arguments.layers, num_attention_heads=arguments.hidden // 64,
        num_key_value_heads=arguments.hidden // 128, head_dim=64, max_position_embeddings=4096,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=None, eos_token_id=None, dtype="bfloat16",
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(config).bfloat16().save_pretrained(folder)


def make_reference(folder: Path, target: Path, arguments: argparse.Namespace) -> Reference:
    """Random texts, half of each a prompt; no target needs to have written them."""
    known = TargetIdentity.of(target)
    job = ReferenceJob(
        prompts_digest="random", num_prompts=arguments.sequences,
        made_by=LocalTarget(
            fingerprint=known.fingerprint, architecture=known.facts.architecture, device="cpu",
            dtype="float32", batch_size=1,
        ),
        max_new_tokens=arguments.tokens, ignore_eos=True, decoding=GREEDY, thinking="template",
        template_digest="", keep_cut_off=True,
    )  # fmt: skip
    draw = random.Random(0)
    half = arguments.tokens // 2
    rows = [
        Completion(
            id=str(i), domain="random", finish="length", ids_from="target",
            prompt_ids=tuple(draw.randrange(VOCAB) for _ in range(half)),
            completion_ids=tuple(draw.randrange(VOCAB) for _ in range(half)),
        )
        for i in range(arguments.sequences)
    ]  # fmt: skip
    return write_reference(folder, job, rows, None, Provenance.now())


def forwards(target: Path, reference: Reference, device_map: dict | None, folder: Path) -> None:
    """Load the model and run the passes of a capture, states and logits thrown away."""
    extra = {} if device_map is None else {"device_map": device_map, "offload_folder": folder}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, **extra
    ).eval()
    rows = reference.completions
    groups = shard_groups(rows, capture.SEQUENCES_PER_SHARD)
    with torch.inference_mode():
        for number, group in enumerate(groups):
            for this in passes_of(number, group, rows, capture.TOKENS_PER_PASS):
                if device_map is not None:
                    forget(target)
                model(input_ids=padded_ids(this, rows), use_cache=False, output_hidden_states=True)


def forget(target: Path) -> None:
    """With --cold: take the files out of the page cache."""
    if not COLD:
        return
    for path in target.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Time every side and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--tokens-per-pass", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cold", action="store_true")
    arguments = parser.parse_args()
    global COLD
    COLD = arguments.cold
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    capture.TOKENS_PER_PASS = arguments.tokens_per_pass
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), arguments)


def compare(root: Path, arguments: argparse.Namespace) -> None:
    """One round after another, every side in each, so that all meet the same load."""
    compute = Compute(device="cpu", dtype="float32", threads=arguments.threads)
    compute.apply()
    target = root / "target"
    make_target(target, arguments)
    reference = make_reference(root / "reference", target, arguments)
    digests: set[str] = set()

    def captured(out: Path, *, stream: bool) -> None:
        taps = (1, arguments.layers // 2, arguments.layers - 2)
        plan = plan_capture(reference, target, taps, out, compute, stream=stream)
        digests.add(carry_out(plan).digest)

    sides: dict[str, Callable[[Path], object]] = {
        "capture from memory": lambda out: captured(out, stream=False),
        "capture by layers": lambda out: captured(out, stream=True),
        "plain forwards": lambda out: forwards(target, reference, None, out),
    }
    if importlib.util.find_spec("accelerate"):
        sides["disk offload"] = lambda out: forwards(target, reference, OFFLOAD, out)
        sides["disk offload, one by one"] = lambda out: one_by_one(target, reference, out)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(arguments.rounds + 1):  # the first warms up: imports, page cache
        for name, run in sides.items():
            forget(target)
            started = time.perf_counter()
            run(root / f"{name} {number}")
            seconds[name].append(time.perf_counter() - started)
    if len(digests) != 1:
        raise SystemExit(f"{len(digests)} different stores")
    weights = sum(path.stat().st_size for path in target.glob("*.safetensors"))
    print(
        f"{arguments.layers} layers of hidden size {arguments.hidden}, {bytes_text(weights)}; "
        f"{arguments.sequences} texts of {arguments.tokens} tokens, "
        f"{arguments.tokens_per_pass} a pass; {compute}{'; nothing cached' * COLD}"
    )
    ours = statistics.median(seconds["capture by layers"][1:])
    for name, values in seconds.items():
        median = statistics.median(values[1:])
        print(f"{name:>25} {median:8.2f} s   {median / ours:6.2f} times capture by layers")


def one_by_one(target: Path, reference: Reference, folder: Path) -> None:
    """Disk offload as it is mostly met: a text a pass."""
    usual, capture.TOKENS_PER_PASS = capture.TOKENS_PER_PASS, 1
    try:
        forwards(target, reference, OFFLOAD, folder)
    finally:
        capture.TOKENS_PER_PASS = usual


if __name__ == "__main__":
    main()
