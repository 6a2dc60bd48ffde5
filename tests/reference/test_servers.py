"""References from servers: exact ids, nothing asked twice, nothing wrong taken for right."""

import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import servers

from draftlab.base.errors import (
    CompletionsError,
    DraftlabError,
    GateNotMet,
    Unfinished,
    Unreachable,
)
from draftlab.cli.main import code_of
from draftlab.reference import client
from draftlab.reference.collect import collect_reference
from draftlab.reference.completions import Reference, ReferenceRecord
from draftlab.reference.prompts import Prompt
from draftlab.reference.replies import read_reply
from draftlab.reference.talk import CollectSettings
from draftlab.reference.verify import Question, SaidAgain, _difference
from draftlab.target.tokenizer import TokenizerFiles

TARGET = Path(__file__).parents[2] / "draftlab/demo/pair/target"
VOCAB_SIZE = json.loads((TARGET / "config.json").read_text())["text_config"]["vocab_size"]
KINDS = {"sglang": servers.sglang, "vllm": servers.vllm, "llama.cpp": servers.llama}
SHOWN = {
    "sglang": ("SGLang", "0.5.23"),
    "vllm": ("vLLM", "0.32.0"),
    "llama.cpp": ("llama.cpp", "b11434"),
}


def prompts_of_ids(count, seed=1):
    chance = random.Random(seed)
    return [
        Prompt(id=f"p{n}", domain=f"d{n % 2}", input_ids=[chance.randrange(1000) for _ in range(5)])
        for n in range(count)
    ]


def settings(server, **changes):
    quick = {"max_new_tokens": 64, "first_wait_seconds": 0.005, "time_limit_seconds": 20.0}
    return CollectSettings(url=server.url, **{**quick, **changes})


