"""Split a JSON array whose text is invalid somewhere.

An array with one bad byte is not JSON, yet its other elements are. The array is cut at its top-level commas
by looking at strings and brackets only; the caller parses the pieces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# A string cannot contain a raw control character, so an unterminated one stops at its line's end.
_TOKEN = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"|["\[\]{},]', re.DOTALL)
_SPACE = b" \t\r\n"
_CLOSER = {ord("["): ord("]"), ord("{"): ord("}")}


@dataclass(frozen=True, slots=True)
class ArrayPieces:
    """The elements' places ``(start, end)`` in the text, and where and why the rest is unreadable, if so."""

    pieces: list[tuple[int, int]]
    lost_at: int | None = None
    lost_because: str = ""


def split_array(text: bytes, most: int) -> ArrayPieces:
    """Split the text of a JSON array at its top-level commas, until there are more than ``most`` elements."""
    opening = len(text) - len(text.lstrip(_SPACE))
    if text[opening : opening + 1] != b"[":
        return ArrayPieces([], opening, "a batch is a JSON array and starts with [")
    pieces: list[tuple[int, int]] = []
    closers: list[int] = []
    start = opening + 1
    for token in _TOKEN.finditer(text, start):
        at = token.start()
        char = text[at]
        if char == 0x22:
            if token.end() - at == 1:
                return ArrayPieces(pieces, at, "this string is not closed")
        elif char in _CLOSER:
            closers.append(_CLOSER[char])
        elif char == 0x2C:
            if not closers:
                pieces.append((start, at))
                start = at + 1
                if len(pieces) > most:
                    return ArrayPieces(pieces)
        elif closers:
            if closers.pop() != char:
                return ArrayPieces(pieces, at, f"{chr(char)} has no matching opening bracket here")
        elif char == 0x5D:
            if pieces or text[start:at].strip(_SPACE):
                pieces.append((start, at))
            rest = text[at + 1 :].lstrip(_SPACE)
            if rest:
                return ArrayPieces(pieces, len(text) - len(rest), "there is more text after the array's end")
            return ArrayPieces(pieces)
        else:
            return ArrayPieces(pieces, at, "} has no matching opening bracket here")
    return ArrayPieces(pieces, start, "the array is not closed")
