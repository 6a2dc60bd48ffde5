"""The record: its identities, its names, what it refuses, and that it reads back as written."""

import json
import shutil

import numpy as np
import pipeline
import pytest
import tiny
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file, save_file

from draftlab.cli.main import code_of
from draftlab.drafter.ends import load_ends, open_target
from draftlab.hidden.store import HiddenStore
from draftlab.replay import draft
from draftlab.replay.draft import AnchorDrafts
from draftlab.replay.evaluate import evaluate, write_run
from draftlab.replay.result import EvaluationRun
from draftlab.replay.walks import (
    all_anchor,
    chain_accepted,
    gather,
    slot_rates,
    streak_accepted,
    tree_accepted,
    walks_of,
)


@pytest.fixture(scope="module")
def evaluation(small_pair):
    store = HiddenStore.open(small_pair.store)
    return evaluate(store, small_pair.drafter, small_pair.target, pipeline.FP32, budgets=(4, 1024))


def drafts_from(token_ranks, path_ranks=None):
    """Drafts of one completion, from the ranks that decide everything."""
    ranks = np.array(token_ranks, dtype=np.int32)
    zeros = np.zeros_like(ranks)
    return AnchorDrafts(
        drafted_AD=zeros,
        path_token_ranks_AD=ranks,
        path_log_probs_AD=zeros.astype(np.float32),
        best_log_probs_AD=zeros.astype(np.float32),
        path_ranks_AD=zeros if path_ranks is None else np.array(path_ranks, dtype=np.int32),
    )


def test_the_json_names_what_the_interface_promises(small_pair, capsys):
    code = code_of(["evaluate", str(small_pair.store), "--drafter", str(small_pair.drafter),
                    "--budgets", "16,32", "--json"])  # fmt: skip
    body = json.loads(capsys.readouterr().out)
    assert code == 0
    assert {"tau", "tau_macro", "rounds", "committed"} <= set(body["chain"])
    assert set(body["trees"]) == {"16", "32"}
    assert {"tau", "tau_macro", "rounds", "committed"} <= set(body["trees"]["16"])
    assert len(body["chain"]["committed"]) == 3
    assert body["coverage"]["used"] == body["coverage"]["total"] == 25
    made = body["conditions"]
    assert (made["thinking"], made["temperature"], made["prompts"]) == ("template", 0.0, 3)
    assert made["widths"] == [2, 3, 4, 5, 6]
    assert len(body["tree_tau_by_budget"]) == 1024


def test_every_method_commits_every_token_but_the_first(evaluation):
    run = evaluation.run
    for counts in (run.chain, *run.trees.values()):
        assert [sum(rounds) for rounds in counts.committed] == [11, 11, 11]
    assert sum(run.histogram.values()) == run.chain.rounds


def test_the_tau_of_each_budget_is_that_of_its_listed_rounds(evaluation):
    run = evaluation.run
    for budget, counts in run.trees.items():
        assert run.tree_tau_by_budget[int(budget) - 1] == pytest.approx(counts.tau)


def test_the_full_width_is_the_chain_and_a_streak_of_one_is_too(evaluation):
    run = evaluation.run
    assert run.widths["6"].rounds == run.streaks["1"].rounds == run.chain.rounds


def test_a_run_reads_back_as_it_was_written(evaluation, tmp_path):
    written = write_run(evaluation, tmp_path / "run.json")
    assert EvaluationRun.load(tmp_path / "run.json") == written
    arrays = load_arrays(tmp_path / "run.rounds.safetensors")
    assert arrays["drafted"].shape == (33, 5)
    assert arrays["anchors"].tolist() == [11, 11, 11]


def test_pooled_and_macro_tau_are_two_numbers():
    """Two completions, 4 tokens in 1 round and 4 in 4: pooled 8/5, macro (4 + 1)/2."""
    counts = gather(walks_of([np.array([3, 0, 0, 0]), np.array([0, 0, 0, 0])]))
    assert counts.tau == 8 / 5
    assert counts.tau_macro == 2.5
    assert counts.cut == (False, False)


def test_slot_rates_add_up_to_tau():
    """τ = 1 + sum of survival, where no round is cut and every round reaches every slot."""
    ranks = [[0, 0], [0, 1], [1, 0], [0, 2], [0, 0], [3, 3], [1, 0], [0, 1], [2, -1]]
    drafts = [drafts_from(ranks)]
    walks = walks_of([chain_accepted(d) for d in drafts])
    rates = slot_rates(drafts, walks)
    tau = gather(walks).tau
    assert not gather(walks).cut[0]
    assert tau == pytest.approx(1 + sum(rate.survival for rate in rates))
    assert rates[1].conditional == rates[1].accepted / rates[0].accepted
    assert rates[0].top1_all_anchors == 5 / 9


def test_slots_past_the_end_are_not_scored_as_wrong():
    drafts = [drafts_from([[0, 0], [0, -1]])]
    rates = slot_rates(drafts, walks_of([chain_accepted(drafts[0])]))
    assert [rate.anchors for rate in rates] == [2, 1]
    assert [rate.top1 for rate in rates] == [2, 1]


@pytest.mark.parametrize(
    ("accepted", "mean"),
    [([3, 0, 0, 0, 2, 0, 0, 1, 0, 0], 1.6), ([7, 6, 5, 4, 3, 2, 1, 0], 4.5)],
)
def test_the_all_anchor_mean_is_not_tau(accepted, mean):
    """D-1 and D-2."""
    counts = all_anchor([np.array(accepted)], [drafts_from([[0]] * len(accepted))])
    assert counts.mean == pytest.approx(mean)


