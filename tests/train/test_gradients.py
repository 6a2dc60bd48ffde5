"""Losses and gradients in float64, against loops: one block after another, no batch, own masks.

Oracle: tests/oracles.py drafts each block by itself, slot by slot and head by head, with its own
rotary and its own rule of what is seen; losses and weights are written out below with Python loops;
autograd does the rest.
"""

import math
from dataclasses import dataclass, replace

import oracles
import pytest
import tiny
import torch

from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.ends import TargetEnds, load_ends, open_target
from draftlab.drafter.model import Drafter
from draftlab.hidden.capture import capture
from draftlab.reference.completions import Reference
from draftlab.target.compute import Compute
from draftlab.target.head import HeadPiece
from draftlab.train.documents import Document
from draftlab.train.forward import batch_loss
from draftlab.train.material import Material
from draftlab.train.options import LossOptions
from draftlab.train.teacher import Teacher

LAYERS = (1, 2, 3)  # the drafter's taps, and the target's last layer
ANCHORS = ([0, 3, 4, 10], [], [9, 10])  # both ends of a completion of 12, and a document without
GAMMA, ALPHA = 4.0, 0.5
VARIANTS = {
    "full": {},
    "sliding, causal by its kind": {
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 7,
        "style": "nested",
    },
    "sliding, not causal; softcap, multiplier, scale": {
        "layer_types": ("sliding_attention", "sliding_attention"),
        "sliding_window": 9,
        "is_causal": False,
        "final_logit_softcapping": 4.0,
        "output_multiplier": 1.25,
        "input_embedding_scale": 8.0,
    },
    "full, causal, biases": {"is_causal": True, "attention_bias": True},
}
LOSSES = [
    LossOptions(loss="ce", weighting="decay", gamma=GAMMA, chunk_rows=7),
    LossOptions(loss="ce", weighting="dpace", alpha=ALPHA, chunk_rows=1),
    LossOptions(loss="ce", weighting="uniform", checkpointing=True),
    LossOptions(loss="argmax_ce", weighting="dpace", alpha=0.1, chunk_rows=11),
    LossOptions(loss="argmax_ce", weighting="decay", gamma=GAMMA),
    LossOptions(loss="kl", weighting="decay", gamma=GAMMA, chunk_rows=7),
    LossOptions(loss="kl", weighting="uniform"),
]


def name_of(options: LossOptions) -> str:
    return f"{options.loss}-{options.weighting}-{options.chunk_rows}"


@dataclass(frozen=True)
class Slot:
    """A drafted slot that has a label."""

    logits_V: torch.Tensor
    token: int
    argmax: int
    taught_V: torch.Tensor
    """The target's log-probabilities."""


@dataclass
class Case:
    """One drafter, both ways."""

    naive: oracles.NaiveDrafter
    blocks: list[list[Slot]]
    drafter: Drafter
    ends: TargetEnds
    teacher: Teacher
    documents: list[Document]


@pytest.fixture(scope="module")
def store(small_pair, tmp_path_factory):
    reference = Reference.open(small_pair.reference)
    compute = Compute(device="cpu", dtype="float32", threads=1)
    return capture(
        reference, small_pair.target, LAYERS, tmp_path_factory.mktemp("deep") / "store", compute
    )


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS.keys())
def case(request, small_pair, store, tmp_path_factory) -> Case:
    config = tiny.drafter_config(tiny.DrafterShape.of("qwen3", **request.param))
    shape = DrafterConfig.from_config(config)
    facts, files = open_target(small_pair.target)
    ends = load_ends(files, facts, torch.float64, torch.device("cpu"))
    material = Material.of(store, shape, with_last=True)
    documents = [with_other_argmax(material.read(i)) for i in range(3)]
    drafter = half_trained(shape, tiny.random_drafter(config, seed=3), ends, documents)

    folder = tmp_path_factory.mktemp("drafter")
    tiny.write_drafter(folder, tiny.random_drafter(config), config)
    naive = oracles.NaiveDrafter(folder, small_pair.target)
    state = drafter.state_dict()
    naive.weights = {k: w.clone().requires_grad_() for k, w in state.items()}
    naive.embedding_VH, naive.head_VH = naive.embedding_VH.double(), naive.head_VH.double()
    norm_H = oracles.read_tensors(small_pair.target)["model.norm.weight"].double()

    def last_norm(states):
        return oracles.rms_norm(states, norm_H, 1e-6)

    teacher = Teacher(last_norm, HeadPiece(0, ends.head_VH, None, None))
    blocks = [
        naive_block(naive, document, anchor, last_norm)
        for document, anchors in zip(documents, ANCHORS, strict=True)
        for anchor in anchors
    ]
    return Case(naive, blocks, drafter, ends, teacher, documents)


def with_other_argmax(document) -> Document:
    """As if the completion had been sampled: every other token is not the target's best."""
    argmax_n = document.argmax_n.clone()
    argmax_n[::2] = (argmax_n[::2] + 11) % 150
    return replace(document, argmax_n=argmax_n)


def half_trained(shape, state, ends, documents) -> Drafter:
    """A drafter that is right now and then."""
    drafter = Drafter(shape).double()
    drafter.load_state_dict({k: w.double() for k, w in state.items()})
    with torch.no_grad():
        drafter.norm.weight.mul_(0.2)
    optimizer = torch.optim.AdamW(drafter.parameters(), 2e-3)
    for _ in range(4):
        optimizer.zero_grad()
        anchors = [torch.arange(11)] * len(documents)
        loss = batch_loss(drafter, ends, documents, anchors, LossOptions(weighting="uniform"))
        (loss.weighted_sum / loss.weight).backward()
        optimizer.step()
    return drafter


