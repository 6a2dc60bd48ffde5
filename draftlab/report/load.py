"""A run with the files beside it, read back and checked.

In:   run.json.  Out: ReportedRun.

Shape letters: A anchors of one completion, X anchors of all completions, D drafted slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from draftlab.base.errors import DraftlabError
from draftlab.base.records import sha256_file
from draftlab.replay.result import EvaluationRun, RunTexts

_AGAIN = "Evaluate again with --out, or copy all files of the run together."


@dataclass(frozen=True, slots=True)
class Drafts:
    """What was drafted at each anchor of one completion; as replay's AnchorDrafts says."""

    drafted_AD: npt.NDArray[np.int32]
    path_token_ranks_AD: npt.NDArray[np.int32]
    path_log_probs_AD: npt.NDArray[np.float32]
    best_log_probs_AD: npt.NDArray[np.float32]
    path_ranks_AD: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """One run and, where they were written, its texts and the drafts of every anchor."""

    run: EvaluationRun
    texts: RunTexts | None
    drafts: tuple[Drafts, ...]
    """One per completion; empty without texts."""

    @classmethod
    def load(cls, path: Path) -> ReportedRun:
        """Read run.json and the files that it names.

        A record that was printed (`--json`) instead of written has no files beside it; it still
        has its numbers.

        Raises:
            DraftlabError: a file is missing, has changed since, or does not fit the record.
        """
        run = EvaluationRun.load(path)
        if not run.texts_file or not run.rounds_file:
            return cls(run, None, ())
        rounds_path = _checked(path, run.rounds_file, run.rounds_sha256)
        texts = RunTexts.load(_checked(path, run.texts_file, run.texts_sha256))
        drafts = _drafts(run, rounds_path)
        _require_fit(run, texts, drafts, path)
        return cls(run, texts, drafts)


def _checked(path: Path, name: str, sha256: str) -> Path:
    """A file beside the run, once its bytes are known to be those that were written."""
    beside = path.with_name(name) if name == Path(name).name else None
    if beside is None or not beside.is_file():
        raise DraftlabError(f"{path} needs {name} beside it, which is not there.", mend=_AGAIN)
    if sha256_file(beside) != sha256:
        raise DraftlabError(
            f"{beside} has changed since {path.name} was written (digest differs).", mend=_AGAIN
        )
    return beside


def _drafts(run: EvaluationRun, path: Path) -> tuple[Drafts, ...]:
    try:
        columns: dict[str, npt.NDArray[Any]] = load_file(path)
        ends = np.cumsum(columns["anchors"])[:-1]
        parts = [
            np.split(columns[name.removesuffix("_AD")], ends)
            for name in Drafts.__dataclass_fields__
        ]
    except (SafetensorError, KeyError) as error:
        raise DraftlabError(f"{path} is not a rounds file: {error}.", mend=_AGAIN) from error
    return tuple(Drafts(*columns) for columns in zip(*parts, strict=True))


def _require_fit(
    run: EvaluationRun, texts: RunTexts, drafts: tuple[Drafts, ...], path: Path
) -> None:
    """Refuse parts that describe different completions."""
    width = run.conditions.drafted_per_round
    counted = [(sum(rounds), width) for rounds in run.chain.committed]
    told = [(len(ids) - 1, width) for ids in texts.completions]
    drafted = [d.drafted_AD.shape for d in drafts]
    if not (counted == told == drafted and len(texts.prompts) == len(counted)):
        raise DraftlabError(
            f"the files beside {path} are of other completions than it counts.", mend=_AGAIN
        )
