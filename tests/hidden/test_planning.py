"""What a capture takes is said before it starts, and refused where the disk cannot hold it."""

from math import prod
from types import SimpleNamespace

import pipeline
import pytest
import qwen36
import tiny
import torch
from safetensors import safe_open
from transformers import AutoConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer

from draftlab.base.errors import StoreError, TargetError
from draftlab.hidden import planning
from draftlab.hidden.budget import (
    Estimate,
    Shape,
    fits_in_memory,
    require_disk,
    sequences_that_fit,
    size_text,
)
from draftlab.hidden.capture import capture, carry_out, plan_capture
from draftlab.target.compute import Compute
from draftlab.target.layerwise import passing_through, run_layer
from draftlab.target.skeleton import Skeleton

BF16 = Compute(device="cpu", dtype="bfloat16", threads=1)
QWEN36_TAPS = (1, 16, 31, 46, 61)
WIDE = Shape(hidden_size=5120, num_taps=5, value_bytes=2)


def estimate(store_bytes, free_bytes, there_bytes=0):
    return Estimate(
        place="/data", is_memory_backed=False, num_sequences=10_000, num_positions=20_480_000,
        store_bytes=store_bytes, there_bytes=there_bytes, free_bytes=free_bytes, stream=None,
    )  # fmt: skip


def test_ten_thousand_long_texts_take_a_terabyte():
    needed = WIDE.taps_bytes(10_000 * 2_048)
    assert needed == 1_048_576_000_000
    assert size_text(needed) == "1,048.6 GB (976.6 GiB)"
    assert size_text(needed + WIDE.states_bytes(10_000 * 2_048)).startswith("1,258.3 GB")


def test_they_are_refused_on_a_disk_with_900_gb_and_it_says_how_many_fit():
    sizes = [WIDE.taps_bytes(2_048)] * 10_000
    with pytest.raises(StoreError) as refused:
        require_disk(estimate(sum(sizes), 900 * 10**9), sizes)
    assert "needs 1,048.6 GB (976.6 GiB) more" in str(refused.value)
    assert "/data has 900.0 GB (838.2 GiB) free: 8,583 of 10,000 sequences fit" in str(
        refused.value
    )
    assert "Free 148.6 GB" in refused.value.mend


def test_what_an_earlier_run_has_written_is_not_asked_for_again():
    sizes = [100, 100, 100]
    require_disk(estimate(300, free_bytes=100, there_bytes=200), sizes)
    with pytest.raises(StoreError, match="2 of 3 sequences fit"):
        require_disk(estimate(300, free_bytes=99, there_bytes=199 - 50), sizes)


def test_sequences_are_counted_in_their_order():
    assert sequences_that_fit([5, 1, 7, 1], 6) == 2
    assert sequences_that_fit([5, 1, 7, 1], 4) == 0
    assert sequences_that_fit([], 4) == 0


def test_a_target_fits_when_its_weights_and_one_pass_do():
    assert fits_in_memory(80, 20, 100)
    assert not fits_in_memory(80, 21, 100)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    root = tmp_path_factory.mktemp("small")
    target = tiny.write_target(root / "target", "qwen3_5", tied=False)
    return target, pipeline.made_up_reference(root / "ref", target, [(5, 9), (12, 4), (3, 20)])


def test_the_store_is_as_large_as_it_was_said_to_be(small, tmp_path):
    target, reference = small
    plan = plan_capture(reference, target, (1, 3), tmp_path / "store", pipeline.FP32)
    store = carry_out(plan)
    assert plan.estimate.store_bytes == sum(shard.num_bytes for shard in store.index.shards)
    assert plan.estimate.stream is None


def test_nothing_is_written_when_the_disk_is_too_small(small, tmp_path, monkeypatch):
    target, reference = small
    monkeypatch.setattr(planning.shutil, "disk_usage", lambda _: SimpleNamespace(free=9_000))
    with pytest.raises(StoreError, match=r"9.0 kB free: 1 of 3 sequences fit"):
        capture(reference, target, (1, 3), tmp_path / "store", pipeline.FP32)
    assert not (tmp_path / "store").exists()


def test_a_target_that_does_not_fit_into_memory_is_streamed_and_it_is_said_why(
    small, tmp_path, monkeypatch
):
    target, reference = small
    whole = capture(reference, target, (1, 3), tmp_path / "whole", pipeline.FP32)
    monkeypatch.setattr(planning, "available_bytes", lambda: 400_000)
    plan = plan_capture(reference, target, (1, 3), tmp_path / "store", pipeline.FP32)
    assert "of weights in float32 do not fit into the 391 KiB" in plan.estimate.lines()[0]
    assert carry_out(plan).digest == whole.digest


def test_no_stream_loads_the_whole_target_wherever_it_is_asked_to(small, tmp_path, monkeypatch):
    target, reference = small
    monkeypatch.setattr(planning, "available_bytes", lambda: 0)
    plan = plan_capture(reference, target, (1,), tmp_path / "s", pipeline.FP32, stream=False)
    assert plan.skeleton is None


@pytest.fixture(scope="module")
def qwen36_folder(tmp_path_factory):
    return qwen36.write_folder(tmp_path_factory.mktemp("qwen36") / "Qwen3.6-27B")


