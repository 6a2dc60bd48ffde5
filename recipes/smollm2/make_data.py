"""Let SmolLM2-135M-Instruct answer the prompts, and keep its states: train and held-out stores.

Everything is greedy, in bfloat16 by the model's own kernels, so that the drafter learns the very
texts it is judged on. Safe to stop and run again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from draftlab.base.progress import bar
from draftlab.hidden.capture import capture
from draftlab.reference.generate import GreedySettings, generate_reference
from draftlab.reference.prompts import Prompt
from draftlab.target.compute import Compute
from recipes.real_models import SMOLLM2
from recipes.smollm2.prompts import held_out_prompts, training_prompts

TASKS_PER_FAMILY = 30
MAX_NEW_TOKENS = 160
LAYERS = (1, 8, 14, 20, 27)
"""z-lab's rule for five taps of 30 layers: round(1 + i * (30 - 4) / 4)."""


def make(name: str, prompts: tuple[Prompt, ...], out: Path) -> None:
    """Reference and store of one split."""
    compute = Compute.choose("cpu", "bfloat16")
    compute.apply()
    target = SMOLLM2.folder()
    settings = GreedySettings(max_new_tokens=MAX_NEW_TOKENS, batch_size=64)
    made = generate_reference(
        prompts, target, out / f"{name}-reference", settings, compute, track=bar
    )
    store = capture(made, target, LAYERS, out / f"{name}-store", compute, track=bar)
    agreement = store.index.agreement
    print(f"{name}: {len(store)} completions, {store.index.num_tokens:,} tokens, {agreement:.2%}")


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "smollm2-work")
    make("heldout", held_out_prompts(), folder)
    make("train", training_prompts(TASKS_PER_FAMILY), folder)
