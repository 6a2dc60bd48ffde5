"""What a choice in the recipe is worth: short runs on the bundled pair that differ in one thing.

Same data, seed and number of steps; each is compared with the base run prompt by prompt, on the
held-out completions. The stores are those of train_drafter.py (`--work`).

    python -m recipes.bundled_pair.train_drafter --work work
    python -m recipes.bundled_pair.ablation --work work
"""

from __future__ import annotations

import argparse
from pathlib import Path

from draftlab.base.progress import bar
from draftlab.compare.comparison import compare, open_runs
from draftlab.compare.paired import Estimate
from draftlab.demo.run import TARGET
from draftlab.hidden.store import HiddenStore
from draftlab.replay.evaluate import evaluate, write_run
from draftlab.target.compute import Compute
from draftlab.target.loading import load_tokenizer
from draftlab.train.loop import train
from draftlab.train.recipe import read_recipe
from recipes.bundled_pair.train_drafter import MASK_TOKEN, RECIPE

BASE = "base"
VARIANTS = {
    BASE: (),
    "fixed anchors": ("batch.anchor_rule=fixed",),
    "no decay": ("loss.weighting=uniform",),
    "D-PACE": ("loss.weighting=dpace",),
    "1 layer": ("drafter.num_layers=1",),
    "AdamW": ("optimizer.name=adamw", "optimizer.learning_rate=0.003"),
}


def main() -> None:
    """Train every variant that is not there yet; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with the stores")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    compute = Compute.choose("cpu", "float32", threads=arguments.threads)
    compute.apply()
    stores = {name: arguments.work / name / "store" for name in ("train", "heldout")}
    own = [
        f"data.store={stores['train']}",
        f"data.heldout={stores['heldout']}",
        f"data.target={TARGET}",
        f"drafter.mask_token_id={load_tokenizer(TARGET).convert_tokens_to_ids(MASK_TOKEN)}",
        f"engine.threads={compute.threads}",
        f"schedule.steps={arguments.steps}",
        "evaluation.every=0",
        "checkpoints.minutes=0",
        "checkpoints.keep_last=1",
    ]
    heldout = HiddenStore.open(stores["heldout"])
    paths = []
    for name, changes in VARIANTS.items():
        folder = arguments.work / f"ablation-{arguments.steps}" / name.replace(" ", "-")
        made = train(read_recipe(RECIPE, [*own, *changes]), folder, track=bar)
        paths.append(folder / "evaluation.json")
        write_run(evaluate(heldout, made.drafter, TARGET, compute, track=bar), paths[-1])
    base, *others = open_runs(paths)
    print(f"| run of {arguments.steps} steps | τ | of the base's | macro | tree of 16 nodes |")
    print("|---|---|---|---|---|")
    print(_row(BASE, base.run.chain.tau, "1", base.run.chain.tau_macro, base.run.trees["16"].tau))
    for name, result in zip(list(VARIANTS)[1:], compare(base, others).results, strict=True):
        chain = result.chain
        tree = next(m for m in result.methods if m.method == "tree of 16 nodes")
        share = _interval(chain.ratio)
        print(_row(name, chain.tau.value, share, chain.tau_macro, tree.tau.value))


def _row(name: str, tau: float, share: str, macro: float, tree: float) -> str:
    return f"| {name} | {tau:.3f} | {share} | {macro:.3f} | {tree:.3f} |"


def _interval(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


if __name__ == "__main__":
    main()
