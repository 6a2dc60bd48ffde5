"""Every mask against one written down in Python from the papers' words, slot by slot."""

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftlab.drafter import flex
from draftlab.drafter.config import DrafterConfig, LayerAttention
from draftlab.drafter.flex import FlexReading
from draftlab.drafter.model import Drafter
from draftlab.drafter.packing import Packing
from draftlab.drafter.reading import DenseReading
from draftlab.drafter.visibility import block_visible, context_visible, oldest_visible


@st.composite
def layouts(draw):
    """A block size, a rule, and documents: length of context, anchors of its blocks."""
    block_size = draw(st.integers(2, 6))
    window = draw(st.none() | st.integers(block_size, 20))
    rule = LayerAttention(window=window, causal=draw(st.booleans()))
    documents = []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 30))
        edges = st.sampled_from([1, length])
        anchors = draw(st.lists(edges | st.integers(1, length), max_size=5))
        documents.append((length, sorted(anchors)))
    if not any(anchors for _, anchors in documents):
        documents[0] = (documents[0][0], [1, documents[0][0]])
    return block_size, rule, documents


def brute_force(block_size, rule, documents):
    """Pairs of query row and key row that may meet; rows are named by what they are."""
    pairs = set()
    queries = [
        (doc, number, anchor, slot)
        for doc, (_, anchors) in enumerate(documents)
        for number, anchor in enumerate(anchors)
        for slot in range(block_size)
    ]
    for doc, number, anchor, slot in queries:
        me = anchor + slot
        for position in range(documents[doc][0]):
            near = rule.window is None or me - position < rule.window
            if position < anchor and near:
                pairs.add(((doc, number, slot), ("context", doc, position)))
        for other in range(block_size):
            near = rule.window is None or me - (anchor + other) < rule.window
            if near and not (rule.causal and other > slot):
                pairs.add(((doc, number, slot), ("block", doc, number, other)))
    return pairs


def row_names(block_size, documents):
    """Names of query rows and key rows in the order of a packed forward."""
    queries = [
        (doc, number, slot)
        for doc, (_, anchors) in enumerate(documents)
        for number in range(len(anchors))
        for slot in range(block_size)
    ]
    context = [
        ("context", doc, p) for doc, (length, _) in enumerate(documents) for p in range(length)
    ]
    return queries, context + [("block", *name) for name in queries]


def packed(documents):
    anchors = torch.tensor([a for _, anchors in documents for a in anchors])
    lengths, counts = zip(*[(length, len(anchors)) for length, anchors in documents], strict=True)
    return anchors, Packing(lengths, counts)


@given(layouts())
def test_the_masks_of_plain_products_are_the_rule(layout):
    block_size, rule, documents = layout
    found = set()
    for doc, (length, anchors) in enumerate(documents):
        if not anchors:
            continue
        positions = torch.arange(length)
        seen = context_visible(torch.tensor(anchors), positions, block_size, rule)
        seen = seen.expand(len(anchors), block_size, length)
        own = block_visible(block_size, rule, torch.device("cpu"))
        for number, slot, position in seen.nonzero().tolist():
            found.add(((doc, number, slot), ("context", doc, position)))
            assert position >= oldest_visible(min(anchors), rule)
        for number in range(len(anchors)):
            for slot, other in own.nonzero().tolist():
                found.add(((doc, number, slot), ("block", doc, number, other)))
    assert found == brute_force(*layout)


@given(layouts())
@settings(deadline=None)
def test_the_mask_of_the_fused_kernel_is_the_rule(layout):
    block_size, rule, documents = layout
    anchors, packing = packed(documents)
    rows = flex.Rows(anchors, packing, block_size)
    queries, keys = row_names(block_size, documents)
    q, k = torch.arange(len(queries))[:, None], torch.arange(len(keys))[None]
    zero = torch.zeros((), dtype=torch.long)
    seen = rows.sees(rule)(zero, zero, q, k)
    found = {(queries[i], keys[j]) for i, j in seen.nonzero().tolist()}
    assert found == brute_force(*layout)
    assert seen.any(dim=1).all()  # a slot reads itself at least, so no softmax is empty


