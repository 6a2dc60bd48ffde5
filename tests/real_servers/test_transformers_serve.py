"""A real server that takes and gives text only and refuses every extension: `transformers serve`.

The oracle is transformers' own `generate` on the ids that the server should have read.
"""

import json
import shutil
import urllib.error
from pathlib import Path

import live
import pytest
import tiny
import torch
import transformers

from draftlab.cli.main import code_of
from draftlab.reference.completions import Reference

pytestmark = [pytest.mark.server, pytest.mark.slow, live.needs(live.TRANSFORMERS, "servers")]

PAIR = Path(__file__).parents[2] / "draftlab/demo/pair"
LIMIT = 64


def command(folder, port):
    return [
        live.TRANSFORMERS / "bin/python", "-m", "transformers.cli.transformers", "serve", folder,
        "--host", "127.0.0.1", "--port", port, "--device", "cpu", "--dtype", "float32",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The demo's target as a model of text alone: the server would want images otherwise."""
    folder = tmp_path_factory.mktemp("trained") / "target"
    tiny.load_target(PAIR / "target").save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(PAIR / "target" / name, folder / name)
    shutil.copy(PAIR / "target/generation_config.json", folder / "generation_config.json")
    return folder


@pytest.fixture(scope="module")
def babbling(tmp_path_factory):
    """Random weights over the demo's tokenizer: bytes that are no text."""
    return tiny.write_wordy_target(tmp_path_factory.mktemp("babbling") / "target", PAIR / "target")


def said_alone(folder, rows):
    """The text that the target gives to each prompt, as the server would show it."""
    model = tiny.load_target(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = []
    for row in rows:
        ids = torch.tensor([row.prompt_ids])
        whole = model.generate(ids, max_new_tokens=LIMIT, do_sample=False)
        texts.append(tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True))
    return texts


def collected(server, folder, prompts, out):
    return code_of([
        "reference", "--prompts", str(prompts), "--target", str(folder), "--server", server.url,
        "--max-new-tokens", str(LIMIT), "--keep-cut-off", "--concurrency", "2", "--out", str(out),
    ])  # fmt: skip


def test_chats_are_asked_as_text_and_every_row_says_so(trained, tmp_path, capfd):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join((PAIR / "prompts.jsonl").read_text().splitlines(keepends=True)[:16]))
    port = live.free_port()
    with live.serving(command(trained, port), tmp_path / "log", port=port) as server:
        with pytest.raises(urllib.error.HTTPError, match="422"):  # what sets this server apart
            server.post("/v1/completions", {"model": str(trained), "prompt": "a", "min_p": 0.0})
        code = collected(server, trained, prompts, tmp_path / "ref")
    said = capfd.readouterr()

    assert code == 0, said.err
    assert "reference: OpenAI-compatible unknown, model" in said.err
    assert "text only: completions are encoded again" in said.err
    assert "16 retokenised from text; the text of 0 of them (0.0%)" in said.out
    made = Reference.open(tmp_path / "ref")
    assert len(made.completions) == 16
    assert {row.ids_from for row in made.completions} == {"retokenised"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained)
    texts = [tokenizer.decode(row.completion_ids) for row in made.completions]
    assert texts == said_alone(trained, made.completions)


def test_text_that_does_not_survive_the_round_trip_is_counted(babbling, tmp_path, capfd):
    """A server writes U+FFFD for bytes that are no text: that encodes and decodes to itself."""
    prompts = tmp_path / "prompts.jsonl"
    words = ["def", "add", "list", "of", "name", "file", "one", "two", "sum", "key", "row", "end"]
    lines = [json.dumps({"prompt": f"{word} {n}"}) + "\n" for n, word in enumerate(words)]
    prompts.write_text("".join(lines))
    port = live.free_port()
    with live.serving(command(babbling, port), tmp_path / "log", port=port) as server:
        code = collected(server, babbling, prompts, tmp_path / "ref")
    said = capfd.readouterr()

    assert code == 0, said.err
    made = Reference.open(tmp_path / "ref")
    tokenizer = transformers.AutoTokenizer.from_pretrained(babbling)
    texts = said_alone(babbling, made.completions)
    again = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    assert [row.completion_ids for row in made.completions] == again
    lost = sum(
        "\ufffd" in text or tokenizer.decode(ids) != text
        for ids, text in zip(again, texts, strict=True)
    )
    assert lost == 12, "every text has lost bytes: it would be taken for what was said"
    assert made.record.collection.num_not_round_trip == lost
    assert made.record.collection.num_retokenised == 12
