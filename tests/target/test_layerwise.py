"""One layer at a time is the whole model, bit for bit, whatever the layers are given."""

import pytest
import tiny
import torch
import transformers

from draftlab.base.errors import TargetError
from draftlab.target import skeleton
from draftlab.target.compute import Compute
from draftlab.target.head import check_head, head_in_memory
from draftlab.target.layerwise import passing_through, run_layer
from draftlab.target.loading import load_target
from draftlab.target.skeleton import Skeleton

SHAPE = {**tiny.SHAPE, "num_hidden_layers": 4, "pad_token_id": None, "bos_token_id": None}
FP32 = Compute(device="cpu", dtype="float32", threads=1)
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}


def gemma4(**settings):
    layers = ["sliding_attention", "full_attention"] * 3
    text = {**SHAPE, "head_dim": 16, "global_head_dim": 16, "sliding_window": 8,
            "num_hidden_layers": 6, "layer_types": layers, "final_logit_softcapping": 5.0,
            "vocab_size_per_layer_input": 160, "hidden_size_per_layer_input": 8,
            **settings}  # fmt: skip
    return transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**text))


MODELS = {
    "qwen3": lambda: tiny.qwen3(tied=False),
    "qwen3_5": lambda: tiny.qwen3_5(tied=False),
    "gemma3": lambda: tiny.gemma3(tied=True),
    # Experts lie one by one in the files and merged in the model.
    "qwen3_moe": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SHAPE, **EXPERTS, head_dim=16, num_experts=8)
    ),
    # Sinks, biases, sliding and full layers in turn.
    "gpt_oss": lambda: transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            **SHAPE, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8
        )
    ),
    # The head caps its logits; every norm is doubled.
    "gemma2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**SHAPE, head_dim=16, sliding_window=8)
    ),
    # Every layer gets a part of a second embedding.
    "gemma4": lambda: gemma4(num_kv_shared_layers=0),
    # A projection to one number: its last bit depends on how the weights lie in memory.
    "qwen3_next": lambda: transformers.Qwen3NextForCausalLM(
        transformers.Qwen3NextConfig(
            **SHAPE, **EXPERTS, head_dim=16, num_experts=4, shared_expert_intermediate_size=32,
            linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
            linear_num_value_heads=4,
        )
    ),
}  # fmt: skip


def write(folder, name):
    with tiny.quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MODELS[name]()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(std=0.2)
        model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("whole_table_bytes", [0, 1 << 30])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layer_gives_the_same_bits_as_in_the_whole_model(
    folder, monkeypatch, dtype, whole_table_bytes
):
    """Oracle: the model that `from_pretrained` loads, its layers' outputs taken by hooks."""
    monkeypatch.setattr(skeleton, "WHOLE_TABLE_BYTES", whole_table_bytes)
    compute = Compute(device="cpu", dtype=dtype, threads=1)
    whole = load_target(folder, compute)
    outputs = {}
    for number, layer in enumerate(whole.layers):
        layer.register_forward_hook(lambda *a, number=number: outputs.update({number: a[2]}))
    ids_RT = torch.randint(0, 150, (3, 29), generator=torch.Generator().manual_seed(1))
    apart = Skeleton.open(folder, compute)
    states = step = None
    with torch.inference_mode(), passing_through(apart.target):
        normed = whole.model.get_decoder()(input_ids=ids_RT, use_cache=False).last_hidden_state
        head = apart.settle()
        check_head(apart.target, head, ids_RT[:1, :8])
        for number in range(len(whole.layers)):
            with apart.layer(number):
                step = run_layer(apart.target, number, ids_RT, states)
            states = step.states_RTH
            assert torch.equal(states, outputs[number]), f"layer {number}"
        assert torch.equal(step.normed_RTH, normed)
        for start, stop in head.spans(64):
            theirs = head_in_memory(whole).piece(start, stop).logits(normed)
            assert torch.equal(head.piece(start, stop).logits(normed), theirs)


def test_a_layer_takes_no_memory_before_and_after_it_is_used(folder):
    apart = Skeleton.open(folder, FP32)
    for _ in range(2):
        assert all(t.is_meta for t in apart.target.layers[1].state_dict().values())
        with apart.layer(1) as layer:
            held = sum(t.nbytes for t in layer.state_dict().values() if not t.is_meta)
            assert held == apart.layer_bytes(1) > 0


@pytest.fixture
def sharing(tmp_path, monkeypatch):
    """Late layers of small Gemma 4 models read the keys and values of earlier ones."""
    monkeypatch.setitem(MODELS, "sharing", lambda: gemma4(num_kv_shared_layers=2))
    return write(tmp_path / "target", "sharing")


def test_layers_that_share_more_than_states_are_refused_before_anything_is_read(sharing):
    with pytest.raises(TargetError, match="its last layers read the keys and values of earlier"):
        Skeleton.open(sharing, FP32)


def test_layers_that_turn_out_to_share_more_are_refused_and_not_computed_wrongly(
    folder, monkeypatch
):
    """As they would in a model that no rule of ours knows: a container grows."""
    apart = Skeleton.open(folder, FP32)
    kind = type(apart.target.layers[0])
    forward = kind.forward

    def leaving_something(self, *args, **kwargs):
        kwargs.pop("notes")["mine"] = 1
        return forward(self, *args, **kwargs)

    base = apart.target.model.get_decoder()
    notes = {}
    monkeypatch.setattr(kind, "forward", leaving_something)
    with torch.inference_mode(), passing_through(apart.target):
        apart.settle()
        monkeypatch.setattr(
            apart.target.model, "get_decoder", lambda: lambda **kwargs: base(**kwargs, notes=notes)
        )
        with apart.layer(0), pytest.raises(TargetError, match=r"more than hidden states \(notes"):
            run_layer(apart.target, 0, torch.arange(12)[None], None)
