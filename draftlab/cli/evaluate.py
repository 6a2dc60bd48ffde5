"""`draftlab evaluate`: what a drafter earns on a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from draftlab.base.errors import GateNotMet
from draftlab.base.progress import bar
from draftlab.cli.options import DeviceOption, DtypeOption, Numbers, Threads, say

if TYPE_CHECKING:
    from draftlab.hidden.store import HiddenStore
    from draftlab.replay.evaluate import Evaluation
    from draftlab.replay.result import EvaluationRun

EXAMPLE = (
    "Example: draftlab evaluate work/store --drafter models/Qwen3-4B-DFlash-b16 --show 2 "
    "--out work/run.json"
)


def evaluate(
    store: Path,
    *,
    drafter: Path,
    target: Path | None = None,
    budgets: Numbers = (16, 32, 64, 128, 256, 512, 1024),
    block_size: int | None = None,
    show: int = 0,
    min_tau: float | None = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    threads: Threads = None,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    out: Path | None = None,
) -> None:
    """Replay a drafter over a store: τ of the chain, of every tree budget, of every verify width.

    Parameters
    ----------
    store
        Folder of a hidden-state store.
    drafter
        Folder of a DFlash drafter.
    target
        The store's target, if it has moved since the capture.
    budgets
        Tree budgets to list round by round, in nodes below the root.
    block_size
        Draft with another block size than the drafter was trained with.
    show
        Print the first so many completions with each round's drafts, before the tables.
    min_tau
        Exit with code 3 if the chain's pooled τ is below this.
    json_output
        Print the whole record as JSON.
    out
        Write the record here, and beside it the drafts of every anchor and the texts.
    """
    from draftlab.hidden.store import HiddenStore
    from draftlab.replay.evaluate import evaluate as run_evaluate
    from draftlab.replay.evaluate import write_run
    from draftlab.target.compute import Compute
    from draftlab.target.loading import load_tokenizer_if_any

    opened = HiddenStore.open(store)
    target_folder = target or opened.target_folder
    number = opened.index.conditions.dtype if dtype == "auto" else dtype
    compute = Compute.choose(device, number, threads=threads)
    say(f"evaluate: {len(opened)} completions; {compute}")
    evaluation = run_evaluate(
        opened, drafter, target_folder, compute, budgets=budgets, block_size=block_size, track=bar
    )
    tokenizer = load_tokenizer_if_any(target_folder) if show or out else None
    run = evaluation.run if out is None else write_run(evaluation, out, tokenizer)
    if json_output:
        print(run.text(), end="")
    else:
        _print_tables(run, evaluation, opened, tokenizer, show, out)
    if min_tau is not None and run.chain.tau < min_tau:
        raise GateNotMet(
            f"chain τ {run.chain.tau:.3f} is below the gate of {min_tau:g}.",
            mend="Look at the rounds with --show, or lower --min-tau.",
        )


def _print_tables(
    run: EvaluationRun,
    evaluation: Evaluation,
    opened: HiddenStore,
    tokenizer: Any,
    show: int,
    out: Path | None,
) -> None:
    from rich.console import Console

    from draftlab.cli.tables import result_tables

    console = Console()
    if show:
        from draftlab.cli.show import print_completions

        numbers = range(min(show, len(opened)))
        print_completions(console, evaluation, opened, tokenizer, numbers)
    for part in result_tables(run):
        console.print(part)
    if out is not None:
        console.print(f"-> {out}    see it: draftlab report {out}", highlight=False, soft_wrap=True)
