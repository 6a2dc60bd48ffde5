"""Capture: right states for every batch shape, resumed to the same bytes, wrong ones refused."""

import json
import signal
import subprocess
import sys
import time

import oracles
import pipeline
import pytest
import tiny
import torch
from safetensors.torch import load_file

from draftlab.base.errors import StoreError
from draftlab.base.records import sha256_file
from draftlab.hidden import capture as capturing
from draftlab.hidden.capture import capture
from draftlab.hidden.store import HiddenStore, require_finite
from draftlab.reference.generate import DecodeSettings, generate_reference

ARCHITECTURES = ("qwen3", "qwen3_5", "llama", "gemma3")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def made(request, tmp_path_factory):
    """Six completions of uneven prompts, captured in passes of several sequences."""
    root = tmp_path_factory.mktemp(request.param)
    target = tiny.write_target(root / "target", request.param, tied=request.param == "gemma3")
    settings = DecodeSettings(max_new_tokens=10, ignore_eos=True, batch_size=4)
    prompts = pipeline.as_prompts(tiny.random_prompts(6, seed=3))
    reference = generate_reference(prompts, target, root / "ref", settings, pipeline.FP32)
    layers = (0, 1, 2)
    store = capture(reference, target, layers, root / "store", pipeline.FP32)
    return target, reference, layers, store


def test_states_are_the_outputs_of_the_tapped_layers_for_every_batch_shape(made):
    """Oracle: transformers' `hidden_states[id + 1]`, one sequence at a time, no padding."""
    target, reference, layers, store = made
    model = tiny.load_target(target)
    for i, row in enumerate(reference.completions):
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        with torch.no_grad():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        wanted = torch.cat([states[layer + 1][0, :-1] for layer in layers], dim=-1)
        torch.testing.assert_close(store.read(i).taps_SC, wanted, rtol=2e-4, atol=2e-4)


