"""Sampled references: rows that hang on nothing but their prompt, with the chance of each token."""

import math
import random

import pipeline
import pytest
import servers
import tiny
import torch
from oracles import plain_distribution

from draftlab.base.errors import CompletionsError, Unreachable
from draftlab.cli.main import code_of
from draftlab.hidden.store import HiddenStore
from draftlab.reference.collect import collect_reference
from draftlab.reference.completions import Completion, Reference
from draftlab.reference.generate import DecodeSettings, generate_reference
from draftlab.reference.prompts import Prompt
from draftlab.reference.samples import samples_of
from draftlab.reference.talk import CollectSettings
from draftlab.target.decoding import GREEDY, Decoding

HOW = Decoding(temperature=0.9, top_k=40, top_p=0.95, seed=11, num_samples=3)
TARGET = pipeline.Path(__file__).parents[2] / "draftlab/demo/pair/target"


def settings(**changes):
    usual = {"max_new_tokens": 10, "ignore_eos": True, "batch_size": 4, "decoding": HOW}
    return DecodeSettings(**{**usual, **changes})


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny.write_target(tmp_path_factory.mktemp("t") / "target", "qwen3", tied=False)


@pytest.fixture(scope="module")
def prompts():
    return pipeline.as_prompts(tiny.random_prompts(5, seed=9))


@pytest.fixture(scope="module")
def whole(target, prompts, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "ref"
    return generate_reference(prompts, target, out, settings(), pipeline.FP32)


def texts(reference):
    return {row.id: row.completion_ids for row in reference.completions}


def test_each_sample_is_a_row_with_a_chance_for_each_token(whole, prompts):
    ids = [f"{prompt.key}#{sample}" for prompt in prompts for sample in range(3)]
    assert [row.id for row in whole.completions] == ids
    assert [row.sample for row in whole.completions] == [0, 1, 2] * 5
    assert len(set(texts(whole).values())) == 15
    assert {len(row.log_probs) for row in whole.completions} == {10}
    assert whole.record.job.decoding == HOW
    assert Reference.open(whole.folder).completions == whole.completions


def require_the_targets_chances(rows, target, filters):
    """Each token's log-probability against a plain pass of the target over the whole text."""
    model = tiny.load_target(target)
    for row in rows:
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        with torch.inference_mode():
            logits = model(ids).logits[0, len(row.prompt_ids) - 1 : -1]
        for step, (token, found) in enumerate(zip(row.completion_ids, row.log_probs, strict=True)):
            expected = plain_distribution(logits[step].tolist(), *filters)[token]
            assert found == pytest.approx(math.log(expected), abs=1e-4), (row.id, step)


def test_the_chance_of_each_token_is_what_the_target_alone_gives_it(whole, target):
    require_the_targets_chances(whole.completions, target, (0.9, 40, 0.95))


def test_first_tokens_follow_the_targets_distribution(target, prompts, tmp_path):
    """Chi-square over 3,000 samples of one prompt; rare tokens counted together."""
    many = Decoding(temperature=0.7, seed=1, num_samples=3000)
    made = generate_reference(
        prompts[:1], target, tmp_path / "ref",
        settings(max_new_tokens=2, batch_size=1000, decoding=many), pipeline.FP32,
    )  # fmt: skip
    with torch.inference_mode():
        logits = tiny.load_target(target)(torch.tensor([prompts[0].input_ids])).logits[0, -1]
    expected = torch.tensor(plain_distribution(logits.tolist(), 0.7, 0, 1.0)) * 3000
    drawn = torch.zeros(tiny.VOCAB_SIZE)
    for row in made.completions:
        drawn[row.completion_ids[0]] += 1

    common = expected >= 8
    expected = torch.cat([expected[common], expected[~common].sum()[None]])
    drawn = torch.cat([drawn[common], drawn[~common].sum()[None]])
    degrees = len(expected) - 1
    assert degrees >= 10
    chi_square = float(((drawn - expected) ** 2 / expected).sum())
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees), "off by chance once in 10,000 targets"


@pytest.mark.parametrize("batch_size", [1, 7, 16])
def test_neither_order_nor_company_changes_a_row(target, prompts, whole, tmp_path, batch_size):
    shuffled = random.Random(3).sample(prompts, 5)
    made = generate_reference(
        shuffled, target, tmp_path / "r", settings(batch_size=batch_size), pipeline.FP32
    )
    assert texts(made) == texts(whole)
    fewer = generate_reference(
        shuffled[:2], target, tmp_path / "f", settings(batch_size=batch_size), pipeline.FP32
    )
    assert texts(fewer).items() <= texts(whole).items()
    more = Decoding(**{**HOW.model_dump(), "num_samples": 4})
    made = generate_reference(
        prompts, target, tmp_path / "m", settings(decoding=more), pipeline.FP32
    )
    assert texts(whole).items() <= texts(made).items()


