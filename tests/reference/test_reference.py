"""References: token ids as the target said them, resumed to the same bytes, never mixed up."""

import json

import pipeline
import pytest
import tiny

from draftlab.base.errors import CompletionsError
from draftlab.reference.completions import (
    PARTIAL_NAME,
    Completion,
    Reference,
    read_rows,
    row_text,
)
from draftlab.reference.generate import DecodeSettings, generate_reference
from draftlab.reference.partial import PartialRows
from draftlab.reference.prompts import Prompt, read_prompts

SETTINGS = DecodeSettings(max_new_tokens=8, ignore_eos=True, batch_size=2)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny.write_target(tmp_path_factory.mktemp("t") / "target", "qwen3", tied=False)


@pytest.fixture(scope="module")
def prompts():
    return pipeline.as_prompts(tiny.random_prompts(5, seed=9))


@pytest.fixture(scope="module")
def whole(target, prompts, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "ref"
    return generate_reference(prompts, target, out, SETTINGS, pipeline.FP32)


class Stopped(Exception):
    """What a kill does, in the middle of a batch."""


def stopping_after(batches):
    def track(items, *, total, what, unit):
        for number, item in enumerate(items):
            if number == batches:
                raise Stopped
            yield item

    return track


def rows_of(folder):
    return (folder / "completions.jsonl").read_bytes()


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_stopped_reference_continues_and_ends_in_the_same_rows(
    target, prompts, whole, tmp_path, batches
):
    out = tmp_path / "ref"
    with pytest.raises(Stopped):
        generate_reference(
            prompts, target, out, SETTINGS, pipeline.FP32, track=stopping_after(batches)
        )
    with pytest.raises(CompletionsError, match="unfinished"):
        Reference.open(out)
    generate_reference(prompts, target, out, SETTINGS, pipeline.FP32)
    assert rows_of(out) == rows_of(whole.folder)
    assert not (out / PARTIAL_NAME).exists()


@pytest.mark.parametrize("torn", [b'{"id": "x", "domain', b"garbage\n", b"\xff\xfe\n"])
def test_a_torn_last_row_is_decoded_again(target, prompts, whole, tmp_path, torn):
    out = tmp_path / "ref"
    with pytest.raises(Stopped):
        generate_reference(prompts, target, out, SETTINGS, pipeline.FP32, track=stopping_after(1))
    with (out / PARTIAL_NAME).open("ab") as file:
        file.write(torn)
    generate_reference(prompts, target, out, SETTINGS, pipeline.FP32)
    assert rows_of(out) == rows_of(whole.folder)


def test_rows_of_another_job_are_not_taken_over(whole, tmp_path):
    PartialRows(tmp_path, "one", Completion).start()
    with pytest.raises(CompletionsError, match="other prompts"):
        PartialRows(tmp_path, "two", Completion).start()


def test_a_finished_reference_is_returned_as_it_is_and_another_is_refused(target, prompts, whole):
    before = (whole.folder / "reference.json").read_bytes()
    again = generate_reference(prompts, target, whole.folder, SETTINGS, pipeline.FP32)
    assert again.completions == whole.completions
    assert (whole.folder / "reference.json").read_bytes() == before
    longer = DecodeSettings(max_new_tokens=9, ignore_eos=True, batch_size=2)
    with pytest.raises(CompletionsError, match="max_new_tokens"):
        generate_reference(prompts, target, whole.folder, longer, pipeline.FP32)


def test_a_changed_row_is_noticed(whole, tmp_path):
    for name in ("reference.json", "completions.jsonl"):
        (tmp_path / name).write_bytes((whole.folder / name).read_bytes())
    text = (tmp_path / "completions.jsonl").read_text()
    (tmp_path / "completions.jsonl").write_text(text.replace("length", "stop"))
    with pytest.raises(CompletionsError, match="digest differs"):
        Reference.open(tmp_path)


def test_completions_do_not_depend_on_who_shares_the_batch(target, prompts, whole, tmp_path):
    alone = DecodeSettings(max_new_tokens=8, ignore_eos=True, batch_size=1)
    made = generate_reference(prompts[::-1], target, tmp_path / "r", alone, pipeline.FP32)
    assert made.completions[::-1] == whole.completions


def test_a_prompt_without_an_id_is_known_by_its_content(tmp_path):
    path = tmp_path / "p.jsonl"
    lines = ['{"prompt": "a", "domain": "x"}', '{"prompt": "b"}', '{"id": "mine", "prompt": "c"}']
    path.write_text("\n".join(lines))
    first = {p.prompt: p.key for p in read_prompts(path)}
    path.write_text("\n".join(lines[::-1]))
    assert {p.prompt: p.key for p in read_prompts(path)} == first
    assert first["c"] == "mine"
    assert len(first["a"]) == 12


def test_lines_end_at_newlines_only(whole, tmp_path):
    """U+2028 may stand in a JSON string as it is; `splitlines` would cut the row there."""
    row = whole.completions[0].model_copy(update={"id": "ünï \u2028 码"})
    assert read_rows(row_text(row) * 2) == (row, row)
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False))
    assert read_prompts(tmp_path / "p.jsonl")[0].prompt == "a\u2028b"


@pytest.mark.parametrize("value", [0, 1])
def test_a_completion_of_one_token_leaves_nothing_to_draft(value):
    with pytest.raises(CompletionsError, match="nothing is left to draft"):
        DecodeSettings(max_new_tokens=value)


def test_two_prompts_of_the_same_content_have_the_same_digest():
    one, two = Prompt(prompt="x", id="1"), Prompt(prompt="x", id="2", domain="d")
    assert one.content_digest == two.content_digest