def collect(server, prompts, out, **changes):
    return collect_reference(prompts, TARGET, out, settings(server, **changes))


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    """Loopback is reached directly, whatever proxy this machine uses."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def sglang():
    with servers.running(servers.sglang()) as server:
        yield server


@pytest.mark.parametrize("kind", KINDS)
def test_token_ids_go_in_and_come_out_as_they_are(kind, tmp_path):
    prompts = prompts_of_ids(12)
    with servers.running(KINDS[kind]()) as server:
        made = collect(server, prompts, tmp_path / "ref")

    assert sorted(server.prompts) == sorted(prompt.input_ids for prompt in prompts)
    assert [row.id for row in made.completions] == [prompt.id for prompt in prompts]
    for row, prompt in zip(made.completions, prompts, strict=True):
        expected, _ = servers.completion_of(list(prompt.input_ids), 64)
        assert list(row.completion_ids) == expected
        assert (row.prompt_ids, row.domain) == (prompt.input_ids, prompt.domain)
        assert (row.finish, row.ids_from) == ("stop", "server")
    by = made.record.job.made_by
    assert ((by.name, by.version), by.model_id, by.dialect) == (SHOWN[kind], "tiny", kind)
    assert made.record.collection.address == "http://127.0.0.1"
    assert Reference.open(tmp_path / "ref").completions == made.completions


@pytest.mark.parametrize("kind", KINDS)
def test_what_bends_greedy_decoding_is_switched_off_by_name(kind, tmp_path):
    with servers.running(KINDS[kind]()) as server:
        collect(server, prompts_of_ids(1), tmp_path / "ref")
    body = server.bodies[-1].get("sampling_params", server.bodies[-1])

    assert body["temperature"] == 0
    assert body["presence_penalty"] == body["frequency_penalty"] == 0
    assert body.get("repetition_penalty", body.get("repeat_penalty")) == 1
    assert body["ignore_eos"] is False


def test_an_older_sglang_and_a_trimmed_end_of_text_token_are_understood(tmp_path):
    prompts = prompts_of_ids(3)
    with servers.running(servers.sglang(trims=True, info="/get_model_info")) as server:
        made = collect(server, prompts, tmp_path / "ref")

    assert made.record.job.made_by.name == "SGLang"
    assert all(row.completion_ids[-1] == servers.EOS for row in made.completions)
    assert (
        list(made.completions[0].completion_ids)
        == servers.completion_of(list(prompts[0].input_ids), 64)[0]
    )


def test_nothing_beyond_the_end_of_text_counts(sglang, tmp_path):
    end = {"type": "stop", "matched": servers.EOS}
    beyond = reply(output_ids=[100, 101, servers.EOS, 102], meta_info=meta(finish_reason=end))
    sglang.fault = lambda number, body: (200, beyond)
    made = collect(sglang, prompts_of_ids(1), tmp_path / "ref")

    assert made.completions[0].completion_ids == (100, 101, servers.EOS)


def test_a_call_inside_a_running_event_loop_says_what_to_do(sglang, tmp_path):
    async def cell():
        with pytest.raises(DraftlabError, match="event loop") as error:
            collect(sglang, prompts_of_ids(2), tmp_path / "ref")
        assert "to_thread" in error.value.mend
        return await asyncio.to_thread(collect, sglang, prompts_of_ids(2), tmp_path / "ref")

    assert len(asyncio.run(cell()).completions) == 2


def test_chats_are_rendered_here_and_sent_as_ids(sglang, tmp_path):
    chat = Prompt.model_validate({"id": "c", "messages": [{"role": "user", "content": "hi"}]})
    made = collect(sglang, [chat], tmp_path / "ref", thinking="on")
    tokenizer = TokenizerFiles(TARGET)
    text = tokenizer.render([{"role": "user", "content": "hi"}], {"enable_thinking": True})

    assert sglang.prompts == [tokenizer.encode(text, special=False)]
    job = made.record.job
    assert job.thinking == "on"
    assert len(job.template_digest) == len(job.made_by.tokenizer_digest) == 64


# Text only -----------------------------------------------------------------------------------


def chats(count):
    return [
        Prompt.model_validate(
            {"id": f"c{n}", "messages": [{"role": "user", "content": f"say {n}"}]}
        )
        for n in range(count)
    ]


def rendered_length(number):
    tokenizer = TokenizerFiles(TARGET)
    text = tokenizer.render([{"role": "user", "content": f"say {number}"}], {})
    return len(tokenizer.encode(text, special=False))


def test_a_server_of_text_alone_gives_marked_rows_and_a_counted_round_trip(tmp_path):
    # Not in NFC form, and with a byte that the server could not show.
    texts = ["one two three", "x = 1\n", "cafe\u0301 au lait", "caf\ufffd"]

    def say(body):
        number = int(body["messages"][0]["content"][-1])
        usage = {"prompt_tokens": rendered_length(number), "completion_tokens": 3}
        return {"message": {"content": texts[number]}, "usage": usage}

    with servers.running(servers.strict_text(say)) as server:
        made = collect(server, chats(4), tmp_path / "ref")
    tokenizer = TokenizerFiles(TARGET)

    assert [row.ids_from for row in made.completions] == ["retokenised"] * 4
    assert made.completions[0].completion_ids == tokenizer.encode(texts[0], special=False)
    assert made.record.job.made_by.ids_from == "retokenised"
    assert made.record.job.made_by.name == "OpenAI-compatible"
    collection = made.record.collection
    assert (collection.num_retokenised, collection.num_not_round_trip) == (4, 2)


def test_rows_of_text_that_are_not_what_was_said_are_left_out_with_the_reason(tmp_path):
    replies = [
        {"message": {"content": "four", "reasoning_content": "2 and 2"}},
        {"message": {"content": "four"}, "usage": {"prompt_tokens": 1}},
        {"message": {"content": ""}},
        {"message": {"content": "one two three four"}, "finish_reason": "length"},
        {"message": {"content": None, "tool_calls": [{}]}, "finish_reason": "tool_calls"},
        {"message": {"content": "one two three four"}},
    ]

    def say(body):
        return replies[int(body["messages"][0]["content"][-1])]

    with servers.running(servers.strict_text(say)) as server:
        made = collect(server, chats(6), tmp_path / "ref")

    left_out = {one.id: one.reason for one in made.record.collection.excluded}
    assert left_out == {
        "c0": "split away",
        "c1": "prompt read differently",
        "c2": "empty",
        "c3": "cut off",
        "c4": "split away",
    }
    assert [row.id for row in made.completions] == ["c5"]


def test_what_a_server_of_text_alone_cannot_be_asked_is_said_before_anything_is(tmp_path):
    with servers.running(servers.strict_text(lambda body: {})) as server:
        with pytest.raises(CompletionsError, match="text only and prompt 'p0'"):
            collect(server, prompts_of_ids(1), tmp_path / "ref")
        with pytest.raises(CompletionsError, match="cannot ignore end-of-text"):
            collect(server, chats(1), tmp_path / "ref", ignore_eos=True)


def test_llama_is_not_asked_to_ignore_what_it_would_forbid(tmp_path):
    """The real one bans end-of-text tokens: 0 of 32 texts were those of the target."""
    with (
        servers.running(servers.llama()) as server,
        pytest.raises(CompletionsError, match="it forbids them"),
    ):
        collect(server, prompts_of_ids(1), tmp_path / "ref", ignore_eos=True)
    assert server.prompts == []


# Rows that end at the limit --------------------------------------------------------------------


def whole_within(prompts, limit):
    return [p.id for p in prompts if servers.completion_of(list(p.input_ids), limit)[1]]


def test_rows_cut_off_are_counted_and_left_out_unless_wanted(sglang, tmp_path):
    prompts = prompts_of_ids(20)
    whole = whole_within(prompts, 8)
    assert 0 < len(whole) < 20
    made = collect(sglang, prompts, tmp_path / "ref", max_new_tokens=8)
    kept = collect(sglang, prompts, tmp_path / "all", max_new_tokens=8, keep_cut_off=True)

    assert [row.id for row in made.completions] == whole
    assert {one.reason for one in made.record.collection.excluded} == {"cut off"}
    assert len(made.record.collection.excluded) == 20 - len(whole)
    assert (len(kept.completions), kept.record.num_cut_off) == (20, 20 - len(whole))
    with pytest.raises(CompletionsError, match="keep_cut_off"):
        collect(sglang, prompts, tmp_path / "ref", max_new_tokens=8, keep_cut_off=True)


def test_where_every_row_is_cut_off_the_answers_are_kept_for_the_option(sglang, tmp_path):
    prompts = prompts_of_ids(4)
    with pytest.raises(CompletionsError, match="4 cut off") as error:
        collect(sglang, prompts, tmp_path / "ref", max_new_tokens=3)
    assert "--keep-cut-off" in error.value.mend
    made = collect(sglang, prompts, tmp_path / "ref", max_new_tokens=3, keep_cut_off=True)

    assert len(sglang.prompts) == len(made.completions) == 4


# Servers that fail -----------------------------------------------------------------------------


def failing(times, how):
    """A fault for the first `times` requests."""

    def fault(number, body):
        return how() if number < times else None

    return fault


def cut():
    raise servers.Cut


def drip():
    raise servers.Drip


@pytest.mark.parametrize(
    "how",
    [
        lambda: (500, {"error": "out of memory"}),
        lambda: (429, {"error": "busy"}, [("Retry-After", "0")]),
        lambda: (503, b"<html>"),
        cut,
    ],
    ids=["500", "429", "503", "cut"],
)
def test_a_server_that_recovers_costs_repeats_and_no_row(sglang, tmp_path, how):
    sglang.fault = failing(3, how)
    prompts = prompts_of_ids(6)
    made = collect(sglang, prompts, tmp_path / "ref", concurrency=3)

    assert len(made.completions) == 6
    assert made.record.collection.num_retried == 3


@pytest.mark.parametrize("how", [lambda: time.sleep(2), drip], ids=["stalls", "drips"])
def test_an_answer_that_takes_too_long_is_asked_for_again(sglang, tmp_path, how):
    sglang.fault = failing(3, how)
    prompts = prompts_of_ids(6)
    made = collect(sglang, prompts, tmp_path / "ref", concurrency=3, time_limit_seconds=0.8)

    assert len(made.completions) == 6
    assert made.record.collection.num_retried >= 3  # on a busy machine others may be late too


def test_a_server_that_is_not_there_is_unreachable_at_once(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = CollectSettings(url=f"http://127.0.0.1:{taken.getsockname()[1]}", max_new_tokens=8)
        started = time.monotonic()
        with pytest.raises(Unreachable, match="does not answer") as error:
            collect_reference(prompts_of_ids(1), TARGET, tmp_path / "ref", nobody)
    assert error.value.exit_code == 4
    assert time.monotonic() - started < 2


def test_a_server_that_is_loading_is_not_mistaken_for_one_of_text(sglang, tmp_path):
    with servers.running(servers.vllm()) as server:
        server.fault = lambda number, body: (503, {"error": "loading"})
        with pytest.raises(Unreachable, match="HTTP 503"):
            collect(server, prompts_of_ids(1), tmp_path / "ref", retries=1)


def test_a_server_that_goes_away_leaves_what_it_said_and_a_shuffled_rerun_asks_the_rest(
    sglang, tmp_path
):
    prompts = prompts_of_ids(20)
    sglang.fault = lambda number, body: (500, {}) if number >= 9 else None
    with pytest.raises(Unreachable, match="9 of 20 prompts are answered and kept"):
        # One at a time: of several, some would reach a busy machine's server after the end.
        collect(sglang, prompts, tmp_path / "ref", retries=0, concurrency=1)
    answered = set(sglang.prompts[:9])
    sglang.fault = lambda number, body: None
    sglang.bodies.clear()
    random.Random(5).shuffle(prompts)
    made = collect(sglang, prompts, tmp_path / "ref")

    everything = {prompt.input_ids for prompt in prompts}
    assert sorted(sglang.prompts) == sorted(everything - answered)
    assert [row.id for row in made.completions] == [prompt.id for prompt in prompts]
    with servers.running(servers.sglang()) as other:
        fresh = collect(other, prompts, tmp_path / "fresh")
    assert fresh.completions == made.completions
    assert not (tmp_path / "ref/partial.jsonl").exists()


def test_one_prompt_that_is_refused_holds_up_no_other(sglang, tmp_path):
    prompts = prompts_of_ids(8)
    poison = prompts[2].input_ids
    sglang.fault = lambda number, body: (
        (400, {"error": "too long\x1b[31m"}) if tuple(body["input_ids"]) == poison else None
    )
    with pytest.raises(Unfinished, match=r"1 of 8 prompts got no answer: p2.*too long") as error:
        collect(sglang, prompts, tmp_path / "ref")
    assert error.value.exit_code == 6
    assert "\x1b" not in str(error.value)
    sglang.bodies.clear()
    rest = [prompt for prompt in prompts if prompt.input_ids != poison]
    assert len(collect(sglang, rest, tmp_path / "ref").completions) == 7
    assert sglang.prompts == []


def test_many_prompts_that_are_refused_hold_up_no_other(sglang, tmp_path):
    prompts = prompts_of_ids(12)
    long = {prompt.input_ids for prompt in prompts[:6]}
    sglang.fault = lambda number, body: (
        (400, {"error": "too long"}) if tuple(body["input_ids"]) in long else None
    )
    rest = collect(sglang, prompts[6:], tmp_path / "ref", concurrency=1)
    (rest.folder / "reference.json").unlink()
    with pytest.raises(CompletionsError, match="0 of 12 prompts are answered"):
        collect(sglang, prompts, tmp_path / "none", concurrency=1)
    with pytest.raises(Unfinished, match="6 of 12"):
        collect(sglang, prompts[::-1], tmp_path / "ref", concurrency=1)


def test_equal_prompts_are_asked_once(sglang, tmp_path):
    prompts = [Prompt(id=name, input_ids=[1, 2, 3]) for name in "abc"]
    made = collect(sglang, prompts, tmp_path / "ref")

    assert sglang.prompts == [(1, 2, 3)]
    assert [row.id for row in made.completions] == ["a", "b", "c"]


# Servers that lie ------------------------------------------------------------------------------


def reply(**changes):
    meta = {"finish_reason": {"type": "stop"}, "prompt_tokens": 5}
    return {"output_ids": [100, 101, 7], "meta_info": meta, **changes}


def meta(**changes):
    return {"finish_reason": {"type": "stop"}, "prompt_tokens": 5, **changes}


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (
            reply(output_ids=[100, VOCAB_SIZE]),
            f"token id {VOCAB_SIZE}; the target's ids end at {VOCAB_SIZE - 1}",
        ),
        (reply(output_ids=[100, -1]), "token id -1"),
        (reply(output_ids=[100, True]), "`output_ids.1`"),
        (reply(output_ids=[100, 1.0]), "`output_ids.1`"),
        (reply(output_ids="abc"), "`output_ids`"),
        (reply(output_ids=[100] * 65), "65 tokens where 64"),
        (reply(meta_info=meta(prompt_tokens=6)), "counts 6 prompt tokens; 5 were sent"),
        (reply(prompt_token_ids=[1, 2, 3, 4, 5]), "read another prompt"),
        (reply(meta_info=None), "`meta_info`"),
        ({"error": "no"}, "`output_ids`"),
        ([reply()], "not a sglang reply"),
        (b'{"output_ids": [1, 2', "not a sglang reply"),
        (b"[" * 100_000, "not a sglang reply"),
        (b'{"output_ids": [' + b"9" * 10_000 + b"]}", "not a sglang reply|token id"),
        (b"\x00\xff\x1b[2J", "not a sglang reply"),
        (b"", "not a sglang reply"),
        (b" " * 2_000_000, "more than 1 MiB"),
    ],
)
def test_a_reply_that_cannot_be_stops_the_run_by_name(sglang, tmp_path, lie, said, monkeypatch):
    monkeypatch.setattr(client, "MAX_REPLY_BYTES", 1 << 20)
    sglang.fault = lambda number, body: (200, lie)
    with pytest.raises(CompletionsError, match=said) as error:
        collect(sglang, prompts_of_ids(1), tmp_path / "ref")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 700
    assert not (tmp_path / "ref/reference.json").exists()


def test_an_aborted_answer_is_no_answer(sglang, tmp_path):
    aborted = reply(meta_info=meta(finish_reason={"type": "abort", "message": "x"}))
    sglang.fault = lambda number, body: (200, aborted)
    with pytest.raises(CompletionsError, match="ended with 'abort'"):
        collect(sglang, prompts_of_ids(1), tmp_path / "ref")


# Which server it is ----------------------------------------------------------------------------


def test_a_page_that_is_no_inference_server_is_refused(tmp_path):
    page = servers.FakeServer({"/": {}}, lambda path, body: (404, {}))
    unknown = pytest.raises(CompletionsError, match="none that draftlab knows")
    with servers.running(page) as server, unknown:
        collect(server, prompts_of_ids(1), tmp_path / "ref")


def test_which_of_several_models_is_meant_is_never_guessed(tmp_path):
    with servers.running(servers.vllm()) as server:
        server.get["/v1/models"]["data"].append({"id": "lora", "owned_by": "vllm"})
        with pytest.raises(CompletionsError, match="2 models: tiny, lora") as error:
            collect(server, prompts_of_ids(1), tmp_path / "ref")
        assert "--model tiny" in error.value.mend
        with pytest.raises(CompletionsError, match="no model 'other'"):
            collect(server, prompts_of_ids(1), tmp_path / "ref", model="other")
        made = collect(server, prompts_of_ids(1), tmp_path / "ref", model="lora")
    assert made.record.job.made_by.model_id == "lora"
    assert server.bodies[-1]["model"] == "lora"


def test_a_server_of_another_name_that_gives_token_ids_is_taken_at_that(tmp_path):
    with servers.running(servers.vllm()) as server:
        server.get["/v1/models"]["data"][0]["owned_by"] = "lmdeploy"
        made = collect(server, prompts_of_ids(2), tmp_path / "ref")
    by = made.record.job.made_by
    assert (by.name, by.dialect, by.ids_from) == ("OpenAI-compatible", "vllm", "server")


def test_rows_of_another_server_version_are_not_taken_over(sglang, tmp_path):
    sglang.fault = lambda number, body: (500, {}) if number >= 2 else None
    with pytest.raises(Unreachable):
        collect(sglang, prompts_of_ids(5), tmp_path / "ref", retries=0, concurrency=1)
    sglang.get["/server_info"]["version"] = "0.5.24"
    with pytest.raises(CompletionsError, match="was begun with"):
        collect(sglang, prompts_of_ids(5), tmp_path / "ref")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:30000", "not the address"),
        ("ftp://host", "not the address"),
        ("http://", "not the address"),
        ("http://host:99999", "not the address"),
        ("http://host/\x1b[2J", "not the address"),
        ("http://me:secret@host", "holds a user"),
        ("http://host/?key=secret", "holds a user"),
    ],
)
def test_an_address_that_is_none_or_tells_too_much_is_refused(url, said):
    with pytest.raises(CompletionsError, match=said) as error:
        client.Address.read(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_an_address_may_end_as_openai_clients_write_it(url):
    assert client.Address.read(url).base == "http://h:1"
    assert client.Address.read("https://[::1]:8000/x").shown == "https://[::1]"


# Asking again ----------------------------------------------------------------------------------


def changes_under_load(server):
    """Another user's text comes in as soon as two requests are in flight."""

    def fault(number, body):
        if servers.has_company(server, number):
            changed = reply(output_ids=[100, 666, 7])
            return 200, {**changed, "meta_info": meta(prompt_tokens=len(body["input_ids"]))}
        return None

    return fault


