"""`draftlab train`: make a drafter for the target of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from draftlab.base.progress import bar
from draftlab.cli.options import DeviceOption, DtypeOption, Threads, say

EXAMPLE = (
    "Example: draftlab train work/train-store --heldout work/store --steps 2000 --layers 2 "
    "--mask-token-id 151669 --out work/drafter"
)


def train(
    store: Path,
    *,
    mask_token_id: int,
    steps: int,
    out: Path,
    target: Path | None = None,
    heldout: Path | None = None,
    layers: int = 2,
    block_size: int = 16,
    rope_theta: float | None = None,
    learning_rate: float = 6e-4,
    evaluate_every: int = 0,
    seed: int = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    threads: Threads = None,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Train a drafter from scratch on a store: random anchors, hard cross-entropy, position decay.

    Parameters
    ----------
    store
        Folder of a hidden-state store over training completions.
    mask_token_id
        The reserved token to feed to unknown slots; never guessed.
    steps
        Optimizer steps.
    out
        Folder to write, in z-lab's layout.
    target
        The store's target, if it has moved since the capture.
    heldout
        A store over other prompts, replayed for the true τ.
    layers
        Drafter layers.
    block_size
        Slots per block, the anchor included.
    rope_theta
        RoPE base of the drafter; by default the target's.
    evaluate_every
        Steps between replays of the held-out store.
    json_output
        Print the last log entry as JSON.
    """
    import json

    from draftlab.hidden.store import HiddenStore
    from draftlab.target.compute import Compute
    from draftlab.train.config import TrainConfig
    from draftlab.train.loop import train as run_train
    from draftlab.train.shape import ShapeWish, shape_for_target

    opened = HiddenStore.open(store)
    target_folder = target or opened.target_folder
    wish = ShapeWish(
        target_layer_ids=opened.index.conditions.target_layer_ids,
        mask_token_id=mask_token_id,
        num_layers=layers,
        block_size=block_size,
        rope_theta=rope_theta,
    )
    shape = shape_for_target(target_folder, wish)
    config = TrainConfig(
        steps=steps, learning_rate=learning_rate, evaluate_every=evaluate_every, seed=seed
    )
    number = opened.index.conditions.dtype if dtype == "auto" else dtype
    compute = Compute.choose(device, number, threads=threads)
    say(f"train: {len(opened)} completions, {steps} steps; {compute}")
    held = HiddenStore.open(heldout) if heldout is not None else None
    trained = run_train(opened, target_folder, shape, config, out, compute, heldout=held, track=bar)
    if json_output:
        print(json.dumps(trained.log[-1]))
        return
    tau = "" if held is None else f", held-out chain τ {trained.heldout_tau:.3f}"
    print(f"loss {trained.log[-1]['loss']:.3f}{tau} -> {out}")