def test_qwen36_27b_is_known_by_its_headers(qwen36_folder):
    """Every name finds its place, no more and no less; layers come in their hybrid order."""
    skeleton = Skeleton.open(qwen36_folder, BF16)
    assert skeleton.target.facts.num_layers == len(skeleton.target.layers) == 64
    for layer in range(64):
        wanted = dict(qwen36.layer_shapes(layer))
        assert {r.name: r.shape for r in skeleton.layer_ranges(layer)} == wanted
        module = skeleton.target.layers[layer]
        assert hasattr(module, "self_attn") == qwen36.is_full(layer) == (layer in range(3, 64, 4))
        assert hasattr(module, "linear_attn") != qwen36.is_full(layer)
        assert skeleton.layer_bytes(layer) == 2 * sum(map(prod, wanted.values()))
    assert [r.name for r in skeleton.rest_ranges()] == ["model.language_model.norm.weight"]
    assert skeleton.head_range.name == "lm_head.weight"
    assert skeleton.embedding_range.name == "model.language_model.embed_tokens.weight"


def test_what_qwen36_27b_takes_is_said_before_anything_is_read(qwen36_folder, tmp_path):
    """128 prompts of 1,024 tokens, taps 1, 16, 31, 46, 61: by arithmetic of its own."""
    texts = [(256, 768)] * 128
    reference = pipeline.made_up_reference(tmp_path / "ref", qwen36_folder, texts, "bfloat16")
    plan = plan_capture(
        reference, qwen36_folder, QWEN36_TAPS, tmp_path / "store", BF16, stream=True
    )
    needs = plan.estimate.stream
    layers = [sum(prod(s) for _, s in qwen36.layer_shapes(i)) for i in range(64)]
    rows = reference.completions
    distinct = len({token for row in rows for token in row.prompt_ids + row.completion_ids})
    read = sum(layers) + 5120 + 248320 * 5120 + distinct * 5120
    assert needs.read_bytes == 2 * read
    assert needs.layer_bytes == 2 * max(layers)
    positions = 128 * 1023
    taps = positions * 5 * 5120 * 2
    assert 0 < plan.estimate.store_bytes - taps - 128 * (4 * 1024 + 12 * 768) < 128 * 1024
    assert needs.scratch_bytes == 2 * positions * 5120 * 2 + 2 * 20 * 128 * 768
    head = 248320 * 5120 * 128 * 768
    assert needs.operations == 2 * (sum(layers) * positions + head)
    text = "\n".join(plan.estimate.lines(100e9))
    for part in (
        "layer by layer, as asked",
        "reads 51.3 GB (47.7 GiB) of weights once for all 130,944 positions",
        "largest layer 731 MiB",
        "store 6.7 GB (6.2 GiB), scratch 2.7 GB (2.5 GiB)",
        "about 18:24:38 of computing, at the 100 GFLOP/s",
    ):
        assert part in text, text
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 3])
def test_true_sized_layers_of_qwen36_27b_run_from_the_files(qwen36_folder, layer):
    """Oracle: transformers' own layer over the mapped file. One linear layer, one full one."""
    fill(qwen36_folder, layer)
    skeleton = Skeleton.open(qwen36_folder, BF16)
    ids_RT = torch.tensor([[5, 17, 248319, 5]])
    states = 0.5 * torch.randn(1, 4, 5120, generator=torch.Generator().manual_seed(0))
    received = {}
    with torch.inference_mode(), passing_through(skeleton.target):
        skeleton.settle()
        with skeleton.layer(layer) as module:
            hook = module.register_forward_pre_hook(
                lambda _module, args, kwargs: received.update(kwargs), with_kwargs=True
            )
            found = run_layer(skeleton.target, layer, ids_RT, states.bfloat16()).states_RTH
            hook.remove()
        config = AutoConfig.from_pretrained(qwen36_folder, attn_implementation="sdpa")
        config = config.get_text_config()
        with torch.device("meta"):
            own = Qwen3_5DecoderLayer(config, layer).bfloat16().eval()
        tensors, prefix = {}, f"model.language_model.layers.{layer}."
        for path in sorted(qwen36_folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
                tensors.update({n.removeprefix(prefix): file.get_tensor(n) for n in names})
        own.load_state_dict(tensors, assign=True)
        wanted = own(states.bfloat16(), **received)
    assert torch.equal(found, wanted)
    assert not torch.equal(found, states.bfloat16())


def fill(folder, layer):
    """Put numbers into the holes of one layer."""
    block = torch.randn(1 << 20, generator=torch.Generator().manual_seed(layer)) / 5120**0.5
    noise = block.bfloat16().view(torch.uint8).numpy().tobytes()
    skeleton = Skeleton.open(folder, BF16)
    for where in skeleton.layer_ranges(layer):
        with where.file.open("r+b") as file:
            file.seek(where.offset)
            left = where.num_bytes
            while left:
                left -= file.write(noise[: min(left, len(noise))])


def test_a_missing_tensor_is_named_before_anything_is_read(qwen36_folder, tmp_path):
    folder = tmp_path / "holed"
    folder.mkdir()
    for path in qwen36_folder.iterdir():
        (folder / path.name).symlink_to(path)
    last = sorted(folder.glob("*.safetensors"))[-1]
    last.unlink()
    gone = "model.language_model.layers.61.mlp.up_proj.weight"
    shapes = {n: s for i in range(48, 64) for n, s in qwen36.layer_shapes(i) if n != gone}
    qwen36.write_hole(last, shapes)
    with pytest.raises(TargetError, match=r"1 weights are missing: model.layers.61.mlp.up_proj"):
        Skeleton.open(folder, BF16)
