"""Logits exist for a few blocks at a time, and once: what is allocated is looked at, op by op."""

import pytest
import tiny
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from draftlab.drafter.config import DrafterConfig
from draftlab.drafter.ends import TargetEnds
from draftlab.drafter.model import Drafter
from draftlab.train.documents import Document
from draftlab.train.forward import batch_loss
from draftlab.train.options import LossOptions

VOCAB = 20011


class Largest(TorchDispatchMode):
    """The most values that any tensor made while it is on has; and how often a head's worth."""

    def __init__(self):
        super().__init__()
        self.values = 0
        self.products_of_vocabulary = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(one, torch.Tensor) and not is_view(one, args):
                self.values = max(self.values, one.numel())
                if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
                    self.products_of_vocabulary += any(VOCAB in a.shape for a in args)
        return made


def is_view(made, args) -> bool:
    """Whether it lies in the memory of something that was there before."""
    given = [a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)]
    return made.untyped_storage().data_ptr() in given


def largest(num_anchors, **options):
    """Largest tensor, products with the vocabulary, and rows, of one forward and backward."""
    shape = DrafterConfig.from_config(tiny.drafter_config(tiny.DrafterShape.of("qwen3")))
    generator = torch.Generator().manual_seed(0)
    ends = TargetEnds(
        torch.randn(VOCAB, 64, generator=generator),
        torch.randn(VOCAB, 64, generator=generator),
        tied=False,
    )
    tokens = torch.randint(0, VOCAB, (10 + 60,), generator=generator)
    document = Document(tokens, torch.randn(69, 128, generator=generator), 10)
    drafter = Drafter(shape)
    chosen = LossOptions(weighting="dpace", **options)
    anchors = torch.arange(num_anchors)
    with Largest() as seen:
        sums = batch_loss(drafter, ends, [document], [anchors], chosen)
        if sums.weighted_sum.requires_grad:
            sums.weighted_sum.backward()
    return seen, int(sums.labelled)


@pytest.mark.parametrize("chunk_rows", [20, 40])
def test_the_largest_tensor_is_a_chunk_of_logits_however_many_anchors(chunk_rows):
    for num_anchors in (20, 40):
        seen, rows = largest(num_anchors, chunk_rows=chunk_rows)
        assert rows == 5 * num_anchors
        assert seen.values == chunk_rows * VOCAB


def test_no_logits_are_made_twice():
    """Two products with the vocabulary per chunk: logits, and the gradient behind them."""
    seen, rows = largest(20, chunk_rows=25)
    assert seen.products_of_vocabulary == 2 * rows // 25


def test_without_a_gradient_there_is_one_product_a_chunk():
    with torch.no_grad():
        seen, rows = largest(20, chunk_rows=25)
    assert seen.products_of_vocabulary == rows // 25
