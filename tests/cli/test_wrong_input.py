"""Wrong input ends in two lines (what is wrong, with numbers; what to type) and a non-zero exit."""

import json
import shutil

import pytest
import tiny
from safetensors.torch import load_file, save_file

from draftlab.cli.main import code_of
from draftlab.replay import draft


@pytest.fixture
def said(capsys):
    """Run a command; its exit code and what it said on standard error."""

    def run(*arguments):
        code = code_of([str(argument) for argument in arguments])
        return code, capsys.readouterr().err

    return run


@pytest.fixture
def drafter(small_pair, tmp_path):
    """A copy of the drafter to spoil."""
    return shutil.copytree(small_pair.drafter, tmp_path / "drafter")


def edit_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        scope = config["dflash_config"] if key in config["dflash_config"] else config
        if value is None:
            scope.pop(key)
        else:
            scope[key] = value
    path.write_text(json.dumps(config))


def edit_weights(folder, change):
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)


def require_two_lines(result, *parts, code=1):
    """The last two lines are the error and its mend; `parts` occur in them."""
    found, text = result
    wrong, mend = text.strip().splitlines()[-2:]
    assert found == code
    assert wrong.startswith("error: ")
    assert mend.startswith("  fix: ")
    for part in parts:
        assert part in wrong + mend


def test_a_folder_that_is_not_there(said, small_pair, tmp_path):
    absent = tmp_path / "absent"
    require_two_lines(said("evaluate", small_pair.store, "--drafter", absent), str(absent))
    require_two_lines(said("evaluate", absent, "--drafter", small_pair.drafter), str(absent))
    require_two_lines(
        said("capture", absent, "--target", small_pair.target, "--layers", "1",
             "--out", tmp_path / "out"), str(absent)
    )  # fmt: skip
    require_two_lines(
        said("reference", "--prompts", small_pair.prompts, "--target", absent,
             "--max-new-tokens", 4, "--out", tmp_path / "out"), str(absent)
    )  # fmt: skip


def test_half_a_drafter(said, small_pair, drafter):
    edit_weights(drafter, lambda t: {k: v for k, v in t.items() if not k.startswith("layers.1")})
    result = said("evaluate", small_pair.store, "--drafter", drafter)
    require_two_lines(result, "14 of 25 tensors", "layers.1.input_layernorm.weight", "(+6 more)")


def test_a_drafter_with_tensors_that_nothing_uses(said, small_pair, drafter):
    edit_weights(drafter, lambda t: {**t, "gate.weight": t["norm.weight"].clone()})
    result = said("evaluate", small_pair.store, "--drafter", drafter)
    require_two_lines(result, "not understood: gate.weight")


def test_a_drafter_cut_short_on_disk(said, small_pair, drafter):
    path = drafter / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    result = said("evaluate", small_pair.store, "--drafter", drafter)
    require_two_lines(result, "not a whole safetensors file")


@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_drafter_whose_weights_are_not_finite(
    said, small_pair, drafter, monkeypatch, value, compiles
):
    monkeypatch.setattr(draft, "COMPILES", compiles)
    edit_weights(drafter, lambda t: {**t, "norm.weight": t["norm.weight"] * value})
    result = said("evaluate", small_pair.store, "--drafter", drafter)
    require_two_lines(result, "logits are not finite")


def test_half_a_target(said, small_pair, tmp_path):
    target = shutil.copytree(small_pair.target, tmp_path / "target")
    edit_weights(target, lambda t: {k: v for k, v in t.items() if ".layers.2." not in k})
    result = said("reference", "--prompts", small_pair.prompts, "--target", target,
                  "--max-new-tokens", 4, "--out", tmp_path / "out")  # fmt: skip
    require_two_lines(result, "weights are missing", "model.layers.2.")


