"""Stores from a server's hidden states: true ones as if captured here, all others refused."""

import math
import re
from pathlib import Path

import pytest
import servers
import state_servers
import torch
from pipeline import FP32

from draftlab.base.errors import StoreError, Unreachable
from draftlab.cli.main import code_of
from draftlab.hidden import capture
from draftlab.hidden.check import ServedRecord
from draftlab.hidden.served import ServedPlan, capture_from_server
from draftlab.hidden.state_server import ServedSettings
from draftlab.hidden.store import HiddenStore
from draftlab.reference.completions import Reference
from draftlab.replay.evaluate import evaluate

LAYERS = (1, 2)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def model(small_pair):
    return state_servers.Model(small_pair.target, LAYERS)


def take(server, small_pair, out, **changes):
    quick = {"first_wait_seconds": 0.005, "time_limit_seconds": 20.0, "retries": 1}
    plan = ServedPlan(Reference.open(small_pair.reference), small_pair.target, LAYERS, out, FP32)
    return capture_from_server(plan, ServedSettings(url=server.url, **{**quick, **changes}))


def require_like_the_targets_own(store, small_pair):
    """The store that the same target's layers have given here."""
    own = HiddenStore.open(small_pair.store)
    mine, theirs = store.index.conditions, own.index.conditions
    assert mine.model_copy(update={"device": "cpu"}) == theirs
    assert mine.device == "server"
    assert store.index.sequences == own.index.sequences
    for i in range(len(own)):
        got, want = store.read(i), own.read(i)
        assert torch.equal(got.tokens_T, want.tokens_T)
        assert torch.equal(got.argmax_n, want.argmax_n)
        torch.testing.assert_close(got.taps_SC, want.taps_SC, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.logprobs_n, want.logprobs_n, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.margins_n, want.margins_n, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("concurrency", "nested"), [(1, True), (3, True), (2, False)])
def test_true_states_of_sglang_make_the_store_that_the_target_itself_makes(
    model, small_pair, tmp_path, concurrency, nested
):
    with servers.running(state_servers.sglang(model, nested=nested)) as server:
        store = take(server, small_pair, tmp_path / "store", concurrency=concurrency)

    require_like_the_targets_own(store, small_pair)
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "index.json", "provenance.json", "served.json", "states-00000.safetensors",
    ]  # fmt: skip
    asked = {tuple(body["input_ids"]) for body in server.bodies}
    rows = Reference.open(small_pair.reference).completions
    assert asked == {row.prompt_ids + row.completion_ids for row in rows}


def test_true_states_of_vllm_come_from_files_that_are_waited_for_and_removed(
    model, small_pair, tmp_path
):
    files = tmp_path / "files"
    files.mkdir()
    late = state_servers.vllm(model, files, write_seconds=0.2)
    with servers.running(late) as server:
        store = take(server, small_pair, tmp_path / "store")
        assert list(files.iterdir()) == []
        take(server, small_pair, tmp_path / "kept", keep_files=True)

    require_like_the_targets_own(store, small_pair)
    assert len(list(files.glob("*.safetensors"))) == 2 + 3  # two rows are asked for twice


@pytest.mark.parametrize("computed_in", [torch.bfloat16, torch.float32], ids=str)
def test_bfloat16_states_are_kept_as_such_and_recognised(small_pair, tmp_path, computed_in):
    """Also those of other kernels: here, ones that round nowhere but at the end."""
    model = state_servers.Model(small_pair.target, LAYERS, computed_in)
    model.bend = lambda ids, states: states.bfloat16()
    reference = Reference.open(small_pair.reference)
    job = reference.record.job
    made_by = job.made_by.model_copy(update={"dtype": "bfloat16"})
    job = job.model_copy(update={"made_by": made_by})
    record = reference.record.model_copy(update={"job": job})
    reference = Reference(reference.folder, record, reference.completions)
    plan = ServedPlan(reference, small_pair.target, LAYERS, tmp_path / "store", FP32)
    with servers.running(state_servers.sglang(model)) as server:
        store = capture_from_server(plan, ServedSettings(url=server.url))

    assert store.index.conditions.dtype == "bfloat16"
    row = reference.completions[1]
    exact, _ = model(list(row.prompt_ids + row.completion_ids))
    assert torch.equal(store.read(1).taps_SC, exact.flatten(1)[:-1])
    for check in ServedRecord.load(tmp_path / "store/served.json").runs[0].checks:
        assert 0 < check.nearly_all < 0.1, "rounding differs, the layers do not"
        assert check.typical_of_next_best > 10 * check.typical


