"""What a run folder says about its run: run.json, and a log with one line a step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from draftlab.base.records import Document, Provenance, json_lines, write_atomic
from draftlab.train.checkpoints import BestTau

RUN_NAME, LOG_NAME = "run.json", "log.jsonl"


class RunRecord(Document):
    """How far a run is. Written at every checkpoint."""

    SCHEMA: ClassVar[str] = "draftlab.training/1"

    run_digest: str
    config: dict[str, Any]
    """Resolved."""
    parameters: int
    steps_planned: int
    steps_done: int
    finished: bool
    stopped_early: bool
    best: BestTau | None
    """Step and held-out chain τ."""
    reference_tau: float | None
    """Of the reference drafter on the held-out completions."""
    share_supervised: float
    """Completion tokens among all tokens of the store."""
    left_out: tuple[str, ...]
    """Completions too short for an anchor."""
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Log:
    """log.jsonl: one JSON object a step, each step once."""

    path: Path

    @classmethod
    def continued(cls, run: Path, after_step: int) -> Log:
        """The log of a run that goes on after a step; lines of later steps are dropped."""
        log = cls(run / LOG_NAME)
        kept = [entry for entry in log.entries() if entry["step"] <= after_step]
        write_atomic(log.path, "".join(json.dumps(e) + "\n" for e in kept).encode())
        return log

    def entries(self) -> list[dict[str, float]]:
        """Every whole line."""
        if not self.path.is_file():
            return []
        lines = json_lines(self.path.read_text(encoding="utf-8"))[:-1]
        return [json.loads(line) for line in lines]

    def append(self, entry: dict[str, float]) -> None:
        """Add a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
