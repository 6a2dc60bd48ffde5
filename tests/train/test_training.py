"""Training: clean labels, decayed hard cross-entropy, blocks that never meet; and it learns."""

import math

import oracles
import pipeline
import pytest
import tiny
import torch

from draftlab.base.errors import DrafterError, DraftlabError
from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.ends import load_ends, open_target
from draftlab.drafter.model import Drafter
from draftlab.hidden.store import HiddenStore
from draftlab.train.blocks import NO_LABEL, anchored_blocks, anchors_of
from draftlab.train.config import TrainConfig
from draftlab.train.loop import train
from draftlab.train.loss import decayed_cross_entropy


@pytest.fixture(scope="module")
def store(small_pair):
    return HiddenStore.open(small_pair.store)


def test_anchors_are_completion_tokens_that_have_a_successor():
    seen = torch.cat([anchors_of(0, epoch, 7, 6, 3) for epoch in range(50)])
    assert sorted(set(seen.tolist())) == [0, 1, 2, 3, 4]
    assert anchors_of(0, 0, 0, 6, 99).tolist() == [0, 1, 2, 3, 4]


def test_slot_k_is_labelled_with_the_kth_token_after_its_anchor(store):
    sequence = store.read(0)
    completion = sequence.tokens_T[sequence.prompt_length :].tolist()
    blocks = anchored_blocks(sequence, torch.tensor([0, 8]), block_size=6, mask_token_id=159)
    assert blocks.tokens_NB.tolist() == [[completion[0], *[159] * 5], [completion[8], *[159] * 5]]
    assert blocks.labels_ND[0].tolist() == completion[1:6]
    assert blocks.labels_ND[1].tolist() == [*completion[9:12], NO_LABEL, NO_LABEL]
    assert blocks.positions_N.tolist() == [sequence.prompt_length, sequence.prompt_length + 8]


def test_the_loss_of_a_batch_is_the_sum_over_its_slots():
    """Oracle: one slot at a time, in float64."""
    logits = torch.randn(4, 5, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.randint(0, 30, (4, 5), generator=torch.Generator().manual_seed(1))
    labels[1, 3:] = NO_LABEL
    parts = decayed_cross_entropy(logits, labels, gamma=4.0)
    total = weight = 0.0
    for block in range(4):
        for slot in range(5):
            if labels[block, slot] == NO_LABEL:
                continue
            w = math.exp(-slot / 4.0)
            row = logits[block, slot].tolist()
            total += w * (math.log(math.fsum(map(math.exp, row))) - row[int(labels[block, slot])])
            weight += w
    assert float(parts.weighted_sum) == pytest.approx(total, rel=1e-6)
    assert float(parts.weight) == pytest.approx(weight, rel=1e-6)


@pytest.mark.parametrize("variant", [{}, {"layer_types": ("sliding_attention", "full_attention"),
                                          "sliding_window": 7, "style": "nested"}])  # fmt: skip
def test_gradients_equal_those_of_one_block_at_a_time(small_pair, store, tmp_path, variant):
    """Oracle: tests/oracles.py, one block after another, no batching, summed by autograd."""
    config = tiny.drafter_config(tiny.DrafterShape.of("qwen3", **variant))
    tiny.write_drafter(tmp_path / "drafter", tiny.random_drafter(config, seed=3), config)
    shape = DrafterConfig.from_config(config)
    sequence = store.read(1)
    anchors = torch.tensor([0, 3, 4, 9])
    blocks = anchored_blocks(sequence, anchors, block_size=6, mask_token_id=tiny.MASK_TOKEN_ID)

    naive = oracles.NaiveDrafter(tmp_path / "drafter", small_pair.target)
    naive.weights = {k: w.double().requires_grad_() for k, w in naive.weights.items()}
    naive.embedding_VH, naive.head_VH = naive.embedding_VH.double(), naive.head_VH.double()
    loss = torch.zeros((), dtype=torch.float64)
    for n in range(len(anchors)):
        position = int(blocks.positions_N[n])
        taps = sequence.taps_SC[:position].double()
        logits = naive.logits(taps, int(blocks.tokens_NB[n, 0]), position, 6)
        loss = (
            loss
            + decayed_cross_entropy(
                logits[None].double(), blocks.labels_ND[n : n + 1], 4.0
            ).weighted_sum
        )
    loss.backward()

    drafter = Drafter(shape).double()
    drafter.load_state_dict({k: w.detach().double() for k, w in naive.weights.items()})
    facts, files = open_target(small_pair.target)
    ends = load_ends(files, facts, torch.float64, torch.device("cpu"))
    context = drafter.project_context(sequence.taps_SC)
    hidden = drafter.draft_blocks(ends.embed(blocks.tokens_NB, shape), blocks.positions_N, context)
    ours = decayed_cross_entropy(
        ends.logits(hidden[:, 1:], shape), blocks.labels_ND, 4.0
    ).weighted_sum
    ours.backward()
    assert float(ours.detach()) == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, weight in drafter.named_parameters():
        torch.testing.assert_close(weight.grad, naive.weights[name].grad, rtol=2e-4, atol=2e-5)


def test_no_block_reads_context_at_or_after_its_anchor_nor_another_block(small_pair, store):
    """CASES A02: perturb what a block must not see; its output does not change by a bit."""
    config = DrafterConfig.from_folder(small_pair.drafter)
    drafter = Drafter(config)
    sequence = store.read(0)
    first = sequence.prompt_length
    embedded = torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(0))
    anchors = torch.tensor([first + 1, first + 6])
    with torch.no_grad():
        plain = drafter.draft_blocks(embedded, anchors, drafter.project_context(sequence.taps_SC))
        taps = sequence.taps_SC.clone()
        taps[first + 1 :] += 10.0
        perturbed = drafter.draft_blocks(embedded, anchors, drafter.project_context(taps))
        other = embedded.clone()
        other[1] += 1.0
        beside = drafter.draft_blocks(other, anchors, drafter.project_context(sequence.taps_SC))
    assert torch.equal(plain[0], perturbed[0])
    assert not torch.allclose(plain[1], perturbed[1])
    assert torch.equal(plain[0], beside[0])