def test_the_targets_own_view_of_each_token_is_kept(made):
    target, reference, _, store = made
    model = tiny.load_target(target)
    for i, row in enumerate(reference.completions):
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1].double()
        said = torch.tensor(row.completion_ids)
        log_probs = logits.log_softmax(-1)
        best = log_probs.topk(2).values
        read = store.read(i)
        assert torch.equal(read.argmax_n, logits.argmax(-1))
        torch.testing.assert_close(
            read.logprobs_n.double(), log_probs[range(len(said)), said], rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(
            read.margins_n.double(), best[:, 0] - best[:, 1], rtol=1e-4, atol=1e-4
        )
        assert read.entry.agreeing == len(said)


def test_a_tap_of_the_last_layer_is_taken_before_the_final_norm(made, tmp_path):
    """Transformers returns that state after the norm; norming ours must give it."""
    target, reference, _, _ = made
    last = tiny.load_target(target).config.get_text_config().num_hidden_layers - 1
    store = capture(reference, target, (last,), tmp_path / "last", pipeline.FP32)
    model = tiny.load_target(target)
    row = reference.completions[0]
    with torch.no_grad():
        ids = torch.tensor([(row.prompt_ids + row.completion_ids)[:-1]])
        normed = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
        ours = model.get_decoder().norm(store.read(0).taps_SC)
    torch.testing.assert_close(ours, normed, rtol=2e-4, atol=2e-4)
    assert not torch.allclose(store.read(0).taps_SC, normed, rtol=0.05)


@pytest.mark.parametrize("tokens_per_pass", [1, 40, 100_000])
def test_sequences_keep_their_own_states_however_they_share_passes(
    made, tmp_path, monkeypatch, tokens_per_pass
):
    target, reference, layers, store = made
    monkeypatch.setattr(capturing, "TOKENS_PER_PASS", tokens_per_pass)
    again = capture(reference, target, layers, tmp_path / "again", pipeline.FP32)
    for i in range(len(store)):
        torch.testing.assert_close(
            again.read(i).taps_SC, store.read(i).taps_SC, rtol=2e-4, atol=2e-4
        )


def test_a_text_the_target_would_not_write_is_counted_as_disagreeing(small_pair, tmp_path):
    rows = (small_pair.reference / "completions.jsonl").read_text().splitlines()
    row = json.loads(rows[0])
    row["completion_ids"][4] = (row["completion_ids"][4] + 1) % 100
    folder = tmp_path / "ref"
    folder.mkdir()
    record = json.loads((small_pair.reference / "reference.json").read_text())
    text = "\n".join([json.dumps(row), *rows[1:]]) + "\n"
    (folder / "completions.jsonl").write_text(text)
    record["completions_sha256"] = sha256_file(folder / "completions.jsonl")
    (folder / "reference.json").write_text(json.dumps(record))
    reference = capturing.Reference.open(folder)
    store = capture(reference, small_pair.target, (1,), tmp_path / "store", pipeline.FP32)
    assert store.index.sequences[0].agreeing < len(row["completion_ids"])
    assert store.index.agreement < 1


def test_a_state_that_is_not_finite_is_named():
    states = torch.zeros(10, 6)
    states[7, 4] = torch.inf
    with pytest.raises(StoreError, match="'s', position 7: the output of layer 31 is not finite"):
        require_finite(states, "s", (1, 16, 31))


@pytest.fixture(scope="module")
def long_job(tmp_path_factory):
    """A reference of 40 completions, and the command that captures it in many small shards."""
    root = tmp_path_factory.mktemp("long")
    target = tiny.write_target(root / "target", "qwen3_5", tied=False)
    settings = DecodeSettings(max_new_tokens=24, ignore_eos=True)
    prompts = pipeline.as_prompts(tiny.random_prompts(40, seed=5))
    generate_reference(prompts, target, root / "ref", settings, pipeline.FP32)
    program = (
        "import sys; from draftlab.hidden import capture; capture.SEQUENCES_PER_SHARD = 2; "
        "from draftlab.cli.main import run; run(sys.argv[1:])"
    )

    def command(out):
        return [sys.executable, "-c", program, "capture", str(root / "ref"), "--target",
                str(target), "--layers", "0,1,2", "--threads", "1", "--out", str(out)]  # fmt: skip

    subprocess.run(command(root / "whole"), check=True, capture_output=True)
    return command, root / "whole"


def content(folder):
    """Bytes of every file but the record of when it was made."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name != "provenance.json"
    }


@pytest.mark.parametrize("shards_before_the_kill", [0, 1, 5])
def test_a_killed_capture_continues_and_ends_in_the_same_bytes(
    long_job, tmp_path, shards_before_the_kill
):
    command, whole = long_job
    out = tmp_path / "store"
    process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        shards = len(list(out.glob("states-*.safetensors"))) if out.exists() else -1
        if shards >= shards_before_the_kill:
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "index.json").exists(), "it finished before it could be killed"
    kept = {p.name: p.stat().st_mtime_ns for p in out.glob("states-*.safetensors")}
    subprocess.run(command(out), check=True, capture_output=True)
    assert content(out) == content(whole)
    journalled = sorted(kept)[: max(0, len(kept) - 1)]
    assert all((out / name).stat().st_mtime_ns == kept[name] for name in journalled)
    assert len(HiddenStore.open(out)) == 40


def test_a_finished_capture_is_left_as_it_is(long_job):
    command, whole = long_job
    before = {path.name: path.stat().st_mtime_ns for path in whole.iterdir()}
    subprocess.run(command(whole), check=True, capture_output=True)
    assert {path.name: path.stat().st_mtime_ns for path in whole.iterdir()} == before


def test_another_job_in_the_same_folder_is_refused(small_pair, tmp_path):
    reference = capturing.Reference.open(small_pair.reference)
    capture(reference, small_pair.target, (1,), tmp_path / "store", pipeline.FP32)
    with pytest.raises(StoreError, match="target_layer_ids"):
        capture(reference, small_pair.target, (1, 2), tmp_path / "store", pipeline.FP32)


def test_a_target_with_tied_embeddings_is_read_without_a_head_tensor(tmp_path):
    folder = tiny.write_target(tmp_path / "tied", "llama", tied=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert oracles.read_tables(folder)[0].shape[0] > 0
