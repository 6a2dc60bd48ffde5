"""Everything that can go wrong in a way the user can put right.

    DraftlabError            exit 1   wrong input: the two lines say what, with numbers, and the
                                      mend
    |-- TargetError                   a target folder: config, tensors, tokenizer
    |-- DrafterError                  a drafter folder: config, tensors, fit to its target
    |-- CompletionsError              prompts or reference completions
    |-- StoreError                    a hidden-state store
    |-- GateNotMet           exit 3   a threshold the user set was not reached
    |-- Unreachable          exit 4   a server or a remote machine does not answer
    |   |-- HostKeyUnknown            its host key is not among the known ones
    |   |-- HostKeyChanged            its host key is not the one that is known
    |   `-- LoginRefused              it lets this user in with none of the keys that are there
    |-- MissingExtra         exit 5   an optional dependency is not installed
    |-- MissingTool          exit 5   a program is not installed
    `-- Unfinished           exit 6   stopped half way; what is there is whole and a rerun continues

Any other exception is a fault of draftlab and keeps its traceback.
"""

from __future__ import annotations


class DraftlabError(Exception):
    """Something the user can put right: `str(e)` says what is wrong, `e.mend` what to do."""

    exit_code = 1

    def __init__(self, wrong: str, *, mend: str) -> None:
        super().__init__(wrong)
        self.mend = mend


class TargetError(DraftlabError):
    """A target folder cannot be used as it is."""


class DrafterError(DraftlabError):
    """A drafter folder cannot be used as it is, or does not fit its target."""


class CompletionsError(DraftlabError):
    """Prompts or reference completions cannot be used as they are."""


class StoreError(DraftlabError):
    """A hidden-state store cannot be used as it is."""


class GateNotMet(DraftlabError):
    """A threshold that the user set was not reached."""

    exit_code = 3


class Unreachable(DraftlabError):
    """A server or a remote machine does not answer, or not in time."""

    exit_code = 4


class HostKeyUnknown(Unreachable):
    """A machine's host key is not among the known ones; it is never accepted for the user."""


class HostKeyChanged(Unreachable):
    """A machine's host key is not the one that is known; it is never replaced for the user."""


class LoginRefused(Unreachable):
    """A machine lets this user in with none of the keys that are there."""


class MissingExtra(DraftlabError):
    """An optional dependency is not installed."""

    exit_code = 5

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package `{package}`, which is not installed.",
            mend=f"pip install 'draftlab[{extra}]'",
        )


class MissingTool(DraftlabError):
    """A program is not installed."""

    exit_code = 5

    def __init__(self, program: str, mend: str) -> None:
        super().__init__(f"this needs the program `{program}`, which is not there.", mend=mend)


class Unfinished(DraftlabError):
    """Work stopped half way; a rerun of the same command continues."""

    exit_code = 6