def test_a_server_that_keeps_its_word_verifies(sglang, tmp_path):
    sglang.fault = servers.slowly(0.02)
    made = collect(sglang, prompts_of_ids(9), tmp_path / "ref", verify=4, concurrency=3)
    found = made.record.collection.verification

    assert (found.num_prompts, found.in_flight, found.differences) == (4, 3, ())
    assert len(sglang.prompts) == 9 + 4 + 4 + 2  # rows, alone, under load, and company
    assert sglang.most_at_once == 3


def test_a_server_that_changes_its_answer_under_load_is_found_out(sglang, tmp_path):
    prompts = prompts_of_ids(6)
    collect(sglang, prompts, tmp_path / "ref", concurrency=1)
    sglang.fault = changes_under_load(sglang)
    made = collect(sglang, prompts, tmp_path / "ref", verify=6, concurrency=4)
    found = made.record.collection.verification

    assert len(found.differences) == 6
    for difference, prompt in zip(found.differences, prompts, strict=True):
        alone, _ = servers.completion_of(list(prompt.input_ids), 64)
        index = next(i for i, token in enumerate([100, 666, 7]) if token != alone[i])
        assert difference.when == "asked again under load"
        assert (difference.index, difference.before) == (index, alone[index])
        assert difference.now == [100, 666, 7][index]
    assert Reference.open(tmp_path / "ref").record == made.record


