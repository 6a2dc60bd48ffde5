"""What `auto` resolves to, by the CPU's flags and the checkpoint's size and type."""

import json

import cpuinfo
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from draftlab.base.cpu import flags_of
from draftlab.cli.main import code_of
from draftlab.target import compute, number_type
from draftlab.target.compute import Compute
from draftlab.target.number_type import Weights, choose_number_type
from draftlab.target.tensors import TensorFiles

LARGE = 27_000_000_000
AVX2, AMX = flags_of(cpuinfo.HASWELL), flags_of(cpuinfo.SAPPHIRE_RAPIDS)


@pytest.mark.parametrize(
    ("text", "dtype", "why"),
    [
        (cpuinfo.HASWELL, "float32", "the CPU has no bfloat16 arithmetic"),
        (
            cpuinfo.SAPPHIRE_RAPIDS,
            "bfloat16",
            "the CPU has amx_bf16, and there are 54 GB of weights",
        ),
        (cpuinfo.GENOA, "bfloat16", "the CPU has avx512_bf16, and there are 54 GB"),
        (cpuinfo.GRAVITON_3, "bfloat16", "the CPU has bf16, and there are 54 GB"),
        (cpuinfo.GRAVITON_2, "float32", "the CPU has no bfloat16 arithmetic"),
        ("", "float32", "the CPU has no bfloat16 arithmetic"),
    ],
)
def test_a_large_bfloat16_target_is_computed_as_the_cpu_can(text, dtype, why):
    chosen = choose_number_type("cpu", Weights(LARGE, "BF16"), flags_of(text))
    assert chosen.dtype == dtype
    assert chosen.why.startswith(why)


@pytest.mark.parametrize(
    ("num_values", "stored", "dtype"),
    [
        (10**9, "BF16", "bfloat16"),
        (10**9 - 1, "BF16", "float32"),
        (LARGE, "F16", "float32"),
        (LARGE, "F32", "float32"),
    ],
)
def test_small_and_wider_targets_are_computed_in_float32(num_values, stored, dtype):
    assert choose_number_type("cpu", Weights(num_values, stored), AMX).dtype == dtype


def test_a_gpu_computes_in_bfloat16_and_a_cpu_without_a_target_in_float32():
    assert choose_number_type("cuda", None, ()).dtype == "bfloat16"
    assert choose_number_type("cuda", Weights(LARGE, "F32"), ()).dtype == "bfloat16"
    assert choose_number_type("cpu", None, AMX).dtype == "float32"


@pytest.fixture
def folder(tmp_path):
    """A target whose large tensors are bfloat16 and whose norms are float32, as some are stored."""
    target = tiny.write_target(tmp_path / "target", "llama", tied=False)
    tensors = load_file(target / "model.safetensors")
    stored = {n: t.bfloat16() if t.ndim > 1 else t for n, t in tensors.items()}
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
    return target, sum(t.numel() for t in tensors.values())


def test_the_type_that_most_weights_have_counts(folder):
    target, num_values = folder
    assert Weights.of(TensorFiles.open(target)) == Weights(num_values, "BF16")


@pytest.mark.parametrize(("flags", "dtype"), [(AVX2, "float32"), (AMX, "bfloat16")])
def test_reference_capture_and_evaluation_agree_and_say_why(
    folder, tmp_path, monkeypatch, capsys, flags, dtype
):
    target, _ = folder
    monkeypatch.setattr(compute, "read_flags", lambda: flags)
    monkeypatch.setattr(compute.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(number_type, "LARGE_BYTES", 1000)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"input_ids": [3, 5, 7]}) + "\n")
    config = tiny.drafter_config(tiny.DrafterShape.of("llama"))
    drafter = tiny.write_drafter(tmp_path / "drafter", tiny.random_drafter(config), config)
    commands = (
        ["reference", "--prompts", prompts, "--target", target, "--max-new-tokens", "8",
         "--ignore-eos", "--threads", "1", "--out", tmp_path / "ref"],
        ["capture", tmp_path / "ref", "--target", target, "--drafter", drafter, "--threads", "1",
         "--out", tmp_path / "store"],
        ["evaluate", tmp_path / "store", "--drafter", drafter, "--threads", "1"],
    )  # fmt: skip
    said = []
    for command in commands:
        assert code_of([str(part) for part in command]) == 0
        said.append(capsys.readouterr().err)
    reason = "has amx_bf16" if dtype == "bfloat16" else "has no bfloat16 arithmetic"
    assert f"reference: {dtype}, since the CPU {reason}" in said[0]
    assert all(f"cpu, {dtype}, 1 thread" in text for text in said)


def test_what_is_asked_for_is_taken_without_a_reason(folder):
    for dtype in ("float32", "bfloat16"):
        chosen, why = Compute.choose_for(folder[0], "cpu", dtype, threads=1)
        assert (chosen.dtype, why) == (dtype, "")
        assert chosen.torch_dtype in (torch.float32, torch.bfloat16)
