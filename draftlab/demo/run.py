"""Run reference, capture, evaluate and report on the bundled pair and its held-out prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftlab.base.progress import Track, silent
from draftlab.drafter.config import DrafterConfig
from draftlab.hidden.capture import capture
from draftlab.hidden.store import HiddenStore
from draftlab.reference.generate import DecodeSettings, generate_reference
from draftlab.reference.prompts import read_prompts
from draftlab.replay.evaluate import Evaluation, evaluate, write_run
from draftlab.report.load import ReportedRun
from draftlab.report.page import Page, write_page
from draftlab.target.compute import Compute
from draftlab.target.loading import load_tokenizer

PAIR = Path(__file__).parent / "pair"
TARGET, DRAFTER, PROMPTS = PAIR / "target", PAIR / "drafter", PAIR / "prompts.jsonl"
MAX_NEW_TOKENS = 160


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demo made."""

    evaluation: Evaluation
    store: HiddenStore
    run_path: Path
    page_path: Path
    page: Page


def run_demo(out: Path, compute: Compute, *, track: Track = silent) -> Demo:
    """Evaluate the bundled drafter on the bundled held-out prompts; everything goes under `out`."""
    compute.apply()
    settings = DecodeSettings(max_new_tokens=MAX_NEW_TOKENS, thinking="off", batch_size=32)
    made = generate_reference(
        read_prompts(PROMPTS), TARGET, out / "reference", settings, compute, track=track
    )
    taps = DrafterConfig.from_folder(DRAFTER).target_layer_ids
    store = capture(made, TARGET, taps, out / "store", compute, track=track)
    evaluation = evaluate(store, DRAFTER, TARGET, compute, track=track)
    path = out / "run.json"
    write_run(evaluation, path, load_tokenizer(TARGET))
    page_path = out / "report.html"
    page = write_page([ReportedRun.load(path)], page_path)
    return Demo(evaluation, store, path, page_path, page)
