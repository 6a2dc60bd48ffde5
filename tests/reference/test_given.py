"""Given conversations: what is completion, by prefix difference, against marks and transformers."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from draftlab.base.errors import CompletionsError
from draftlab.cli.main import code_of
from draftlab.hidden.store import HiddenStore
from draftlab.reference.completions import Reference
from draftlab.reference.conversations import part, read_conversations
from draftlab.reference.given import given_reference

BUNDLED = Path(__file__).parents[2] / "draftlab/demo/pair/target"
CHATML = """
{%- for m in messages -%}
    {{- '<|im_start|>' + m.role + '\\n' -}}
    OPEN{{- m.content + '<|im_end|>' -}}CLOSE
    {{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
PLAIN = CHATML.replace("OPEN", "").replace("CLOSE", "")
MARKED = CHATML.replace("OPEN", "{%- if m.role == 'assistant' -%}{%- generation -%}").replace(
    "CLOSE", "{%- endgeneration -%}{%- else -%}{{- m.content + '<|im_end|>' -}}{%- endif -%}"
)
THINKS = """
{%- for m in messages -%}
    {{- '<|im_start|>' + m.role + '\\n' -}}
    {%- if m.role == 'assistant' -%}
        {%- generation -%}
        {%- if loop.last -%}
            {{- '<think>\\n' + (m.reasoning_content or '').strip('\\n') + '\\n</think>\\n\\n' -}}
        {%- endif -%}
        {{- m.content + '<|im_end|>' -}}
        {%- endgeneration -%}
    {%- else -%}{{- m.content + '<|im_end|>' -}}
    {%- endif -%}
    {{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if enable_thinking is defined and enable_thinking is false -%}
        {{- '<think>\\n\\n</think>\\n\\n' -}}
    {%- endif -%}
{%- endif -%}
"""
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one and two?"},
    {"role": "assistant", "content": "It is three, I think."},
    {"role": "user", "content": "and four?"},
    {"role": "assistant", "content": "seven\nin all"},
]


@pytest.fixture
def folder(tmp_path):
    """A copy of the bundled target's small files, whose template a test may change."""
    made = tmp_path / "target"
    made.mkdir()
    for path in BUNDLED.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, made)
    return made


def write(lines, path):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def taken(messages, folder, *, template=None, thinking="template", count=1):
    """The reference of one conversation, so many times."""
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    lines = [{"id": f"c{n}", "messages": messages} for n in range(count)]
    path = write(lines, folder.parent / "conversations.jsonl")
    shutil.rmtree(folder.parent / "ref", ignore_errors=True)
    conversations = read_conversations(path)
    return given_reference(conversations, folder, folder.parent / "ref", thinking=thinking)


def texts(made, folder):
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return [
        (tokenizer.decode(row.prompt_ids), tokenizer.decode(row.completion_ids))
        for row in made.completions
    ]


