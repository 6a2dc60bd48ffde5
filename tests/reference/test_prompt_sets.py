"""The built-in prompts, and what `--prompts` may say."""

import json
import unicodedata
from importlib.resources import files
from pathlib import Path

import pipeline
import pytest

from draftlab.base.errors import CompletionsError
from draftlab.cli.main import code_of
from draftlab.reference import prompt_sets
from draftlab.reference.completions import Reference
from draftlab.reference.encode import PromptEncoder
from draftlab.reference.prompt_sets import DOMAINS
from draftlab.reference.sources import load_prompts
from draftlab.target.tokenizer import TokenizerFiles

TARGET = Path(__file__).parents[2] / "draftlab/demo/pair/target"
ALL = load_prompts("builtin").prompts


def of(domain):
    return [prompt for prompt in ALL if prompt.domain == domain]


def last(prompt):
    return prompt.messages[-1].content


def test_each_domain_has_32_prompts_and_no_two_are_alike():
    assert len(ALL) == 6 * 32
    assert len({prompt.content_digest for prompt in ALL}) == 6 * 32
    for domain in DOMAINS:
        assert [prompt.id for prompt in of(domain)] == [f"{domain}-{n:02d}" for n in range(1, 33)]
    assert len({last(prompt)[:40] for prompt in ALL}) == 6 * 32, "not one template filled in"


def test_every_file_of_the_package_is_a_domain():
    names = {entry.name for entry in files(prompt_sets).iterdir() if entry.name.endswith(".jsonl")}
    assert names == {f"{domain}.jsonl" for domain in DOMAINS}


def test_all_of_them_can_be_put_to_a_chat_model():
    encoder = PromptEncoder(TARGET, "off", TokenizerFiles)
    lengths = [len(encoder.encode(prompt, 10**6)) for prompt in ALL]
    assert min(lengths) > 10
    assert all(prompt.messages[-1].role == "user" for prompt in ALL)


def test_agents_have_called_a_tool_that_they_have():
    for prompt in of("agent"):
        system, _, call, result = prompt.messages
        roles = [message.role for message in prompt.messages]
        assert roles == ["system", "user", "assistant", "user"]
        tools = {line[2:].split("(")[0] for line in system.content.splitlines() if line[:2] == "- "}
        assert len(tools) >= 3
        called = json.loads(call.content)
        assert called["tool"] in tools, prompt.id
        assert set(called) == {"tool", "arguments"}
        assert result.content.startswith("Result: ")


def script_of(text):
    letters = [unicodedata.name(letter).split()[0] for letter in text if letter.isalpha()]
    return max(set(letters), key=letters.count)


def test_the_multilingual_ones_are_in_many_scripts_and_none_in_english():
    scripts = {script_of(last(prompt)) for prompt in of("multilingual")}
    assert scripts >= {"LATIN", "CYRILLIC", "ARABIC", "DEVANAGARI", "CJK", "HIRAGANA", "HANGUL"}
    english = {"the", "and", "what", "write", "how", "is"}
    for prompt in of("multilingual"):
        assert not english & set(last(prompt).lower().split()), prompt.id


def test_some_of_the_domains_come_in_their_own_order():
    found = load_prompts("builtin:maths, chat")
    assert [prompt.domain for prompt in found.prompts] == ["chat"] * 32 + ["maths"] * 32
    assert (found.source.name, found.source.num_available) == ("builtin:chat,maths", 64)
    assert load_prompts("builtin").source.name == "builtin"


def test_a_limit_leaves_every_domain_its_share():
    found = load_prompts("builtin", 24)
    counts = [sum(p.domain == domain for p in found.prompts) for domain in DOMAINS]
    assert counts == [4] * 6
    assert (found.source.selection, found.source.num_available) == ("evenly spread", 192)
    assert load_prompts("builtin", 192).source.selection == "all"
    assert load_prompts("builtin", 1).prompts == ALL[:1]


def test_a_name_wins_over_a_file_that_can_still_be_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("builtin").write_text('{"prompt": "mine"}\n')
    assert load_prompts("builtin").prompts == ALL
    mine = load_prompts("./builtin")
    assert [prompt.prompt for prompt in mine.prompts] == ["mine"]
    assert (mine.source.name, mine.source.licence) == ("builtin", "")


@pytest.mark.parametrize(
    ("wanted", "limit", "said"),
    [
        ("builtin:poems", None, "no built-in prompts for 'poems'"),
        ("builtin:code,,maths", None, "no built-in prompts for ''"),
        ("nowhere.jsonl", None, "no prompt file nowhere.jsonl"),
        ("hellaswag", None, "no prompt file hellaswag"),
        ("builtin", 0, "limit is 0"),
        ("gsm8k:", None, "no file stands behind gsm8k:"),
    ],
)
def test_what_is_not_there_says_what_is(wanted, limit, said):
    with pytest.raises(CompletionsError, match=said) as error:
        load_prompts(wanted, limit)
    assert error.value.mend


def test_the_command_takes_them_and_the_record_says_which(tmp_path, capsys):
    code = code_of([
        "reference", "--prompts", "builtin:code,writing", "--limit", "4", "--target", str(TARGET),
        "--max-new-tokens", "2", "--threads", "1", "--out", str(tmp_path / "ref"),
    ])  # fmt: skip
    said = capsys.readouterr()
    assert code == 0, said.err
    assert "prompts: builtin:code,writing: draftlab, Apache-2.0; 4 of 64, evenly spread" in said.out
    made = Reference.open(tmp_path / "ref")
    assert [row.id for row in made.completions] == [
        "code-01",
        "code-17",
        "writing-01",
        "writing-17",
    ]
    assert made.record.prompts.selection == "evenly spread"


def test_prompts_of_a_program_have_no_source(small_pair):
    made = Reference.open(small_pair.reference)
    assert made.record.prompts is None
    assert pipeline.as_prompts([[1, 2]])[0].key