def test_a_trained_drafter_accepts_and_its_log_tells_the_tau_of_the_file(
    small_pair, store, tmp_path
):
    shape = DrafterConfig.from_folder(small_pair.drafter)
    config = TrainConfig(steps=150, sequences_per_step=3, learning_rate=3e-3, gamma=4.0, seed=1)
    made = train(
        store, small_pair.target, shape, config, tmp_path / "made", pipeline.FP32, heldout=store
    )
    assert made.log[-1]["loss"] < made.log[0]["loss"] / 3
    assert made.heldout_tau > 2.5
    read = pipeline.Pipeline(None, store).evaluate(
        tmp_path / "made", small_pair.target, budgets=(1,)
    )
    assert read.run.chain.tau == pytest.approx(made.heldout_tau)


def test_the_same_seed_gives_the_same_weights(small_pair, store, tmp_path):
    shape = DrafterConfig.from_folder(small_pair.drafter)
    config = TrainConfig(steps=3, sequences_per_step=2, gamma=4.0)
    for name in ("one", "two"):
        train(store, small_pair.target, shape, config, tmp_path / name, pipeline.FP32)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]


def test_a_store_with_other_taps_is_refused(small_pair, store, tmp_path):
    shape = DrafterConfig.from_folder(small_pair.drafter)
    other = DrafterConfig.model_validate({**shape.model_dump(), "target_layer_ids": (0, 1)})
    with pytest.raises(DrafterError, match="layers"):
        train(
            store,
            small_pair.target,
            other,
            TrainConfig(steps=1, gamma=4.0),
            tmp_path / "x",
            pipeline.FP32,
        )


def test_a_decay_constant_is_not_invented():
    assert TrainConfig(steps=1).decay_constant(16) == 7.0
    with pytest.raises(DraftlabError, match="not 6"):
        TrainConfig(steps=1).decay_constant(6)