class Stopped(Exception):
    """What a kill does."""


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_a_stopped_run_ends_in_the_same_bytes(target, prompts, whole, tmp_path, batches):
    def track(items, *, total, what, unit):
        for number, item in enumerate(items):
            if number == batches:
                raise Stopped
            yield item

    out = tmp_path / "ref"
    with pytest.raises(Stopped):
        generate_reference(prompts, target, out, settings(), pipeline.FP32, track=track)
    generate_reference(prompts, target, out, settings(), pipeline.FP32)
    name = "completions.jsonl"
    assert (out / name).read_bytes() == (whole.folder / name).read_bytes()


def test_another_seed_or_temperature_gives_other_texts(target, prompts, whole, tmp_path):
    for change in ({"seed": 12}, {"temperature": 2.0}):
        how = Decoding(**{**HOW.model_dump(), **change})
        made = generate_reference(
            prompts, target, tmp_path / str(change), settings(decoding=how), pipeline.FP32
        )
        assert texts(made) != texts(whole)
        with pytest.raises(CompletionsError, match=next(iter(change))):
            generate_reference(prompts, target, whole.folder, settings(decoding=how), pipeline.FP32)


def test_greedy_rows_have_no_chances(target, prompts, tmp_path):
    made = generate_reference(
        prompts, target, tmp_path / "ref", settings(decoding=GREEDY), pipeline.FP32
    )
    assert {row.log_probs for row in made.completions} == {None}
    assert [row.id for row in made.completions] == [prompt.key for prompt in prompts]


def test_samples_that_leave_the_batch_change_nothing_of_the_others(target, prompts, tmp_path):
    """Some of 160 tokens is declared the end, so that rows of one batch end at different steps."""
    config = target / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"eos_token_id": null', '"eos_token_id": [5, 60, 77, 120]'))
    try:
        how = Decoding(temperature=1.5, seed=2, num_samples=6)
        made = generate_reference(
            prompts, target, tmp_path / "ref",
            settings(ignore_eos=False, max_new_tokens=30, decoding=how, batch_size=30),
            pipeline.FP32,
        )  # fmt: skip
        alone = generate_reference(
            prompts, target, tmp_path / "alone",
            settings(ignore_eos=False, max_new_tokens=30, decoding=how, batch_size=1),
            pipeline.FP32,
        )  # fmt: skip
    finally:
        config.write_text(text)
    stopped = [row for row in made.completions if row.finish == "stop"]
    assert 5 <= len(stopped) < 30
    assert len({len(row.completion_ids) for row in stopped}) > 3
    require_the_targets_chances(made.completions, target, (1.5, 0, 1.0))
    assert texts(alone) == texts(made)


def test_rows_whose_ids_would_be_the_same_are_refused():
    clash = [Prompt(id="a", input_ids=(1,)), Prompt(id="a#0", input_ids=(2,))]
    samples_of(clash, [(1,), (2,)], Decoding(temperature=1))
    three = [*clash, Prompt(id="a#1", input_ids=(3,))]
    assert len(samples_of(three, [(1,), (2,), (3,)], Decoding(temperature=1, num_samples=2))) == 6
    nested = [Prompt(id="a", input_ids=(1,)), Prompt(id="a", input_ids=(2,))]
    with pytest.raises(CompletionsError, match="'a#0'"):
        samples_of(nested, [(1,), (2,)], Decoding(temperature=1, num_samples=2))


def test_a_row_with_a_chance_too_few_is_none(whole):
    row = whole.completions[0].model_dump()
    with pytest.raises(ValueError, match="one for each token"):
        Completion(**{**row, "log_probs": row["log_probs"][:-1]})


def test_capture_takes_sampled_rows_and_says_what_agreement_is_not(small_pair, tmp_path, capsys):
    made = code_of([
        "reference", "--prompts", str(small_pair.prompts), "--target", str(small_pair.target),
        "--temperature", "0.8", "--top-p", "0.9", "--seed", "3", "--samples", "2",
        "--max-new-tokens", "8", "--threads", "1", "--out", str(tmp_path / "ref"),
    ])  # fmt: skip
    captured = code_of([
        "capture", str(tmp_path / "ref"), "--target", str(small_pair.target), "--layers", "1,2",
        "--threads", "1", "--out", str(tmp_path / "store"),
    ])  # fmt: skip
    said = capsys.readouterr()

    assert (made, captured) == (0, 0), said.err
    assert (
        "temperature 0.8, top-p 0.9, seed 3, 2 per prompt; each token with its log-prob" in said.out
    )
    assert "drawn at temperature 0.8, so this is no check of the target" in said.out
    store = HiddenStore.open(tmp_path / "store")
    assert store.index.conditions.temperature == 0.8
    assert [entry.id[-2:] for entry in store.index.sequences] == ["#0", "#1"] * 3
    code = code_of(["evaluate", str(tmp_path / "store"), "--drafter", str(small_pair.drafter)])
    assert (code, "sampled at temperature 0.8" in capsys.readouterr().err) == (1, True)


# Servers ---------------------------------------------------------------------------------------

