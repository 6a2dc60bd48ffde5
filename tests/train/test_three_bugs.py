"""The three bugs that cost a real team days, planted: each is caught or cannot be written.

Noise meant for the drafter's input in the target's logits; a drafter that reads the state which
makes these logits; a soft loss where nobody asked for one.
"""

from dataclasses import replace

import pipeline
import pytest
import tiny
import torch
import transformers

from draftlab.base.errors import DrafterError, DraftlabError, StoreError
from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.ends import load_ends, open_target
from draftlab.drafter.model import Drafter
from draftlab.hidden.capture import capture
from draftlab.hidden.store import HiddenStore
from draftlab.reference.completions import Reference
from draftlab.train import noise
from draftlab.train.documents import require_clean_taps
from draftlab.train.forward import batch_loss
from draftlab.train.material import Material
from draftlab.train.noise import noisy_taps
from draftlab.train.options import LossOptions
from draftlab.train.recipe import read_recipe
from draftlab.train.teacher import Teacher

KL = LossOptions(loss="kl", weighting="decay", gamma=4.0, chunk_rows=9)


@pytest.fixture(scope="module")
def taught(small_pair, tmp_path_factory):
    """Documents with the last layer's states beside the taps; drafter and ends."""
    folder = tmp_path_factory.mktemp("taught")
    reference = Reference.open(small_pair.reference)
    capture(reference, small_pair.target, (1, 2, 3), folder / "store", pipeline.FP32)
    shape = DrafterConfig.from_folder(small_pair.drafter)
    material = Material.of(HiddenStore.open(folder / "store"), shape, with_last=True)
    facts, files = open_target(small_pair.target)
    ends = load_ends(files, facts, torch.float32, torch.device("cpu"))
    torch.manual_seed(0)
    return [material.read(number) for number in range(3)], Drafter(shape), ends


def test_noise_goes_to_a_copy(taught):
    document = replace(taught[0][0], noise_seed=7)
    before = document.taps_SC.clone()
    for options in (
        LossOptions(weighting="dpace", noise_uniform=0.05),
        LossOptions(weighting="dpace", noise_std=0.1),
    ):
        noisy = noisy_taps(document, options)
        assert torch.equal(document.taps_SC, before)
        assert noisy.data_ptr() != document.taps_SC.data_ptr()
        assert 0 < float((noisy - before).abs().max()) < 1
        assert torch.equal(noisy, noisy_taps(document, options))  # the seed's, each time


def test_noise_planted_in_place_is_caught_where_it_is_added(taught, monkeypatch):
    """Also where no loss reads the last layer: the store's tensor may hold it all the same."""
    documents, drafter, ends = taught
    plain = noise.with_noise

    def in_place(taps_SC, seed, options):
        return taps_SC.copy_(plain(taps_SC, seed, options))

    def past_the_taps(taps_SC, seed, options):
        victim.last_SH.add_(0.05)
        return plain(taps_SC, seed, options)

    noisy = LossOptions(weighting="dpace", noise_uniform=0.05)
    for planted in (in_place, past_the_taps):
        own = documents[0]
        victim = replace(
            own, taps_SC=own.taps_SC.clone(), last_SH=own.last_SH.clone(), noise_seed=3
        )
        batch_loss(drafter, ends, [victim], [torch.tensor([0])], noisy)
        with monkeypatch.context() as patch:
            patch.setattr(noise, "with_noise", planted)
            with pytest.raises(RuntimeError, match="stored states"):
                batch_loss(drafter, ends, [victim], [torch.tensor([0])], noisy)


def test_noise_needs_a_seed(taught):
    documents, drafter, ends = taught
    noisy = LossOptions(weighting="dpace", noise_std=0.05)
    with pytest.raises(ValueError, match="seed"):
        batch_loss(drafter, ends, documents[:1], [torch.tensor([0])], noisy)


