"""Text from outside, as it may be shown: to the byte, and with nothing in it that hides.

In:   a token's text or bytes; any string of a record.
Out:  segments, plain and marked in turn; or a string.

Model text can hold characters that show as nothing or turn the line around (controls, bidi marks,
exotic spaces, half characters). Each is shown by its code, so what is on the page is what was said.
"""

from __future__ import annotations

import unicodedata

NEWLINE, TAB = "↵", "→"
_FOLLOWED_BY_ITSELF = {"\n": NEWLINE, "\t": TAB}
"""Marked, and still there: the line breaks, and copied text is whole."""
_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"}
_REPLACEMENT = "\ufffd"
_ESCAPED_BYTES = range(0xDC80, 0xDD00)
"""What Python's `surrogateescape` makes of bytes that are no characters."""


def visible(text: str) -> str:
    """The text with the code of every character that could not be seen; on one line."""
    return "".join(_code(letter) if _hides(letter) else letter for letter in text)


def segments(piece: str) -> list[str]:
    r"""Plain and marked parts in turn, plain first: `a\tb` -> ["a", "→", "\tb"]."""
    parts = [""]
    for letter in piece:
        if not _hides(letter):
            parts[-1] += letter
        elif letter in _FOLLOWED_BY_ITSELF:
            parts += [_FOLLOWED_BY_ITSELF[letter], letter]
        else:
            parts += [_code(letter), ""]
    return parts


def byte_segments(data: bytes) -> list[str]:
    r"""The same for bytes: whole characters as such, every other byte as `\xE6`."""
    return segments(data.decode("utf-8", "surrogateescape"))


def _hides(letter: str) -> bool:
    return letter != " " and (unicodedata.category(letter) in _HIDDEN or letter == _REPLACEMENT)


def _code(letter: str) -> str:
    number = ord(letter)
    if number < 0x80:
        return f"\\x{number:02X}"
    if number in _ESCAPED_BYTES:
        return f"\\x{number - 0xDC00:02X}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