def test_rows_that_were_wrong_when_collected_are_found_alone(sglang, tmp_path):
    sglang.fault = changes_under_load(sglang)
    made = collect(sglang, prompts_of_ids(8), tmp_path / "ref", verify=4, concurrency=4)

    when = [one.when for one in made.record.collection.verification.differences]
    assert "asked again alone" in when


WIRE = {
    "sglang": ("/generate", lambda sent: sent["output_ids"]),
    "vllm": ("/v1/completions", lambda sent: sent["choices"][0]["token_ids"]),
    "llama.cpp": ("/completion", lambda sent: sent["tokens"]),
}


def flips_the_second_time(kind, server, *, by, tells=True):
    """The third token comes out as another one; `tells`: with its log-probabilities."""
    path, ids_of = WIRE[kind]
    asked_for = ("return_logprob", "logprobs", "n_probs")
    seen = Counter()

    def fault(number, body):
        known = body if tells else {k: v for k, v in body.items() if k not in asked_for}
        status, sent = server.post(path, known)
        seen[tuple(servers.prompt_of(body))] += servers.limit_of(body) > 1
        if seen[tuple(servers.prompt_of(body))] > 1:
            ids_of(sent)[2] += by
        return status, sent

    return fault


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("fault", "margin", "why"),
    [
        ({"by": 1}, 0.05, None),
        ({"by": 3}, 0.15, None),
        ({"by": 40}, None, "not both among the most probable"),
        ({"by": 1, "tells": False}, None, "gives no log-probabilities"),
    ],
    ids=["near tie", "no tie", "far away", "silent"],
)
def test_the_margin_at_the_first_difference_is_the_servers_own(kind, fault, margin, why, tmp_path):
    prompts = prompts_of_ids(3)
    with servers.running(KINDS[kind]()) as server:
        collect(server, prompts, tmp_path / "ref", concurrency=1)
        assert not any("logprobs" in body or "n_probs" in body for body in server.bodies)
        server.fault = flips_the_second_time(kind, server, **fault)
        made = collect(server, prompts, tmp_path / "ref", verify=3, concurrency=3)

    found = made.record.collection.verification.differences
    assert len(found) == 3
    for one, prompt in zip(found, prompts, strict=True):
        token = servers.completion_of(list(prompt.input_ids), 64)[0][2]
        assert (one.index, one.before, one.now) == (2, token, token + fault["by"])
        assert one.margin == (None if margin is None else pytest.approx(margin))
        assert (one.no_margin is None) if why is None else (why in one.no_margin)


