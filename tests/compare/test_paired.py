"""Intervals for τ and for paired differences, against drafters whose true τ is known."""

import numpy as np
import pytest

from draftlab.compare import paired
from draftlab.compare.paired import PromptTotals, difference, ratio, tau_interval

BLOCK = 8


def rounds_of(generator, acceptance_P, tokens_P):
    """Rounds of chains that accept each slot with one probability until so much is committed."""
    shape = (len(tokens_P), int(tokens_P.max()))
    accepted = generator.geometric(1 - acceptance_P[:, None], size=shape) - 1
    committed = np.cumsum(np.minimum(accepted, BLOCK - 1) + 1, axis=1)
    return (committed < tokens_P[:, None]).sum(axis=1) + 1.0


def two_drafters(generator, prompts):
    """Prompts differ in length and difficulty; the second drafter is a little better on most."""
    tokens = generator.integers(40, 200, size=prompts)
    easy = generator.beta(6, 3, size=prompts)
    better = np.clip(easy + generator.normal(0.03, 0.05, size=prompts), 0.02, 0.98)
    rounds = [rounds_of(generator, share, tokens) for share in (better, easy)]
    return [PromptTotals(tokens.astype(float), each) for each in rounds]


def pooled(totals):
    return totals.tokens_P.sum() / totals.rounds_P.sum()


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [20, 32, 128])
def test_95_percent_intervals_cover_the_truth_in_93_to_97_percent(prompts, monkeypatch):
    monkeypatch.setattr(paired, "DRAWS", 1000)  # coverage does not need the last digit
    generator = np.random.default_rng(11)
    one, base = two_drafters(generator, 50_000)
    truth = pooled(one), pooled(one) - pooled(base), pooled(one) / pooled(base)
    covered = np.zeros(3)
    for trial in range(1000):
        mine, theirs = two_drafters(generator, prompts)
        found = (
            tau_interval(mine, seed=trial),
            difference(mine, theirs, seed=trial),
            ratio(mine, theirs, seed=trial),
        )
        covered += [not e.excludes(t) for e, t in zip(found, truth, strict=True)]
    assert np.all((covered >= 930) & (covered <= 970)), covered


def test_values_are_pooled_by_hand():
    mine = PromptTotals.of([10, 20, 5], [5, 4, 5], ["a", "b", "a"])
    assert mine.tokens_P.tolist() == [15, 20]
    assert mine.rounds_P.tolist() == [10, 4]
    theirs = PromptTotals.of([10, 20, 5], [10, 10, 5], ["a", "b", "a"])
    assert tau_interval(mine).value == pytest.approx(35 / 14)
    assert difference(mine, theirs).value == pytest.approx(35 / 14 - 35 / 25)
    assert ratio(mine, theirs).value == pytest.approx(25 / 14)
    assert not tau_interval(mine).has_interval  # two prompts


def test_a_run_against_itself_has_width_zero():
    mine, _ = two_drafters(np.random.default_rng(3), 20)
    assert difference(mine, mine).model_dump() == {"value": 0, "low": 0, "high": 0}
    assert ratio(mine, mine).model_dump() == {"value": 1, "low": 1, "high": 1}


def test_pairing_narrows_the_interval_when_prompts_matter_more_than_drafters():
    """Against two independent sets of prompts of the same kind."""
    generator = np.random.default_rng(5)
    mine, theirs = two_drafters(generator, 40)
    found = difference(mine, theirs)
    alone = [tau_interval(each) for each in (mine, theirs)]
    unpaired = np.hypot(*[(each.high - each.low) for each in alone])
    assert found.high - found.low < 0.6 * unpaired


def test_completions_of_one_prompt_are_drawn_together():
    """Ten copies of each completion are no new evidence: the interval stays as wide."""
    generator = np.random.default_rng(6)
    one, _ = two_drafters(generator, 30)
    names = [str(i) for i in range(30)]
    tokens, rounds = one.tokens_P.astype(int), one.rounds_P.astype(int)
    once = tau_interval(PromptTotals.of(tokens, rounds, names))
    tenfold = tau_interval(PromptTotals.of(np.tile(tokens, 10), np.tile(rounds, 10), names * 10))
    assert (tenfold.low, tenfold.high) == pytest.approx((once.low, once.high))


def test_the_standard_error_is_that_of_the_jackknife():
    """An independent way to the same first-order error: leave each prompt out in turn."""
    mine, theirs = two_drafters(np.random.default_rng(7), 60)
    found = ratio(mine, theirs)
    keep = 1 - np.eye(60)
    logs = np.log(keep @ theirs.rounds_P) - np.log(keep @ mine.rounds_P)
    error = np.sqrt((59 / 60) * ((logs - logs.mean()) ** 2).sum())
    width = np.log(found.high) - np.log(found.low)
    assert width == pytest.approx(2 * 1.96 * error, rel=0.15)
