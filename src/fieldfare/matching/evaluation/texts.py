"""Conditions and values over strings, by columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.expression import Wild
from fieldfare.matching.evaluation import text_kernels
from fieldfare.matching.evaluation.operands import Compute, Operand, filled, spread
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.truth import ASK
from fieldfare.matching.evaluation.view import (
    NO_WORDS,
    Part,
    PieceParameter,
    Pieces,
    RowByRow,
    Truths,
    Values,
    View,
)
from fieldfare.matching.events.columns import KIND_STRING

_LENGTH_BITS = 0xFFFFFFFF

ONE = bytes([text_kernels.ONE_BYTE])
"""What stands for ONE in a piece."""


class Fits:
    """LIKE with a pattern of pieces between RUNs.

    Parameters
    ----------
    operand
        What must fit.
    parts
        The pieces; a parameter stands for one that each row has its own of.
    """

    def __init__(self, operand: Operand, parts: list[Part], asked: RowByRow) -> None:
        self.operand = operand
        self.asked = asked
        self.parts = parts
        self.pieces = pieces_as_arrays([[part if isinstance(part, bytes) else b"" for part in parts]])
        has_ones = any(ONE in part if isinstance(part, bytes) else part.has_ones for part in parts)
        self.fit = text_kernels.fit_with_ones if has_ones or len(parts) == 1 else text_kernels.fit_values
        self.cost_ns = operand.cost_ns + (30.0 if len(parts) > 2 or has_ones else 8.0)

    def truths(self, view: View, exactly: bool) -> Truths:
        values = spread(self.operand.values(view), view.size)
        truths = np.empty(view.size, np.uint8)
        pieces = view.pieces(self.pieces, self.parts)
        if self.fit(values.kinds, values.words, values.text, pieces, len(self.parts), truths):
            self.asked.settle(view, truths, ASK)
        return truths


def pieces_as_arrays(patterns: Sequence[Sequence[bytes]]) -> Pieces:
    """The pieces of patterns of equally many, one pattern after the other; for the first pattern."""
    pieces = [piece for pattern in patterns for piece in pattern]
    text = frozen(np.frombuffer(b"".join(pieces), np.uint8))
    starts = frozen(np.cumsum([0, *map(len, pieces)], dtype=np.int64))
    return Pieces(text, starts, frozen(np.zeros(1, np.int64)), 0)


def pieces_of(pattern: Sequence[str | Wild | PieceParameter]) -> list[Part] | None:
    """What stands before, between and after the RUNs of a pattern; None if no kernel looks for it.

    Beside what a Pattern has there may be parameters, each in place of a whole piece.
    """
    pieces: list[Part] = [b""]
    for part in pattern:
        before = pieces[-1]
        if part is Wild.RUN:
            pieces.append(b"")
        elif isinstance(part, PieceParameter):
            pieces[-1] = part
        else:
            assert isinstance(before, bytes)
            pieces[-1] = before + (ONE if part is Wild.ONE else part.encode("utf-8", "surrogatepass"))
    return None if any(_is_long(piece) for piece in pieces[1:-1]) else pieces


def _is_long(piece: Part) -> bool:
    """Whether a piece between others is too long for the kernel."""
    return isinstance(piece, bytes) and len(piece) > text_kernels.MOST_PIECE_BYTES


def length(size: int, given: Values) -> Values:
    """LENGTH(text)."""
    many = spread(given, size)
    kinds: Any = np.empty(size, np.uint8)
    lengths: Any = np.empty(size, np.int64)
    text_kernels.measure_values(many.kinds, many.words, many.text, kinds, lengths)
    return filled(kinds, lengths, step=given.step)


def case_changed(change: Callable[[str], str]) -> Compute:
    """LOWER(text), UPPER(text) or CASEFOLD(text); Python does it for strings with longer characters."""

    def compute(size: int, given: Values) -> Values:
        many = spread(given, size)
        kinds, words, text = with_case(many.kinds, many.words, many.text, change)
        return filled(kinds, words, NO_WORDS, text, given.step)

    return compute


@cache
def _short_cases(change: Callable[[str], str]) -> NDArray[np.int16]:
    """For each character of at most two bytes what it becomes, of as many bytes; else -1.

    A capital sigma is left out: what it becomes depends on what is around it.
    """
    table = np.full(0x800, -1, np.int16)
    for code in range(0x800):
        changed = change(chr(code))
        if len(changed) == 1 and ord(changed) < 0x800 and (ord(changed) < 0x80) == (code < 0x80):
            table[code] = ord(changed)
    table[ord("Σ")] = -1
    return frozen(table)


def with_case(
    given_kinds: NDArray[np.uint8],
    given_words: NDArray[np.int64],
    given_text: NDArray[np.uint8],
    change: Callable[[str], str],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8]]:
    """Kinds, words and text of strings whose case was changed; of what is no string the kind is null."""
    size = int((given_words[given_kinds == KIND_STRING] & _LENGTH_BITS).sum())
    kinds: Any = np.empty(len(given_kinds), np.uint8)
    words: Any = np.empty(len(given_kinds), np.int64)
    text: Any = np.empty(size, np.uint8)
    text_kernels.change_case(given_kinds, given_words, given_text, _short_cases(change), kinds, words, text)
    further = []
    for row in np.flatnonzero(words < 0).tolist():
        start, length = divmod(int(given_words[row]), 1 << 32)
        string = given_text[start : start + length].tobytes().decode("utf-8", "surrogatepass")
        changed = change(string).encode("utf-8", "surrogatepass")
        words[row] = size << 32 | len(changed)
        size += len(changed)
        further.append(changed)
    if further:
        text = np.concatenate([text, np.frombuffer(b"".join(further), np.uint8)])
    return frozen(kinds), frozen(words), frozen(text)
