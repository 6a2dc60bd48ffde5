"""All runs below a folder, ranked; only what is comparable stands in one ranking."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from draftlab.base.errors import DraftlabError
from draftlab.base.records import Record
from draftlab.compare.comparison import (
    NamedRun,
    comparable_groups,
    compare,
    open_runs,
    tau_of,
)
from draftlab.compare.paired import Estimate
from draftlab.replay.result import Conditions, EvaluationRun


class Place(Record):
    """One run in a ranking."""

    name: str
    file: str
    tau: Estimate
    tau_macro: float
    rounds: int
    ratio_to_first: Estimate | None
    """Paired, over the same prompts; None for the first."""


class Board(Record):
    """Comparable runs, best chain τ first."""

    conditions: Conditions
    """Of the first."""
    places: tuple[Place, ...]


def ranked(folder: Path) -> tuple[Board, ...]:
    """Every group of comparable runs below a folder, the largest group first.

    Raises:
        DraftlabError: no such folder, or no run in it.
    """
    if not folder.is_dir():
        raise DraftlabError(f"no folder {folder}.", mend="Give a folder with run.json files.")
    paths = list(_run_files(folder))
    if not paths:
        raise DraftlabError(
            f"{folder} holds no {EvaluationRun.SCHEMA} file.",
            mend="Write runs into it: draftlab evaluate STORE --drafter DIR --out run.json",
        )
    groups = sorted(comparable_groups(open_runs(paths)), key=len, reverse=True)
    return tuple(map(_board, groups))


def _run_files(folder: Path) -> Iterator[Path]:
    """JSON files that say that they are runs of this version."""
    for path in sorted(folder.rglob("*.json")):
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            continue  # somebody else's file
        if isinstance(body, dict) and body.get("schema") == EvaluationRun.SCHEMA:
            yield path


def _board(group: tuple[NamedRun, ...]) -> Board:
    first, *rest = sorted(group, key=lambda named: named.run.chain.tau, reverse=True)
    ratios = [result.chain.ratio for result in compare(first, rest).results]
    places = [_place(first, None), *map(_place, rest, ratios)]
    return Board(conditions=first.run.conditions, places=tuple(places))


def _place(named: NamedRun, ratio_to_first: Estimate | None) -> Place:
    return Place(
        name=named.name,
        file=str(named.path),
        tau=tau_of(named.run),
        tau_macro=named.run.chain.tau_macro,
        rounds=named.run.chain.rounds,
        ratio_to_first=ratio_to_first,
    )
