"""A small run with drafts that are right for a while, and texts that attack whoever shows them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pipeline

from draftlab.hidden.store import HiddenStore
from draftlab.replay.draft import MAX_BUDGET, AnchorDrafts
from draftlab.replay.evaluate import Evaluation, evaluate, write_run
from draftlab.replay.walks import chain_accepted, gather, slot_rates, walks_of

HOSTILE = (
    "<script>document.title='owned'</script>",
    "</script><img src=x onerror=\"document.title='owned'\">",
    "'\"&lt;",
    "\u202eright to left",
    "line\u2028separator",
    "\x1b[31m\x00",
    "\ufffd",
    "{{ 7 * 7 }}",
    "\n",
    " ",
)
NAME = "a<b>\u202e\u2028&'\""
"""Stands in every place of a record that a user can name."""


class HostileTokenizer:
    """Each id is one of the texts above, plain ` w<id>`, or unknown."""

    def __init__(self):
        self.added_tokens_decoder = {}

    def convert_ids_to_tokens(self, token):
        return None if token % 13 == 0 else str(token)

    def decode(self, ids, **_):
        (token,) = ids
        return HOSTILE[token % 20] if token % 20 < len(HOSTILE) else f" w{token}"


def partly_right(completion, width, rng):
    """Drafts whose slots are right four times in five, with ranks and pops that fit."""
    n = len(completion)
    right = rng.random((n - 1, width)) < 0.8
    own = np.array(
        [[completion[min(a + d + 1, n - 1)] for d in range(width)] for a in range(n - 1)]
    )
    ended = np.array([[a + d + 1 >= n for d in range(width)] for a in range(n - 1)])
    ranks = np.where(ended, -1, np.where(right, 0, rng.integers(1, 9, right.shape)))
    pops = np.where(ended, MAX_BUDGET + 1, np.cumsum(1 + np.maximum(ranks, 0), axis=1))
    best = np.log(rng.uniform(0.3, 0.9, right.shape)).astype(np.float32)
    return AnchorDrafts(
        drafted_AD=np.where(right & ~ended, own, (own + 1) % 100).astype(np.int32),
        path_token_ranks_AD=ranks.astype(np.int32),
        path_log_probs_AD=np.where(right, best, best - 1).astype(np.float32),
        best_log_probs_AD=best,
        path_ranks_AD=pops.astype(np.int32),
    )


@dataclass(frozen=True)
class Written:
    """A run on disk and what it was written from."""

    path: Path
    evaluation: Evaluation


def write_hostile_run(folder: Path, store: Path, drafter: Path, target: Path) -> Written:
    """The chain and its texts are made up; the rest of the record is a real run's."""
    made = evaluate(HiddenStore.open(store), drafter, target, pipeline.FP32, budgets=(4, 64))
    rng = np.random.default_rng(3)
    width = made.run.conditions.drafted_per_round
    drafts = tuple(partly_right(tokens.completion, width, rng) for tokens in made.tokens)
    walks = walks_of([chain_accepted(d) for d in drafts])
    run = made.run.model_copy(
        update={
            "drafter": NAME,
            "chain": gather(walks),
            "slots": slot_rates(drafts, walks),
            "notes": (NAME,),
            "prompt_ids": tuple(f"{NAME}{i}" for i in range(3)),
            "prompt_domains": tuple(f"{NAME}{i % 2}" for i in range(3)),
            "domains": {f"{NAME}{i}": made.run.domains[f"d{i}"] for i in range(2)},
        }
    )
    path = folder / "run.json"
    run = write_run(Evaluation(run, drafts, made.tokens), path, HostileTokenizer())
    return Written(path, Evaluation(run, drafts, made.tokens))
