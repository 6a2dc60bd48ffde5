"""`python -m draftlab`, and with it `torchrun -m draftlab`: the command line."""

from draftlab.cli.main import run

run()