KINDS = {"sglang": servers.sglang, "vllm": servers.vllm, "llama.cpp": servers.llama}
ASKED = Decoding(temperature=0.7, top_p=0.9, seed=4, num_samples=3)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def collect(server, prompts, out, **changes):
    usual = {"max_new_tokens": 64, "first_wait_seconds": 0.005, "decoding": ASKED}
    return collect_reference(
        prompts, TARGET, out, CollectSettings(url=server.url, **{**usual, **changes})
    )


def asked_prompts(count):
    return [Prompt(id=f"p{n}", input_ids=(n + 1, 2 * n + 3, 5)) for n in range(count)]


def sampling_of(body):
    return body.get("sampling_params", body)


def seed_of(body):
    sampling = sampling_of(body)
    return sampling.get("sampling_seed", sampling.get("seed"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_is_asked_for_once_with_a_seed_of_its_own(kind, tmp_path):
    prompts = asked_prompts(4)
    with servers.running(KINDS[kind]()) as server:
        made = collect(server, prompts, tmp_path / "ref")
    asked = [body for body in server.bodies if servers.limit_of(body) > 1]

    assert len(asked) == len({seed_of(body) for body in asked}) == 12
    for body in asked:
        sampling = sampling_of(body)
        assert (sampling["temperature"], sampling["top_p"], sampling["min_p"]) == (0.7, 0.9, 0.0)
        assert sampling["top_k"] == (-1 if kind == "sglang" else 0)
    assert len({row.completion_ids for row in made.completions}) > 8, "seeds are heeded"
    for row in made.completions:
        seed = ASKED.row_seed(row.prompt_ids, row.sample)
        expected, _ = servers.completion_of(list(row.prompt_ids), 64, seed)
        assert list(row.completion_ids) == expected
        assert row.log_probs is None
    assert made.record.job.decoding == ASKED


def test_llama_is_told_an_order_of_samplers_that_has_the_temperature_first(tmp_path):
    with servers.running(servers.llama()) as server:
        collect(server, asked_prompts(1), tmp_path / "ref")
    body = server.bodies[-1]

    assert body["samplers"] == ["temperature", "top_k", "top_p"]
    assert (body["mirostat"], body["dynatemp_range"], body["xtc_probability"]) == (0, 0, 0)
    assert (body["typical_p"], body["min_keep"], body["dry_multiplier"]) == (1, 0, 0)


def test_sglang_is_not_asked_for_filters_that_it_takes_otherwise(tmp_path):
    both = Decoding(temperature=0.6, top_k=20, top_p=0.95)
    with servers.running(servers.sglang()) as server:
        with pytest.raises(CompletionsError, match="what top-k has not filtered"):
            collect(server, asked_prompts(1), tmp_path / "ref", decoding=both)
        assert server.bodies == []


def test_a_server_of_text_alone_takes_top_p_and_seed_and_no_top_k(tmp_path):
    chat = Prompt.model_validate({"id": "c", "messages": [{"role": "user", "content": "say"}]})

    def say(body):
        return {"message": {"content": f"word number {body['seed']}"}}

    with servers.running(servers.strict_text(say)) as server:
        made = collect(server, [chat], tmp_path / "ref")
        body = server.bodies[-1]
        with pytest.raises(CompletionsError, match="no top_k"):
            collect(server, [chat], tmp_path / "k", decoding=Decoding(temperature=1, top_k=5))
    assert len({row.completion_ids for row in made.completions}) == 3
    assert (body["temperature"], body["top_p"]) == (0.7, 0.9)


@pytest.mark.parametrize("more", [0, 2])
def test_a_stopped_collection_asks_for_missing_samples_alone(tmp_path, more):
    prompts = asked_prompts(5)
    with servers.running(servers.llama()) as server:
        server.fault = lambda number, body: (500, {}) if number >= 8 else None
        with pytest.raises(Unreachable, match="8 of 15 samples are answered and kept"):
            collect(server, prompts, tmp_path / "ref", retries=0, concurrency=1)
        first = {seed_of(body) for body in server.bodies[:8]}
        server.bodies.clear()
        server.fault = lambda number, body: None
        how = Decoding(**{**ASKED.model_dump(), "num_samples": 3 + more})
        made = collect(server, prompts[::-1], tmp_path / "ref", decoding=how)
    asked = {seed_of(body) for body in server.bodies}

    assert len(server.bodies) == 5 * (3 + more) - 8
    assert not asked & first
    assert len(made.completions) == 5 * (3 + more)


def test_samples_that_say_the_same_are_counted(tmp_path, capsys):
    with servers.running(servers.vllm()) as server:
        same = server.post

        def deaf(path, body):
            return same(path, {**body, "seed": 0})

        server.post = deaf
        made = collect(server, asked_prompts(4), tmp_path / "ref")
    assert made.record.collection.num_repeats == 8


def test_asking_again_is_for_greedy_answers():
    with pytest.raises(CompletionsError, match="differ by chance"):
        CollectSettings(url="http://h", max_new_tokens=4, verify=2, decoding=ASKED)
