"""Train the bundled DFlash drafter on the bundled target's own completions.

In:   the target and held-out prompts that train_target.py wrote, training prompts from corpus.py.
Out:  draftlab/demo/pair/drafter, in z-lab's layout, and its true held-out τ.

Everything goes through draftlab itself: reference, capture, train. Training and held-out prompts
are disjoint by the rule in corpus.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from draftlab.base.progress import bar
from draftlab.base.quantities import seconds_text
from draftlab.demo.run import DRAFTER, MAX_NEW_TOKENS, PROMPTS, TARGET
from draftlab.hidden.capture import capture
from draftlab.hidden.store import HiddenStore
from draftlab.reference.generate import GreedySettings, generate_reference
from draftlab.reference.prompts import Prompt, read_prompts
from draftlab.target.compute import Compute
from draftlab.target.facts import TargetFacts
from draftlab.target.loading import load_tokenizer
from draftlab.train.config import TrainConfig
from draftlab.train.loop import train
from draftlab.train.shape import shape_for_target
from recipes.bundled_pair.corpus import training_prompts

BLOCK_SIZE, NUM_LAYERS, MASK_TOKEN = 16, 2, "<|mask|>"


def taps(num_layers: int) -> tuple[int, ...]:
    """Three layers spread evenly from the second to the third last, as z-lab spreads its taps."""
    last = num_layers - 3
    return (1, round((1 + last) / 2), last)


def store_of(prompts: list[Prompt], folder: Path, compute: Compute) -> HiddenStore:
    """Greedy completions of these prompts and the target's states over them."""
    settings = GreedySettings(max_new_tokens=MAX_NEW_TOKENS, thinking="off", batch_size=64)
    reference = generate_reference(
        prompts, TARGET, folder / "reference", settings, compute, track=bar
    )
    layers = taps(TargetFacts.from_folder(TARGET).num_layers)
    return capture(reference, TARGET, layers, folder / "store", compute, track=bar)


def main() -> None:
    """Make the drafter; print its τ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=2000, help="training prompts")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--work", type=Path, help="keep reference and store here, and reuse them")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=DRAFTER)
    arguments = parser.parse_args()
    compute = Compute.choose("cpu", "float32", threads=arguments.threads)
    compute.apply()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch)
        prompts = [Prompt.model_validate(p) for p in training_prompts(arguments.prompts)]
        store = store_of(prompts, work / "train", compute)
        heldout = store_of(list(read_prompts(PROMPTS)), work / "heldout", compute)
        shape = shape_for_target(
            TARGET,
            target_layer_ids=store.index.conditions.target_layer_ids,
            mask_token_id=load_tokenizer(TARGET).convert_tokens_to_ids(MASK_TOKEN),
            num_layers=NUM_LAYERS,
            block_size=BLOCK_SIZE,
        )
        config = TrainConfig(steps=arguments.steps, learning_rate=2e-3, evaluate_every=250)
        made = train(
            store, TARGET, shape, config, arguments.out, compute, heldout=heldout, track=bar
        )
        tokens = store.index.num_tokens
    for entry in made.log:
        if "heldout_tau" in entry:
            print(json.dumps(entry))
    parameters = sum(p.numel() for p in made.drafter.parameters())
    print(
        f"{parameters:,} parameters, {len(prompts):,} completions of {tokens:,} tokens, "
        f"{arguments.steps} steps, {seconds_text(time.monotonic() - started)}: "
        f"held-out chain τ {made.heldout_tau:.3f}"
    )


if __name__ == "__main__":
    main()
