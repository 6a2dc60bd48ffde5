"""Completions in the terminal, round by round: accepted, first wrong, the target's own token.

Readable without colour: the columns say what a token was, and in the running text what the target
had to say itself stands in brackets. Model text is never sent to the terminal raw; control
characters are shown as what they are.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftlab.hidden.store import HiddenStore
from draftlab.replay.draft import AnchorDrafts
from draftlab.replay.evaluate import Evaluation
from draftlab.replay.walks import chain_accepted, walks_of

_ACCEPTED, _OWN, _WRONG = "blue", "bold", "dark_orange"
_MARKS = {"\n": "↵", "\t": "→", "\r": "␍"}


def print_completions(
    console: Console,
    evaluation: Evaluation,
    store: HiddenStore,
    tokenizer: Any,
    numbers: Iterable[int],
) -> None:
    """Print these completions of a run, told by their place in the reference."""
    for number in numbers:
        sequence = store.read(number)
        entry = sequence.entry
        drafts = evaluation.drafts[number]
        committed = evaluation.run.chain.committed[number]
        tau = sum(committed) / len(committed)
        console.rule(
            f"{entry.id} · {entry.domain} · τ {tau:.2f} over {len(committed)} rounds", align="left"
        )
        completion = sequence.tokens_T[sequence.prompt_length :].tolist()
        writer = _Writer(tokenizer)
        console.print(_running_text(writer, completion, drafts))
        console.print(_rounds_table(writer, completion, drafts))


def typical(evaluation: Evaluation) -> list[int]:
    """All completions, those whose own τ is nearest to the pooled τ first."""
    rounds, pooled = evaluation.run.chain.committed, evaluation.run.chain.tau
    return sorted(range(len(rounds)), key=lambda i: abs(sum(rounds[i]) / len(rounds[i]) - pooled))


class _Writer:
    """Token ids as text that a terminal may show."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, *ids: int) -> str:
        if self._tokenizer is None:
            return " ".join(f"#{token}" for token in ids)
        text: str = self._tokenizer.decode(list(ids))
        return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in _MARKS:
        return _MARKS[character]
    if unicodedata.category(character) in {"Cc", "Cf", "Co", "Cs"}:
        return f"\\u{ord(character):04x}"
    return character


def _running_text(writer: _Writer, completion: list[int], drafts: AnchorDrafts) -> Text:
    """The completion; accepted tokens in blue, the target's own in [brackets]."""
    text = Text()
    text.append(f"[{writer(completion[0])}]", style=_OWN)
    made = walks_of([chain_accepted(drafts)])[0]
    for start, accepted in zip(made.starts_R.tolist(), made.accepted_R.tolist(), strict=True):
        text.append(writer(*completion[start + 1 : start + 1 + accepted]), style=_ACCEPTED)
        own = start + 1 + accepted
        if own < len(completion):
            text.append(f"[{writer(completion[own])}]", style=_OWN)
    return text


def _rounds_table(writer: _Writer, completion: list[int], drafts: AnchorDrafts) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("round", "committed"):
        table.add_column(name, justify="right")
    table.add_column("accepted drafts", overflow="fold", style=_ACCEPTED)
    table.add_column("target's own", overflow="fold", style=_OWN)
    table.add_column("drafted there", overflow="fold", style=_WRONG)
    table.add_column("rank of the target's", justify="right")
    made = walks_of([chain_accepted(drafts)])[0]
    rounds = zip(
        made.starts_R.tolist(), made.accepted_R.tolist(), made.committed_R.tolist(), strict=True
    )
    for number, (start, accepted, committed) in enumerate(rounds, start=1):
        own = start + 1 + accepted
        ends, full = own >= len(completion), accepted == drafts.drafted_AD.shape[1]
        wrong = rank = "-"
        if not ends and not full:
            wrong = writer(int(drafts.drafted_AD[start, accepted]))
            rank = str(int(drafts.path_token_ranks_AD[start, accepted]) + 1)
        table.add_row(
            str(number),
            f"{committed}",
            Text(writer(*completion[start + 1 : own])),
            Text("(end of text: round cut)" if ends else writer(completion[own])),
            Text("(all drafts accepted)" if full and not ends else wrong),
            rank,
        )
    return table
