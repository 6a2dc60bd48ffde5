"""Facts of a target from its config.json: flat, nested, multimodal; never None, never guessed."""

import json

import pytest
from configs import FLAT, QWEN36, QWEN36_TEXT

from draftlab.base.errors import DraftlabError, TargetError
from draftlab.target.facts import TargetFacts
from draftlab.target.rope import read_rope

GIB = 1 << 30


def without(config, key):
    return {name: value for name, value in config.items() if name != key}


def test_a_nested_config_gives_the_text_models_facts():
    facts = TargetFacts.from_config(QWEN36)
    assert (facts.num_layers, facts.hidden_size, facts.vocab_size) == (64, 5120, 248320)
    assert facts.nested_under == "text_config"
    assert facts.count("full_attention") == 16
    assert [i for i, kind in enumerate(facts.layer_kinds) if kind == "full_attention"][:3] == [
        3,
        7,
        11,
    ]


def test_keys_and_values_are_summed_layer_by_layer():
    """D-15: 16 full layers of 64; not 64 GiB, and not the 53 that one planner printed."""
    facts = TargetFacts.from_config(QWEN36)
    assert facts.kv_cache_bytes(262_144) == 16 * GIB
    assert facts.kv_cache_bytes(32_768) == 2 * GIB
    assert facts.linear_state_bytes() == 48 * (3 * (1 << 20) + 10240 * 3 * 2)


def test_a_sliding_layer_keeps_no_more_than_its_window():
    config = {**FLAT, "layer_types": ["sliding_attention"] * 35 + ["full_attention"],
              "sliding_window": 512}  # fmt: skip
    facts = TargetFacts.from_config(config)
    per_token = 2 * 8 * 128 * 2
    assert facts.kv_cache_bytes(4096) == per_token * (35 * 512 + 4096)
    assert facts.kv_cache_bytes(100) == per_token * 36 * 100


def test_a_flat_config_gives_its_facts():
    facts = TargetFacts.from_config(FLAT)
    assert facts.layer_kinds == ("full_attention",) * 36
    assert facts.eos_token_ids == (151645, 151643)
    assert facts.ties_embeddings
    assert facts.sliding_window is None


@pytest.mark.parametrize(
    ("generation", "ends"),
    [
        (None, (248044,)),
        ({"eos_token_id": [248046, 248044]}, (248044, 248046)),
        ({"eos_token_id": 248046}, (248044, 248046)),
        ({"temperature": 0.6}, (248044,)),
    ],
)
def test_what_ends_a_text_stands_in_either_config(tmp_path, generation, ends):
    """Qwen3.5's config.json names <|endoftext|>; its answers end with <|im_end|>."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN36))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert TargetFacts.from_folder(tmp_path).eos_token_ids == ends


def test_a_pattern_of_sliding_layers_is_spelled_out():
    facts = TargetFacts.from_config({**FLAT, "sliding_window_pattern": 6, "sliding_window": 512})
    assert facts.layer_kinds[:7] == (
        *["sliding_attention"] * 5,
        "full_attention",
        "sliding_attention",
    )


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"]
)
def test_a_missing_fact_names_the_keys_looked_for(key):
    nested = {**QWEN36, "text_config": without(QWEN36_TEXT, key)}
    with pytest.raises(TargetError, match=f"`{key}`.*text_config") as caught:
        TargetFacts.from_config(nested)
    assert "text_config" in caught.value.mend
    with pytest.raises(TargetError, match=f"`{key}`.*top level"):
        TargetFacts.from_config(without(FLAT, key))


@pytest.mark.parametrize("value", [0, -1, "64", 3.5, True, [64]])
def test_a_fact_of_the_wrong_kind_is_refused(value):
    with pytest.raises(TargetError, match="num_hidden_layers"):
        TargetFacts.from_config({**FLAT, "num_hidden_layers": value})


def test_a_list_of_layer_kinds_must_fit_the_depth_and_be_known():
    with pytest.raises(TargetError, match="2 entries for 36 layers"):
        TargetFacts.from_config({**FLAT, "layer_types": ["full_attention"] * 2})
    with pytest.raises(TargetError, match="mamba"):
        TargetFacts.from_config({**FLAT, "layer_types": ["mamba"] * 36})


def test_the_rope_base_is_the_same_wherever_it_stands():
    """D-16."""
    flat = read_rope({"rope_theta": 1e6})
    nested = read_rope({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})
    stale = read_rope({"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 10000})
    assert flat.theta == nested.theta == stale.theta == 1e6
    assert flat.warnings == nested.warnings == ()
    assert len(stale.warnings) == 1
    assert "10000" in stale.warnings[0]
    assert "1e+06" in stale.warnings[0]


def test_rope_settings_per_layer_kind_are_told_apart():
    scope = {"rope_parameters": {
        "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    }}  # fmt: skip
    assert read_rope(scope).theta == 1e6
    assert read_rope(scope).scaling == {"factor": 8.0}
    assert read_rope(scope, layer_kind="sliding_attention").theta == 1e4


def test_no_rope_base_anywhere_is_an_error_that_names_the_keys():
    with pytest.raises(DraftlabError, match=r"rope_parameters\.rope_theta.*rope_theta"):
        read_rope({"rope_scaling": {"factor": 2.0}})
