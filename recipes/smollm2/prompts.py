"""Seeded prompts: tasks of the `reasoning-gym` package, and instructions put together here.

Train and held-out prompts are disjoint: other seeds, no content twice, and four task families and
four kinds of instruction are held out whole, so that part of the held-out set is of kinds that were
never trained on (domain `unseen`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import reasoning_gym

from draftlab.reference.prompts import Message, Prompt

FAMILIES = tuple(
    "aiw basic_arithmetic calendar_arithmetic chain_sum coin_flip family_relationships "
    "fraction_simplification gcd gsm_symbolic knights_knaves lcm leg_counting letter_counting "
    "number_filtering number_sorting prime_factorization propositional_logic simple_equations "
    "simple_geometry spell_backward syllogism word_sequence_reversal".split()
)
UNSEEN_FAMILIES = ("products", "time_intervals", "number_sequence", "complex_arithmetic")

TOPICS = tuple(
    """
a rainy day in the city
growing tomatoes on a balcony
how bicycles stay upright
the water cycle
learning to play the piano
keeping a small budget
the history of bread
why leaves change colour
training for a first long run
a lost dog that finds its way home
volcanoes
how vaccines work
a lighthouse keeper
repairing an old chair
the moon and the tides
writing a good e-mail
a market in the morning
solar panels on a roof
the life of bees
moving to another country
a chess club at school
how a refrigerator works
a train journey at night
making friends at work
recycling at home
the invention of printing
a garden in winter
sleeping better
the night sky
baking a cake for a friend
why the sea is salty
a museum visit
public libraries
how earthquakes happen
a power cut in the evening
learning a new language
cooking rice
the first day of school
a walk in the forest
electric cars
rivers and bridges
a letter to a grandmother
how rainbows form
choosing a laptop
the migration of birds
a storm at sea
working from home
the planets of the solar system
a football match
healthy breakfasts
an old photograph
coral reefs
the sound of music
how clocks measure time
a visit to the dentist
planting trees
""".split("\n")[1:-1]
)
INSTRUCTIONS = (
    "Write a short paragraph about {}.",
    "Explain {} to a ten-year-old.",
    "Give me five tips about {}.",
    "Write a short story about {}.",
    "What are the advantages and disadvantages of {}?",
    "Write three questions and answers about {}.",
    "Summarise what most people should know about {}.",
    "Write a polite e-mail to a colleague about {}.",
)
UNSEEN_INSTRUCTIONS = (
    "Write a dialogue between two friends about {}.",
    "Make a shopping list that has to do with {}.",
)
CODE_TASKS = tuple(
    """
reverses a string
counts the vowels of a text
returns the n-th Fibonacci number
checks whether a number is prime
finds the largest number of a list
removes duplicates from a list
sums the digits of a number
merges two sorted lists
converts Celsius to Fahrenheit
counts the words of a sentence
checks whether a word is a palindrome
computes a factorial
returns the median of a list
flattens a nested list
finds the common elements of two lists
capitalises each word
computes the greatest common divisor
rotates a list by k places
counts how often each letter occurs
sorts a dictionary by value
""".split("\n")[1:-1]
)
CODE_INSTRUCTIONS = (
    "Write a Python function that {}.",
    "Write a JavaScript function that {}.",
    "Explain step by step how to write a function that {}.",
)
UNSEEN_CODE_INSTRUCTIONS = (
    "Write a C function that {}.",
    "Write unit tests for a function that {}.",
)

HELD_OUT_TOPICS = TOPICS[::7]
HELD_OUT_CODE_TASKS = CODE_TASKS[::5]


def training_prompts(per_family: int) -> tuple[Prompt, ...]:
    """So many tasks of each family, and every training instruction; shuffled by a fixed seed."""
    topics = [t for t in TOPICS if t not in HELD_OUT_TOPICS]
    code = [t for t in CODE_TASKS if t not in HELD_OUT_CODE_TASKS]
    prompts = [
        *_tasks(FAMILIES, per_family, seed=1, domain="reasoning"),
        *_filled(INSTRUCTIONS, topics, "instructions"),
        *_filled(CODE_INSTRUCTIONS, code, "code"),
    ]
    random.Random(1).shuffle(prompts)
    return _distinct(prompts)


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
    trained = {p.content_digest for p in training_prompts(1)}
    tasks = _tasks(FAMILIES, 1, seed=1_000_003, domain="reasoning")
    return _distinct(
        [p for p in [*tasks, *seen, *coded, *unseen] if p.content_digest not in trained]
    )


def _tasks(families: tuple[str, ...], count: int, *, seed: int, domain: str) -> Iterator[Prompt]:
    for family in families:
        made = reasoning_gym.create_dataset(family, size=count, seed=seed)
        for number in range(count):
            yield _chat(made[number]["question"], domain)


def _filled(
    patterns: tuple[str, ...], subjects: tuple[str, ...] | list[str], domain: str
) -> Iterator[Prompt]:
    for pattern, subject in itertools.product(patterns, subjects):
        yield _chat(pattern.format(subject), domain)


def _chat(text: str, domain: str) -> Prompt:
    return Prompt(domain=domain, messages=(Message(role="user", content=text),))


def _distinct(prompts: list[Prompt]) -> tuple[Prompt, ...]:
    return tuple({prompt.content_digest: prompt for prompt in prompts}.values())