def test_an_answer_that_has_parted_already_tells_no_margin():
    said, alone, loaded = (5, 6, 7), (5, 6, 9), (5, 8, 9)

    def chances(*places):
        return tuple(dict(place) for place in places)

    knows = SaidAgain(loaded, chances({}, {}, {7: -1.0, 9: -0.2}))
    silent = SaidAgain(alone, None)
    found = _difference(Question("p", 0, said), silent, knows)
    assert (found.index, found.before, found.now) == (2, 7, 9)
    assert (found.margin, found.no_margin) == (None, "the server gives no log-probabilities")
    tells = SaidAgain(alone, chances({}, {}, {7: -0.9, 9: -0.7}))
    assert _difference(Question("p", 0, said), tells, knows).margin == pytest.approx(-0.2)
    ended = _difference(Question("p", 0, said), SaidAgain((5, 6), chances({}, {})), knows)
    assert (ended.now, ended.margin, ended.no_margin) == (None, None, "one of the two had ended")


def test_names_that_are_no_token_ids_tell_no_margin():
    choice = {"token_ids": [17], "finish_reason": "stop"}
    told = {"top_logprobs": [{"17": -0.1, "token_id:18": -2.0, "token_id:x": -3.0}]}
    body = json.dumps({"choices": [{**choice, "logprobs": told}]}).encode()
    assert read_reply("vllm", body).alternatives == ({18: -2.0},)


