"""A real llama-server, fp32, on two targets: the token ids are those of the target alone.

The oracle is transformers' own forward, one token after the other: nothing of draftlab decodes.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import live
import pytest
import tiny
import torch
from oracles import plain_distribution

from draftlab.cli.main import code_of
from draftlab.reference.completions import Completion, Reference
from draftlab.reference.prompts import Prompt
from draftlab.reference.replies import read_reply
from draftlab.reference.servers import Asking, request

pytestmark = [pytest.mark.server, pytest.mark.slow, live.needs(live.LLAMA, "servers")]

PAIR = Path(__file__).parents[2] / "draftlab/demo/pair"
FP32 = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
CONVERT = """
import sys
from pathlib import Path

place = Path(sys.argv.pop(1))
sys.path[:0] = [str(place), str(place / "gguf-py")]
import conversion.base


def no_sentencepiece(*_):
    raise FileNotFoundError


for kind in vars(conversion.base).values():
    if isinstance(kind, type) and "get_vocab_base_pre" in vars(kind):
        kind.get_vocab_base_pre = lambda *_: "qwen2"  # it knows tokenizers by the hash of a text
        kind._set_vocab_sentencepiece = no_sentencepiece  # tried first, with a package of its own
import convert_hf_to_gguf

convert_hf_to_gguf.main()
"""
NEAR_TIE = 1e-3
"""Logits this close may be told apart by the order of additions."""


def convert(folder, out, *options):
    command = [sys.executable, "-c", CONVERT, live.LLAMA, folder]
    command += ["--outtype", "f32", "--outfile", out, *options]
    subprocess.run([str(part) for part in command], check=True, cwd=out.parent)
    return out


@dataclass(frozen=True)
class Served:
    """A target, as its folder and as llama.cpp reads it, and what to ask it."""

    folder: Path
    gguf: Path
    drafter: Path | None
    prompts: Path
    num_prompts: int
    max_new_tokens: int

    def command(self, port, *, speculate=False):
        parts = [live.LLAMA / "llama-server", "-m", self.gguf, "--host", "127.0.0.1"]
        parts += ["--port", port, "-c", 4096, "-np", 4, "-t", 1, *FP32]
        parts += ["--metrics", "--jinja", "--offline"]
        if speculate:
            parts += ["-md", self.drafter, "--spec-type", "draft-dflash"]
            parts += ["--spec-draft-n-max", 15, "-ctkd", "f32", "-ctvd", "f32"]
        return parts

    def asked(self, url, out, *changes):
        """Arguments of the command that is tested."""
        return [
            "reference", "--prompts", str(self.prompts), "--target", str(self.folder),
            "--server", url, "--max-new-tokens", str(self.max_new_tokens), "--keep-cut-off",
            "--out", str(out), *changes,
        ]  # fmt: skip


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """The Qwen3.5 hybrid of the demo with its DFlash drafter: both trained."""
    root = tmp_path_factory.mktemp("bundled")
    target = convert(PAIR / "target", root / "target.gguf", "--no-mtp")
    drafter = convert(
        PAIR / "drafter", root / "drafter.gguf", "--target-model-dir", PAIR / "target"
    )
    return Served(PAIR / "target", target, drafter, PAIR / "prompts.jsonl", 32, 96)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A plain Qwen3 with lively random weights; GGUF wants a tokenizer, so it gets the demo's."""
    root = tmp_path_factory.mktemp("plain")
    target = tiny.write_wordy_target(root / "target", PAIR / "target")
    prompts = root / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"input_ids": ids}) + "\n" for ids in tiny.random_prompts(16))
    )
    gguf = convert(target, root / "target.gguf")
    return Served(target, gguf, None, prompts, 16, 24)


def require_greedy(served: Served, rows: tuple[Completion, ...]) -> None:
    """Every token is the argmax of what stands before it; near-ties may go either way."""
    model = tiny.load_target(served.folder)
    ends = json.loads((served.folder / "generation_config.json").read_text())["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    for row in rows:
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1]
        said = logits.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]
        assert float((logits.max(dim=-1).values - said).max()) < NEAR_TIE, row.id
        is_end = [token in ends for token in row.completion_ids]
        assert not any(is_end[:-1]), row.id
        assert (row.finish == "stop") == is_end[-1], row.id
        assert row.finish == "stop" or len(row.completion_ids) == served.max_new_tokens, row.id


