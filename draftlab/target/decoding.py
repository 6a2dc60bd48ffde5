"""How the next token is chosen from a target's logits: greedy, or drawn; no torch.

A reference records it, a server is asked for it, and a drafter that is judged on sampled text must
be filtered alike. What the numbers do to logits is in `draftlab.target.sampling`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Self

from pydantic import model_validator

from draftlab.base.errors import CompletionsError
from draftlab.base.records import Record

LEAST_TEMPERATURE = 0.01
"""vLLM lifts anything between 0 and this (`SamplingParams`); SGLang takes less for greedy."""
LARGEST_SEED = 2**31 - 1
"""Every server's request has room for this one; llama.cpp takes 2^32 - 1 for `random`."""


class Decoding(Record):
    """Settings of one decoding; temperature 0 is greedy, and takes none of the others."""

    temperature: float = 0.0
    """Logits are divided by it."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Then keep the fewest most probable tokens whose share reaches this."""
    seed: int = 0
    """Of every draw; each completion has its own, derived from this and what is asked."""
    num_samples: int = 1
    """Completions per prompt."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        checks = (
            (math.isfinite(self.temperature) and self.temperature >= 0, "temperature", "0 or more"),
            (self.top_k >= 0, "top_k", "a whole number, or 0 to keep all tokens"),
            (0 < self.top_p <= 1, "top_p", "more than 0 and at most 1"),
            (0 <= self.seed <= LARGEST_SEED, "seed", f"a number from 0 to {LARGEST_SEED}"),
            (self.num_samples >= 1, "num_samples", "1 or more"),
        )
        for is_sound, name, wanted in checks:
            if not is_sound:
                flag = "samples" if name == "num_samples" else name.replace("_", "-")
                raise CompletionsError(
                    f"{name} is {getattr(self, name)}.", mend=f"Pass --{flag} {wanted}."
                )
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise CompletionsError(
                f"temperature is {self.temperature:g}: servers round it to 0 or up to "
                f"{LEAST_TEMPERATURE:g}.",
                mend=f"Pass 0 for greedy decoding, or {LEAST_TEMPERATURE:g} or more.",
            )
        usual = {name: field.default for name, field in type(self).model_fields.items()}
        idle = [name for name, value in usual.items() if getattr(self, name) != value]
        if self.is_greedy and idle:
            raise CompletionsError(
                f"greedy decoding (temperature 0) leaves nothing to {', '.join(idle)}.",
                mend="Leave them out, or pass --temperature, e.g. --temperature 1.",
            )
        return self

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0

    def row_seed(self, prompt_ids: Sequence[int], sample: int) -> int:
        """The seed of one completion, from 0 to 2^31 - 1.

        It depends on the prompt's tokens and which of its samples this is, and on nothing else: not
        on the other prompts, their order, the batch, or whether the run was stopped in between.
        """
        text = json.dumps([self.seed, sample, list(prompt_ids)], separators=(",", ":"))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) & LARGEST_SEED


GREEDY = Decoding()
