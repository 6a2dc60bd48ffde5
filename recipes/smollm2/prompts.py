"""Seeded prompts: tasks of the `reasoning-gym` package, and instructions put together here.

Train and held-out prompts are disjoint: other seeds, other topics, no content twice, and four task
families and four kinds of instruction are held out whole, so that part of the held-out set is of
kinds that were never trained on (domain `unseen`). The held-out set is the same whatever is
trained on; a larger training set takes in the smaller one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import reasoning_gym

from draftlab.reference.prompts import Message, Prompt
from recipes.smollm2.subjects import (
    CODE_INSTRUCTIONS,
    CODE_TASKS,
    INSTRUCTIONS,
    MORE_CODE_INSTRUCTIONS,
    MORE_CODE_TASKS,
    MORE_INSTRUCTIONS,
    MORE_TOPICS,
    TOPICS,
    UNSEEN_CODE_INSTRUCTIONS,
    UNSEEN_INSTRUCTIONS,
)

FAMILIES = tuple(
    "aiw basic_arithmetic calendar_arithmetic chain_sum coin_flip family_relationships "
    "fraction_simplification gcd gsm_symbolic knights_knaves lcm leg_counting letter_counting "
    "number_filtering number_sorting prime_factorization propositional_logic simple_equations "
    "simple_geometry spell_backward syllogism word_sequence_reversal".split()
)
UNSEEN_FAMILIES = ("products", "time_intervals", "number_sequence", "complex_arithmetic")

HELD_OUT_TOPICS = TOPICS[::7]
HELD_OUT_CODE_TASKS = CODE_TASKS[::5]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSet:
    """How much to train on; seeds and shuffling are the same for each."""

    tasks_per_family: int
    topics: tuple[str, ...]
    instructions: tuple[str, ...]
    code_tasks: tuple[str, ...]
    code_instructions: tuple[str, ...]


SMALL = TrainingSet(
    tasks_per_family=30,
    topics=tuple(t for t in TOPICS if t not in HELD_OUT_TOPICS),
    instructions=INSTRUCTIONS,
    code_tasks=tuple(t for t in CODE_TASKS if t not in HELD_OUT_CODE_TASKS),
    code_instructions=CODE_INSTRUCTIONS,
)
LARGE = TrainingSet(
    tasks_per_family=60,
    topics=SMALL.topics + MORE_TOPICS,
    instructions=INSTRUCTIONS + MORE_INSTRUCTIONS,
    code_tasks=SMALL.code_tasks + MORE_CODE_TASKS,
    code_instructions=CODE_INSTRUCTIONS + MORE_CODE_INSTRUCTIONS,
)
SIZES = {"small": SMALL, "large": LARGE}


def training_prompts(wanted: TrainingSet) -> tuple[Prompt, ...]:
    """So many tasks of each family, and every training instruction; shuffled by a fixed seed."""
    prompts = [
        *_tasks(FAMILIES, wanted.tasks_per_family, seed=1, domain="reasoning"),
        *_filled(wanted.instructions, wanted.topics, "instructions"),
        *_filled(wanted.code_instructions, wanted.code_tasks, "code"),
    ]
    random.Random(1).shuffle(prompts)
    held_out = {prompt.content_digest for prompt in held_out_prompts()}
    return _distinct([p for p in prompts if p.content_digest not in held_out])


def held_out_prompts() -> tuple[Prompt, ...]:
    """Tasks with other seeds, instructions on other topics, and kinds that training never saw."""
    generator = random.Random(2)
    seen = generator.sample(list(_filled(INSTRUCTIONS, HELD_OUT_TOPICS, "instructions")), 20)
    coded = generator.sample(list(_filled(CODE_INSTRUCTIONS, HELD_OUT_CODE_TASKS, "code")), 8)
    unseen = [
        *_tasks(UNSEEN_FAMILIES, 3, seed=9, domain="unseen"),
        *generator.sample(list(_filled(UNSEEN_INSTRUCTIONS, HELD_OUT_TOPICS, "unseen")), 6),
        *generator.sample(
            list(_filled(UNSEEN_CODE_INSTRUCTIONS, HELD_OUT_CODE_TASKS, "unseen")), 4
        ),
    ]
    tasks = _tasks(FAMILIES, 1, seed=1_000_003, domain="reasoning")
    return _distinct([*tasks, *seen, *coded, *unseen])


def _tasks(families: tuple[str, ...], count: int, *, seed: int, domain: str) -> Iterator[Prompt]:
    for family in families:
        made = reasoning_gym.create_dataset(family, size=count, seed=seed)
        for number in range(count):
            yield _chat(made[number]["question"], domain)


def _filled(patterns: tuple[str, ...], subjects: tuple[str, ...], domain: str) -> Iterator[Prompt]:
    for pattern, subject in itertools.product(patterns, subjects):
        yield _chat(pattern.format(subject), domain)


def _chat(text: str, domain: str) -> Prompt:
    return Prompt(domain=domain, messages=(Message(role="user", content=text),))


def _distinct(prompts: list[Prompt]) -> tuple[Prompt, ...]:
    return tuple({prompt.content_digest: prompt for prompt in prompts}.values())
