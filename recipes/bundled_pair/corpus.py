"""Seeded dialogues for the bundled demo pair: one user message, one assistant reply.

In: a domain, a split, a count and a seed. The `code` domain also reads the source of the Python
standard library of the running interpreter. Nothing is downloaded.
Out: `Dialogue` records, the chat prompts a drafter trains on (`training_prompts`) and the held-out
prompts shipped with the pair (`held_out_prompts`).
Why: a target of about one million parameters is predictable only where it has really learnt its
domain. So the replies follow from the prompt: all choices that matter (names, numbers, wording)
are visible in the user message, and the reply works them out.

Split rule: a dialogue is held out when the first byte of the SHA-256 of its key is below
`HELD_OUT_BYTES`. For the generated domains the key is the user message. For `code` it is the body
of the function without docstring and white space, so one function never sits on both sides, not
under another name and not in another task. The sides are disjoint whatever the seeds are.
"""

from __future__ import annotations

import ast
import csv
import functools
import hashlib
import io
import itertools
import json
import random
import re
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOMAINS = ("code", "maths", "data", "writing")
SPLITS = ("train", "held_out")
HELD_OUT_BYTES = 12
HELD_OUT_SEED = 77
DRAFTER_SEED = 4242

Draft = tuple[str, str]


@dataclass(frozen=True)
class Dialogue:
    """One user message with its reply; `key` is the text that the split rule hashes."""

    domain: str
    user: str
    reply: str
    key: str

    @property
    def ident(self) -> str:
        """Stable id: the domain and the start of a hash of the user message."""
        return f"{self.domain}-{hashlib.sha256(self.user.encode()).hexdigest()[:8]}"

    def messages(self) -> list[dict[str, str]]:
        """The dialogue as chat messages, reply included."""
        return [*self.prompt()["messages"], {"role": "assistant", "content": self.reply}]

    def prompt(self) -> dict[str, Any]:
        """The record used in prompt files: id, domain and the user message alone."""
        user = {"role": "user", "content": self.user}
        return {"id": self.ident, "domain": self.domain, "messages": [user]}


def is_held_out(key: str) -> bool:
    """The split rule of the module docstring."""
    return hashlib.sha256(key.encode()).digest()[0] < HELD_OUT_BYTES


def dialogues(domain: str, split: str, count: int, seed: int) -> list[Dialogue]:
    """`count` dialogues of one domain and split, no user message twice; same seed, same list.

    Raises ValueError when the domain cannot give that many.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, not {split!r}")
    stream = _stream(domain, random.Random(f"{domain}/{split}/{seed}"), split)
    found: dict[str, Dialogue] = {}
    misses = 0
    while len(found) < count and misses < 20_000:
        item = next(stream)
        if item.user in found or is_held_out(item.key) != (split == "held_out"):
            misses += 1
            continue
        misses = 0
        found[item.user] = item
    if len(found) < count:
        raise ValueError(f"{domain}/{split} gave only {len(found)} of {count} dialogues")
    return list(found.values())


def training_prompts(count: int, seed: int = DRAFTER_SEED) -> list[dict[str, Any]]:
    """Prompts for training a drafter, the domains in turn, all from the training side."""
    return _in_turn("train", count, seed)


def held_out_prompts(per_domain: int = 8, seed: int = HELD_OUT_SEED) -> list[dict[str, Any]]:
    """The prompts nobody trains on: `per_domain` of each domain, domain by domain."""
    picked = _in_turn("held_out", per_domain * len(DOMAINS), seed)
    return sorted(picked, key=lambda prompt: DOMAINS.index(prompt["domain"]))


def _in_turn(split: str, count: int, seed: int) -> list[dict[str, Any]]:
    share = -(-count // len(DOMAINS))
    columns = [dialogues(domain, split, share, seed) for domain in DOMAINS]
    return [item.prompt() for row in zip(*columns, strict=True) for item in row][:count]


def _stream(domain: str, rng: random.Random, split: str) -> Iterator[Dialogue]:
    """Endless dialogues of one domain; only `code` looks at the split before it draws."""
    if domain == "code":
        yield from _code_stream(rng, split)
    makers = {"maths": MATHS, "data": DATA, "writing": WRITING}[domain]
    while True:
        user, reply = rng.choice(makers)(rng)
        yield Dialogue(domain, user, reply, user)


# ---------------------------------------------------------------------------------------------
# code: functions of the standard library


@dataclass(frozen=True)
class Function:
    """One short function: its dedented source and what the tasks need to know about it."""

    source: str
    name: str
    head: str
    docstring: str
    without_docstring: str
    arguments: tuple[str, ...]
    key: str


SKIPPED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages"}
MAX_CHARACTERS = 320
MAX_LINES = 12
NEW_NAMES = (
    "item value data text other first second index path node result obj number key size line "
    "source target buffer parent start limit"
).split()


@functools.cache
def library_functions() -> tuple[Function, ...]:
    """The short functions of the standard library, one per distinct body, in file order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    seen: dict[str, Function] = {}
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS.intersection(path.relative_to(root).parts):
            continue
        for function in _functions_in(path.read_text("utf-8", errors="replace")):
            seen.setdefault(function.key, function)
    return tuple(seen.values())


