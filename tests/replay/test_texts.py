"""Pieces: what each token stands for, alone and to the byte, whatever kind of tokenizer."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from draftlab.demo.run import TARGET
from draftlab.replay.draft import AnchorDrafts
from draftlab.replay.texts import SequenceTokens, pieces_of, run_texts
from draftlab.target.loading import load_tokenizer

TEXT = "naïve 水 🎉\tdef f(x):\n\n    return x  # \u202e\ufffd <|im_end|>"


def byte_level():
    """GPT-2's kind, which Qwen's is; no merges, so every token is one byte."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet, vocab_size=256))
    inner.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False)


def byte_fallback():
    """SentencePiece's kind as Llama and Gemma have it: a mark for spaces, bytes by name."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = ["\u2581", *"abcdefrtunx():#"]
    vocabulary = {name: i for i, name in enumerate([*names, *letters])}
    inner = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    inner.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    inner.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False)


KINDS = {"byte level": byte_level, "byte fallback": byte_fallback}
TOKENIZERS = {name: make() for name, make in KINDS.items()} | {"bundled": load_tokenizer(TARGET)}


def spelt(tokenizer, ids):
    """The bytes of a text, piece by piece."""
    pieces, byte_pieces = pieces_of(tokenizer, ids)
    assert not set(pieces) & set(byte_pieces)
    return b"".join(
        pieces[str(i)].encode() if str(i) in pieces else bytes.fromhex(byte_pieces[str(i)])
        for i in ids
    )


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_pieces_of_a_text_spell_it_to_the_byte(kind):
    tokenizer = TOKENIZERS[kind]
    assert spelt(tokenizer, tokenizer.encode(TEXT)) == TEXT.encode()


@given(text=st.text(st.characters(codec="utf-8"), max_size=12))
@settings(max_examples=50, deadline=None)
def test_any_text_is_spelt_to_the_byte(text):
    tokenizer = TOKENIZERS["byte level"]
    assert spelt(tokenizer, tokenizer.encode(text)) == text.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_character_is_bytes_and_never_a_replacement(kind):
    tokenizer = TOKENIZERS[kind]
    pieces, byte_pieces = pieces_of(tokenizer, tokenizer.encode("水"))
    assert pieces == {}
    assert sorted(byte_pieces.values()) == sorted(["e6", "b0", "b4"])


def test_a_leading_space_and_an_added_token_are_kept():
    tokenizer = TOKENIZERS["bundled"]
    in_, end = tokenizer.convert_tokens_to_ids(["\u0120in", "<|im_end|>"])
    assert pieces_of(tokenizer, [in_, end])[0] == {str(in_): " in", str(end): "<|im_end|>"}


def test_an_id_past_the_vocabulary_has_no_piece():
    assert pieces_of(TOKENIZERS["bundled"], [10**6]) == ({}, {})


def drafts_of(*ids):
    return AnchorDrafts(np.array([ids]), *(np.zeros((1, len(ids)), dtype=int) for _ in range(4)))


def test_texts_hold_the_pieces_of_prompt_completion_and_drafts():
    tokens = SequenceTokens(prompt=(1, 2), completion=(3, 4))
    texts = run_texts([tokens], [drafts_of(5, 6)], TOKENIZERS["byte level"])
    assert (texts.prompts, texts.completions) == (((1, 2),), ((3, 4),))
    assert {*texts.pieces, *texts.byte_pieces} == set("123456")
    assert run_texts([tokens], [drafts_of(5)], None).pieces is None
