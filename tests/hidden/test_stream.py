"""Streaming: one layer at a time gives the bytes that the whole model gives."""

import json
import shutil

import pipeline
import pytest
import tiny
from pipeline import capture_by_layers, content, short_reference
from safetensors.torch import load_file, save_file

from draftlab.base.errors import StoreError, TargetError
from draftlab.cli.main import code_of
from draftlab.hidden import capture as capturing
from draftlab.hidden import judge
from draftlab.hidden.capture import capture
from draftlab.target import skeleton
from draftlab.target.compute import Compute

TARGETS = (
    ("qwen3", False), ("qwen3", True), ("qwen3_5", False), ("qwen3_5", True),
    ("llama", False), ("gemma3", True),
)  # fmt: skip


@pytest.fixture(
    scope="module", params=TARGETS, ids=lambda p: f"{p[0]}-{'tied' if p[1] else 'untied'}"
)
def made(request, tmp_path_factory):
    """Seven completions of uneven prompts, and the target that wrote them."""
    architecture, tied = request.param
    root = tmp_path_factory.mktemp(architecture)
    target = tiny.write_target(root / "target", architecture, tied=tied)
    return target, short_reference(root / "ref", target), tiny.TAPS[architecture]


@pytest.fixture
def in_small_pieces(monkeypatch):
    """Several shards, several passes a shard, rows of the embedding, three pieces of the head."""
    monkeypatch.setattr(capturing, "SEQUENCES_PER_SHARD", 3)
    monkeypatch.setattr(capturing, "TOKENS_PER_PASS", 50)
    monkeypatch.setattr(judge, "HEAD_VALUES_PER_PIECE", 64 * tiny.HIDDEN_SIZE)
    monkeypatch.setattr(skeleton, "WHOLE_TABLE_BYTES", 0)


@pytest.mark.parametrize("held_bytes", [0, 20_000, 1 << 30])
def test_the_bytes_are_those_of_a_capture_from_memory(made, tmp_path, in_small_pieces, held_bytes):
    target, reference, layers = made
    whole = capture(reference, target, layers, tmp_path / "whole", pipeline.FP32)
    store = capture_by_layers(reference, target, layers, tmp_path / "layers", held_bytes=held_bytes)
    assert content(store.folder) == content(whole.folder)
    assert len(store.index.shards) == 3
    assert not (store.folder / "scratch").exists()


def test_the_bytes_are_the_same_in_bfloat16(made, tmp_path):
    target, _, layers = made
    bf16 = Compute(device="cpu", dtype="bfloat16", threads=1)
    reference = short_reference(tmp_path / "ref", target, bf16)
    whole = capture(reference, target, layers, tmp_path / "whole", bf16)
    store = capture_by_layers(reference, target, layers, tmp_path / "layers", bf16)
    assert content(store.folder) == content(whole.folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    root = tmp_path_factory.mktemp("small")
    target = tiny.write_target(root / "target", "llama", tied=False)
    return target, short_reference(root / "ref", target)


def test_a_state_that_is_not_finite_stops_the_run_by_name(small, tmp_path):
    target, _ = small
    spoilt = shutil.copytree(target, tmp_path / "spoilt")
    weights = load_file(spoilt / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][:] = 3e38
    save_file(weights, spoilt / "model.safetensors", metadata={"format": "pt"})
    texts = [(5, 4), (6, 3)]
    reference = pipeline.made_up_reference(tmp_path / "ref", spoilt, texts)
    with pytest.raises(StoreError, match=r"sequence '[01]', position 0: the output of layer 1 is"):
        capture_by_layers(reference, spoilt, (0, 1, 2), tmp_path / "store")


def test_a_quantised_target_is_refused(small, tmp_path):
    target, _ = small
    folder = shutil.copytree(target, tmp_path / "quantised")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (folder / "config.json").write_text(json.dumps(config))
    reference = pipeline.made_up_reference(tmp_path / "ref", folder, [(5, 4)])
    with pytest.raises(TargetError, match="is quantised"):
        capture_by_layers(reference, folder, (1,), tmp_path / "store")


def test_the_command_says_what_it_will_take(small, tmp_path, capsys):
    target, reference = small
    command = ["capture", reference.folder, "--target", target, "--layers", "0,2", "--stream",
               "--threads", "1", "--out", tmp_path / "store"]  # fmt: skip
    assert code_of([str(part) for part in command]) == 0
    said = capsys.readouterr().err
    for part in ("layer by layer, as asked", "of weights once for all", "scratch", "GFLOP/s"):
        assert part in said