# The command -----------------------------------------------------------------------------------


def write(prompts, path):
    lines = [prompt.model_dump_json(exclude_none=True) + "\n" for prompt in prompts]
    path.write_text("".join(lines))
    return path


def command(server, tmp_path, *more):
    prompts = tmp_path / "prompts.jsonl"
    return [
        "reference", "--prompts", str(prompts), "--target", str(TARGET), "--server", server.url,
        "--max-new-tokens", "64", "--out", str(tmp_path / "ref"), *more,
    ]  # fmt: skip


def test_the_command_says_what_answers_and_keeps_keys_and_ports_to_itself(
    sglang, tmp_path, capsys, monkeypatch
):
    write(prompts_of_ids(3), tmp_path / "prompts.jsonl")
    monkeypatch.setenv("SERVER_KEY", "s3cret")
    arguments = command(sglang, tmp_path, "--api-key-env", "SERVER_KEY", "--verify", "2")
    monkeypatch.setattr(sys, "argv", ["draftlab", *arguments])
    assert code_of(arguments) == 0
    said = capsys.readouterr()

    assert "SGLang 0.5.23, model tiny; token ids in and out" in said.err
    assert "3 completions" in said.out
    assert "2 asked again, alone and with 8 in flight: 0 differ" in said.out
    assert set(sglang.keys) == {"Bearer s3cret"}
    text = (tmp_path / "ref/reference.json").read_text()
    assert "s3cret" not in text
    assert sglang.url.rpartition(":")[2] not in text


