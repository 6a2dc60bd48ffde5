"""Three real runs on the bundled pair's references."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftlab.demo.run import DRAFTER, TARGET, run_demo
from draftlab.hidden.store import HiddenStore
from draftlab.replay.evaluate import evaluate, write_run
from draftlab.target.compute import Compute

FP32 = Compute(device="cpu", dtype="float32", threads=1)


@dataclass(frozen=True)
class Runs:
    """Files of runs on one store."""

    store: HiddenStore
    bundled: Path
    shaken: Path
    """The bundled drafter with noise on its weights."""
    narrow: Path
    """The bundled drafter asked for blocks of 8, with other budgets."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Runs:
    """Made once."""
    root = tmp_path_factory.mktemp("runs")
    made = run_demo(root / "demo", FP32)
    shaken = shutil.copytree(DRAFTER, root / "shaken")
    weights = load_file(shaken / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, weight in weights.items():
        noise = torch.randn(weight.shape, generator=generator) * 0.3 * weight.float().std()
        weights[name] = (weight.float() + noise).to(weight.dtype)
    save_file(weights, shaken / "model.safetensors")
    write_run(evaluate(made.store, shaken, TARGET, FP32), root / "shaken.json")
    narrow = evaluate(made.store, DRAFTER, TARGET, FP32, block_size=8, budgets=(16, 100))
    write_run(narrow, root / "narrow.json")
    return Runs(made.store, made.run_path, root / "shaken.json", root / "narrow.json")