def test_each_turn_of_the_assistant_is_a_row_under_all_that_was_said_before(folder):
    made = taken(TALK, folder, template=PLAIN)
    start = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none and two?<|im_end|>\n"
    first = start + "<|im_start|>assistant\n"
    second = (
        first + "It is three, I think.<|im_end|>\n<|im_start|>user\nand four?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )

    assert texts(made, folder) == [
        (first, "It is three, I think.<|im_end|>"),
        (second, "seven\nin all<|im_end|>"),
    ]
    assert [row.id for row in made.completions] == ["c0/1", "c0/2"]
    assert {(row.finish, row.ids_from) for row in made.completions} == {("stop", "given")}
    job = made.record.job
    assert (job.made_by.kind, job.made_by.ids_from, job.decoding) == ("given", "given", None)
    assert job.made_by.same_target == "unknown: given text"
    assert made.record.given.marks == "none"
    assert Reference.open(made.folder).record == made.record


@pytest.mark.parametrize("template", [MARKED, THINKS], ids=["marked", "thinks"])
def test_what_is_completion_is_what_transformers_masks_by_the_marks(folder, template):
    """Its mask of the last turn, token by token; the empty think block aside."""
    for count in (3, 5):
        made = taken(TALK[:count], folder, template=template)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        theirs = tokenizer.apply_chat_template(
            TALK[:count], return_dict=True, return_assistant_tokens_mask=True
        )
        row = made.completions[-1]
        ids, mask = theirs["input_ids"], theirs["assistant_masks"]
        begin = len(mask) - mask[::-1].index(0, mask[::-1].index(1))  # of the last run of ones
        end = len(mask) - mask[::-1].index(1)
        said = tokenizer.decode(ids[begin:end])

        assert made.record.given.marks == "agree"
        assert list(row.prompt_ids + row.completion_ids) == ids[:end]
        assert tokenizer.decode(row.completion_ids) == said.removeprefix("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("thinking", ["template", "off", "on"])
@pytest.mark.parametrize("template", [None, THINKS], ids=["bundled", "thinks"])
def test_an_empty_think_block_is_part_of_the_prompt(folder, template, thinking):
    made = taken(TALK[:3], folder, template=template, thinking=thinking)
    ((prompt, answer),) = texts(made, folder)

    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert answer == "It is three, I think.<|im_end|>"
    opened_without = thinking == "on" or (thinking == "template" and template is not None)
    assert made.record.given.num_empty_thoughts == int(opened_without)


def test_what_was_thought_is_completion(folder):
    thought = [*TALK[:2], {**TALK[2], "reasoning_content": "1 + 2 = 3"}]
    for template in (None, THINKS):
        made = taken(thought, folder, template=template, thinking="on")
        ((prompt, answer),) = texts(made, folder)
        assert (prompt + answer).endswith(
            "assistant\n<think>\n1 + 2 = 3\n</think>\n\nIt is three, I think.<|im_end|>"
        )
        assert "1 + 2" in answer
        assert made.record.given.num_empty_thoughts == 0
        with pytest.raises(CompletionsError, match="where the text with the answer") as error:
            taken(thought, folder, thinking="off")
        assert "--thinking on" in error.value.mend


BEGINS_LATE = THINKS.replace("{%- generation -%}", "{{- '> ' -}}{%- generation -%}")
ENDS_EARLY = THINKS.replace(
    "{{- m.content + '<|im_end|>' -}}\n        {%- endgeneration -%}",
    "{{- m.content -}}{%- endgeneration -%}{{- '<|im_end|>' -}}",
)
SAYS_OTHER = THINKS.replace("m.role == 'assistant'", "m.role == 'system'")


@pytest.mark.parametrize("template", [BEGINS_LATE, ENDS_EARLY, SAYS_OTHER])
def test_marks_that_say_otherwise_are_refused(folder, template):
    assert template != THINKS
    with pytest.raises(CompletionsError, match="the template marks"):
        taken(TALK[:3], folder, template=template)


def test_a_text_that_does_not_go_on_as_it_was_opened_names_the_place():
    with pytest.raises(
        CompletionsError, match=r"ends with 'BOT: ' where .* goes on with 'bot: hi'"
    ):
        part("user: a BOT: ", "user: a bot: hi", "c")
    found = part("a<think>\n", "a<think>\n\n</think>\n\n\nx", "c")
    assert (found.prompt, found.answer) == ("a<think>\n\n</think>\n\n", "\nx")
    assert part("a", "a<think>b</think>x", "c").answer == "<think>b</think>x"


# Shares, ends and what is left out -------------------------------------------------------------


def test_a_template_that_writes_the_answer_alone_is_refused(folder):
    template = (
        "{% for m in messages if m.role == 'assistant' %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    with pytest.raises(CompletionsError, match=r"^100 % of the tokens"):
        taken(TALK[:3], folder, template=template)


def test_a_template_that_forgets_the_answer_is_refused(folder):
    template = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}\n{% endfor %}"
    with pytest.raises(CompletionsError, match=r"^0 % of the tokens.*2 empty"):
        taken(TALK, folder, template=template)


def test_texts_without_any_end_are_refused(folder):
    with pytest.raises(CompletionsError, match="none of the 2 turns ends") as error:
        taken(TALK, folder, template=PLAIN.replace("<|im_end|>", "|"))
    assert "eos_token_id" in error.value.mend
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["eos_token_id"] = 5
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CompletionsError, match=r"of the target \(5\)"):
        taken(TALK, folder, template=PLAIN)


def test_turns_that_cannot_be_rows_are_left_out_with_the_reason(folder):
    talk = [
        {"role": "assistant", "content": "Welcome!"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "it ends <|im_end|> and goes on"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "This one stays."},
    ]
    made = taken(talk, folder, template=PLAIN)
    assert [row.id for row in made.completions] == ["c0/4"]
    assert {one.id: one.reason for one in made.record.given.excluded} == {
        "c0/1": "nothing stands before it",
        "c0/2": "empty",
        "c0/3": "goes on after its end",
    }
    assert made.record.job.num_prompts == 4


def test_a_prompt_that_ends_within_a_token_keeps_the_tokens_it_is_asked_with(folder):
    """The opening ends with a line break that joins with one of the answer's own."""
    made = taken(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\n\nb c"}],
        folder, template=PLAIN,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    (row,) = made.completions
    opened = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert list(row.prompt_ids) == tokenizer(opened, add_special_tokens=False).input_ids
    assert tokenizer.decode(row.completion_ids) == "\n\nb c<|im_end|>"
    joint = tokenizer(opened + "\n\nb c<|im_end|>", add_special_tokens=False).input_ids
    assert joint[: len(row.prompt_ids)] != list(row.prompt_ids)
    assert made.record.given.num_parted == 1


def test_the_same_conversations_give_the_same_bytes_and_others_are_refused(folder, tmp_path):
    conversations = read_conversations(write([{"messages": TALK}], tmp_path / "c.jsonl"))
    out = tmp_path / "out"
    first = given_reference(conversations, folder, out)
    before = (out / "reference.json").read_bytes()
    again = given_reference(conversations, folder, out)
    assert again.completions == first.completions
    assert (out / "reference.json").read_bytes() == before
    with pytest.raises(CompletionsError, match="holds another reference"):
        given_reference(conversations, folder, out, thinking="on")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"messages": TALK[:2]}, "no message is the assistant's"),
        ({"messages": []}, "no message is the assistant's"),
        ({"prompt": "a"}, "`messages`"),
        ({"messages": TALK, "tools": []}, "`tools`"),
        ({"messages": [{**TALK[2], "tool_calls": []}]}, "`messages.0.tool_calls`"),
        ({"messages": [{"role": "assistant", "content": None}]}, "`messages.0.content`"),
    ],
)
def test_lines_that_are_no_conversations_are_refused_by_field(line, said, tmp_path):
    good = {"messages": TALK}
    with pytest.raises(CompletionsError, match=f"line 2: .*{said}"):
        read_conversations(write([good, line], tmp_path / "c.jsonl"))