def test_the_command_ends_with_3_where_answers_change_and_says_where(sglang, tmp_path, capsys):
    write(prompts_of_ids(6), tmp_path / "prompts.jsonl")
    assert code_of(command(sglang, tmp_path, "--concurrency", "1")) == 0
    sglang.fault = changes_under_load(sglang)
    assert code_of(command(sglang, tmp_path, "--verify", "6", "--concurrency", "4")) == 3
    said = capsys.readouterr().err
    # Which answers change depends on what is in flight together, and so on the machine's load.
    assert re.search(r"[1-6] of 6 prompts were answered differently", said)
    assert "(margin unknown: the server gives no log-probabilities)" not in said
    assert "(margin unknown: they are not both among" in said
    first, _ = servers.completion_of(list(prompts_of_ids(6)[0].input_ids), 64)
    text = TokenizerFiles(TARGET).decode([first[0]])
    assert f"completion token 0 was {first[0]} {text!r}, then 100 " in said
    assert code_of(command(sglang, tmp_path)) == 3, "a rerun must not forget it"
    assert GateNotMet.exit_code == 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--device", "cpu"], "--device"),
        (["--concurrency", "0"], "--concurrency 1 or more"),
        (["--time-limit", "0"], "--time-limit"),
        (["--retries", "99"], "--retries 20"),
        (["--api-key-env", "NO_SUCH_VARIABLE_HERE"], "NO_SUCH_VARIABLE_HERE"),
    ],
)
def test_options_that_cannot_be_end_in_two_lines(sglang, tmp_path, capsys, more, said):
    write(prompts_of_ids(1), tmp_path / "prompts.jsonl")
    assert code_of(command(sglang, tmp_path, *more)) == 1
    assert said in capsys.readouterr().err
    assert sglang.bodies == []


