"""Training runs on the small target: stores to learn from and to hold out, and their settings."""

import pipeline
import tiny


def write_stores(root, target):
    """A training and a held-out store; other prompts, other lengths."""
    config = tiny.drafter_config(tiny.DrafterShape.of("qwen3"))
    drafter = tiny.write_drafter(root / "drafter", tiny.random_drafter(config), config)
    made = {}
    for name, seed, count, tokens in (("train", 1, 7, 14), ("heldout", 2, 3, 20)):
        prompts = tiny.random_prompts(count, seed=seed)
        pipeline.run_pipeline(root / name, target, drafter, prompts, tokens)
        made[name] = root / name / "store"
    return made


def settings(stores, *changes, heldout=True):
    """`section.key=value` of a run of twenty steps, with changes."""
    held = [f"data.heldout={stores['heldout']}"] if heldout else []
    return [
        f"data.store={stores['train']}",
        *held,
        f"drafter.mask_token_id={tiny.MASK_TOKEN_ID}",
        "drafter.num_layers=2",
        "drafter.block_size=6",
        "engine.threads=1",
        "schedule.steps=20",
        "batch.completions=3",
        *changes,
    ]
