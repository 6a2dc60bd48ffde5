"""A run learns, its log tells the τ of its files, a stop costs nothing, bad input is refused."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pipeline
import pytest
import tiny
import training

from draftlab.base.errors import DrafterError, DraftlabError, StoreError
from draftlab.hidden.store import HiddenStore
from draftlab.train.checkpoints import FOLDER, RECORD_NAME
from draftlab.train.loop import train
from draftlab.train.optimize import rate_at
from draftlab.train.order import Order, split_evenly
from draftlab.train.plan import plan_training
from draftlab.train.recipe import read_recipe
from draftlab.train.record import LOG_NAME, RUN_NAME, RunRecord


def config_of(stores, *changes, heldout=True):
    return read_recipe(None, training.settings(stores, *changes, heldout=heldout))


def files_of(run):
    """Bytes of everything that a run's result consists of, and its losses."""
    log = [json.loads(line) for line in (run / LOG_NAME).read_text().splitlines()]
    told = [
        (e["step"], e["loss"], e["top1"], e["gradient_norm"], e.get("heldout_tau")) for e in log
    ]
    return (run / "drafter" / "model.safetensors").read_bytes(), told


def test_a_drafter_that_overfits_accepts_and_its_log_tells_the_tau_of_its_file(
    small_pair, stores, tmp_path
):
    """Trained on what it is judged on, under another name: nothing else is this easy to learn."""
    config = config_of(
        {**stores, "heldout": stores["heldout"]},
        "schedule.steps=250",
        "batch.completions=7",
        "optimizer.learning_rate=0.003",
        heldout=False,
    )
    made = train(config, tmp_path / "run")
    assert made.log[-1]["loss"] < made.log[0]["loss"] / 3
    assert math.isnan(made.heldout_tau)
    store = HiddenStore.open(stores["train"])
    run = pipeline.Pipeline(None, store).evaluate(made.drafter, small_pair.target, budgets=(1,)).run
    assert run.chain.tau > 2.5


def test_the_logged_tau_is_that_of_the_best_checkpoint_evaluated_by_itself(
    small_pair, stores, tmp_path
):
    config = config_of(stores, "evaluation.every=5", "evaluation.budgets=[4]")
    made = train(config, tmp_path / "run")
    replayed = {e["step"]: e["heldout_tau"] for e in made.log if "heldout_tau" in e}
    assert sorted(replayed) == [5, 10, 15, 20]
    best = made.record.best
    assert best.tau == max(replayed.values()) == replayed[best.step]
    store = HiddenStore.open(stores["heldout"])
    run = pipeline.Pipeline(None, store).evaluate(made.drafter, small_pair.target, budgets=(4,)).run
    assert run.chain.tau == pytest.approx(best.tau)
    logged = next(e for e in made.log if e["step"] == best.step)
    assert run.trees["4"].tau == pytest.approx(logged["heldout_tau_tree_4"])
    assert run.streaks["8"].tau == pytest.approx(logged["heldout_streak_8"])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_20_steps_equal_10_and_10_more_to_the_byte(stores, tmp_path, optimizer):
    changes = [f"optimizer.name={optimizer}", "evaluation.every=10", "batch.micro_batches=2"]
    whole = train(config_of(stores, *changes), tmp_path / "whole")
    halves = tmp_path / "halves"
    stopped_after(halves, config_of(stores, *changes, "checkpoints.every=10"), 13)
    train(config_of(stores, *changes, "checkpoints.every=10"), halves)
    assert files_of(whole.folder) == files_of(halves)


def stopped_after(out, config, steps):
    """Run in this process until a step that no checkpoint holds, and drop everything."""

    class Stop(Exception):
        pass

    def track(items, **_):
        for number, item in enumerate(items, start=1):
            yield item
            if number == steps:
                raise Stop

    with pytest.raises(Stop):
        train(config, out, track=track)


@pytest.mark.slow
def test_a_run_that_is_killed_at_random_moments_ends_in_the_same_bytes(stores, tmp_path):
    changes = ["checkpoints.every=2", "evaluation.every=7", "schedule.steps=40"]
    whole = train(config_of(stores, *changes), tmp_path / "whole")
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "draftlab.cli.main", "train", "--out", str(out), "--config"]
    (tmp_path / "run.yaml").write_bytes((whole.folder / "config.resolved.yaml").read_bytes())
    command.append(str(tmp_path / "run.yaml"))
    killed = 0
    for moment in (0.15, 0.4, 0.05, 0.25):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ}
        )
        before = newest_step(out)
        while process.poll() is None and newest_step(out) == before:
            time.sleep(0.01)
        time.sleep(moment)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed >= 2
    subprocess.run(command, check=True, capture_output=True)
    assert files_of(whole.folder) == files_of(out)


def newest_step(run):
    return max((p.name for p in (run / FOLDER).glob("step-*")), default="")


def test_a_broken_checkpoint_is_passed_over(stores, tmp_path):
    changes = ["checkpoints.every=5", "checkpoints.keep_last=9"]
    whole = train(config_of(stores, *changes), tmp_path / "whole")
    stopped_after(tmp_path / "run", config_of(stores, *changes), 12)
    newest = tmp_path / "run" / FOLDER / "step-000010"
    data = bytearray((newest / "trainer.safetensors").read_bytes())
    data[-3] ^= 1
    (newest / "trainer.safetensors").write_bytes(data)
    train(config_of(stores, *changes), tmp_path / "run")
    assert files_of(whole.folder) == files_of(tmp_path / "run")