def _functions_in(text: str) -> Iterator[Function]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            if len(source) <= MAX_CHARACTERS and source.isascii() and "\t" not in source:
                function = _describe(source)
                if function is not None:
                    yield function


def _describe(source: str) -> Function | None:
    """A `Function`, or None when the text is not one plain function of 3 to 12 lines."""
    lines = source.splitlines()
    try:
        node = ast.parse(source).body[0]
    except SyntaxError:
        return None
    if not isinstance(node, ast.FunctionDef) or not 2 < len(lines) <= MAX_LINES:
        return None
    docstring = ast.get_docstring(node, clean=False) or ""
    body = node.body[1:] if docstring else node.body
    if not body or body[0].lineno == node.lineno:
        return None
    head_end = node.body[0].end_lineno if docstring else body[0].lineno
    before = lines[: node.body[0].lineno - 1]
    after = lines[(node.body[0].end_lineno or 0) :]
    bare = "\n".join([*before, *after]) if docstring else source
    if before[-1].rstrip().endswith(":") is False or not bare.strip():
        return None
    key = re.sub(r"\s+", "", "".join(ast.unparse(statement) for statement in body))
    names = tuple(a.arg for a in node.args.args if a.arg not in ("self", "cls"))
    head = "\n".join(lines[:head_end])
    return Function(source, node.name, head, docstring, bare, names, key)


