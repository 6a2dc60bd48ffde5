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
from draftlab.base.records import write_atomic
from draftlab.demo.run import DRAFTER, MAX_NEW_TOKENS, PAIR, PROMPTS, TARGET
from draftlab.drafter.config import DrafterConfig
from draftlab.hidden.capture import capture
from draftlab.hidden.store import HiddenStore
from draftlab.reference.generate import DecodeSettings, generate_reference
from draftlab.reference.prompts import Prompt, read_prompts
from draftlab.target.compute import Compute
from draftlab.target.facts import TargetFacts
from draftlab.target.loading import load_tokenizer
from draftlab.train.config import TrainConfig
from draftlab.train.loop import Trained, train
from draftlab.train.options import LossOptions
from draftlab.train.recipe import read_recipe
from recipes.bundled_pair.corpus import training_prompts
from recipes.bundled_pair.train_target import END as TARGET_SECTION_END

MASK_TOKEN = "<|mask|>"
RECIPE = Path(__file__).with_name("drafter.yaml")


def taps(num_layers: int) -> tuple[int, ...]:
    """Three layers spread evenly from the second to the third last, as z-lab spreads its taps."""
    last = num_layers - 3
    return (1, round((1 + last) / 2), last)


def store_of(prompts: list[Prompt], folder: Path, compute: Compute) -> HiddenStore:
    """Greedy completions of these prompts and the target's states over them."""
    settings = DecodeSettings(max_new_tokens=MAX_NEW_TOKENS, thinking="off", batch_size=64)
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
- Training (`recipes/bundled_pair/drafter.yaml`): {steps:,} steps of {sequences} completions x
  {anchors} random anchors, hard cross-entropy on the target's tokens, {weighting}, {optimizer}
  {rate:g}, cosine, seed {seed}, float32 on a CPU; these are the weights of step {best:,}.
- Held-out chain τ {tau:.3f}, pooled over the 32 completions of `prompts.jsonl`, by replay of the
  saved file in float32 with torch {torch}. τ by step: {curve}.

Limits: it drafts templated text well and copied code poorly; see the table by domain that
`draftlab demo` prints.
"""


def write_card(made: Trained, config: TrainConfig, store: HiddenStore) -> None:
    """Replace the drafter's section of the model card: all that follows the target's."""
    path = PAIR / "README.md"
    head, mark, _ = path.read_text("utf-8").partition(TARGET_SECTION_END)
    shape = DrafterConfig.from_folder(made.drafter)
    replayed = [entry for entry in made.log if "heldout_tau" in entry]
    card = CARD.format(
        block=shape.block_size,
        layers=len(shape.layers),
        parameters=made.record.parameters,
        taps=", ".join(map(str, shape.target_layer_ids)),
        mask=MASK_TOKEN,
        completions=len(store),
        tokens=store.index.num_tokens,
        limit=MAX_NEW_TOKENS,
        steps=made.record.steps_done,
        best=made.record.best.step,
        sequences=config.batch.completions,
        anchors=config.batch.anchors,
        weighting=_weighting(config.loss),
        optimizer=config.optimizer.name,
        rate=config.optimizer.learning_rate,
        seed=config.engine.seed,
        tau=made.heldout_tau,
        torch=torch.__version__.split("+")[0],
        curve=", ".join(f"{entry['step']:.0f}: {entry['heldout_tau']:.2f}" for entry in replayed),
    )
    path.write_text(f"{head}{mark}\n{card}", "utf-8")


def _weighting(loss: LossOptions) -> str:
    return f"decay {loss.gamma:g}" if loss.weighting == "decay" else loss.weighting


def copy_drafter_files(source: Path, out: Path) -> None:
    """The drafter alone, without anything of its run."""
    for name in ("config.json", "model.safetensors"):
        write_atomic(out / name, (source / name).read_bytes())


def main() -> None:
    """Make the drafter; print its τ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=6000, help="training prompts")
    parser.add_argument("changes", nargs="*", help="section.key=value, over drafter.yaml")
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
        mask = load_tokenizer(TARGET).convert_tokens_to_ids(MASK_TOKEN)
        own = [
            f"data.store={store.folder}",
            f"data.heldout={heldout.folder}",
            f"data.target={TARGET}",
            f"drafter.mask_token_id={mask}",
            f"engine.threads={compute.threads}",
        ]
        config = read_recipe(RECIPE, [*own, *arguments.changes])
        made = train(config, work / "run", track=bar, tell=print)
        copy_drafter_files(made.drafter, arguments.out)
        if arguments.out == DRAFTER:
            write_card(made, config, store)
    print(
        f"{len(prompts):,} completions, {made.record.steps_done:,} steps, "
        f"{seconds_text(time.monotonic() - started)}: held-out chain τ {made.heldout_tau:.3f}"
    )


if __name__ == "__main__":
    main()
