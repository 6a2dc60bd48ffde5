"""The chain's rounds, completion by completion, in the form that the page's script reads.

In:   ReportedRun.  Out: plain lists and numbers, ready for JSON.

Of a round that starts at anchor a, slot d (0-based here) stands for completion token a + d + 1;
slots past the end of the completion are left out. Columns are flat over rounds and slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from draftlab.replay.result import EvaluationRun, RunTexts
from draftlab.report.load import Drafts, ReportedRun
from draftlab.report.pieces import byte_segments, segments, visible

Counts = npt.NDArray[np.int64]


def starts_and_accepted(committed: Sequence[int], *, cut: bool) -> tuple[Counts, Counts]:
    """Where each round of a completion starts, and how many drafts it accepts.

    A round commits what it accepts and the target's own token; one that the end of the text cuts
    commits only what it accepts.
    """
    tokens = np.array(committed, dtype=np.int64)
    accepted = tokens - 1
    if cut:
        accepted[-1] += 1
    return np.cumsum(tokens) - tokens, accepted


def spread(run: EvaluationRun, at_most: int) -> list[int]:
    """Which completions are shown: all, or so many evenly spaced from the worst τ to the best.

    In the order of the run.
    """
    committed = run.chain.committed
    if len(committed) <= at_most:
        return list(range(len(committed)))
    by_tau = sorted(range(len(committed)), key=lambda i: sum(committed[i]) / len(committed[i]))
    places = np.linspace(0, len(by_tau) - 1, at_most).round().astype(int).tolist()
    return sorted(by_tau[place] for place in places)


def completion_data(reported: ReportedRun, number: int) -> dict[str, Any]:
    """One completion: its tokens, its rounds, and what each round drafted."""
    run, texts, drafts = reported.run, reported.texts, reported.drafts[number]
    if texts is None:
        raise ValueError("a run without texts has no completions to show")
    starts, accepted = starts_and_accepted(run.chain.committed[number], cut=run.chain.cut[number])
    return {
        "number": number + 1,
        "id": visible(run.prompt_ids[number]),
        "domain": visible(run.prompt_domains[number]),
        "prompt": texts.prompts[number],
        "tokens": texts.completions[number],
        "starts": starts.tolist(),
        "accepted": accepted.tolist(),
        **_slots(drafts, starts),
    }


def piece_data(texts: RunTexts, completions: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Segments of the pieces that these completions need; ids without one stay numbers."""
    parts = ("prompt", "tokens", "drafted")
    used = {str(token) for made in completions for part in parts for token in made[part]}
    whole = {token: segments(piece) for token, piece in (texts.pieces or {}).items()}
    halves = {t: byte_segments(bytes.fromhex(code)) for t, code in texts.byte_pieces.items()}
    return {token: piece for token, piece in {**whole, **halves}.items() if token in used}


def _slots(drafts: Drafts, starts: Counts) -> dict[str, list[int]]:
    """Columns over the slots of all rounds; chances in thousandths, ranks from 1."""
    inside = drafts.path_token_ranks_AD[starts] >= 0
    columns: dict[str, npt.NDArray[np.integer]] = {
        "drafted": drafts.drafted_AD,
        "draftedChance": _thousandths(drafts.best_log_probs_AD),
        "rank": drafts.path_token_ranks_AD + 1,
        "ownChance": _thousandths(drafts.path_log_probs_AD),
        "pop": drafts.path_ranks_AD,
    }
    return {name: column[starts][inside].tolist() for name, column in columns.items()}


def _thousandths(log_probs: npt.NDArray[np.float32]) -> Counts:
    rounded: Counts = np.rint(1000 * np.exp(log_probs.astype(np.float64))).astype(np.int64)
    return rounded