def test_what_was_compared_is_recorded(model, small_pair, tmp_path):
    with servers.running(state_servers.sglang(model, ids_stated=(1, 2))) as server:
        take(server, small_pair, tmp_path / "store")
    (run,) = ServedRecord.load(tmp_path / "store/served.json").runs

    assert (run.server, run.version, run.stated_layer_ids) == ("SGLang", "0.5.23", (1, 2))
    rows = Reference.open(small_pair.reference).completions
    assert [(check.row, check.layer) for check in run.checks] == [
        (rows[i].id, layer) for i in (0, 1) for layer in LAYERS
    ]
    assert all(check.nearly_all < 1e-4 for check in run.checks)
    assert all(check.typical_of_next_best > 0.1 for check in run.checks)


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_shift_by_one_layer_is_named_with_what_to_pass(small_pair, tmp_path, shift):
    """Each engine counts layers in its own way; a shift costs a few percent and no error."""
    moved, shifted = tuple(k + shift for k in LAYERS), re.escape(f"shifted by {shift:+d}.")
    model = state_servers.Model(small_pair.target, moved)
    with servers.running(state_servers.sglang(model, ids_stated=(7, 9))) as server:
        with pytest.raises(StoreError, match=shifted) as stated:
            take(server, small_pair, tmp_path / "store")
        server.get["/server_info"] = {"version": "0.5.23"}
        with pytest.raises(StoreError, match=shifted) as silent:
            take(server, small_pair, tmp_path / "store")

    found = ", ".join(map(str, moved))
    assert f"outputs of layers {found} where 1, 2 are wanted" in str(stated.value)
    assert f"layer-ids {7 - shift} {9 - shift}." in stated.value.mend
    assert "--return-aux-hidden-state-layer-ids 1 2" in silent.value.mend
    assert not (tmp_path / "store/index.json").exists()
    assert not list((tmp_path / "store").glob("states-*"))


def test_layers_in_another_order_are_named(small_pair, tmp_path):
    model = state_servers.Model(small_pair.target, (2, 1))
    with (
        servers.running(state_servers.sglang(model)) as server,
        pytest.raises(StoreError, match="outputs of layers 2, 1 where 1, 2 are wanted"),
    ):
        take(server, small_pair, tmp_path / "store")


BENT = {
    "fewer rows than tokens": (lambda ids, states: states[4:], "positions for"),
    "a row more": (lambda ids, states: torch.cat([states, states[-1:]]), "positions for"),
    "a layer missing": (lambda ids, states: states[:, :1], "gives 64 values for each position"),
    "not a number": (
        lambda ids, states: states.index_fill(0, torch.tensor([5]), math.nan),
        "position 5: the output of layer 1 is not finite",
    ),
    "infinite in the second layer": (
        lambda ids, states: torch.cat([states[:, :1], states[:, 1:] / 0], dim=1),
        "position 0: the output of layer 2 is not finite",
    ),
    "of another model": (
        lambda ids, states: states + torch.randn_like(states),
        "is the output of no layer of 0, 1, 2, 3",
    ),
    "moved by a position": (lambda ids, states: states.roll(1, 0), "is the output of no layer"),
}