def test_options_of_a_server_without_one_are_refused(tmp_path, capsys):
    write(prompts_of_ids(1), tmp_path / "prompts.jsonl")
    arguments = [
        "reference", "--prompts", str(tmp_path / "prompts.jsonl"), "--target", str(TARGET),
        "--max-new-tokens", "4", "--out", str(tmp_path / "ref"), "--verify", "2",
    ]  # fmt: skip
    assert code_of(arguments) == 1
    assert "--server was not given" in capsys.readouterr().err


HEAVY = """
import atexit, sys
atexit.register(lambda: print([m for m in ("torch", "transformers") if m in sys.modules]))
from draftlab.cli.main import run
run()
"""


def test_ctrl_c_ends_it_at_once_keeps_every_answer_and_never_loads_torch(sglang, tmp_path):
    chat = {"id": "chat", "messages": [{"role": "user", "content": "hi"}]}
    prompts = [*prompts_of_ids(30), Prompt.model_validate(chat)]
    write(prompts, tmp_path / "prompts.jsonl")

    def fault(number, body):
        time.sleep(0.01 if number < 12 else 5)

    sglang.fault = fault
    arguments = command(sglang, tmp_path, "--concurrency", "4")
    program = [sys.executable, "-c", HEAVY, *arguments]
    quiet = {**os.environ, "NO_COLOR": "1"}
    process = subprocess.Popen(
        program, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    partial = tmp_path / "ref/partial.jsonl"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        if partial.exists() and partial.read_text().count("\n") == 13:  # a header, twelve answers
            break
        time.sleep(0.01)
    interrupted = time.monotonic()
    process.send_signal(signal.SIGINT)
    said, complaint = process.communicate(timeout=20)

    assert process.returncode == 130, complaint
    assert time.monotonic() - interrupted < 4, "it waited for answers in flight"
    assert said.strip() == "[]", "torch was loaded"
    assert "Traceback" not in complaint
    answered = {
        tuple(json.loads(line)["prompt_ids"]) for line in partial.read_text().split("\n")[1:-1]
    }
    assert len(answered) == 12
    sglang.fault = lambda number, body: None
    sglang.bodies.clear()
    assert code_of(arguments) == 0
    assert len(sglang.prompts) == 31 - 12
    assert not answered & set(sglang.prompts)


def test_the_record_reads_back_and_knows_its_schema(sglang, tmp_path):
    made = collect(sglang, prompts_of_ids(2), tmp_path / "ref")
    assert ReferenceRecord.load(tmp_path / "ref/reference.json") == made.record
