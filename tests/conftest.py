"""What several test files share: a tiny target with an untrained drafter, and its store."""

from dataclasses import dataclass
from pathlib import Path

import pipeline
import pytest
import tiny


@dataclass(frozen=True)
class SmallPair:
    """Folders of a tiny Qwen3 target, an untrained drafter, a reference and a store."""

    target: Path
    drafter: Path
    prompts: Path
    reference: Path
    store: Path


@pytest.fixture(scope="session")
def small_pair(tmp_path_factory) -> SmallPair:
    """Made once; tests copy what they change."""
    root = tmp_path_factory.mktemp("small")
    target = tiny.write_target(root / "target", "qwen3", tied=False)
    config = tiny.drafter_config(tiny.DrafterShape.of("qwen3"))
    drafter = tiny.write_drafter(root / "drafter", tiny.random_drafter(config), config)
    ids = tiny.random_prompts(3)
    pipeline.run_pipeline(root, target, drafter, ids, 12)
    prompts = pipeline.write_prompts(root / "prompts.jsonl", ids)
    return SmallPair(target, drafter, prompts, root / "ref", root / "store")
