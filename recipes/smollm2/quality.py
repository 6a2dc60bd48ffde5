"""What a set of greedy completions is like: how many end by themselves, loop, or are nearly tied.

A small model that decodes greedily repeats itself. A looped stretch is foreseen by any drafter, so
a τ over many of them flatters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftlab.hidden.store import HiddenStore

LONGEST_PERIOD = 40
FEWEST_REPEATED = 16
"""Tokens; a shorter repetition is a list or a table as often as a loop."""


def looped(ids: Sequence[int]) -> int:
    """Tokens of a completion that only repeat.

    A token counts when it belongs to a stretch in which every token equals the one a fixed period
    (1 to 40) before it, and the stretch covers that period twice and 16 tokens at least.
    """
    tokens = np.asarray(ids)
    found = np.zeros(len(tokens), dtype=bool)
    for period in range(1, min(LONGEST_PERIOD, len(tokens) - 1) + 1):
        same = np.concatenate([[False], tokens[period:] == tokens[:-period], [False]])
        starts, ends = np.flatnonzero(np.diff(same.astype(np.int8))).reshape(-1, 2).T
        for start, end in zip(starts, ends, strict=True):
            if end - start >= max(2 * period, FEWEST_REPEATED):
                found[period + start : period + end] = True
    return int(found.sum())


def describe(store: HiddenStore) -> str:
    """Size, agreement, loops and margins of a store, by domain and in all."""
    rows: dict[str, list[tuple[int, int, int, int, float]]] = {}
    for number, entry in enumerate(store.index.sequences):
        sequence = store.read(number)
        said = sequence.tokens_T[sequence.prompt_length :].tolist()
        cut = int(entry.finish == "length")
        row = (len(said), cut, looped(said), entry.agreeing, float(sequence.margins_n.sum()))
        for name in (entry.domain, "all"):
            rows.setdefault(name, []).append(row)
    lines = ["domain        texts   tokens  cut off  in loops  argmax  mean margin"]
    for name, found in sorted(rows.items(), key=lambda item: item[0] == "all"):
        tokens, cut, loops, agreeing, margins = (sum(column) for column in zip(*found, strict=True))
        lines.append(
            f"{name:13} {len(found):5,} {tokens:8,} {cut / len(found):8.1%} {loops / tokens:9.1%} "
            f"{agreeing / tokens:7.2%} {margins / tokens:8.2f} nats"
        )
    return "\n".join(lines)
