"""The tokens of a run and how each one reads: what a page or a person needs beside the numbers.

In:   the tokens of every sequence, the drafts, and the target's tokenizer if there is one.
Out:  RunTexts.

A piece is what one token id stands for, alone and to the byte. Decoding a list of ids would not do:
half a character becomes U+FFFD, a leading space is lost, and which text belongs to which token is
forgotten. So the vocabulary entry itself is read, the way that the tokenizer's decoder reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from draftlab.hidden.store import StoredSequence
from draftlab.replay.draft import AnchorDrafts
from draftlab.replay.result import RunTexts

Reader = Callable[[str], bytes]
"""A vocabulary entry -> the bytes it stands for. Raises KeyError if it is not of this kind."""

_alphabet: Any = bytes_to_unicode  # untyped, as much of transformers is
_BYTE_OF: dict[str, int] = {letter: byte for byte, letter in _alphabet().items()}
_BYTE_NAME = re.compile("<0x([0-9A-F]{2})>")
_SPACE_MARK = "\u2581"
_UNKNOWN = "\ufffd"


@dataclass(frozen=True, slots=True)
class SequenceTokens:
    """Token ids of one sequence."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]

    @classmethod
    def of(cls, sequence: StoredSequence) -> SequenceTokens:
        """The tokens of a stored sequence, without its states."""
        ids = sequence.tokens_T.tolist()
        return cls(tuple(ids[: sequence.prompt_length]), tuple(ids[sequence.prompt_length :]))


def run_texts(
    tokens: Sequence[SequenceTokens], drafts: Sequence[AnchorDrafts], tokenizer: Any
) -> RunTexts:
    """The tokens of a run with the pieces of every id that occurs in it.

    Args:
        tokens: of each sequence.
        drafts: of each sequence; drafted ids get a piece too.
        tokenizer: a transformers tokenizer, or None.
    """
    ids = {token for of in tokens for part in (of.prompt, of.completion) for token in part}
    for drafted in drafts:
        ids.update(drafted.drafted_AD.ravel().tolist())
    pieces, byte_pieces = (None, {}) if tokenizer is None else pieces_of(tokenizer, ids)
    return RunTexts(
        prompts=tuple(of.prompt for of in tokens),
        completions=tuple(of.completion for of in tokens),
        pieces=pieces,
        byte_pieces=byte_pieces,
    )


def pieces_of(tokenizer: Any, ids: Iterable[int]) -> tuple[dict[str, str], dict[str, str]]:
    """Pieces that are whole characters, as text; the others as hex. Ids without a piece are out."""
    read = _reader(tokenizer)
    added = {token: str(entry) for token, entry in tokenizer.added_tokens_decoder.items()}
    pieces, byte_pieces = {}, {}
    for token in sorted(set(ids)):
        data = added[token].encode() if token in added else _bytes_of(tokenizer, token, read)
        if data is None:
            continue
        try:
            pieces[str(token)] = data.decode()
        except UnicodeDecodeError:
            byte_pieces[str(token)] = data.hex()
    return pieces, byte_pieces


def _bytes_of(tokenizer: Any, token: int, read: Reader) -> bytes | None:
    """The bytes of one vocabulary entry; None where they cannot be told."""
    entry = tokenizer.convert_ids_to_tokens(token)
    if not isinstance(entry, str):
        return None  # an id past the vocabulary: padding rows of the head can be drafted
    try:
        return read(entry)
    except KeyError:
        text: str = tokenizer.decode([token], clean_up_tokenization_spaces=False)
        return None if _UNKNOWN in text else text.encode()


def _reader(tokenizer: Any) -> Reader:
    """How this tokenizer's decoder turns an entry into bytes."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    described: bytes = b"" if decoder is None else decoder.__getstate__()
    if b'"ByteLevel"' in described:
        return _read_byte_level
    if b'"ByteFallback"' in described or b'"Metaspace"' in described:
        return _read_sentencepiece
    return _read_unknown


def _read_byte_level(entry: str) -> bytes:
    """GPT-2's alphabet: one letter a byte."""
    return bytes(_BYTE_OF[letter] for letter in entry)


def _read_sentencepiece(entry: str) -> bytes:
    """SentencePiece's: `<0xE6>` is a byte, the mark a space, all else itself."""
    if name := _BYTE_NAME.fullmatch(entry):
        return bytes.fromhex(name[1])
    return entry.replace(_SPACE_MARK, " ").encode()


def _read_unknown(entry: str) -> bytes:
    raise KeyError(entry)
