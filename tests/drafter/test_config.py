"""A drafter's config.json: every layout of z-lab's, and no guess where a guess drafts badly."""

import pytest
from configs import FLAT, QWEN36

from draftlab.base.errors import DrafterError
from draftlab.drafter.checkpoint import zlab_config
from draftlab.drafter.config import DrafterConfig
from draftlab.target.facts import TargetFacts

BODY = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_target_layers": 64,
    "rope_theta": 1e7,
}
TAPS = [1, 16, 31, 46, 61]
LEGACY = {
    **BODY,
    "block_size": 16,
    "dflash_config": {"target_layer_ids": TAPS, "mask_token_id": 248070},
}
NESTED = {
    **{key: value for key, value in BODY.items() if key != "rope_theta"},
    "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"},
    "dflash_config": {"block_size": 16, "target_layer_ids": TAPS, "mask_token_id": 248070},
}


def nested(**changes):
    return {**NESTED, "dflash_config": {**NESTED["dflash_config"], **changes}}


def drop(config, key):
    inner = {k: v for k, v in config["dflash_config"].items() if k != key}
    return {**{k: v for k, v in config.items() if k != key}, "dflash_config": inner}


def parsed(config):
    return DrafterConfig.from_config(config).model_dump(exclude={"found_at"})


def test_both_homes_of_block_size_and_mask_token_parse_alike():
    """D-18."""
    top = {**BODY, "block_size": 16, "mask_token_id": 248070, "target_layer_ids": TAPS}
    assert parsed(LEGACY) == parsed(NESTED) == parsed(top)
    assert DrafterConfig.from_config(LEGACY).found_at["block_size"] == "block_size"
    assert DrafterConfig.from_config(NESTED).found_at["block_size"] == "dflash_config.block_size"


def test_two_homes_that_disagree_are_refused():
    with pytest.raises(DrafterError, match=r"dflash_config\.block_size = 16, block_size = 8"):
        DrafterConfig.from_config({**NESTED, "block_size": 8})


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([-1, 5], r"\[-1\]; the target has layers 0 to 63"),
        ([1, 1, 2], "repeats a layer"),
        ([64], r"\[64\]"),
        ([5, 1], "out of order"),
        ([], "a list of layer numbers"),
        (["1"], "a list of layer numbers"),
    ],
)
def test_taps_that_cannot_be_are_refused(ids, said):
    """D-14."""
    with pytest.raises(DrafterError, match=said):
        DrafterConfig.from_config(nested(target_layer_ids=ids))


def test_a_tap_of_the_last_layer_is_allowed_and_noted():
    """D-14."""
    config = DrafterConfig.from_config(nested(target_layer_ids=[63]))
    notes = config.require_fit(TargetFacts.from_config(QWEN36), embedding_rows=248320)
    assert notes == ("tap 63 is the output of the last layer, before the final norm.",)


def test_the_mask_token_must_be_a_reserved_row():
    """D-17: the end-of-text token, a row that is not there, none at all."""
    text = {**QWEN36["text_config"], "pad_token_id": 248044}
    target = TargetFacts.from_config({**QWEN36, "text_config": text})
    fit = {"target": target, "embedding_rows": 248320}
    with pytest.raises(DrafterError, match="end-of-text token and the pad token") as caught:
        DrafterConfig.from_config(nested(mask_token_id=248044)).require_fit(**fit)
    assert "Set mask_token_id" in caught.value.mend
    with pytest.raises(DrafterError, match="outside the target's 248320 embedding rows") as caught:
        DrafterConfig.from_config(nested(mask_token_id=248320)).require_fit(**fit)
    assert "Set mask_token_id" in caught.value.mend
    with pytest.raises(DrafterError, match="no `mask_token_id`") as caught:
        DrafterConfig.from_config(drop(NESTED, "mask_token_id"))
    assert "never guessed" in caught.value.mend


@pytest.mark.parametrize("key", ["block_size", "target_layer_ids", "num_target_layers"])
def test_what_decides_silently_is_never_guessed(key):
    with pytest.raises(DrafterError, match=f"`{key}`"):
        DrafterConfig.from_config(drop(NESTED, key))


def test_no_rope_base_is_refused():
    with pytest.raises(DrafterError, match="no RoPE base"):
        DrafterConfig.from_config({k: v for k, v in NESTED.items() if k != "rope_parameters"})


def test_sliding_layers_are_causal_unless_the_config_says_otherwise():
    kinds = ["sliding_attention"] * 4 + ["full_attention"]
    mixed = {**NESTED, "layer_types": kinds, "sliding_window": 2048}
    layers = DrafterConfig.from_config(mixed).layers
    assert [layer.causal for layer in layers] == [True] * 4 + [False]
    assert [layer.window for layer in layers] == [2048] * 4 + [None]
    for said in (True, False):
        layers = DrafterConfig.from_config({**mixed, "is_causal": said}).layers
        assert [layer.causal for layer in layers] == [said] * 5


def test_sliding_layers_without_a_window_and_windows_narrower_than_a_block_are_refused():
    kinds = ["sliding_attention"] * 5
    with pytest.raises(DrafterError, match="no `sliding_window`"):
        DrafterConfig.from_config({**NESTED, "layer_types": kinds})
    with pytest.raises(DrafterError, match="use_sliding_window false"):
        DrafterConfig.from_config(
            {**NESTED, "layer_types": kinds, "sliding_window": 99, "use_sliding_window": False}
        )
    with pytest.raises(DrafterError, match="window of 8 is narrower than the block of 16"):
        DrafterConfig.from_config({**NESTED, "layer_types": kinds, "sliding_window": 8})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"speculators_model_type": "dflash"}, "speculators"),
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash 2"),
        ({"architectures": ["Qwen3DSparkModel"]}, "DSpark"),
        ({"sample_from_anchor": True}, "one place further"),
    ],
)
def test_other_drafters_are_refused_by_name(changes, said):
    with pytest.raises(DrafterError, match=said):
        DrafterConfig.from_config({**NESTED, **changes})


def test_rotary_settings_copied_from_the_target_are_noted():
    rope = {"rope_theta": 1e7, "rope_type": "default", "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10]}  # fmt: skip
    notes = DrafterConfig.from_config({**NESTED, "rope_parameters": rope}).notes
    assert "partial_rotary_factor 0.25" in notes[0]
    assert "mrope_section" in notes[1]


def test_a_drafter_of_another_width_or_depth_does_not_fit():
    config = DrafterConfig.from_config(NESTED)
    with pytest.raises(DrafterError, match="hidden_size 5120, the target 2560"):
        config.require_fit(TargetFacts.from_config(FLAT), embedding_rows=151936)


def test_what_we_write_reads_back_as_it_was():
    kinds = ["sliding_attention"] * 4 + ["full_attention"]
    config = DrafterConfig.from_config(
        {**nested(input_embedding_scale=2.0), "layer_types": kinds, "sliding_window": 2048,
         "is_causal": False, "final_logit_softcapping": 30.0}
    )  # fmt: skip
    written = zlab_config(config, dtype="bfloat16", vocab_size=248320)
    assert parsed(written) == config.model_dump(exclude={"found_at"})
