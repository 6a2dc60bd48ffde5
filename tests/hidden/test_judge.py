"""The target's view of each token is the same from one head and from any pieces of it."""

import pytest
import torch

from draftlab.hidden import judge
from draftlab.hidden.judge import Verdict, head_rows_per_piece
from draftlab.target.head import HeadPiece


def verdict_of(weight_VH, normed_nH, said_n, rows, softcap=None):
    verdict = Verdict.none(len(said_n))
    for start in range(0, len(weight_VH), rows):
        piece = HeadPiece(start, weight_VH[start : start + rows], None, softcap)
        verdict.see(piece, normed_nH, said_n)
    return verdict.stored()


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
@pytest.mark.parametrize("logits_at_once", [1, 1 << 24])
def test_pieces_agree_with_all_logits_at_once(monkeypatch, rows, logits_at_once):
    """Oracle: log-softmax in double precision."""
    monkeypatch.setattr(judge, "LOGITS_AT_ONCE", logits_at_once)
    generator = torch.Generator().manual_seed(0)
    weight, normed = torch.randn(193, 16, generator=generator), torch.randn(11, 16)
    said = torch.randint(0, 193, (11,), generator=generator)
    found = verdict_of(weight, normed, said, rows, softcap=5.0)
    logits = torch.tanh(normed.double() @ weight.double().T / 5) * 5
    log_probs = logits.log_softmax(-1)
    best = log_probs.topk(2).values
    assert torch.equal(found["argmax"].long(), logits.argmax(-1))
    torch.testing.assert_close(
        found["logprobs"].double(), log_probs[range(11), said], rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(
        found["margins"].double(), best[:, 0] - best[:, 1], rtol=1e-4, atol=1e-5
    )


def test_of_equal_logits_the_first_is_the_choice_and_the_margin_is_zero():
    weight = torch.tensor([[0.0], [2.0], [1.0], [2.0], [2.0]])
    for rows in (1, 2, 3, 5):
        found = verdict_of(weight, torch.ones(1, 1), torch.tensor([3]), rows)
        assert found["argmax"].tolist() == [1]
        assert found["margins"].tolist() == [0.0]


def test_pieces_begin_on_64_byte_boundaries_for_every_hidden_size():
    assert head_rows_per_piece(5120) * 5120 <= judge.HEAD_VALUES_PER_PIECE
    assert all(head_rows_per_piece(h) % 64 == 0 for h in (1, 63, 576, 5120, 1 << 30))