def test_twins_and_absent_files_are_refused(tmp_path):
    with pytest.raises(CompletionsError, match="1 and 2 are both"):
        read_conversations(write([{"messages": TALK}] * 2, tmp_path / "c.jsonl"))
    with pytest.raises(CompletionsError, match="no conversation file"):
        read_conversations(tmp_path / "absent")


# The command -----------------------------------------------------------------------------------


def test_given_text_goes_on_to_a_store_and_says_what_it_is(tmp_path, capsys):
    path = write([{"messages": TALK}, {"messages": TALK[:3]}], tmp_path / "c.jsonl")
    made = code_of([
        "reference", "--from", str(path), "--target", str(BUNDLED), "--out", str(tmp_path / "ref"),
    ])  # fmt: skip
    said = capsys.readouterr()
    rows = Reference.open(tmp_path / "ref").completions
    share = sum(len(r.completion_ids) for r in rows) / sum(
        len(r.completion_ids) + len(r.prompt_ids) for r in rows
    )
    assert made == 0, said.err
    assert "3 turns of 2 conversations" in said.out
    assert f"{share:.1%} of" in said.out
    assert 0.05 < share < 0.6
    assert "the template has no marks" in said.out

    code = code_of([
        "capture", str(tmp_path / "ref"), "--target", str(BUNDLED),
        "--drafter", str(BUNDLED.parent / "drafter"),
        "--threads", "1", "--out", str(tmp_path / "store"),
    ])  # fmt: skip
    said = capsys.readouterr()
    assert code == 0, said.err
    assert "given text: whether the target would say it shows in the agreement" in said.err
    conditions = HiddenStore.open(tmp_path / "store").index.conditions
    assert (conditions.ids_from, conditions.same_target) == ("given", "unknown: given text")
    code = code_of([
        "evaluate", str(tmp_path / "store"), "--drafter", str(BUNDLED.parent / "drafter"),
        "--threads", "1",
    ])  # fmt: skip
    said = capsys.readouterr()
    assert code == 0, said.err
    assert "the texts were given: the target itself would say" in " ".join(said.out.split())


@pytest.mark.parametrize(
    "more",
    [
        ["--prompts", "builtin"],
        ["--max-new-tokens", "4"],
        ["--server", "http://localhost:1"],
        ["--limit", "3"],
        ["--ignore-eos"],
        ["--temperature", "1"],
        ["--batch-size", "2"],
        ["--verify", "2"],
    ],
)
def test_flags_that_decode_are_refused_beside_it(more, tmp_path, capsys):
    path = write([{"messages": TALK}], tmp_path / "c.jsonl")
    arguments = ["reference", "--from", path, "--target", BUNDLED, "--out", tmp_path / "r", *more]
    assert code_of([str(part) for part in arguments]) == 1
    assert "--from takes answers as they are" in capsys.readouterr().err


def test_neither_prompts_nor_answers_is_said_to_be_nothing(tmp_path, capsys):
    assert code_of(["reference", "--target", str(BUNDLED), "--out", str(tmp_path / "r")]) == 1
    assert "Pass --prompts and --max-new-tokens, or --from" in capsys.readouterr().err