def naive_block(naive, document, anchor, last_norm) -> list[Slot]:
    """The labelled slots of one block."""
    position = document.prompt_length + anchor
    tokens = document.tokens_T.tolist()
    taps = document.taps_SC[:position].double()
    logits_DV = naive.logits(taps, tokens[position], position, naive.rules.block_size)
    slots = []
    for k in range(1, naive.rules.block_size):
        if position + k >= len(tokens):
            break
        state_H = last_norm(document.last_SH[position + k - 1].double())
        slots.append(
            Slot(
                logits_V=logits_DV[k - 1],
                token=tokens[position + k],
                argmax=int(document.argmax_n[anchor + k]),
                taught_V=(naive.head_VH @ state_H).log_softmax(0),
            )
        )
    return slots


def naive_sums(blocks, options) -> tuple[torch.Tensor, float, int, int, int]:
    """Weighted sum, weight, right, labelled, streak of these blocks."""
    total, weight, right, labelled, streak = torch.zeros((), dtype=torch.float64), 0.0, 0, 0, 0
    for slots in blocks:
        losses = [naive_loss(slot, options) for slot in slots]
        weights = naive_weights([float(loss.detach()) for loss in losses], options)
        for loss, one in zip(losses, weights, strict=True):
            total = total + one * loss
            weight += one
        places = [place_of(slot.token, slot.logits_V.tolist()) for slot in slots]
        right += places.count(0)
        labelled += len(slots)
        streak += next((i for i, p in enumerate(places) if p >= 8), len(places))
    return total, weight, right, labelled, streak


def place_of(token, logits) -> int:
    return sorted(range(len(logits)), key=lambda v: (-logits[v], v)).index(token)


def naive_loss(slot, options) -> torch.Tensor:
    log_q_V = slot.logits_V - slot.logits_V.exp().sum().log()
    if options.loss == "ce":
        return -log_q_V[slot.token]
    if options.loss == "argmax_ce":
        return -log_q_V[slot.argmax]
    return sum(
        math.exp(log_p) * (log_p - log_q)
        for log_p, log_q in zip(slot.taught_V.tolist(), log_q_V, strict=True)
    )


def naive_weights(losses, options) -> list[float]:
    """FACTS of the two papers, slot by slot, from k = 1."""
    count = len(losses)
    if options.weighting == "uniform":
        return [1.0] * count
    if options.weighting == "decay":
        return [math.exp(-(k - 1) / options.gamma) for k in range(1, count + 1)]
    smoothed = [(1 - options.alpha) * math.exp(-loss) + options.alpha for loss in losses]
    prefixes = [math.prod(smoothed[: k + 1]) for k in range(count)]
    return [sum(prefixes[k:]) for k in range(count)]


@pytest.mark.parametrize("options", LOSSES, ids=name_of)
def test_loss_and_every_gradient_equal_those_of_loops(case, options):
    for weight in case.naive.weights.values():
        weight.grad = None
    case.drafter.zero_grad(set_to_none=True)
    total, weight, right, labelled, streak = naive_sums(case.blocks, options)
    total.backward(retain_graph=True)
    anchors = [torch.tensor(a, dtype=torch.long) for a in ANCHORS]
    ours = batch_loss(
        case.drafter, case.ends, case.documents, anchors, options, teacher=case.teacher
    )
    ours.weighted_sum.backward()
    assert ours.weighted_sum.item() == pytest.approx(total.item(), rel=1e-10)
    assert float(ours.weight) == pytest.approx(weight, rel=1e-10)
    found = [int(n) for n in (ours.right, ours.labelled, ours.streak, ours.blocks)]
    assert found == [right, labelled, streak, len(case.blocks)]
    for name, parameter in case.drafter.named_parameters():
        wanted = case.naive.weights[name].grad
        error = float((parameter.grad - wanted).norm() / wanted.norm())
        assert error < 1e-10, name


def test_the_cases_are_worth_checking(case):
    """Some tokens are the best, some are not; some blocks are cut; q is neither 0 nor 1."""
    _, _, right, labelled, streak = naive_sums(case.blocks, LOSSES[0])
    chances = [math.exp(-naive_loss(s, LOSSES[0]).item()) for b in case.blocks for s in b]
    assert labelled < 5 * len(case.blocks)
    assert right < labelled
    assert 0 < streak < labelled
    assert sum(0.001 < chance < 0.9 for chance in chances) > labelled / 2


@pytest.mark.parametrize("options", LOSSES, ids=name_of)
def test_a_batch_is_the_sum_of_its_blocks(case, options):
    def sums(pairs):
        documents, anchors = zip(*pairs, strict=True)
        with torch.no_grad():
            return batch_loss(
                case.drafter, case.ends, documents, anchors, options, teacher=case.teacher
            )

    pairs = [(d, torch.tensor(a)) for d, a in zip(case.documents, ANCHORS, strict=True) if a]
    whole = sums(pairs)
    single = [sums([(d, a.view(1))]) for d, anchors in pairs for a in anchors]
    added = sum(single[1:], start=single[0])
    for name in ("weighted_sum", "weight", "right", "labelled", "streak", "blocks"):
        mine, theirs = float(getattr(whole, name)), float(getattr(added, name))
        assert mine == pytest.approx(theirs, rel=1e-12), name