def test_a_shard_that_the_index_names_is_missing(said, small_pair, tmp_path):
    target = shutil.copytree(small_pair.target, tmp_path / "target")
    (target / "model.safetensors").rename(target / "model-00001-of-00002.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = target / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    result = said("evaluate", small_pair.store, "--drafter", small_pair.drafter, "--target", target)
    require_two_lines(result, "1 of 2 shards", "model-00002-of-00002.safetensors")


def test_a_drafter_of_another_width(said, small_pair, drafter):
    edit_config(drafter, hidden_size=128)
    result = said("evaluate", small_pair.store, "--drafter", drafter)
    require_two_lines(result, "hidden_size 128, the target 64")


def test_a_drafter_whose_weights_have_another_width_than_its_config(said, small_pair, drafter):
    edit_config(drafter, intermediate_size=100)
    result = said("evaluate", small_pair.store, "--drafter", drafter)
    require_two_lines(result, "config.json implies 100 x 64")


def test_a_tapped_layer_out_of_range(said, small_pair, drafter, tmp_path):
    edit_config(drafter, target_layer_ids=[1, 99])
    result = said("evaluate", small_pair.store, "--drafter", drafter)
    require_two_lines(result, "[99]")
    result = said("capture", small_pair.reference, "--target", small_pair.target,
                  "--layers", "1,99", "--out", tmp_path / "out")  # fmt: skip
    require_two_lines(result, "[1, 99]")


def test_other_layers_than_the_store_holds(said, small_pair, drafter):
    edit_config(drafter, target_layer_ids=[0, 1])
    result = said("evaluate", small_pair.store, "--drafter", drafter)
    require_two_lines(result, "layers [0, 1]", "Capture again")


def test_no_mask_token_id(said, small_pair, drafter):
    edit_config(drafter, mask_token_id=None)
    result = said("evaluate", small_pair.store, "--drafter", drafter)
    require_two_lines(result, "`dflash_config.mask_token_id`", "never guessed")


def test_a_reference_of_another_target(said, small_pair, tmp_path):
    other = tiny.write_target(tmp_path / "other", "qwen3", tied=False, seed=7)
    result = said("capture", small_pair.reference, "--target", other, "--layers", "1",
                  "--out", tmp_path / "out")  # fmt: skip
    require_two_lines(result, "fingerprint")


def test_a_store_of_another_target(said, small_pair, tmp_path):
    other = tiny.write_target(tmp_path / "other", "qwen3", tied=False, seed=7)
    result = said("evaluate", small_pair.store, "--drafter", small_pair.drafter, "--target", other)
    require_two_lines(result, "fingerprint")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_prompt_file(said, small_pair, tmp_path, text):
    path = tmp_path / "none.jsonl"
    path.write_text(text)
    result = said("reference", "--prompts", path, "--target", small_pair.target,
                  "--max-new-tokens", 4, "--out", tmp_path / "out")  # fmt: skip
    require_two_lines(result, "holds no prompts")


@pytest.mark.parametrize(
    ("line", "said_of_it"),
    [
        ("{", "not JSON"),
        ("[1]", "valid dictionary"),
        ('{"prompt": ""}', "empty"),
        ('{"prompt": "a", "input_ids": [1]}', "exactly one"),
        ('{"input_ids": [1, -1]}', "negative"),
        ('{"input_ids": [1], "ident": "x"}', "`ident`"),
        ('{"input_ids": [1]}\n{"input_ids": [1]}', "prompts 1 and 2 are both"),
        ('{"input_ids": [100000]}', "ids end at"),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "no tokenizer files"),
        ('{"prompt": "hi"}', "no tokenizer files"),
    ],
)
def test_a_prompt_that_cannot_be_used(said, small_pair, tmp_path, line, said_of_it):
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n")
    result = said("reference", "--prompts", path, "--target", small_pair.target,
                  "--max-new-tokens", 4, "--out", tmp_path / "out")  # fmt: skip
    require_two_lines(result, said_of_it)


def test_a_store_whose_bytes_changed(said, small_pair, tmp_path):
    store = shutil.copytree(small_pair.store, tmp_path / "store")
    shard = store / "states-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    result = said("evaluate", store, "--drafter", small_pair.drafter)
    require_two_lines(result, "digest differs")


def test_a_store_that_is_cut_short_or_unfinished(said, small_pair, tmp_path):
    store = shutil.copytree(small_pair.store, tmp_path / "store")
    shard = store / "states-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:1000])
    require_two_lines(said("evaluate", store, "--drafter", small_pair.drafter), "1,000 of")
    (store / "index.json").unlink()
    require_two_lines(said("evaluate", store, "--drafter", small_pair.drafter), "unfinished")


def test_neither_layers_nor_a_drafter(said, small_pair, tmp_path):
    result = said("capture", small_pair.reference, "--target", small_pair.target,
                  "--out", tmp_path / "out")  # fmt: skip
    require_two_lines(result, "--layers", "never guessed")


def test_another_number_type_than_the_reference(said, small_pair, tmp_path):
    result = said("capture", small_pair.reference, "--target", small_pair.target, "--layers", "1",
                  "--dtype", "bfloat16", "--out", tmp_path / "out")  # fmt: skip
    require_two_lines(result, "--dtype float32")


def test_a_budget_out_of_range(said, small_pair):
    result = said("evaluate", small_pair.store, "--drafter", small_pair.drafter,
                  "--budgets", "16,4096")  # fmt: skip
    require_two_lines(result, "4096")


def test_a_gate_that_is_not_met_exits_with_3(said, small_pair):
    result = said("evaluate", small_pair.store, "--drafter", small_pair.drafter,
                  "--min-tau", "5", "--json")  # fmt: skip
    require_two_lines(result, "below the gate of 5", code=3)


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["evaluate"], ["evaluate", "x", "--budgets", "a"]]
)
def test_wrong_usage_exits_with_2(said, arguments):
    code, _ = said(*arguments)
    assert code == 2