def test_a_finished_run_asked_for_again_changes_nothing(stores, tmp_path):
    first = train(config_of(stores), tmp_path / "run")
    before = files_of(first.folder)
    again = train(config_of(stores), tmp_path / "run")
    assert files_of(first.folder) == before
    assert again.record.finished
    assert again.record.steps_done == 20


def test_another_configuration_in_the_same_folder_is_refused(stores, tmp_path):
    train(config_of(stores), tmp_path / "run")
    with pytest.raises(DraftlabError, match="another configuration"):
        train(config_of(stores, "optimizer.learning_rate=0.01"), tmp_path / "run")


def test_only_the_newest_and_the_best_checkpoints_stay(stores, tmp_path):
    changes = ["checkpoints.every=2", "checkpoints.keep_last=2", "evaluation.every=4"]
    made = train(config_of(stores, *changes), tmp_path / "run")
    kept = {int(p.name[-6:]) for p in (tmp_path / "run" / FOLDER).glob("step-*")}
    assert kept == {18, 20, made.record.best.step}
    for folder in (tmp_path / "run" / FOLDER).iterdir():
        assert (folder / RECORD_NAME).is_file()


def test_training_stops_when_tau_has_not_risen_for_a_while(stores, tmp_path):
    """A learning rate of zero: τ stays what it was."""
    changes = ["optimizer.learning_rate=0", "evaluation.every=2", "evaluation.patience=3"]
    made = train(config_of(stores, *changes), tmp_path / "run")
    assert made.record.steps_done == 2 + 3 * 2
    assert made.record.stopped_early
    assert made.record.best.step == 2


def test_the_reference_drafters_tau_is_in_the_record(small_pair, stores, tmp_path):
    first = train(config_of(stores), tmp_path / "first")
    config = config_of(stores, f"evaluation.reference_drafter={first.drafter}")
    second = train(config, tmp_path / "second")
    assert second.record.reference_tau == pytest.approx(first.record.best.tau)
    assert RunRecord.load(tmp_path / "second" / RUN_NAME) == second.record


def test_a_run_goes_on_from_another_drafter(stores, tmp_path):
    first = train(config_of(stores), tmp_path / "first")
    config = config_of(stores, f"drafter.start={first.drafter}", "optimizer.learning_rate=0")
    second = train(config, tmp_path / "second")
    assert second.record.best.tau == pytest.approx(first.record.best.tau)


def test_completions_that_are_trained_on_may_not_be_held_out(stores):
    config = config_of({**stores, "heldout": stores["train"]})
    with pytest.raises(StoreError, match="held out"):
        plan_training(config)


def test_a_drafter_may_not_read_the_layer_that_makes_the_logits(small_pair, stores, tmp_path):
    shape = tiny.drafter_config(tiny.DrafterShape.of("qwen3"))
    config = dict(shape)
    config["dflash_config"] = {**shape["dflash_config"], "target_layer_ids": [1, 3]}
    drafter = tiny.write_drafter(tmp_path / "d", tiny.random_drafter(shape), config)
    prompts = tiny.random_prompts(3, seed=5)
    pipeline.run_pipeline(tmp_path / "p", small_pair.target, drafter, prompts, 9)
    last = {**stores, "train": tmp_path / "p" / "store"}
    with pytest.raises(DrafterError, match="last"):
        plan_training(config_of(last, heldout=False))
    fewer = config_of(last, "drafter.target_layer_ids=[1]", heldout=False)
    assert plan_training(fewer).shape.target_layer_ids == (1,)


def test_steps_see_every_completion_once_an_epoch_whatever_was_seen_before():
    order = Order([3, 5, 8, 9, 11], per_step=2, seed=4)
    drawn = [each for step in range(1, 11) for each in order.step(step)]
    for epoch in range(4):
        numbers = [each.number for each in drawn if each.epoch == epoch]
        assert sorted(numbers) == [3, 5, 8, 9, 11]
    again = Order([3, 5, 8, 9, 11], per_step=2, seed=4)
    assert again.step(7) == drawn[12:14]
    assert [d.number for d in drawn[:5]] != [d.number for d in drawn[5:10]]


def test_parts_are_even_and_whole():
    for count, parts in ((5, 2), (1, 3), (0, 2), (9, 3)):
        found = split_evenly(list(range(count)), parts)
        assert [item for part in found for item in part] == list(range(count))
        assert max(map(len, found)) - min(map(len, found)) <= 1


def test_the_rate_warms_up_and_falls_to_zero(stores):
    schedule = config_of(stores).schedule
    rates = [rate_at(step, 100, 1.0, schedule) for step in range(1, 101)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[51] == pytest.approx(0.5, abs=1e-9)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "said", "mend"),
    [
        (["schedule.step=5"], "no key 'schedule.step'", "schedule.steps"),
        (["schedule.epochs=2"], "schedule.steps is 20 and", "one of the two"),
        (["batch.completions=0"], "batch.completions is 0", "1 or more"),
        (["optimizer.name=sgd"], "optimizer.name", "--explain"),
        (["loss.weighting=decay"], "gamma None", "7 for blocks of 16"),
        (["steps"], "not section.key=value", "schedule.steps"),
    ],
)
def test_a_wrong_configuration_is_refused_with_what_to_write(stores, changes, said, mend):
    with pytest.raises(DraftlabError) as caught:
        config_of(stores, *changes)
    assert said in str(caught.value)
    assert mend in caught.value.mend
