"""The compiled sweep gives what sorting every slot's vocabulary gives, ties and ends included."""

import numpy as np
import pytest
import torch

from draftlab.replay.scoring import score_rows
from draftlab.replay.sweep import SlotLogits, sweep
from draftlab.tree.ranks import rank_reference_paths


def by_sorting(logits_NDV, path_ND, max_budget):
    """Full-width tables from torch's sort, the slow way; shares the ranking kernel only."""
    shape, vocab = path_ND.shape, logits_NDV.shape[-1]
    width = min(max_budget, vocab)
    scores = score_rows(logits_NDV.flatten(0, 1), path_ND.clamp(min=0).flatten(), max(2, width))
    token_ranks = scores.path_rank_R.view(shape).masked_fill(path_ND < 0, -1).int().numpy()
    ranks = rank_reference_paths(
        scores.top_log_probs_RK.view(*shape, -1).numpy(),
        scores.path_log_prob_R.view(shape).numpy(),
        token_ranks,
        vocab_size=vocab,
        max_budget=max_budget,
    )
    assert not ranks.unresolved_N.any()
    return scores.best_token_R.view(shape).numpy(), token_ranks, ranks.path_ranks_ND


def tables(seed, spread, coarseness):
    """Logits that are sharp at first and flatter later, and paths that mostly follow them."""
    generator = torch.Generator().manual_seed(seed)
    depth, vocab = 7, 300
    sharpness = torch.linspace(spread, spread / 3, depth)[None, :, None]
    logits = torch.randn(40, depth, vocab, generator=generator) * sharpness
    if coarseness:
        logits = (logits / coarseness).round() * coarseness
    place = (torch.rand(40, depth, generator=generator) ** 6 * 60).long()
    path = logits.topk(64).indices.gather(2, place[..., None])[..., 0]
    ends = torch.randint(1, depth + 3, (40, 1), generator=generator)
    return logits, path.masked_fill(torch.arange(depth) >= ends, -1)


@pytest.mark.parametrize("max_budget", [1, 7, 64, 1024])
@pytest.mark.parametrize("coarseness", [None, 0.25, 1.0])
@pytest.mark.parametrize("spread", [0.5, 3.0, 9.0])
def test_the_sweep_agrees_with_sorting(spread, coarseness, max_budget):
    logits, path = tables(17, spread, coarseness)
    slots = SlotLogits(logits.numpy(), logits.amax(-1).numpy(), logits.logsumexp(-1).numpy())
    facts = sweep(slots, path.int().numpy(), max_budget, threads=2)
    best, token_ranks, path_ranks = by_sorting(logits, path, max_budget)
    assert np.array_equal(facts.best_tokens_ND, best)
    assert np.array_equal(facts.token_ranks_ND, token_ranks)
    assert np.array_equal(facts.path_ranks_ND, path_ranks)


def test_these_tables_reach_every_kind_of_answer():
    logits, path = tables(17, 3.0, None)
    _, _, ranks = by_sorting(logits, path, 1024)
    inside = ranks[ranks <= 1024]
    assert (ranks == 1025).sum() > 40
    assert len(set(inside.tolist())) > 40
    assert inside.max() > 200


def test_masked_columns_never_count():
    """D-13: columns at -inf change neither ranks nor drafts."""
    logits, path = tables(3, 3.0, None)
    padded = torch.cat([logits, torch.full((*logits.shape[:2], 20), -torch.inf)], dim=-1)
    for table in (logits, padded):
        slots = SlotLogits(table.numpy(), table.amax(-1).numpy(), table.logsumexp(-1).numpy())
        facts = sweep(slots, path.int().numpy(), 64, threads=1)
        wanted = by_sorting(logits, path, 64)
        assert np.array_equal(facts.best_tokens_ND, wanted[0])
        assert np.array_equal(facts.path_ranks_ND, wanted[2])
