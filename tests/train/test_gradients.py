"""Loss and gradients of a packed batch against a drafter of plain loops, in float64.

The oracle (tests/oracles.py) drafts one block at a time: no packing, no batch, its own masks and
rotary positions. Its losses are written out here slot by slot.
"""

import math
from dataclasses import replace

import oracles
import pytest
import tiny
import torch

from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.ends import load_ends, open_target
from draftlab.drafter.model import Drafter
from draftlab.hidden.store import HiddenStore
from draftlab.train.forward import batch_loss
from draftlab.train.material import Material
from draftlab.train.options import LossOptions

BLOCK = 6
ANCHORS = ([0, 3, 4, 9], [0, 10], [2, 5, 6])
"""Of three documents of twelve tokens: the first token, the last anchor, neighbours."""
SHAPES = {
    "full": {},
    "sliding and full": {
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 7,
        "style": "nested",
    },
    "scaled, capped, biased": {
        "input_embedding_scale": 3.0,
        "output_multiplier": 0.7,
        "final_logit_softcapping": 5.0,
        "attention_bias": True,
        "style": "nested",
    },
}
LOSSES = {
    "decay": LossOptions(weighting="decay", gamma=4.0, chunk_rows=7),
    "dpace": LossOptions(weighting="dpace", alpha=0.5, chunk_rows=11),
    "uniform": LossOptions(weighting="uniform", chunk_rows=1000),
    "argmax": LossOptions(loss="argmax_ce", weighting="decay", gamma=2.0),
}


@pytest.fixture(scope="module")
def documents(small_pair):
    store = HiddenStore.open(small_pair.store)
    material = Material.of(store, DrafterConfig.from_folder(small_pair.drafter))
    return [material.read(number) for number in range(3)]


class Both:
    """The same weights in the oracle and in the drafter under test, both in float64."""

    def __init__(self, folder, target, shape, seed=3):
        config = tiny.drafter_config(tiny.DrafterShape.of("qwen3", **shape))
        tiny.write_drafter(folder, tiny.random_drafter(config, seed=seed), config)
        self.naive = oracles.NaiveDrafter(folder, target)
        self.naive.weights = {
            name: weight.double().requires_grad_() for name, weight in self.naive.weights.items()
        }
        self.naive.embedding_VH = self.naive.embedding_VH.double()
        self.naive.head_VH = self.naive.head_VH.double()
        self.drafter = Drafter(DrafterConfig.from_config(config)).double()
        self.drafter.load_state_dict({k: w.detach() for k, w in self.naive.weights.items()})
        facts, files = open_target(target)
        self.ends = load_ends(files, facts, torch.float64, torch.device("cpu"))

    def block(self, document, anchor):
        """Log-probabilities [slots with a label, V] of one block, by the oracle."""
        completion = document.tokens_T[document.prompt_length :]
        position = document.prompt_length + anchor
        logits = self.naive.logits(
            document.taps_SC[:position].double(), int(completion[anchor]), position, BLOCK
        )
        return logits[: len(completion) - 1 - anchor].log_softmax(dim=-1)


def naive_sums(both, documents, anchors, options):
    """Sum of weight * loss, of weights, right slots, labelled slots and streaks; slot by slot."""
    total, weight, right, labelled, streak = torch.zeros((), dtype=torch.float64), 0.0, 0, 0, 0
    for document, own in zip(documents, anchors, strict=True):
        completion = document.tokens_T[document.prompt_length :].tolist()
        targets = completion if options.loss == "ce" else document.argmax_n.tolist()
        for anchor in own:
            log_probs = both.block(document, anchor)
            slots = range(len(log_probs))
            losses = [-log_probs[k, targets[anchor + 1 + k]] for k in slots]
            alive = True
            for k in slots:
                w = naive_weight(k, [float(loss.detach()) for loss in losses], options)
                total, weight = total + w * losses[k], weight + w
                own_score = log_probs[k, completion[anchor + 1 + k]]
                rank = int((log_probs[k] > own_score).sum())
                right, labelled = right + (rank == 0), labelled + 1
                alive = alive and rank < 8
                streak += alive
    return total, weight, right, labelled, streak