def _fence(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def _complete(function: Function, rng: random.Random) -> Draft | None:
    """Write a whole function from its first lines."""
    if function.head.rstrip() == function.source.rstrip():
        return None
    return f"Complete this Python function.\n{_fence(function.head)}", _fence(function.source)


def _rename(function: Function, rng: random.Random) -> Draft | None:
    """Give one argument another name, where plain text replacement is known to be right."""
    tree = ast.parse(function.source)
    for old in rng.sample(function.arguments, len(function.arguments)):
        uses = sum(getattr(node, "id", None) == old for node in ast.walk(tree))
        uses += sum(getattr(node, "arg", None) == old for node in ast.walk(tree))
        words = re.findall(r"\w+", function.source)
        new = rng.choice(NEW_NAMES)
        keywords = {getattr(n, "arg", None) for n in ast.walk(tree) if isinstance(n, ast.keyword)}
        if words.count(old) == uses and new not in words and old not in keywords:
            user = f"Rename the argument `{old}` to `{new}`.\n{_fence(function.source)}"
            return user, _fence(re.sub(rf"\b{old}\b", new, function.source))
    return None


def _strip_docstring(function: Function, rng: random.Random) -> Draft | None:
    if not function.docstring:
        return None
    user = f"Remove the docstring from this function.\n{_fence(function.source)}"
    return user, _fence(function.without_docstring)


def _rename_function(function: Function, rng: random.Random) -> Draft | None:
    """Give the function itself another name."""
    new = f"{rng.choice(['do', 'make', 'get', 'run', 'my'])}_{rng.choice(NEW_NAMES)}"
    if len(re.findall(rf"\b{re.escape(function.name)}\b", function.source)) != 1:
        return None
    user = f"Rename the function `{function.name}` to `{new}`.\n{_fence(function.source)}"
    return user, _fence(function.source.replace(f"def {function.name}", f"def {new}", 1))


CODE_TASKS: tuple[Callable[[Function, random.Random], Draft | None], ...] = (
    _complete,
    _rename,
    _rename,
    _strip_docstring,
    _rename_function,
)


def _code_stream(rng: random.Random, split: str) -> Iterator[Dialogue]:
    wanted = split == "held_out"
    functions = [f for f in library_functions() if is_held_out(f.key) == wanted]
    while True:
        function = rng.choice(functions)
        draft = rng.choice(CODE_TASKS)(function, rng)
        if draft is not None:
            yield Dialogue("code", *draft, function.key)


# ---------------------------------------------------------------------------------------------
# slots shared by the generated domains

NAMES = (
    "Anna Ben Carla David Emma Felix Grace Henry Iris Jack Karen Leo Maria Nina Oscar Paul Quinn "
    "Rosa Sam Tina Uma Victor Wendy Yusuf Zoe Amir Bella Chen Dora Erik"
).split()
THINGS = (
    "apples pears books pens stamps shells coins cards eggs cups plates stones marbles buttons "
    "stickers tickets candles flowers cookies lemons oranges pencils keys nuts"
).split()
CITIES = (
    "Paris London Berlin Madrid Rome Vienna Oslo Lisbon Prague Dublin Athens Warsaw Cairo Tokyo "
    "Delhi Lima Boston Denver Austin Toronto"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

# The wording of the request decides the opening of the reply, so that it can be foreseen.
MATHS_STYLES = (
    ("Show the steps.", "Let us work it out step by step."),
    ("Explain your answer.", "Here is how to find the answer."),
    ("Please help me.", "Sure, I can help with that."),
    ("Work it out slowly.", "Let us take it slowly, one line at a time."),
)


def _two(rng: random.Random, values: list[str]) -> list[str]:
    return rng.sample(values, 2)


def _worked(rng: random.Random, question: str, steps: list[str], answer: str) -> Draft:
    """A maths dialogue: styled question, numbered steps, answer sentence."""
    ask, opening = rng.choice(MATHS_STYLES)
    numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    return f"{question} {ask}", f"{opening}\n\n{numbered}\n\nAnswer: {answer}"


# ---------------------------------------------------------------------------------------------
# maths: worked sums on small numbers


def _gain_and_loss(rng: random.Random) -> Draft:
    (who, friend), thing = _two(rng, NAMES), rng.choice(THINGS)
    have, more = rng.randint(3, 20), rng.randint(2, 12)
    total = have + more
    given = rng.randint(1, min(9, total - 1))
    way, past = rng.choice([("buys", "buying"), ("finds", "finding"), ("gets", "getting")])
    question = (
        f"{who} has {have} {thing}, {way} {more} more and gives {given} to {friend}. "
        f"How many {thing} does {who} have now?"
    )
    steps = [
        f"At the start {who} has {have} {thing}.",
        f"After {past} {more} more: {have} + {more} = {total}.",
        f"After giving {given} to {friend}: {total} - {given} = {total - given}.",
    ]
    return _worked(rng, question, steps, f"{who} has {total - given} {thing} now.")


def _boxes(rng: random.Random) -> Draft:
    thing, holder = rng.choice(THINGS), rng.choice(["boxes", "bags", "rows", "trays", "jars"])
    count, each, loose = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 9)
    product = count * each
    question = (
        f"There are {count} {holder} with {each} {thing} in each, and {loose} more {thing} on the "
        f"table. How many {thing} are there in total?"
    )
    steps = [
        f"In the {holder}: {count} x {each} = {product} {thing}.",
        f"On the table: {loose} {thing}.",
        f"Together: {product} + {loose} = {product + loose}.",
    ]
    return _worked(rng, question, steps, f"there are {product + loose} {thing} in total.")


def _sharing(rng: random.Random) -> Draft:
    who, thing = rng.choice(NAMES), rng.choice(THINGS)
    people, each = rng.randint(2, 9), rng.randint(2, 9)
    rest = rng.randint(0, people - 1)
    total = people * each + rest
    question = (
        f"{who} shares {total} {thing} equally among {people} children. How many does each child "
        f"get, and how many are left over?"
    )
    steps = [
        f"Divide: {total} / {people} is {each}, because {people} x {each} = {people * each}.",
        f"Left over: {total} - {people * each} = {rest}.",
    ]
    return _worked(
        rng, question, steps, f"each child gets {each} {thing} and {rest} are left over."
    )


def _change(rng: random.Random) -> Draft:
    who, thing = rng.choice(NAMES), rng.choice(THINGS)
    count, price = rng.randint(2, 7), rng.randint(2, 7)
    cost = count * price
    note = rng.choice([n for n in (20, 50, 100) if n > cost])
    question = (
        f"{who} buys {count} {thing} for {price} dollars each and pays with a {note} dollar note. "
        f"How much change does {who} get?"
    )
    steps = [
        f"The {thing} cost {count} x {price} = {cost} dollars.",
        f"The change is {note} - {cost} = {note - cost} dollars.",
    ]
    return _worked(rng, question, steps, f"{who} gets {note - cost} dollars back.")


def _long_sum(rng: random.Random) -> Draft:
    numbers = [rng.randint(2, 15) for _ in range(rng.randint(3, 5))]
    steps, total = [f"Start with {numbers[0]}."], numbers[0]
    for number in numbers[1:]:
        steps.append(f"Add {number}: {total} + {number} = {total + number}.")
        total += number
    listed = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    return _worked(rng, f"Add the numbers {listed}.", steps, f"the sum of {listed} is {total}.")


def _rectangle(rng: random.Random) -> Draft:
    shape = rng.choice(["garden", "room", "field", "table", "carpet", "poster"])
    long, wide = rng.randint(2, 9), rng.randint(2, 9)
    unit = rng.choice(["metres", "feet"])
    question = (
        f"A {shape} is {long} {unit} long and {wide} {unit} wide. Find its area and its perimeter."
    )
    steps = [
        f"Area: length x width = {long} x {wide} = {long * wide} square {unit}.",
        f"Length plus width: {long} + {wide} = {long + wide} {unit}.",
        f"Perimeter: 2 x {long + wide} = {2 * (long + wide)} {unit}.",
    ]
    answer = (
        f"the {shape} has an area of {long * wide} square {unit} and a perimeter of "
        f"{2 * (long + wide)} {unit}."
    )
    return _worked(rng, question, steps, answer)


def _journey(rng: random.Random) -> Draft:
    start, end = _two(rng, CITIES)
    vehicle = rng.choice(["train", "bus", "car", "truck", "plane"])
    tens, hours, extra = rng.randint(2, 9), rng.randint(2, 6), rng.randint(1, 9) * 10
    speed = tens * 10
    far = speed * hours
    question = (
        f"A {vehicle} leaves {start} at {speed} km per hour for {hours} hours and then goes "
        f"{extra} km more to {end}. How long is the way?"
    )
    steps = [
        f"In {hours} hours the {vehicle} goes {hours} x {speed} = {far} km.",
        f"With the last part: {far} + {extra} = {far + extra} km.",
    ]
    return _worked(rng, question, steps, f"the way from {start} to {end} is {far + extra} km long.")


def _times_table(rng: random.Random) -> Draft:
    base, first = rng.randint(2, 10), rng.randint(1, 5)
    last = first + rng.randint(3, 5)
    question = f"Write the times table of {base} from {first} to {last}."
    ask, opening = rng.choice(MATHS_STYLES)
    rows = "\n".join(f"{base} x {n} = {base * n}" for n in range(first, last + 1))
    return f"{question} {ask}", f"{opening}\n\n{rows}\n\nThat is the times table of {base}."


def _sequence(rng: random.Random) -> Draft:
    start, step, count = rng.randint(1, 20), rng.randint(2, 9), rng.randint(4, 6)
    values = [start + step * n for n in range(count)]
    question = f"Start at {start} and add {step} each time. Write the first {count} numbers."
    steps = [f"The first number is {start}."]
    steps += [f"{a} + {step} = {b}." for a, b in itertools.pairwise(values)]
    return _worked(rng, question, steps, f"the numbers are {', '.join(map(str, values))}.")


def _compare(rng: random.Random) -> Draft:
    (one, two), thing = _two(rng, NAMES), rng.choice(THINGS)
    a, b = rng.sample(range(3, 40), 2)
    more, less, high, low = (one, two, a, b) if a > b else (two, one, b, a)
    question = f"{one} has {a} {thing} and {two} has {b} {thing}. Who has more, and how many more?"
    steps = [
        f"Compare {a} and {b}: {high} is larger than {low}.",
        f"The difference is {high} - {low} = {high - low}.",
    ]
    return _worked(rng, question, steps, f"{more} has {high - low} more {thing} than {less}.")


def _equation(rng: random.Random) -> Draft:
    letter = rng.choice("xyznk")
    factor, value, shift = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 12)
    right = factor * value + shift
    steps = [
        f"The equation is {factor}{letter} + {shift} = {right}.",
        f"Subtract {shift} on both sides: {factor}{letter} = {right} - {shift} = {factor * value}.",
        f"Divide by {factor}: {letter} = {factor * value} / {factor} = {value}.",
    ]
    question = f"Solve the equation {factor}{letter} + {shift} = {right}."
    return _worked(rng, question, steps, f"{letter} = {value}.")