@pytest.mark.parametrize("fault", BENT)
@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_states_that_cannot_be_those_of_the_row_are_refused(
    model, small_pair, tmp_path, fault, kind
):
    """CASES D02, D03: nothing short, strange or not finite gets into a store."""
    model.bend, said = BENT[fault]
    server = (
        state_servers.sglang(model) if kind == "sglang" else state_servers.vllm(model, tmp_path)
    )
    with servers.running(server), pytest.raises(StoreError, match=said) as error:
        take(server, small_pair, tmp_path / "store")
    assert error.value.mend
    assert not (tmp_path / "store/index.json").exists()


def test_the_last_row_is_looked_at_as_closely_as_the_first(model, small_pair, tmp_path):
    """Rows that are not among those compared: 512 ids with 128 rows stop the run, by name."""
    rows = Reference.open(small_pair.reference).completions
    last = list(rows[-1].prompt_ids + rows[-1].completion_ids)
    model.bend = lambda ids, states: states[-4:] if ids == last else states
    with (
        servers.running(state_servers.sglang(model)) as server,
        pytest.raises(StoreError, match=f"row '{rows[-1].id}': .* 4 positions for {len(last)}"),
    ):
        take(server, small_pair, tmp_path / "store", check_rows=1)


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_states_of_another_prompt_are_refused(model, small_pair, tmp_path, kind):
    true_of = state_servers.Model.__call__
    model.__class__ = type(
        "Mixed", (state_servers.Model,), {"__call__": lambda self, ids: true_of(self, ids[::-1])}
    )
    server = (
        state_servers.sglang(model) if kind == "sglang" else state_servers.vllm(model, tmp_path)
    )
    with servers.running(server), pytest.raises(StoreError, match="is the output of no layer"):
        take(server, small_pair, tmp_path / "store")


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_other_tokens_in_the_reply_are_refused(model, small_pair, tmp_path, kind):
    server = (
        state_servers.sglang(model) if kind == "sglang" else state_servers.vllm(model, tmp_path)
    )
    honest = server.post

    def post(path, body):
        name = "input_ids" if kind == "sglang" else "prompt"
        return honest(path, {**body, name: [*body[name][:-1], (body[name][-1] + 1) % 150]})

    server.post = post
    with servers.running(server), pytest.raises(StoreError, match="of other tokens"):
        take(server, small_pair, tmp_path / "store")


def test_rows_mixed_up_under_load_are_caught_by_the_rows_that_come_twice(
    model, small_pair, tmp_path
):
    """CASES D01: right alone, wrong with others in flight."""
    server = state_servers.sglang(model)
    honest, mixed = server.post, []

    def post(path, body):
        if len(server.bodies) > 2:  # the two that were asked for alone are right
            mixed.append(body)
            return honest(path, {**body, "input_ids": body["input_ids"][::-1]})
        return honest(path, body)

    server.post = post
    with servers.running(server), pytest.raises(StoreError, match="of other tokens"):
        take(server, small_pair, tmp_path / "store", concurrency=3)
    assert mixed


def test_states_that_differ_under_load_stop_the_run(model, small_pair, tmp_path):
    server = state_servers.sglang(model)
    model.bend = lambda ids, states: states if len(server.bodies) <= 2 else states.flip(0)
    with (
        servers.running(server),
        pytest.raises(StoreError, match="other states with more requests in flight") as error,
    ):
        take(server, small_pair, tmp_path / "store", concurrency=3)
    assert "--concurrency 1" in error.value.mend


def test_a_server_that_was_not_started_for_it_is_told_how(small_pair, tmp_path, model):
    with (
        servers.running(servers.vllm()) as server,
        pytest.raises(StoreError, match="no hidden states") as error,
    ):
        take(server, small_pair, tmp_path / "a")
    assert "eagle_aux_hidden_state_layer_ids [2, 3]" in error.value.mend

    refusing = state_servers.sglang(model)
    said = {"error": "The server is not configured to return hidden states."}
    refusing.fault = lambda number, body: (400, said)
    with (
        servers.running(refusing) as server,
        pytest.raises(StoreError, match="not configured to return") as error,
    ):
        take(server, small_pair, tmp_path / "b")
    assert "--return-aux-hidden-state-layer-ids 1 2" in error.value.mend

    with (
        servers.running(servers.llama()) as server,
        pytest.raises(StoreError, match=r"llama\.cpp gives no hidden states"),
    ):
        take(server, small_pair, tmp_path / "c")


