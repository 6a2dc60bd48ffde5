"""Right and streak in the log follow replay's order: larger logit first, then smaller id."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from draftlab.train.loss import leading_ranks
from draftlab.train.options import STREAK_WIDTH


@given(
    st.lists(st.lists(st.integers(0, 6), min_size=30, max_size=30), min_size=1, max_size=5),
    st.integers(0, 29),
)
def test_ranks_are_those_of_a_stable_sort_with_ties(rows, token):
    """Oracle: Python's sort over (-logit, id)."""
    logits = torch.tensor(rows, dtype=torch.float32)
    found = leading_ranks(logits, torch.full((len(rows),), token)).tolist()
    for row, rank in zip(rows, found, strict=True):
        order = sorted(range(len(row)), key=lambda v: (-row[v], v))
        wanted = order.index(token)
        assert rank == wanted if wanted < STREAK_WIDTH else rank >= STREAK_WIDTH
