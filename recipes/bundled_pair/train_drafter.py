"""Train the bundled DFlash drafter on the bundled target's own completions.

In:   the target and held-out prompts that train_target.py wrote, training prompts from corpus.py.
Out:  draftlab/demo/pair/drafter, in z-lab's layout, and its true held-out τ.

Everything goes through draftlab itself: reference, capture, train. Training and held-out prompts
are disjoint by the rule in corpus.py.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from draftlab.base.progress import bar
from draftlab.base.quantities import seconds_text
from draftlab.demo.run import DRAFTER, MAX_NEW_TOKENS, PAIR, PROMPTS, TARGET
from draftlab.hidden.capture import capture
from draftlab.hidden.store import HiddenStore
from draftlab.reference.generate import GreedySettings, generate_reference
from draftlab.reference.prompts import Prompt, read_prompts
from draftlab.target.compute import Compute
from draftlab.target.facts import TargetFacts
from draftlab.target.loading import load_tokenizer
from draftlab.train.config import TrainConfig
from draftlab.train.loop import LOG_NAME, Trained, train
from draftlab.train.shape import ShapeWish, shape_for_target
from recipes.bundled_pair.corpus import training_prompts
from recipes.bundled_pair.train_target import END as TARGET_SECTION_END

BLOCK_SIZE, ANCHORS, MASK_TOKEN = 16, 16, "<|mask|>"


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


CARD = """
## Drafter

A DFlash drafter for the target above, trained by `python -m recipes.bundled_pair.train_drafter`
with `draftlab reference`, `capture` and `train` on the target's own greedy completions.

- Shape: block {block}, {layers} full-attention layers, {parameters:,} parameters, taps {taps}
  (outputs of 0-based layers), mask token `{mask}`; z-lab's layout, bf16.
- Data: {completions:,} completions of {tokens:,} tokens, disjoint from `prompts.jsonl` by the
  rule in `recipes/bundled_pair/corpus.py`; thinking off; at most {limit} tokens each.
- Training: {steps:,} steps of {sequences} completions x {anchors} random anchors, hard
  cross-entropy on the target's tokens, decay {gamma:g}, Muon {rate:g}, cosine, seed {seed},
  float32 on a CPU.
- Held-out chain τ {tau:.3f}, pooled over the 32 completions of `prompts.jsonl`, by replay of the
  saved file in float32 with torch {torch}. τ by step: {curve}.

Limits: it drafts templated text well and copied code poorly; see the table by domain that
`draftlab demo` prints.
"""


def write_card(made: Trained, config: TrainConfig, store: HiddenStore) -> None:
    """Replace the drafter's section of the model card: all that follows the target's."""
    path = PAIR / "README.md"
    head, mark, _ = path.read_text("utf-8").partition(TARGET_SECTION_END)
    shape = made.drafter.config
    replayed = [entry for entry in made.log if "heldout_tau" in entry]
    card = CARD.format(
        block=shape.block_size,
        layers=len(shape.layers),
        parameters=sum(p.numel() for p in made.drafter.parameters()),
        taps=", ".join(map(str, shape.target_layer_ids)),
        mask=MASK_TOKEN,
        completions=len(store),
        tokens=store.index.num_tokens,
        limit=MAX_NEW_TOKENS,
        steps=config.steps,
        sequences=config.sequences_per_step,
        anchors=config.anchors_per_sequence,
        gamma=config.decay_constant(shape.block_size),
        rate=config.learning_rate,
        seed=config.seed,
        tau=made.heldout_tau,
        torch=torch.__version__.split("+")[0],
        curve=", ".join(f"{entry['step']:.0f}: {entry['heldout_tau']:.2f}" for entry in replayed),
    )
    path.write_text(f"{head}{mark}\n{card}", "utf-8")


def main() -> None:
    """Make the drafter; print its τ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=6000, help="training prompts")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=5e-3, help="peak learning rate")
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
        wish = ShapeWish(
            target_layer_ids=store.index.conditions.target_layer_ids,
            mask_token_id=load_tokenizer(TARGET).convert_tokens_to_ids(MASK_TOKEN),
            num_layers=arguments.layers,
            block_size=BLOCK_SIZE,
            head_dim=32,
            num_heads=8,
        )
        shape = shape_for_target(TARGET, wish)
        config = TrainConfig(
            steps=arguments.steps,
            learning_rate=arguments.rate,
            optimizer="muon",
            anchors_per_sequence=ANCHORS,
            evaluate_every=arguments.steps // 6,
        )
        made = train(
            store, TARGET, shape, config, arguments.out, compute, heldout=heldout, track=bar
        )
        (arguments.out / LOG_NAME).rename(work / LOG_NAME)
        write_card(made, config, store)
    print(
        f"{len(prompts):,} completions, {arguments.steps} steps, "
        f"{seconds_text(time.monotonic() - started)}: held-out chain τ {made.heldout_tau:.3f}"
    )


if __name__ == "__main__":
    main()
