"""The tool's own pipeline on a tiny target, through its library: prompts in, evaluation out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftlab.drafter.config import DrafterConfig
from draftlab.hidden.capture import capture
from draftlab.hidden.store import HiddenStore
from draftlab.reference.completions import Reference
from draftlab.reference.generate import GreedySettings, generate_reference
from draftlab.reference.prompts import Prompt
from draftlab.replay.evaluate import Evaluation, evaluate
from draftlab.target.compute import Compute

FP32 = Compute(device="cpu", dtype="float32", threads=1)


@dataclass(frozen=True)
class Pipeline:
    """What was made on the way."""

    reference: Reference
    store: HiddenStore

    def evaluate(self, drafter: Path, target: Path, **settings: object) -> Evaluation:
        return evaluate(self.store, drafter, target, FP32, **settings)


def as_prompts(prompts: Sequence[Sequence[int]]) -> list[Prompt]:
    return [Prompt(input_ids=tuple(ids), domain=f"d{i % 2}") for i, ids in enumerate(prompts)]


def write_prompts(path: Path, prompts: Sequence[Sequence[int]]) -> Path:
    lines = [json.dumps({"input_ids": list(ids)}) + "\n" for ids in prompts]
    path.write_text("".join(lines))
    return path


def run_pipeline(
    folder: Path, target: Path, drafter: Path, prompts: Sequence[Sequence[int]], tokens: int
) -> Pipeline:
    """Reference and capture for `prompts`, `tokens` tokens each, end-of-text ignored."""
    settings = GreedySettings(max_new_tokens=tokens, ignore_eos=True)
    reference = generate_reference(as_prompts(prompts), target, folder / "ref", settings, FP32)
    taps = DrafterConfig.from_folder(drafter).target_layer_ids
    store = capture(reference, target, taps, folder / "store", FP32)
    return Pipeline(reference, store)