@pytest.mark.parametrize("architecture", ["gemma3", "qwen3_5", "llama"])
def test_the_final_norm_is_the_targets_own_applied_once(tmp_path, architecture):
    """Also where it multiplies by 1 + w. Oracle: logits of the whole target."""
    folder = tiny.write_target(tmp_path / "target", architecture, tied=True)
    model = tiny.load_target(folder)
    facts, files = open_target(folder)
    ends = load_ends(files, facts, torch.float32, torch.device("cpu"))
    teacher = Teacher.open(folder, ends, pipeline.FP32)
    kept = []
    model.get_decoder().layers[-1].register_forward_hook(lambda *parts: kept.append(parts[-1]))
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor(tiny.random_prompts(1))).logits[0]
        ours = teacher.log_probs(kept[0][0])
    torch.testing.assert_close(ours, theirs.log_softmax(dim=-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("slip", ["no norm", "norm twice", "one row late"])
def test_states_that_do_not_make_the_targets_logits_are_refused(small_pair, taught, slip):
    """FACTS of other trainers: a norm too few or too many, a shift by one; none of them crashes."""
    documents, drafter, ends = taught
    right = Teacher.open(small_pair.target, ends, pipeline.FP32)
    norms = {"no norm": lambda x: x, "norm twice": lambda x: right.norm(right.norm(x))}
    teacher = replace(right, norm=norms.get(slip, right.norm))
    if slip == "one row late":
        documents = [replace(d, last_SH=d.last_SH.roll(1, dims=0)) for d in documents]
    with pytest.raises(StoreError, match="log-probabilities"):
        batch_loss(drafter, ends, documents, [torch.tensor([1, 4])] * 3, KL, teacher=teacher)


def test_a_dump_of_one_more_state_than_taps_is_refused_whole(taught):
    documents, drafter, ends = taught
    document = documents[0]
    whole = torch.cat([document.taps_SC, document.last_SH], dim=1)
    with pytest.raises(DrafterError, match="3 x 64; the drafter has 2 taps"):
        batch_loss(
            drafter,
            ends,
            [replace(document, taps_SC=whole)],
            [torch.tensor([0])],
            LossOptions(weighting="dpace"),
        )


def test_noise_leaves_labels_and_the_targets_distribution_as_they_were(small_pair, taught):
    documents, drafter, ends = taught
    anchors = [torch.tensor([0, 4])] * 3
    noisy = KL.model_copy(update={"noise_uniform": 0.05})
    seeded = [replace(document, noise_seed=n) for n, document in enumerate(documents)]
    teacher = Teacher.open(small_pair.target, ends, pipeline.FP32)
    batch_loss(drafter, ends, seeded, anchors, noisy, teacher=teacher)  # the check in it holds


def test_noise_planted_in_the_states_that_teach_is_caught(small_pair, taught):
    documents, drafter, ends = taught
    teacher = Teacher.open(small_pair.target, ends, pipeline.FP32)
    generator = torch.Generator().manual_seed(0)
    planted = [
        replace(
            document,
            last_SH=document.last_SH
            + 0.05 * torch.randn(document.last_SH.shape, generator=generator),
        )
        for document in documents
    ]
    anchors = [torch.tensor([0, 4])] * 3
    batch_loss(drafter, ends, documents, anchors, KL, teacher=teacher)
    with pytest.raises(StoreError, match="log-probabilities"):
        batch_loss(drafter, ends, planted, anchors, KL, teacher=teacher)


def test_kl_equals_the_divergence_from_the_real_targets_distribution(small_pair, taught):
    """Oracle: a plain forward of the whole target, and the divergence slot by slot."""
    documents, drafter, ends = taught
    model = transformers.AutoModelForCausalLM.from_pretrained(
        small_pair.target, dtype=torch.float32
    )
    document, anchor = documents[0], 3
    with torch.no_grad():
        theirs = model(input_ids=document.tokens_T[None]).logits[0].log_softmax(dim=-1)
        shape = drafter.config
        position = document.prompt_length + anchor
        tokens = torch.full((1, shape.block_size), shape.mask_token_id)
        tokens[0, 0] = document.tokens_T[position]
        context = drafter.project_context(document.taps_SC)
        hidden = drafter.draft_blocks(ends.embed(tokens, shape), torch.tensor([position]), context)
        ours = ends.logits(hidden[0, 1:], shape).log_softmax(dim=-1)
        total = 0.0
        for k in range(1, shape.block_size):
            p = theirs[position + k - 1]
            total += float(torch.exp(torch.tensor(-(k - 1) / 4.0))) * float(
                (p.exp() * (p - ours[k - 1])).sum()
            )
    teacher = Teacher.open(small_pair.target, ends, pipeline.FP32)
    found = batch_loss(drafter, ends, [document], [torch.tensor([anchor])], KL, teacher=teacher)
    assert float(found.weighted_sum.detach()) == pytest.approx(total, rel=1e-4)


def test_a_drafter_that_reads_the_last_layer_is_refused(small_pair):
    shape = DrafterConfig.from_folder(small_pair.drafter)
    last = DrafterConfig.model_validate({**shape.model_dump(), "target_layer_ids": (1, 3)})
    with pytest.raises(DrafterError, match="n \\+ 1 states"):
        require_clean_taps(last)
    require_clean_taps(last, allow_last_layer=True)
    require_clean_taps(shape)


def test_soft_losses_are_never_a_default_and_never_silent():
    config = read_recipe(None, ["data.store=s", "schedule.steps=1"])
    assert config.loss.loss == "ce"
    assert config.loss.warning is None
    assert LossOptions(weighting="uniform").loss == "ce"
    for name in ("kl", "argmax_ce"):
        chosen = read_recipe(
            None,
            [
                "data.store=s",
                "schedule.steps=1",
                f"loss.loss={name}",
                "loss.weighting=decay",
                "loss.gamma=7",
            ],
        )
        assert "for comparison only" in chosen.loss.warning


def test_a_soft_loss_without_the_targets_states_is_refused(small_pair, taught):
    documents, drafter, ends = taught
    teacher = Teacher.open(small_pair.target, ends, pipeline.FP32)
    bare = [replace(document, last_SH=None) for document in documents]
    with pytest.raises(DraftlabError, match="does not hold"):
        batch_loss(drafter, ends, bare, [torch.tensor([0])] * 3, KL, teacher=teacher)
