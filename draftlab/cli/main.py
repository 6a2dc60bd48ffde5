"""`draftlab`: one command a stage, in the order data flows.

Standard output carries results only (a table, or JSON with --json); progress and errors go to
standard error. Exit codes: 0 done, 1 the user can mend it, 2 usage, 3 gate not met, 4 a server or a
machine does not answer, 5 an extra is missing, 6 partial and resumable, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

# Waiting threads that spin make torch many times slower beside a busy process; libgomp reads this
# once.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# What transformers falls back to is in our records; its bars and warnings would hide our own.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from cyclopts import App, CycloptsError

from draftlab import __version__
from draftlab.base.errors import DraftlabError, MissingExtra
from draftlab.cli import compare, demo, evaluate, prepare, probe, reference, report, train

USAGE, INTERRUPTED = 2, 130
EXTRAS = {
    "numba": "torch",
    "tokenizers": "server",
    "torch": "torch",
    "transformers": "torch",
    "yaml": "torch",
}
"""Which extra brings a package that may be absent."""

app = App(
    name="draftlab",
    version=__version__,
    help="Train, evaluate and debug DFlash drafters: "
    "the exact τ of a checkpoint, on a CPU, in minutes.",
    help_epilogue="Start here: draftlab demo",
    suppress_keyboard_interrupt=False,  # code_of says how to go on
)
app.command(probe.probe, help_epilogue=probe.EXAMPLE)
app.command(reference.reference, help_epilogue=reference.EXAMPLE)
app.command(prepare.capture, help_epilogue=prepare.CAPTURE_EXAMPLE)
app.command(evaluate.evaluate, help_epilogue=evaluate.EXAMPLE)
app.command(compare.compare, help_epilogue=compare.COMPARE_EXAMPLE)
app.command(compare.leaderboard, help_epilogue=compare.LEADERBOARD_EXAMPLE)
app.command(report.report, help_epilogue=report.EXAMPLE)
app.command(train.train, help_epilogue=train.EXAMPLE)
app.command(demo.demo, help_epilogue=demo.EXAMPLE)


def run(arguments: list[str] | None = None) -> None:
    """Entry point: run one command and exit with its code."""
    sys.exit(code_of(sys.argv[1:] if arguments is None else arguments))


def code_of(arguments: list[str]) -> int:
    """Run one command; its exit code."""
    try:
        app(arguments, exit_on_error=False, result_action="return_none")
    except CycloptsError:
        return USAGE
    except DraftlabError as error:
        return _fail(error)
    except ModuleNotFoundError as error:
        if error.name in EXTRAS:
            return _fail(MissingExtra(error.name, EXTRAS[error.name]))
        raise
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command again to continue.", file=sys.stderr)
        return INTERRUPTED
    return 0


def _fail(error: DraftlabError) -> int:
    print(f"error: {error}\n  fix: {error.mend}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    run()