@pytest.mark.parametrize("speculate", [False, True], ids=["plain decoding", "DFlash drafting"])
def test_the_bundled_target_says_over_the_wire_what_it_says_alone(
    bundled, speculate, tmp_path, capfd
):
    port = live.free_port()
    command = bundled.command(port, speculate=speculate)
    with live.serving(command, tmp_path / "log", port=port) as server:
        loaded = ["--concurrency", "4", "--verify", "4"]
        code = code_of(bundled.asked(server.url, tmp_path / "ref", *loaded))
        drafts = counter(server, "spec_decode_num_drafts_total")
        accepted = counter(server, "spec_decode_num_accepted_tokens_total")
    said = capfd.readouterr()

    assert code == 0, said.err
    assert "reference: llama.cpp b11434-sdist" in said.err
    assert "token ids in and out" in said.err
    made = Reference.open(tmp_path / "ref")
    assert len(made.completions) == bundled.num_prompts
    assert {row.ids_from for row in made.completions} == {"server"}
    assert made.record.job.made_by.dialect == "llama.cpp"
    checked = made.record.collection.verification
    assert (checked.num_prompts, checked.in_flight, checked.differences) == (4, 4, ())
    require_greedy(bundled, made.completions)
    assert (drafts > 100 and accepted > drafts) == speculate, (drafts, accepted)


def test_a_local_target_and_the_server_give_the_same_rows(bundled, plain, tmp_path, capfd):
    """Row by row, over `draftlab reference` without a server: what a user would compare."""
    for served in (bundled, plain):
        out = tmp_path / served.gguf.parent.name
        port = live.free_port()
        with live.serving(served.command(port), tmp_path / "log", port=port) as server:
            assert code_of(served.asked(server.url, out / "far")) == 0
        local = served.asked("", out / "near", "--dtype", "float32", "--threads", "1")
        local.remove("--keep-cut-off")
        del local[local.index("--server") : local.index("--server") + 2]
        assert code_of(local) == 0, capfd.readouterr().err
        far, near = (Reference.open(out / name).completions for name in ("far", "near"))

        assert len(far) == served.num_prompts >= 16
        require_greedy(served, far)
        require_greedy(served, near)
        same = sum(a.completion_ids == b.completion_ids for a, b in zip(far, near, strict=True))
        assert same >= served.num_prompts - 1, "one may part at a near-tie"
        assert [(a.id, a.finish) for a in far] == [(b.id, b.finish) for b in near]


def test_samples_follow_the_targets_distribution(plain, tmp_path, capfd):
    """Chi-square of 1,200 first tokens; filters in llama.cpp's own order would fail it."""
    port = live.free_port()
    one = tmp_path / "prompt.jsonl"
    one.write_text(plain.prompts.read_text().split("\n")[0] + "\n")
    filters = ["--temperature", "2.5", "--top-k", "60", "--top-p", "0.8", "--samples", "1200"]
    asked = replace(plain, prompts=one, max_new_tokens=2)
    with live.serving(asked.command(port), tmp_path / "log", port=port) as server:
        assert code_of(asked.asked(server.url, tmp_path / "ref", *filters)) == 0, capfd.readouterr()
    rows = Reference.open(tmp_path / "ref").completions
    with torch.inference_mode():
        model = tiny.load_target(plain.folder)
        logits = model(torch.tensor([rows[0].prompt_ids])).logits[0, -1]
    expected = torch.tensor(plain_distribution(logits.tolist(), 2.5, 60, 0.8)) * len(rows)
    drawn = torch.bincount(torch.tensor([r.completion_ids[0] for r in rows]), minlength=2048)

    assert len(rows) == 1200
    assert int(drawn[expected == 0].sum()) == 0
    possible = expected > 4
    assert (degrees := int(possible.sum()) - 1) >= 15
    chi_square = float(((drawn - expected)[possible] ** 2 / expected[possible]).sum())
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5


def test_log_probabilities_of_a_verifying_answer_are_the_targets(plain, tmp_path):
    port = live.free_port()
    ids = tuple(lines(plain.prompts)[0]["input_ids"])
    asked = request(
        Asking("llama.cpp", "", 8, ignore_eos=False, switch={}, num_alternatives=5),
        Prompt(input_ids=ids),
        ids,
    )
    with live.serving(plain.command(port), tmp_path / "log", port=port) as server:
        reply = read_reply("llama.cpp", json.dumps(server.post(asked.path, asked.body)).encode())
    with torch.inference_mode():
        logits = tiny.load_target(plain.folder)(torch.tensor([ids + reply.ids])).logits[0]
    expected = logits[len(ids) - 1 : -1].log_softmax(dim=-1)

    assert [len(place) for place in reply.alternatives] == [5] * 8
    for place, row in zip(reply.alternatives, expected, strict=True):
        for token, found in place.items():
            assert found == pytest.approx(float(row[token]), abs=1e-3)