def test_states_without_log_probabilities_are_refused(model, small_pair, tmp_path):
    server = state_servers.sglang(model)
    honest = server.post
    server.post = lambda path, body: honest(path, {**body, "return_logprob": False})
    with servers.running(server), pytest.raises(StoreError, match="no log-probabilities"):
        take(server, small_pair, tmp_path / "store")


def test_a_file_that_never_comes_is_waited_for_so_long_and_named(model, small_pair, tmp_path):
    server = state_servers.vllm(model, tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    honest = server.post

    def post(path, body):
        status, reply = honest(path, body)
        Path(reply["kv_transfer_params"]["hidden_states_path"]).unlink()
        return status, reply

    server.post = post
    with servers.running(server), pytest.raises(StoreError, match="not there and whole within"):
        take(server, small_pair, tmp_path / "store", time_limit_seconds=0.3)


def test_a_stopped_capture_goes_on_and_a_finished_one_asks_nobody(
    model, small_pair, tmp_path, monkeypatch
):
    monkeypatch.setattr(capture, "SEQUENCES_PER_SHARD", 1)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with servers.running(state_servers.sglang(model)) as server:
        take(server, small_pair, whole)
        server.bodies.clear()
        server.fault = lambda number, body: (503, {}) if number >= 3 else None
        with pytest.raises(Unreachable):
            take(server, small_pair, cut, concurrency=1)
        assert [path.name for path in sorted(cut.glob("states-*"))] == ["states-00000.safetensors"]
        server.fault = lambda number, body: None
        server.bodies.clear()
        take(server, small_pair, cut, concurrency=1)
        assert len(server.bodies) == 2 + 2  # two to check, two that were missing

    for name in ("index.json", "states-00000.safetensors", "states-00002.safetensors"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    assert len(ServedRecord.load(cut / "served.json").runs) == 2
    take(server, small_pair, cut)  # nothing listens there any more


def test_the_command_says_what_it_has_seen(model, small_pair, tmp_path, capsys):
    with servers.running(state_servers.sglang(model)) as server:
        arguments = [
            "capture", str(small_pair.reference), "--target", str(small_pair.target),
            "--layers", "1,2", "--threads", "1", "--server", server.url,
            "--out", str(tmp_path / "store"),
        ]  # fmt: skip
        assert code_of(arguments) == 0
        said = capsys.readouterr()
        assert code_of([*arguments, "--dtype", "bfloat16"]) == 1
        assert "--dtype and --stream are for a target" in capsys.readouterr().err
    assert "capture: SGLang 0.5.23, model tiny" in said.err
    assert "layers 1, 2 recognised" in said.err
    assert said.out.startswith("3 sequences, layers 1,2")
    assert "100.00% of the 36 reference tokens" in said.out
    assert (
        code_of(
            ["capture", "x", "--target", "y", "--layers", "1", "--check-rows", "3", "--out", "z"]
        )
        == 1
    )


def test_a_drafter_replayed_on_it_gets_the_same_rounds(model, small_pair, tmp_path):
    with servers.running(state_servers.sglang(model)) as server:
        store = take(server, small_pair, tmp_path / "store")
    own = HiddenStore.open(small_pair.store)
    mine, theirs = (
        evaluate(each, small_pair.drafter, small_pair.target, FP32) for each in (store, own)
    )
    assert mine.run.chain == theirs.run.chain
    assert mine.run.trees == theirs.run.trees
    assert mine.run.agreement == theirs.run.agreement == 1.0