def naive_weight(k, losses, options):
    if options.weighting == "uniform":
        return 1.0
    if options.weighting == "decay":
        return math.exp(-k / options.gamma)
    chance = [(1 - options.alpha) * math.exp(-loss) + options.alpha for loss in losses]
    return sum(math.prod(chance[: j + 1]) for j in range(k, len(losses)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_gradients_equal_those_of_one_block_at_a_time(
    small_pair, documents, tmp_path, shape, loss
):
    both = Both(tmp_path / "drafter", small_pair.target, SHAPES[shape])
    options = LOSSES[loss]
    total, weight, right, labelled, streak = naive_sums(both, documents, ANCHORS, options)
    total.backward()
    ours = batch_loss(
        both.drafter, both.ends, documents, [torch.tensor(own) for own in ANCHORS], options
    )
    ours.weighted_sum.backward()
    assert float(ours.weighted_sum.detach()) == pytest.approx(float(total.detach()), rel=1e-10)
    assert float(ours.weight) == pytest.approx(weight, rel=1e-10)
    assert (int(ours.right), int(ours.labelled), int(ours.streak)) == (right, labelled, streak)
    assert int(ours.blocks) == sum(map(len, ANCHORS))
    for name, parameter in both.drafter.named_parameters():
        wanted = both.naive.weights[name].grad
        scale = float(wanted.abs().max())
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-10, atol=1e-10 * scale)


@pytest.mark.parametrize("loss", ["decay", "dpace"])
def test_a_batch_is_the_sum_of_its_blocks_and_recomputing_changes_nothing(
    small_pair, documents, tmp_path, loss
):
    both = Both(tmp_path / "drafter", small_pair.target, SHAPES["sliding and full"])
    options = LOSSES[loss]
    anchors = [torch.tensor(own) for own in ANCHORS]
    whole = batch_loss(both.drafter, both.ends, documents, anchors, options)
    parts = [
        batch_loss(both.drafter, both.ends, [document], [anchor[None]], options)
        for document, own in zip(documents, anchors, strict=True)
        for anchor in own
    ]
    total = sum(parts[1:], start=parts[0])
    torch.testing.assert_close(total.stacked(), whole.stacked(), rtol=1e-12, atol=0)
    again = options.model_copy(update={"checkpointing": True})
    gradients = []
    for each in (options, again):
        both.drafter.zero_grad()
        batch_loss(both.drafter, both.ends, documents, anchors, each).weighted_sum.backward()
        gradients.append([p.grad.clone() for p in both.drafter.parameters()])
    for kept, recomputed in zip(*gradients, strict=True):
        assert torch.equal(kept, recomputed)


def test_no_block_reads_at_or_after_its_anchor_nor_another_block_or_document(small_pair, documents):
    """CASES A02: perturb what a block must not see; its loss does not change by a bit."""
    drafter = Drafter(DrafterConfig.from_folder(small_pair.drafter)).double()
    facts, files = open_target(small_pair.target)
    ends = load_ends(files, facts, torch.float64, torch.device("cpu"))
    options = LossOptions(weighting="uniform")

    def loss_of(docs, anchors):
        """The first document's one block, beside whatever else there is."""
        own = batch_loss(drafter, ends, docs, anchors, options).weighted_sum
        rest = [anchors[0][1:], *anchors[1:]]
        rest = [(d, a) for d, a in zip(docs, rest, strict=True) if len(a)]
        others = batch_loss(drafter, ends, *map(list, zip(*rest, strict=True)), options)
        return float((own - others.weighted_sum).detach())

    first, second = documents[0], documents[1]
    anchors = [torch.tensor([4, 9]), torch.tensor([3])]
    plain = loss_of([first, second], anchors)
    at = first.prompt_length + 4
    later = first.taps_SC.clone()
    later[at:] += 10.0
    other = second.taps_SC + 5.0
    changed = [replace(first, taps_SC=later), replace(second, taps_SC=other)]
    assert loss_of(changed, anchors) == pytest.approx(plain, rel=1e-12)
    earlier = first.taps_SC.clone()
    earlier[at - 1] += 10.0
    assert loss_of([replace(first, taps_SC=earlier), second], anchors) != pytest.approx(
        plain, rel=1e-6
    )
