"""Runs -> one HTML page that needs nothing but itself: no network, no other file.

In:   ReportedRuns.  Out: the text of the page.

Three walls keep outside text from becoming code. Jinja escapes every value; values that show as
nothing are spelt out (pieces.visible). What the script reads is gzip in base64, and the script only
ever sets textContent. And the content policy admits our one script and one style sheet by their
digests, so nothing else would run or load even if the first two failed.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from draftlab import __version__
from draftlab.base.records import write_atomic
from draftlab.replay.result import EvaluationRun
from draftlab.report.load import ReportedRun
from draftlab.report.pieces import visible
from draftlab.report.rounds import completion_data, piece_data, spread
from draftlab.report.story import RunStory, story_of

DEFAULT_COMPLETIONS = 100
"""Completions whose text a page holds, unless told otherwise."""

_FOLDER = Path(__file__).parent
_STYLES = ("vendor/uPlot.min.css", "page.css", "text.css")
_SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "charts.js",
    "rounds.js",
    "panel.js",
    "text.js",
    "page.js",
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page and how much of the runs it holds."""

    html: str
    completions: int
    completions_shown: int

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return len(self.html.encode())


@dataclass(frozen=True, slots=True)
class _Part:
    """What the template says about one run."""

    story: RunStory
    completions: int
    shown: int
    """Completions whose text is on the page."""
    kept: bool
    """Whether the run's texts were written at all."""


def render(runs: Sequence[ReportedRun], *, completions: int = DEFAULT_COMPLETIONS) -> Page:
    """One page for these runs; the same runs give the same bytes.

    Args:
        runs: in the order of the page.
        completions: show the text of at most so many of each run.
    """
    shown = [spread(of.run, completions) if of.texts else [] for of in runs]
    data = {"runs": [_data(of, which) for of, which in zip(runs, shown, strict=True)]}
    parts = [
        _Part(story_of(of.run), len(of.run.prompt_ids), len(which), kept=of.texts is not None)
        for of, which in zip(runs, shown, strict=True)
    ]
    licence = (_FOLDER / "vendor/uPlot.LICENSE").read_text(encoding="utf-8")
    script = f"/*! uPlot: {licence}\n*/\n{_inlined(_SCRIPTS)}"
    style = _inlined(_STYLES)
    html = (
        _environment()
        .get_template("page.html.jinja")
        .render(
            parts=parts,
            policy=_policy(script, style),
            script=Markup(script),  # our own files
            style=Markup(style),
            data=Markup(_packed(data)),  # base64
            version=__version__,
        )
    )
    return Page(html, sum(part.completions for part in parts), sum(part.shown for part in parts))


def write_page(
    runs: Sequence[ReportedRun], path: Path, *, completions: int = DEFAULT_COMPLETIONS
) -> Page:
    """Write the page, whole or not at all."""
    page = render(runs, completions=completions)
    write_atomic(path, page.html.encode())
    return page


def _environment() -> Environment:
    """Every value is escaped, and spelt out where it would show as nothing."""
    return Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _data(reported: ReportedRun, shown: Sequence[int]) -> dict[str, Any]:
    """What the script draws from one run."""
    completions = [completion_data(reported, number) for number in shown]
    texts = reported.texts
    return {
        **_chart_data(reported.run),
        "slots": reported.run.conditions.drafted_per_round,
        "mostNodes": len(reported.run.tree_tau_by_budget),
        "pieces": piece_data(texts, completions) if texts else {},
        "completions": completions,
    }


def _chart_data(run: EvaluationRun) -> dict[str, Any]:
    return {
        "name": visible(run.drafter),
        "tau": run.chain.tau,
        "block": run.conditions.block_size,
        "treeTau": [round(tau, 4) for tau in run.tree_tau_by_budget],
        "widths": [[int(width), counts.tau] for width, counts in run.widths.items()],
        "bySlot": [[s.slot, s.survival, s.conditional, s.top1_all_anchors] for s in run.slots],
        "histogram": [[int(tokens), rounds] for tokens, rounds in run.histogram.items()],
        "rounds": run.chain.rounds,
    }


def _packed(data: dict[str, Any]) -> str:
    """JSON, gzip, base64: short, and without one character that HTML could take for its own."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _inlined(names: Sequence[str]) -> str:
    return "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in names)


def _policy(script: str, style: str) -> str:
    """Nothing loads, nothing runs, but what is named here by its digest."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; "
        "form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