MATHS = (
    _gain_and_loss,
    _boxes,
    _sharing,
    _change,
    _long_sum,
    _rectangle,
    _journey,
    _times_table,
    _sequence,
    _compare,
    _equation,
)


# ---------------------------------------------------------------------------------------------
# data: the same records as CSV, JSON, table or sentences

Row = dict[str, Any]


@dataclass(frozen=True)
class Schema:
    """A kind of record: its fields with their values, and a sentence that states one record."""

    noun: str
    fields: dict[str, list[Any]]
    sentence: str


SCHEMAS = (
    Schema(
        "people",
        {"name": NAMES, "age": list(range(18, 80)), "city": CITIES},
        "{name} is {age} years old and lives in {city}.",
    ),
    Schema(
        "products",
        {"item": THINGS, "price": list(range(2, 60)), "stock": list(range(1, 90))},
        "The {item} cost {price} dollars and there are {stock} in stock.",
    ),
    Schema(
        "trips",
        {"start": CITIES, "end": CITIES, "km": list(range(100, 990, 10))},
        "The trip from {start} to {end} is {km} km long.",
    ),
    Schema(
        "pets",
        {
            "name": "Rex Luna Milo Coco Bella Max Daisy Rocky Lily Toby Ruby Oscar".split(),
            "kind": "dog cat bird fish horse rabbit".split(),
            "age": list(range(1, 15)),
        },
        "{name} is a {kind} and {age} years old.",
    ),
    Schema(
        "weather reports",
        {
            "city": CITIES,
            "day": DAYS,
            "temp": list(range(2, 35)),
            "sky": "sunny cloudy rainy windy snowy foggy".split(),
        },
        "On {day} it is {sky} in {city} with {temp} degrees.",
    ),
    Schema(
        "meetings",
        {
            "day": DAYS,
            "hour": list(range(8, 19)),
            "room": "A1 A2 B1 B2 C1 C2 D4".split(),
            "host": NAMES,
        },
        "On {day} at {hour} o'clock {host} meets in room {room}.",
    ),
)


