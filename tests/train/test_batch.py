"""Which tokens anchor, which label, and that a draw depends on nothing but its key."""

import pytest
import tiny
import torch

from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.ends import load_ends, open_target
from draftlab.drafter.model import Drafter
from draftlab.hidden.store import HiddenStore
from draftlab.train.batch import pack
from draftlab.train.blocks import anchors_of, draw_seed, fixed_anchors, num_anchors
from draftlab.train.forward import batch_loss
from draftlab.train.material import Material
from draftlab.train.options import LossOptions

OPTIONS = LossOptions()


@pytest.fixture(scope="module")
def store(small_pair):
    return HiddenStore.open(small_pair.store)


@pytest.fixture(scope="module")
def shape():
    return DrafterConfig.from_config(tiny.drafter_config(tiny.DrafterShape.of("qwen3")))


@pytest.fixture(scope="module")
def documents(store, shape):
    material = Material.of(store, shape)
    return [material.read(i) for i in range(3)]


@pytest.fixture(scope="module")
def parts(small_pair, shape):
    torch.manual_seed(0)
    facts, files = open_target(small_pair.target)
    return Drafter(shape), load_ends(files, facts, torch.float32, torch.device("cpu"))


def packed(documents, anchors, shape):
    tensors = [torch.tensor(a, dtype=torch.long) for a in anchors]
    return pack(documents, tensors, shape, OPTIONS, None, torch.device("cpu"))


def test_anchors_are_completion_tokens_that_have_a_successor():
    seen = torch.cat([anchors_of(0, epoch, 7, 6, 3) for epoch in range(50)])
    assert sorted(set(seen.tolist())) == [0, 1, 2, 3, 4]
    assert anchors_of(0, 0, 0, 6, 99).tolist() == [0, 1, 2, 3, 4]
    assert fixed_anchors(20, 99, 6).tolist() == [0, 6, 12, 18]
    assert fixed_anchors(19, 99, 6).tolist() == [0, 6, 12]  # 18 would have no successor
    assert [num_anchors(n) for n in (0, 1, 2)] == [0, 0, 1]
    assert anchors_of(0, 0, 0, 1, 9).tolist() == []


def test_each_draw_is_a_function_of_its_key_alone():
    """In whatever order, after whatever other draws, in whatever process."""
    keys = [(seed, epoch, doc) for seed in range(2) for epoch in range(3) for doc in range(4)]
    forward = {key: anchors_of(*key, 400, 20).tolist() for key in keys}
    torch.manual_seed(5)
    backward = {key: anchors_of(*key, 400, 20).tolist() for key in reversed(keys)}
    assert forward == backward
    assert len({tuple(drawn) for drawn in forward.values()}) == len(keys)
    assert draw_seed(0, 1, 2, "anchors") != draw_seed(0, 1, 2, "noise")
    assert anchors_of(0, 0, 0, 10, 4).tolist() == [0, 2, 4, 6]  # in every version


def test_every_anchor_is_as_likely_as_any_other():
    counts = torch.zeros(9)
    for epoch in range(2000):
        counts[anchors_of(3, epoch, 0, 10, 3)] += 1
    assert counts.sum() == 6000
    # 667 each; the standard deviation is 21, so 5 of them leave a false alarm of one in 10^5
    assert (counts - 6000 / 9).abs().max() < 105


def test_slot_k_is_labelled_with_the_kth_token_after_its_anchor(documents, shape):
    completion = documents[0].tokens_T[documents[0].prompt_length :].tolist()
    batch = packed(documents[:1], [[0, 8]], shape)
    assert batch.tokens_NB.tolist() == [[completion[0], *[159] * 5], [completion[8], *[159] * 5]]
    assert batch.labels.labelled_ND.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert batch.labels.tokens_ND[0].tolist() == completion[1:6]
    assert batch.labels.tokens_ND[1, :3].tolist() == completion[9:12]
    first = documents[0].prompt_length
    assert batch.positions_N.tolist() == [first, first + 8]


def test_no_label_comes_from_the_next_document(documents, shape):
    """The last anchor of each document has one label, its own last token."""
    batch = packed(documents, [[10], [10], [10]], shape)
    assert batch.labels.labelled_ND.sum(dim=1).tolist() == [1, 1, 1]
    last = [int(document.tokens_T[-1]) for document in documents]
    assert batch.labels.tokens_ND[:, 0].tolist() == last


@pytest.mark.parametrize("anchors", [[-1], [11], [3, 12]])
def test_an_anchor_without_a_successor_is_no_anchor(documents, shape, anchors):
    with pytest.raises(ValueError, match="completion of 12"):
        packed(documents[:1], [anchors], shape)


def test_a_batch_without_an_anchor_takes_its_step_all_the_same(documents, parts):
    """CASES E06: a process with nothing to do must not leave the others waiting, nor crash."""
    drafter, ends = parts
    nothing = torch.zeros(0, dtype=torch.long)
    for documents_, anchors in ((documents, [nothing] * 3), ([], [])):
        drafter.zero_grad(set_to_none=True)
        sums = batch_loss(drafter, ends, documents_, anchors, OPTIONS)
        assert [float(v.detach()) for v in (sums.weighted_sum, sums.weight, sums.blocks)] == [0] * 3
        sums.weighted_sum.backward()
        assert all(not weight.grad.any() for weight in drafter.parameters())