@given(layouts(), st.integers(3, 40))
@settings(deadline=None, max_examples=60)
def test_no_tile_with_something_in_it_is_left_out(layout, tile):
    block_size, rule, documents = layout
    anchors, packing = packed(documents)
    rows = flex.Rows(anchors, packing, block_size)
    queries, keys = row_names(block_size, documents)
    filled = rows.filled(rule, tile).tolist()
    for query, key in brute_force(*layout):
        assert filled[queries.index(query) // tile][keys.index(key) // tile]
    tiles = len(filled) * len(filled[0])
    assert sum(map(sum, filled)) <= tiles


def test_blocks_at_10_and_14_do_not_leak(small_drafter):
    """CASES A02: what the block at 14 may see must not reach the block at 10, by any bit."""
    drafter = small_drafter("full_attention", "full_attention")
    generator = torch.Generator().manual_seed(0)
    taps = torch.randn(30, 128, generator=generator)
    embedded = torch.randn(2, 8, 64, generator=generator)
    anchors = torch.tensor([10, 14])
    with torch.no_grad():
        plain = drafter.draft_blocks(embedded, anchors, drafter.project_context(taps))
        for after, moved in ((14, [False, False]), (10, [False, True]), (9, [True, True])):
            changed = taps.clone()
            changed[after:] += 1.0
            again = drafter.draft_blocks(embedded, anchors, drafter.project_context(changed))
            assert [not torch.equal(p, a) for p, a in zip(plain, again, strict=True)] == moved
        other = embedded.clone()
        other[1] += 1.0
        beside = drafter.draft_blocks(other, anchors, drafter.project_context(taps))
    assert torch.equal(plain[0], beside[0])


@pytest.mark.parametrize("causal", [False, True])
def test_the_rows_of_a_block_of_four_see_what_the_config_says(causal):
    """CASES A04: bidirectional in the block, unless the config says causal."""
    rule = LayerAttention(window=None, causal=causal)
    mask = block_visible(4, rule, torch.device("cpu")).tolist()
    wanted = [[not causal or other <= slot for other in range(4)] for slot in range(4)]
    assert mask == wanted


KINDS = [
    ("full_attention", "full_attention"),
    ("sliding_attention", "full_attention"),
    ("sliding_attention", "sliding_attention"),
]


@pytest.fixture
def small_drafter():
    def make(*kinds, is_causal=None):
        sliding = 9 if "sliding_attention" in kinds else None
        shape = tiny.DrafterShape.of(
            "qwen3", block_size=8, layer_types=kinds, sliding_window=sliding, is_causal=is_causal
        )
        config = tiny.drafter_config(shape)
        drafter = Drafter(DrafterConfig.from_config(config))
        drafter.load_state_dict(tiny.random_drafter(config, seed=1))
        return drafter

    return make


def both_ways(drafter, flex_compiled, device="cpu"):
    """Hidden states and gradients by plain products and by the fused kernel, packed."""
    generator = torch.Generator().manual_seed(2)
    documents = [(200, [1, 9, 150, 200]), (5, []), (40, [3, 40]), (11, [11])]
    anchors, packing = packed(documents)
    drafter, anchors = drafter.to(device), anchors.to(device)
    taps = torch.randn(256, 128, generator=generator).to(device)
    embedded = torch.randn(len(anchors), 8, 64, generator=generator).to(device)
    aim = torch.randn(embedded.shape, generator=generator).to(device)
    results = []
    for reading in (
        DenseReading(anchors, packing),
        FlexReading(anchors, packing, 8, compiled=flex_compiled),
    ):
        drafter.zero_grad()
        context = drafter.project_context(taps, lengths=packing.context_lengths)
        hidden = drafter.draft_blocks(embedded, anchors, context, reading=reading)
        (hidden * aim).sum().backward()
        results.append((hidden.detach(), [w.grad.clone() for w in drafter.parameters()]))
    return results


def require_equal(dense, fused):
    torch.testing.assert_close(dense[0], fused[0], rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(dense[1], fused[1], strict=True):
        scale = float(mine.abs().max())
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's
@pytest.mark.parametrize("is_causal", [None, False, True])
@pytest.mark.parametrize("kinds", KINDS)
def test_the_fused_kernel_equals_plain_products(small_drafter, monkeypatch, kinds, is_causal):
    """On a CPU torch keeps its unfused backward behind a door that is taken out here."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    require_equal(*both_ways(small_drafter(*kinds, is_causal=is_causal), flex_compiled=False))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kinds", KINDS)
def test_the_compiled_kernel_equals_plain_products(small_drafter, kinds):
    torch.set_float32_matmul_precision("highest")
    require_equal(*both_ways(small_drafter(*kinds), flex_compiled=True, device="cuda"))