def _records(rng: random.Random, least: int = 2, most: int = 3) -> tuple[Schema, list[Row]]:
    schema = rng.choice(SCHEMAS)
    count = rng.randint(least, most)
    columns = {key: rng.sample(values, count) for key, values in schema.fields.items()}
    return schema, [{key: columns[key][row] for key in columns} for row in range(count)]


def _as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip()


def _as_json(rows: list[Row]) -> str:
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]"


def _as_table(rows: list[Row]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _as_sentences(schema: Schema, rows: list[Row]) -> str:
    return "\n".join(f"- {schema.sentence.format(**row)}" for row in rows)


def _shown(form: str, schema: Schema, rows: list[Row]) -> str:
    """The records in one of the four forms, fenced where the form is a file format."""
    if form == "sentences":
        return _as_sentences(schema, rows)
    if form == "table":
        return _as_table(rows)
    body = _as_csv(rows) if form == "csv" else _as_json(rows)
    return f"```{form}\n{body}\n```"


FORMS = {"csv": "CSV", "json": "JSON", "table": "a Markdown table", "sentences": "sentences"}
REQUESTS = (
    ("Convert these {noun} from {old} to {new}.", "Here are the {noun} as {new}:"),
    ("Please turn this {old} about {noun} into {new}.", "Sure, these are the same {noun}:"),
    ("I need {new} instead of {old} for these {noun}.", "Of course. The {count} records:"),
)


def _convert(rng: random.Random) -> Draft:
    schema, rows = _records(rng)
    old, new = rng.sample(list(FORMS), 2)
    ask, opening = rng.choice(REQUESTS)
    slots = {"noun": schema.noun, "old": FORMS[old], "new": FORMS[new], "count": len(rows)}
    user = f"{ask.format(**slots)}\n\n{_shown(old, schema, rows)}"
    return user, f"{opening.format(**slots)}\n\n{_shown(new, schema, rows)}"


def _keep_column(rng: random.Random) -> Draft:
    """List one field of all records."""
    schema, rows = _records(rng, 2, 4)
    field, form = rng.choice(list(rows[0])), rng.choice(["csv", "json"])
    listed = "\n".join(f"{number}. {row[field]}" for number, row in enumerate(rows, 1))
    user = f"List the {field} of these {schema.noun}.\n\n{_shown(form, schema, rows)}"
    return user, f"The {field} of all {len(rows)} {schema.noun}, in order:\n\n{listed}"


def _largest(rng: random.Random) -> Draft:
    """Find the record with the largest number and say it as a sentence."""
    schema, rows = _records(rng, 2, 4)
    field = next(key for key, values in schema.fields.items() if isinstance(values[0], int))
    best = max(rows, key=lambda row: row[field])
    form = rng.choice(["csv", "json"])
    values = ", ".join(str(row[field]) for row in rows)
    user = f"Which of these {schema.noun} has the largest {field}?\n\n{_shown(form, schema, rows)}"
    reply = (
        f"The values of {field} are {values}.\n\nThe largest is {best[field]}. "
        f"That is this record:\n\n{_shown(form, schema, [best])}\n\n"
        f"In words: {schema.sentence.format(**best)}"
    )
    return user, reply


DATA = (_convert, _convert, _convert, _convert, _keep_column, _largest)


# ---------------------------------------------------------------------------------------------
# writing: letters, instructions and stories whose parts depend on the slots of the request

EVENTS = {
    "birthday party": "There will be cake, music and a lot of games.",
    "garden party": "We will sit under the trees and eat together.",
    "concert": "The band will play old songs and some new ones.",
    "picnic": "Please bring a blanket and something to drink.",
    "book club": "We will talk about the book and drink tea.",
    "football match": "Please wear warm clothes and good shoes.",
    "film night": "We will watch two films and eat popcorn.",
    "cooking class": "We will learn to make soup and fresh bread.",
}
GIFTS = {
    "scarf": "It is warm and soft, and I wear it every day.",
    "book": "I have read half of it and cannot put it down.",
    "plant": "It stands near the window and grows very fast.",
    "lamp": "It gives a warm light and looks lovely on my desk.",
    "cake": "It was so good that nothing was left after an hour.",
    "bicycle": "I ride it to work and enjoy the fresh air.",
    "teapot": "I use it each morning and think of you.",
    "picture": "It hangs over the sofa and everyone likes it.",
}
FAULTS = {
    "toaster": "It burns the bread on one side and leaves the other side cold.",
    "radio": "It makes a loud noise and loses the station all the time.",
    "chair": "One leg is shorter than the others and it shakes.",
    "kettle": "It leaks water and does not switch off.",
    "clock": "It runs ten minutes slow every day.",
    "suitcase": "It does not open and the handle is loose.",
    "printer": "It eats the paper and prints only half of the page.",
    "phone": "The screen stays dark and the battery is empty after an hour.",
}
TONES = {
    "friendly": ("Hi", "I hope you are well.", "Best wishes"),
    "formal": ("Dear", "I am writing to you today with a short message.", "Yours sincerely"),
    "cheerful": ("Hello", "I have good news and a big smile on my face!", "With a big hug"),
    "short": ("Dear", "Just a quick note.", "Thanks"),
}


def _letter(rng: random.Random, subject: str, middle: list[str]) -> Draft:
    """A letter in one of the tones; `subject` completes the request."""
    (sender, reader), tone = _two(rng, NAMES), rng.choice(list(TONES))
    hello, opening, bye = TONES[tone]
    user = f"Write a {tone} letter from {sender} to {reader} {subject}"
    body = " ".join(middle)
    return user, f"{hello} {reader},\n\n{opening} {body}\n\n{bye},\n{sender}"


def _invitation(rng: random.Random) -> Draft:
    event, day, city = rng.choice(list(EVENTS)), rng.choice(DAYS), rng.choice(CITIES)
    hour = rng.randint(2, 9)
    middle = [
        f"I would like to invite you to a {event} in {city}.",
        f"It starts on {day} at {hour} o'clock. {EVENTS[event]}",
        f"Please tell me before {day} if you can come.",
    ]
    return _letter(rng, f"with an invitation to a {event} on {day} at {hour} in {city}.", middle)


def _thanks(rng: random.Random) -> Draft:
    gift, day = rng.choice(list(GIFTS)), rng.choice(DAYS)
    middle = [
        f"Thank you very much for the {gift} that you gave me on {day}.",
        f"{GIFTS[gift]} It was very kind of you to think of me.",
        "I hope to see you soon.",
    ]
    return _letter(rng, f"to say thank you for the {gift} from {day}.", middle)


def _complaint(rng: random.Random) -> Draft:
    ware, day, city = rng.choice(list(FAULTS)), rng.choice(DAYS), rng.choice(CITIES)
    price = rng.randint(10, 90)
    middle = [
        f"On {day} I bought a {ware} in your shop in {city} for {price} dollars.",
        f"I am sorry to say that it does not work. {FAULTS[ware]}",
        f"Please send me a new {ware} or give me the {price} dollars back.",
    ]
    subject = f"about a broken {ware}, bought on {day} in {city} for {price} dollars."
    return _letter(rng, subject, middle)


@dataclass(frozen=True)
class Task:
    """Something to explain: what is needed (one amount `{n}`) and the steps (`{minutes}`)."""

    needs: tuple[str, ...]
    steps: tuple[str, ...]


TASKS = {
    "make tea": Task(
        ("a pot", "fresh water", "{n} spoons of tea"),
        (
            "Boil the water and warm the pot.",
            "Put {n} spoons of tea into the pot.",
            "Pour the hot water over the tea.",
            "Wait {minutes} minutes and serve it.",
        ),
    ),
    "cook rice": Task(
        ("a pan with a lid", "{n} cups of rice", "water and salt"),
        (
            "Wash {n} cups of rice in cold water.",
            "Put the rice into the pan with water and salt.",
            "Cook it with the lid on for {minutes} minutes.",
            "Let it rest and stir it with a fork.",
        ),
    ),
    "plant tomatoes": Task(
        ("{n} pots", "good soil", "tomato seeds"),
        (
            "Fill {n} pots with good soil.",
            "Put two seeds into each pot and cover them.",
            "Water the pots and leave them in the sun.",
            "Check them for {minutes} minutes every day.",
        ),
    ),
    "clean a bicycle": Task(
        ("{n} soft cloths", "a bucket of water", "some oil"),
        (
            "Wash the frame with water and {n} soft cloths.",
            "Clean the chain and the wheels.",
            "Let the bicycle dry for {minutes} minutes.",
            "Put a little oil on the chain.",
        ),
    ),
    "bake bread": Task(
        ("{n} cups of flour", "water and yeast", "a warm oven"),
        (
            "Mix {n} cups of flour with water and yeast.",
            "Knead the dough until it is smooth.",
            "Let it rest for {minutes} minutes.",
            "Bake it until it is brown.",
        ),
    ),
    "paint a wall": Task(
        ("{n} cans of paint", "a wide brush", "old newspapers"),
        (
            "Cover the floor with old newspapers.",
            "Open {n} cans of paint and stir them.",
            "Paint the wall from the top to the bottom.",
            "Let it dry for {minutes} minutes and paint it again.",
        ),
    ),
    "wash a dog": Task(
        ("warm water", "mild soap", "{n} dry towels"),
        (
            "Fill the tub with warm water.",
            "Wash the dog with mild soap for {minutes} minutes.",
            "Rinse the soap out of the fur.",
            "Dry the dog with {n} towels.",
        ),
    ),
    "build a bird house": Task(
        ("{n} pieces of wood", "nails and a hammer", "a saw"),
        (
            "Cut {n} pieces of wood to the same size.",
            "Make a round hole in the front piece.",
            "Nail the pieces together for {minutes} minutes.",
            "Hang the house in a tree.",
        ),
    ),
}
READERS = {
    "a child": ("This is easy and fun!", "Ask a grown-up if you need help."),
    "a beginner": ("Here is a simple way to do it.", "With some practice it will get easier."),
    "a guest": ("You are welcome to try this here.", "Leave everything as you found it."),
    "a busy parent": ("This takes little time.", "You can do other things while you wait."),
}


def _how_to(rng: random.Random) -> Draft:
    name, reader = rng.choice(list(TASKS)), rng.choice(list(READERS))
    slots = {"n": rng.randint(2, 9), "minutes": rng.randint(2, 9) * 5}
    task, (opening, closing) = TASKS[name], READERS[reader]
    needs = "\n".join(f"- {need.format(**slots)}" for need in task.needs)
    steps = "\n".join(f"{n}. {s.format(**slots)}" for n, s in enumerate(task.steps, 1))
    amount = next(need for need in task.needs if "{n}" in need).format(**slots)
    user = f"Explain to {reader} how to {name} with {amount} in {slots['minutes']} minutes."
    return user, f"{opening}\n\nYou need:\n{needs}\n\nSteps:\n{steps}\n\n{closing}"


HEROES = {
    "fox": "red fur and quick feet",
    "bear": "a thick coat and a big heart",
    "mouse": "small ears and sharp eyes",
    "crow": "wide wings and a quiet voice",
    "rabbit": "long ears and soft paws",
    "turtle": "a hard shell and much time",
    "frog": "green skin and strong legs",
    "cat": "a long tail and a proud walk",
}
PLACES = {
    "forest": "Tall trees stood there and the ground was soft.",
    "village": "The houses were small and the streets were quiet.",
    "desert": "The sand was hot and the sky was always blue.",
    "island": "The waves came and went all day long.",
    "mountain": "The wind was cold and the snow was deep.",
    "river": "The water was clear and full of fish.",
    "garden": "Flowers grew there in every colour.",
    "harbour": "Ships came in from far away every morning.",
}
LOSSES = {
    "key": ("could not open the door", "under an old stone"),
    "hat": ("had cold ears all day", "on top of a pole"),
    "map": ("did not know the way home", "between two books"),
    "lamp": ("could not see at night", "behind a wooden box"),
    "ring": ("was sad and did not sing", "inside an empty shell"),
    "drum": ("could not play with the others", "in the tall grass"),
    "kite": ("had nothing to fly in the wind", "in the top of a tree"),
    "boat": ("could not cross the water", "near the long bridge"),
}
LESSONS = {
    "friendship": "A good friend is worth more than gold.",
    "patience": "Those who wait find what they need.",
    "courage": "Even a small heart can be brave.",
    "kindness": "One kind act leads to another.",
}


def _story(rng: random.Random) -> Draft:
    (hero, helper), place = _two(rng, list(HEROES)), rng.choice(list(PLACES))
    loss, lesson, name = rng.choice(list(LOSSES)), rng.choice(list(LESSONS)), rng.choice(NAMES)
    trouble, spot = LOSSES[loss]
    user = (
        f"Tell a short story about {lesson}: a {hero} called {name} loses a {loss} near the "
        f"{place} and a {helper} helps."
    )
    reply = (
        f"Once there was a {hero} called {name} with {HEROES[hero]}. {name} lived near the "
        f"{place}. {PLACES[place]}\n\nOne day {name} lost a {loss} and {trouble}. Then a {helper} "
        f"with {HEROES[helper]} came by. Together they looked everywhere, and at last they found "
        f'the {loss} {spot}.\n\n"Thank you," said {name} to the {helper}. {LESSONS[lesson]}'
    )
    return user, reply


def _notice(rng: random.Random) -> Draft:
    event, day, city = rng.choice(list(EVENTS)), rng.choice(DAYS), rng.choice(CITIES)
    hour, price, who = rng.randint(2, 9), rng.randint(2, 30), rng.choice(NAMES)
    user = (
        f"Write a notice for a {event}: {day}, {hour} o'clock, {city}, {price} dollars, "
        f"contact {who}."
    )
    reply = (
        f"# {event.capitalize()} in {city}\n\n- Day: {day}\n- Time: {hour} o'clock\n"
        f"- Place: {city}\n- Price: {price} dollars\n\n{EVENTS[event]} Everyone is welcome. "
        f"If you have questions, please ask {who}. We hope to see you on {day}!"
    )
    return user, reply


WRITING = (_invitation, _thanks, _complaint, _how_to, _story, _notice)
