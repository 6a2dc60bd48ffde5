"""Let SmolLM2-135M-Instruct answer the prompts, and keep its states: train and held-out stores.

Everything is greedy, in bfloat16 by the model's own kernels, so that the drafter learns the very
texts it is judged on. Safe to stop and run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from draftlab.base.progress import bar
from draftlab.hidden.capture import capture
from draftlab.reference.generate import DecodeSettings, generate_reference
from draftlab.reference.prompts import Prompt
from draftlab.target.compute import Compute
from recipes.real_models import SMOLLM2
from recipes.smollm2.prompts import SIZES, held_out_prompts, training_prompts
from recipes.smollm2.quality import describe

MAX_NEW_TOKENS = 160
LAYERS = (1, 8, 14, 20, 27)
"""z-lab's rule for five taps of 30 layers: round(1 + i * (30 - 4) / 4)."""


def make(name: str, prompts: tuple[Prompt, ...], out: Path) -> None:
    """Reference and store of one split."""
    compute = Compute.choose("cpu", "bfloat16")
    compute.apply()
    target = SMOLLM2.folder()
    settings = DecodeSettings(max_new_tokens=MAX_NEW_TOKENS, batch_size=64)
    made = generate_reference(
        prompts, target, out / f"{name}-reference", settings, compute, track=bar
    )
    store = capture(made, target, LAYERS, out / f"{name}-store", compute, track=bar)
    print(f"{name}\n{describe(store)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("smollm2-work"))
    parser.add_argument("--size", choices=SIZES, default="small", help="of the training set")
    arguments = parser.parse_args()
    make("heldout", held_out_prompts(), arguments.out)
    make("train", training_prompts(SIZES[arguments.size]), arguments.out)