def test_a_client_that_is_killed_asks_for_nothing_twice(plain, tmp_path):
    plain = replace(plain, max_new_tokens=200)  # time to be killed in
    port = live.free_port()
    with live.serving(plain.command(port), tmp_path / "log", port=port) as server:
        whole, cut = tmp_path / "whole", tmp_path / "cut"
        asking = ["--concurrency", "1"]
        assert code_of(plain.asked(server.url, whole, *asking)) == 0
        client = subprocess.Popen(
            [sys.executable, "-m", "draftlab.cli.main", *plain.asked(server.url, cut, *asking)],
            stderr=subprocess.DEVNULL,
        )
        answered = wait_for_rows(cut / "partial.jsonl", 3, client)
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
        kept = lines(cut / "partial.jsonl")[1:]
        wait_until_idle(server)
        before = counter(server, "prompt_tokens_total")
        assert code_of(plain.asked(server.url, cut, *asking)) == 0
        asked = counter(server, "prompt_tokens_total") - before

    assert 3 <= answered < plain.num_prompts
    lengths = {
        tuple(row["prompt_ids"]): len(row["prompt_ids"]) for row in lines(cut / "completions.jsonl")
    }
    assert asked == sum(lengths.values()) - sum(len(row["prompt_ids"]) for row in kept)
    assert (cut / "completions.jsonl").read_bytes() == (whole / "completions.jsonl").read_bytes()


def test_a_server_that_dies_leaves_a_run_that_can_go_on(plain, tmp_path):
    plain = replace(plain, max_new_tokens=200)  # time to be killed in
    port = live.free_port()
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    asking = ["--concurrency", "1", "--retries", "1"]
    with live.serving(plain.command(port), tmp_path / "log", port=port) as server:
        client = subprocess.Popen(
            [sys.executable, "-m", "draftlab.cli.main", *plain.asked(server.url, cut, *asking)],
            stderr=subprocess.PIPE,
        )
        wait_for_rows(cut / "partial.jsonl", 3, client)
        server.kill()
        said = client.communicate(timeout=60)[1].decode()
    assert client.returncode == 4, said
    assert "prompts are answered and kept" in said
    assert not (cut / "reference.json").exists()

    with live.serving(plain.command(port), tmp_path / "log", port=port) as server:
        assert code_of(plain.asked(server.url, cut, *asking)) == 0
        assert code_of(plain.asked(server.url, whole, *asking)) == 0
    assert (cut / "completions.jsonl").read_bytes() == (whole / "completions.jsonl").read_bytes()


def test_ignoring_the_end_of_text_is_refused_since_llama_forbids_it(bundled, tmp_path, capfd):
    """Asked straight: where the target alone would end, the server says something else."""
    port = live.free_port()
    ids = lines(bundled.prompts)[0]
    with live.serving(bundled.command(port), tmp_path / "log", port=port) as server:
        code = code_of(bundled.asked(server.url, tmp_path / "ref", "--ignore-eos"))
        prompt = server.post("/apply-template", {"messages": ids["messages"]})["prompt"]
        body = {"prompt": prompt, "n_predict": 128, "temperature": 0.0, "return_tokens": True}
        ended = server.post("/completion", body)
        forced = server.post("/completion", {**body, "ignore_eos": True})

    assert code == 1
    assert "forbids them" in capfd.readouterr().err
    assert ended["stop_type"] == "eos"
    at = len(ended["tokens"]) - 1
    assert forced["tokens"][:at] == ended["tokens"][:at]
    assert forced["tokens"][at] != ended["tokens"][at], "it ignores now: --ignore-eos may be asked"


def counter(server: live.LiveServer, name: str) -> int:
    """One of the counters of /metrics, 0 where there is none."""
    for line in server.get("/metrics").decode().splitlines():
        if line.startswith(f"llamacpp:{name} "):
            return int(float(line.split()[1]))
    return 0


def wait_until_idle(server: live.LiveServer) -> None:
    """Until what a client has left in flight is over, so that nothing more is counted for it."""
    deadline = time.monotonic() + 30
    while counter(server, "requests_processing") or counter(server, "requests_deferred"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def wait_for_rows(path: Path, count: int, client: subprocess.Popen) -> int:
    """Wait until so many answers are kept; how many there are then."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and client.poll() is None:
        rows = path.read_text().count("\n") - 1 if path.is_file() else 0
        if rows >= count:
            return rows
        time.sleep(0.005)
    raise RuntimeError("the client ended before it could be stopped")
