"""`draftlab demo`: the whole pipeline on the bundled pair."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from draftlab.base.progress import bar
from draftlab.base.quantities import bytes_text, seconds_text
from draftlab.cli.options import Threads, say

EXAMPLE = "Example: draftlab demo --show 2"


def demo(
    *,
    out: Path = Path("draftlab-demo"),
    show: int = 1,
    threads: Threads = None,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Reference, capture, evaluation and report of the bundled pair on its held-out prompts.

    Parameters
    ----------
    out
        Folder for everything it makes.
    show
        Print this many completions with each round's drafts, the most typical ones first.
    json_output
        Print the run as JSON.
    """
    from draftlab.demo.run import TARGET, run_demo
    from draftlab.target.compute import Compute

    started = time.monotonic()
    compute = Compute.choose("cpu", "float32", threads=threads)
    say(f"demo: bundled Qwen3.5-style target and its DFlash drafter; {compute}")
    made = run_demo(out, compute, track=bar)
    if json_output:
        print(made.evaluation.run.text(), end="")
        return
    from rich.console import Console

    from draftlab.cli.show import print_completions, typical
    from draftlab.cli.tables import result_tables
    from draftlab.target.loading import load_tokenizer

    console = Console()
    shown = typical(made.evaluation)[:show]
    print_completions(console, made.evaluation, made.store, load_tokenizer(TARGET), shown)
    for part in result_tables(made.evaluation.run):
        console.print(part)
    console.print(
        f"{seconds_text(time.monotonic() - started)} in all -> {made.run_path}\n"
        f"see every token of it: {made.page_path} ({bytes_text(made.page.num_bytes)})",
        highlight=False,
        soft_wrap=True,
    )
