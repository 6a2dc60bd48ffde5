"""`draftlab compare` and `draftlab leaderboard`: runs against each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from draftlab.base.errors import DraftlabError, GateNotMet
from draftlab.base.quantities import listing

if TYPE_CHECKING:
    from draftlab.compare.comparison import Comparison, NamedRun

COMPARE_EXAMPLE = (
    "Example: draftlab compare published.json step-20000.json step-24000.json\n\n"
    "Example: draftlab compare published.json step-24000.json --min-ratio published.json 0.8"
)
LEADERBOARD_EXAMPLE = "Example: draftlab leaderboard work/runs"

_Switch = Annotated[bool, Parameter(negative="")]


def compare(
    base: Path,
    /,
    *runs: Path,
    min_tau: float | None = None,
    min_ratio: tuple[str, float] | None = None,
    markdown: _Switch = False,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    out: Path | None = None,
) -> None:
    """Compare drafters on the same references: differences and ratios of τ, with intervals.

    Parameters
    ----------
    base
        A run.json: what the others are measured against, e.g. the published drafter's.
    runs
        The run.json files to compare with it.
    min_tau
        Exit with code 3 if the chain's τ of any run but the base is below this.
    min_ratio
        A run (its name or file) and a share: exit with code 3 if the chain's τ of any other run is
        below this share of that run's.
    markdown
        Print a Markdown table, for a pull request.
    json_output
        Print the whole record as JSON.
    out
        Write the record here.
    """
    from draftlab.compare.comparison import compare as run_compare
    from draftlab.compare.comparison import open_runs

    if not runs:
        raise DraftlabError(
            "one run alone cannot be compared.", mend="Give a second run.json after the first."
        )
    opened = open_runs([base, *runs])
    comparison = run_compare(opened[0], opened[1:])
    if out is not None:
        comparison.save(out)
    if json_output:
        print(comparison.text(), end="")
    else:
        _print(comparison, markdown=markdown)
    if min_tau is not None:
        _require_tau(comparison, min_tau)
    if min_ratio is not None:
        wanted, share = min_ratio
        reference = _named(opened, wanted)
        others = [named for named in opened if named is not reference]
        _require_ratio(run_compare(reference, others), share)


def leaderboard(
    folder: Path,
    /,
    *,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Rank all runs below a folder by τ, each group of comparable runs by itself.

    Parameters
    ----------
    folder
        Searched for run.json files, whatever they are called.
    json_output
        Print the ranking as JSON.
    """
    from rich.console import Console

    from draftlab.cli.comparisons import leaderboard_tables
    from draftlab.compare.leaderboard import ranked

    boards = ranked(folder)
    if json_output:
        print(json.dumps([board.model_dump(mode="json") for board in boards], indent=1))
        return
    console = Console()
    for part in leaderboard_tables(boards):
        console.print(part)


def _print(comparison: Comparison, *, markdown: bool) -> None:
    from rich.console import Console

    from draftlab.cli.comparisons import comparison_tables, markdown_text

    if markdown:
        print(markdown_text(comparison), end="")
        return
    console = Console()
    for part in comparison_tables(comparison):
        console.print(part)


def _named(runs: Sequence[NamedRun], wanted: str) -> NamedRun:
    for named in runs:
        if wanted in {named.name, str(named.path)}:
            return named
    raise DraftlabError(
        f"--min-ratio names {wanted!r}; the runs are {listing([named.name for named in runs])}.",
        mend="Name one of them, or its file.",
    )


def _require_tau(comparison: Comparison, min_tau: float) -> None:
    for result in comparison.results:
        if result.chain.tau.value < min_tau:
            raise GateNotMet(
                f"chain τ of {result.name} is {result.chain.tau.value:.3f}, below the gate of "
                f"{min_tau:g}.",
                mend="Look at where it loses, or lower --min-tau.",
            )


def _require_ratio(comparison: Comparison, share: float) -> None:
    for result in comparison.results:
        if result.chain.ratio.value < share:
            raise GateNotMet(
                f"chain τ of {result.name} is {result.chain.ratio.value:.3f} of that of "
                f"{comparison.base.name}, below the gate of {share:g}.",
                mend="Look at where it loses, or lower the gate.",
            )
