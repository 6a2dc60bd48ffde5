"""The tool's own pipeline on a tiny target, through its library: prompts in, evaluation out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tiny import random_prompts

from draftlab.base.records import Provenance, sha256_file
from draftlab.drafter.config import DrafterConfig
from draftlab.hidden.capture import capture, carry_out, plan_capture
from draftlab.hidden.store import HiddenStore
from draftlab.reference.completions import (
    Completion,
    LocalTarget,
    Reference,
    ReferenceJob,
    write_reference,
)
from draftlab.reference.generate import DecodeSettings, generate_reference
from draftlab.reference.prompts import Prompt
from draftlab.replay.evaluate import Evaluation, evaluate
from draftlab.target.compute import Compute
from draftlab.target.decoding import GREEDY
from draftlab.target.loading import TargetIdentity

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
    settings = DecodeSettings(max_new_tokens=tokens, ignore_eos=True)
    reference = generate_reference(as_prompts(prompts), target, folder / "ref", settings, FP32)
    taps = DrafterConfig.from_folder(drafter).target_layer_ids
    store = capture(reference, target, taps, folder / "store", FP32)
    return Pipeline(reference, store)


def made_up_reference(
    folder: Path, target: Path, texts: Sequence[tuple[int, int]], dtype: str = "float32"
) -> Reference:
    """Completions that no target wrote: of each, the lengths of prompt and completion."""
    known = TargetIdentity.of(target)
    job = ReferenceJob(
        prompts_digest="made up",
        num_prompts=len(texts),
        made_by=LocalTarget(
            fingerprint=known.fingerprint,
            architecture=known.facts.architecture,
            device="cpu",
            dtype=dtype,
            batch_size=1,
        ),
        max_new_tokens=max(n for _, n in texts),
        ignore_eos=True,
        decoding=GREEDY,
        thinking="template",
        template_digest="",
        keep_cut_off=True,
    )
    rows = [
        Completion(
            id=str(i),
            domain="made up",
            prompt_ids=tuple((7 * i + 3 * k) % 150 for k in range(prompt)),
            completion_ids=tuple((5 * i + 11 * k) % 150 for k in range(completion)),
            finish="length",
            ids_from="target",
        )
        for i, (prompt, completion) in enumerate(texts)
    ]
    return write_reference(folder, job, rows, None, Provenance.now())


def short_reference(
    folder: Path, target: Path, compute: Compute = FP32, count: int = 7
) -> Reference:
    """Eleven tokens for each of a few uneven prompts."""
    prompts = as_prompts(random_prompts(count, seed=3))
    settings = DecodeSettings(max_new_tokens=11, ignore_eos=True, batch_size=4)
    return generate_reference(prompts, target, folder, settings, compute)


def capture_by_layers(
    reference: Reference,
    target: Path,
    layers: Sequence[int],
    out: Path,
    compute: Compute = FP32,
    *,
    held_bytes: int | None = None,
) -> HiddenStore:
    """A streamed capture, with so much memory for states between layers."""
    plan = plan_capture(reference, target, layers, out, compute, stream=True)
    if held_bytes is not None:
        needs = plan.estimate.stream.model_copy(update={"held_bytes": held_bytes})
        plan = replace(plan, estimate=plan.estimate.model_copy(update={"stream": needs}))
    return carry_out(plan)


def content(folder: Path) -> dict[str, str]:
    """Digest of every file but the record of when it was made."""
    return {
        path.name: sha256_file(path)
        for path in sorted(folder.iterdir())
        if path.name != "provenance.json"
    }
