"""Fused or plain is decided by trying, and said. CASES E07."""

import pytest
import tiny
import torch

from draftlab.base.errors import DraftlabError
from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.flex import FlexReading
from draftlab.drafter.packing import Packing
from draftlab.drafter.reading import DenseReading
from draftlab.train import attention
from draftlab.train.attention import choose_attention

CPU = torch.device("cpu")


class UnlikeCuda:
    """What the choice asks of a device; the trial itself then runs on the CPU, unfused."""

    type = "cuda"


@pytest.fixture
def shape():
    return DrafterConfig.from_config(
        tiny.drafter_config(
            tiny.DrafterShape.of(
                "qwen3", layer_types=("sliding_attention", "full_attention"), sliding_window=7
            )
        )
    )


@pytest.fixture
def trial_on_cpu(monkeypatch):
    """The trial of a kernel, carried out unfused on the CPU."""
    made = attention._Trial  # noqa: SLF001

    def on_cpu(**parts):
        return made(**{**parts, "device": CPU})

    monkeypatch.setattr(attention, "_Trial", on_cpu)
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    monkeypatch.setattr(
        attention, "FlexReading", lambda *parts, **_: FlexReading(*parts, compiled=False)
    )
    attention._trouble.cache_clear()  # noqa: SLF001
    yield monkeypatch
    attention._trouble.cache_clear()  # noqa: SLF001


def test_a_cpu_takes_plain_products_and_says_so(shape):
    chosen = choose_attention("auto", shape, CPU, torch.float32)
    assert not chosen.fused
    assert chosen.why == "attention: plain products on cpu"
    reading = chosen.reading(torch.tensor([3]), Packing.single(5, 1), 6)
    assert isinstance(reading, DenseReading)
    with pytest.raises(DraftlabError, match="no fused attention"):
        choose_attention("flex", shape, CPU, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_kernel_that_agrees_is_taken(trial_on_cpu, shape, dtype):
    chosen = choose_attention("auto", shape, UnlikeCuda(), dtype)
    assert chosen.fused, chosen.why


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_kernel_that_is_wrong_is_not_taken(trial_on_cpu, shape):
    """As if it let every slot of a causal block see the next one."""
    trial_on_cpu.setattr("draftlab.drafter.flex.sees_slot", lambda r, s, _: s <= r + 1)
    chosen = choose_attention("auto", shape, UnlikeCuda(), torch.float32)
    assert not chosen.fused
    assert "differs from plain products" in chosen.why
    with pytest.raises(DraftlabError, match="differs"):
        choose_attention("flex", shape, UnlikeCuda(), torch.float32)


def test_a_card_too_small_for_the_kernel_takes_plain_products(trial_on_cpu, shape):
    def out_of_resources(*_, **__):
        raise RuntimeError("out of resource: shared memory, Required: 106496, limit: 101376")

    trial_on_cpu.setattr(attention, "FlexReading", out_of_resources)
    chosen = choose_attention("auto", shape, UnlikeCuda(), torch.float32)
    assert not chosen.fused
    assert "shared memory, Required: 106496, limit: 101376" in chosen.why
