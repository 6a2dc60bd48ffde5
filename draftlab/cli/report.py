"""`draftlab report`: a run as one HTML page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from draftlab.base.errors import DraftlabError
from draftlab.base.quantities import bytes_text

EXAMPLE = "Example: draftlab report work/run.json -o work/report.html"


def report(
    run: Path,
    *,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    completions: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 100,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Write one HTML page about a run: its numbers, its curves, and every token of its texts.

    The page is a single file that loads nothing from anywhere. It needs the files that
    `draftlab evaluate --out` wrote beside the run.

    Parameters
    ----------
    run
        A run.json of draftlab evaluate.
    out
        Where to write the page; by default beside the run, under its name.
    completions
        Show the text of at most so many completions, evenly spaced from the worst τ to the best;
        0 leaves all text out.
    json_output
        Print what was written as JSON.
    """
    from draftlab.report.load import ReportedRun
    from draftlab.report.page import write_page

    path = out or run.with_suffix(".html")
    if path.suffix not in {".html", ".htm"} or path.is_dir():
        raise DraftlabError(
            f"{path} is not a name for a page.", mend="Name a file that ends in .html with -o."
        )
    page = write_page([ReportedRun.load(run)], path, completions=completions)
    if json_output:
        shown = {"completions": page.completions, "completions_shown": page.completions_shown}
        print(json.dumps({"page": str(path), "num_bytes": page.num_bytes, **shown}))
        return
    some = page.completions_shown < page.completions
    texts = f", {page.completions_shown} of {page.completions} texts" if some else ""
    print(f"-> {path} ({bytes_text(page.num_bytes)}{texts})")
