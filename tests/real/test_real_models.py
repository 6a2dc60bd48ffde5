"""SmolLM2-135M-Instruct and Gemma 3 270M on real prompts: texts and states are the models' own.

Oracle: transformers' own generation and forward, one text at a time, without padding or batch.
"""

import pipeline
import pytest
import torch
import transformers
from real_texts import chat, real_prompts

from draftlab.hidden.capture import capture, carry_out, plan_capture
from draftlab.reference.generate import DecodeSettings, generate_reference
from draftlab.reference.prompts import Prompt
from recipes.real_models import GEMMA, SMOLLM2

pytestmark = [pytest.mark.real, pytest.mark.slow]

TOKENS = 32
MODELS = {"smollm2": (SMOLLM2, 30, True), "gemma": (GEMMA, 18, False)}


@pytest.fixture(scope="module", params=MODELS)
def made(request, tmp_path_factory):
    """Reference and store of one model in float32, and the plain model beside them."""
    packaged, depth, chats = MODELS[request.param]
    if not packaged.installed:
        pytest.skip(f"needs the packages {packaged.package} and gguf: make test-real")
    texts = real_prompts()
    assert len(texts) == 32
    prompts = [chat(text) if chats else Prompt(prompt=text) for text in texts]
    folder, target = tmp_path_factory.mktemp(request.param), packaged.folder()
    settings = DecodeSettings(max_new_tokens=TOKENS)
    reference = generate_reference(prompts, target, folder / "ref", settings, pipeline.FP32)
    layers = tuple(round(1 + i * (depth - 4) / 4) for i in range(5))
    store = capture(reference, target, layers, folder / "store", pipeline.FP32)
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    return request.param, reference, store, model, target, folder, layers


def test_texts_are_those_of_transformers_own_generation(made):
    """One prompt at a time; where a batch decides otherwise, the two tokens are nearly tied."""
    _, reference, store, model, *_ = made
    for number in range(0, 32, 4):
        row, sequence = reference.completions[number], store.read(number)
        with torch.no_grad():
            ids = model.generate(
                torch.tensor([row.prompt_ids]), max_new_tokens=TOKENS, do_sample=False
            )[0, len(row.prompt_ids) :].tolist()
        if tuple(ids) != row.completion_ids:
            first = next(i for i, (a, b) in enumerate(zip(ids, row.completion_ids)) if a != b)  # noqa: B905
            assert float(sequence.margins_n[first]) < 1e-3
    assert store.index.agreement > 0.999


def test_states_and_log_probabilities_are_those_of_a_plain_forward(made):
    """Float32: other batch shapes add in another order, so equal to 1e-4 of each layer's size."""
    _, reference, store, model, _, _, layers = made
    for number in range(0, 32, 4):
        row, sequence = reference.completions[number], store.read(number)
        with torch.no_grad():
            out = model(
                torch.tensor([[*row.prompt_ids, *row.completion_ids]]), output_hidden_states=True
            )
        for tap, layer in zip(sequence.taps_SC.chunk(len(layers), dim=1), layers, strict=True):
            plain = out.hidden_states[layer + 1][0, :-1]
            error = (tap - plain).norm(dim=1) / plain.norm(dim=1)
            assert float(error.max()) < 1e-4
        first = len(row.prompt_ids) - 1
        logits = out.logits[0, first:-1].log_softmax(dim=-1)
        said = torch.tensor(row.completion_ids)
        own = logits.gather(1, said[:, None])[:, 0]
        torch.testing.assert_close(sequence.logprobs_n, own, rtol=0, atol=2e-3)
        differing = logits.argmax(dim=-1) != sequence.argmax_n
        assert float(sequence.margins_n[differing].sum()) < 1e-3


def test_a_residual_stream_that_overflows_float16_survives(made):
    name, _, store, *_ = made
    largest = max(float(store.read(n).taps_SC.abs().max()) for n in range(8))
    if name == "gemma":
        assert largest > torch.finfo(torch.float16).max
        sequence = store.read(0)
        assert bool(torch.isfinite(sequence.taps_SC).all())
        assert bool(torch.isinf(sequence.taps_SC.to(torch.float16)).any())
    else:
        assert largest < torch.finfo(torch.float16).max


def test_reading_layer_by_layer_gives_the_same_bytes(made):
    name, reference, store, _, target, folder, layers = made
    if name == "gemma":
        pytest.skip("once is enough: SmolLM2")
    plan = plan_capture(reference, target, layers, folder / "streamed", pipeline.FP32, stream=True)
    streamed = carry_out(plan)
    assert streamed.digest == store.digest