def test_a_streak_of_k_asks_only_for_the_k_best_and_may_pass_any_tree_of_k_nodes():
    """15 slots, the right token always second best: a tree of 8 nodes cannot pass τ = 9."""
    ranks = np.full((16, 15), 1, dtype=np.int32)
    drafts = drafts_from(ranks, path_ranks=np.cumsum(np.full((16, 15), 2), axis=1))
    assert streak_accepted(drafts, 1).tolist() == [0] * 16
    assert streak_accepted(drafts, 8).tolist() == [15] * 16
    assert max(tree_accepted(drafts, 8)) <= 8


def test_padding_rows_of_the_head_are_never_drafted(small_pair, tmp_path):
    """D-13: a head padded from 160 to 192 rows, the padding far larger than any token's row."""
    target = shutil.copytree(small_pair.target, tmp_path / "target")
    tensors = load_file(target / "model.safetensors")
    head = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = torch.cat([head, 1000 * torch.ones(32, head.shape[1])])
    save_file(tensors, target / "model.safetensors")
    facts, files = open_target(target)
    ends = load_ends(files, facts, torch.float32, torch.device("cpu"))
    assert torch.equal(ends.head_VH, head)


def test_drafts_do_not_depend_on_how_anchors_are_batched(small_pair, monkeypatch, evaluation):
    """The same drafts one anchor at a time, and logits a few rows at a time."""
    monkeypatch.setattr(draft, "_ATTENTION_VALUES_AT_ONCE", 1)
    monkeypatch.setattr(draft, "_FEWEST_LOGIT_ROWS", 3)
    monkeypatch.setattr(draft, "_LOGIT_VALUES_AT_ONCE", 1)
    monkeypatch.setattr(draft, "FIRST_WIDTH", 2)
    store = HiddenStore.open(small_pair.store)
    again = evaluate(store, small_pair.drafter, small_pair.target, pipeline.FP32, budgets=(4, 1024))
    for ours, theirs in zip(again.drafts, evaluation.drafts, strict=True):
        assert np.array_equal(ours.drafted_AD, theirs.drafted_AD)
        assert np.array_equal(ours.path_ranks_AD, theirs.path_ranks_AD)
        assert np.array_equal(ours.path_token_ranks_AD, theirs.path_token_ranks_AD)


def test_prompts_do_not_depend_on_each_other(small_pair, tmp_path, evaluation):
    """Offline score of the prompts in reverse order: identical rounds (CASES A27)."""
    ids = tiny.random_prompts(3)[::-1]
    made = pipeline.run_pipeline(tmp_path, small_pair.target, small_pair.drafter, ids, 12)
    run = made.evaluate(small_pair.drafter, small_pair.target, budgets=(4,)).run
    assert run.chain.committed == evaluation.run.chain.committed[::-1]


def test_shown_completions_are_readable_without_colour(small_pair, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    code = code_of(["evaluate", str(small_pair.store), "--drafter", str(small_pair.drafter),
                    "--show", "2"])  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    assert "\x1b" not in out
    assert "chain, pooled over" in out
    assert out.count("target's own") == 2
    assert "not τ" in out


def test_a_bfloat16_pipeline_runs_in_bfloat16_from_end_to_end(small_pair, tmp_path, capsys):
    """Equal logits are common there; both ways of judging slots still agree to the token."""
    common = ["--target", str(small_pair.target), "--threads", "1"]
    steps = (
        ["reference", "--prompts", str(small_pair.prompts), "--max-new-tokens", "12",
         "--ignore-eos", "--dtype", "bfloat16", "--out", str(tmp_path / "ref"), *common],
        ["capture", str(tmp_path / "ref"), "--drafter", str(small_pair.drafter),
         "--out", str(tmp_path / "store"), *common],
        ["evaluate", str(tmp_path / "store"), "--drafter", str(small_pair.drafter),
         "--budgets", "4,64", "--json", *common],
    )  # fmt: skip
    for step in steps:
        assert code_of(step) == 0
    run = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))
    assert run["conditions"]["computed_on"] == "cpu, bfloat16, 1 thread"
    assert HiddenStore.open(tmp_path / "store").read(0).taps_SC.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_compiled_sweep_and_torchs_sorting_give_the_same_drafts(
    small_pair, tmp_path, monkeypatch, dtype
):
    compute = pipeline.FP32.model_copy(update={"dtype": dtype})
    prompts = pipeline.as_prompts(tiny.random_prompts(3))
    settings = pipeline.DecodeSettings(max_new_tokens=20, ignore_eos=True)
    reference = pipeline.generate_reference(
        prompts, small_pair.target, tmp_path / "ref", settings, compute
    )
    store = pipeline.capture(reference, small_pair.target, (1, 2), tmp_path / "store", compute)
    both = []
    for compiles in (True, False):
        monkeypatch.setattr(draft, "COMPILES", compiles)
        both.append(evaluate(store, small_pair.drafter, small_pair.target, compute).drafts)
    for swept, sorted_ in zip(*both, strict=True):
        assert np.array_equal(swept.drafted_AD, sorted_.drafted_AD)
        assert np.array_equal(swept.path_token_ranks_AD, sorted_.path_token_ranks_AD)
        assert np.array_equal(swept.path_ranks_AD, sorted_.path_ranks_AD)
