"""`draftlab train`: make a drafter for the target of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from draftlab.base.errors import DraftlabError
from draftlab.base.progress import bar
from draftlab.cli.options import say

if TYPE_CHECKING:
    from draftlab.train.plan import Plan

EXAMPLE = (
    "Example: draftlab train --config run.yaml --out work/run1 schedule.steps=2000 "
    "optimizer.learning_rate=3e-4\n\n"
    "Example: draftlab train data.store=work/train-store data.heldout=work/heldout-store "
    "drafter.mask_token_id=151669 schedule.epochs=6 --out work/run1"
)

_Switch = Annotated[bool, Parameter(negative="")]


def train(
    *changes: str,
    config: Path | None = None,
    out: Path | None = None,
    dry_run: _Switch = False,
    explain: _Switch = False,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Train a drafter on a store: random anchors, hard cross-entropy, true τ while it learns.

    A stopped run goes on when the same command is given again, to the same bytes.

    Parameters
    ----------
    changes
        section.key=value, over what the file says.
    config
        YAML or TOML file; recipes/ has some.
    out
        Folder of the run: log, checkpoints, and the drafter with the best held-out τ.
    dry_run
        Check everything and say what would be done.
    explain
        List every key with its default and its meaning.
    json_output
        Print the run's record as JSON.
    """
    from draftlab.train.recipe import explained_fields, read_recipe

    if explain:
        print("\n".join(explained_fields()))
        return
    wanted = read_recipe(config, changes)
    if out is None and not dry_run:
        raise DraftlabError("no --out.", mend="Name a folder for the run: --out work/run1")
    from draftlab.train.loop import Run
    from draftlab.train.plan import plan_training

    plan = plan_training(wanted)
    for line in _described(plan):
        say(f"train: {line}")
    if dry_run or out is None:
        import yaml

        print(yaml.safe_dump(wanted.model_dump(mode="json"), sort_keys=False), end="")
        return
    made = Run(plan, out, lambda line: say(f"train: {line}")).carry_out(bar)
    if not made.log:
        return  # another process tells
    if json_output:
        print(made.record.text(), end="")
        return
    last = made.log[-1]
    tau = "" if made.record.best is None else f", held-out chain τ {made.heldout_tau:.3f}"
    print(f"{made.record.steps_done:,} steps, loss {last['loss']:.3f}{tau} -> {made.drafter}")


def _described(plan: Plan) -> list[str]:
    material, batch = plan.material, plan.config.batch
    tokens = sum(material.num_tokens(number) for number in material.usable)
    epochs = plan.steps * batch.completions / len(material.usable)
    lines = [
        f"{len(material.usable):,} completions, {tokens:,} tokens to learn from "
        f"({material.share_supervised:.1%} of all), {len(material.too_short)} too short",
        f"drafter: {plan.parameters:,} parameters, {len(plan.shape.layers)} layers, block "
        f"{plan.shape.block_size}, layers {list(plan.shape.target_layer_ids)} of "
        f"{plan.shape.num_target_layers}",
        f"{plan.steps:,} steps of {batch.completions} completions x {batch.anchors} anchors "
        f"({epochs:.2f} epochs); {plan.compute}",
    ]
    if plan.heldout is None:
        lines.append("nothing is held out: the true τ of this run will not be known")
    return lines
