"""Conditions and values over strings, by columns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.expression import Wild
from fieldfare.filters.functions.cases import LAST_CASED
from fieldfare.matching.evaluation import text_kernels
from fieldfare.matching.evaluation.kinds import KIND_ANY
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
from fieldfare.matching.events.columns import KIND_NULL, KIND_STRING, LENGTH_BITS

_WITH_CONTEXT = (0, 0xD800), (0xE000, 0x20000), (0xE0000, 0xE1000)
"""Ranges of characters that may affect a capital sigma beside them; the others have no case."""

ONE = bytes([text_kernels.ONE_BYTE])
"""Stands for ONE in a piece."""


class PiecePattern:
    """LIKE with a pattern of pieces between RUNs.

    Parameters
    ----------
    operand
        The string to test.
    parts
        The pieces; a parameter stands for a piece that differs from row to row.
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
    """Concatenate the pieces of patterns with equally many pieces; the result is for the first pattern."""
    pieces = [piece for pattern in patterns for piece in pattern]
    text = frozen(np.frombuffer(b"".join(pieces), np.uint8))
    starts = frozen(np.cumsum([0, *map(len, pieces)], dtype=np.int64))
    return Pieces(text, starts, frozen(np.zeros(1, np.int64)), 0)


def pieces_of(pattern: Sequence[str | Wild | PieceParameter]) -> list[Part] | None:
    """Split a pattern at its RUNs; None if a piece is too long for the kernels.

    In addition to the parts of a Pattern there may be parameters, each in place of a complete piece.
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
    """Whether an inner piece is too long for the kernel."""
    return isinstance(piece, bytes) and len(piece) > text_kernels.PIECE_BYTES_MAX


def length(size: int, given: Values) -> Values:
    """LENGTH(text)."""
    many = spread(given, size)
    kinds: Any = np.empty(size, np.uint8)
    lengths: Any = np.empty(size, np.int64)
    text_kernels.measure_values(many.kinds, many.words, many.text, kinds, lengths)
    return filled(kinds, lengths, step=given.step)


def case_changed(change: Callable[[str], str]) -> Compute:
    """Make LOWER(text), UPPER(text) or CASEFOLD(text)."""

    def compute(size: int, given: Values) -> Values:
        many = spread(given, size)
        kinds, words, text = with_case(many.kinds, many.words, many.text, change)
        return filled(kinds, words, NO_WORDS, text, given.step)

    return compute


class _Cases(NamedTuple):
    """The tables of a change of case, as ``text_kernels.change_case`` reads them."""

    table: NDArray[np.int32]
    more: NDArray[np.int32]
    context: NDArray[np.uint8]


@cache
def _cases_of(change: Callable[[str], str]) -> _Cases:
    changed = [change(chr(code)) for code in range(LAST_CASED + 1)]
    several = [code for code, characters in enumerate(changed) if len(characters) > 1]
    table = np.array([ord(characters[0]) for characters in changed], np.int32)
    table[several] = -1 - np.arange(len(several))
    more = np.array([[len(changed[code]), *map(ord, f"{changed[code]:3}")] for code in several], np.int32)
    context = np.zeros(1, np.uint8)
    if change("aΣ") != change("Σa")[::-1]:
        table[ord("Σ")] = text_kernels.SIGMA
        context = _sigma_context()
    return _Cases(frozen(table), frozen(more), frozen(context))


def _sigma_context() -> NDArray[np.uint8]:
    """Return how each character affects a capital sigma after it, as Python's ``str.lower`` has it."""
    codes = np.concatenate([np.arange(first, end) for first, end in _WITH_CONTEXT])
    characters = "".join(map(chr, codes)).replace("İ", "I")  # only İ has two characters

    def makes_final(before: str) -> NDArray[np.bool_]:
        text = (before + f"Σ\n{before}".join(characters) + "Σ\n").lower()
        found = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        is_final: NDArray[np.bool_] = found.reshape(-1, len(before) + 3)[:, -2] == ord("ς")
        return is_final

    alone, behind_a_letter = makes_final(""), makes_final("a")
    context = np.zeros(sys.maxunicode + 1, np.uint8)
    context[codes[behind_a_letter]] = text_kernels.IGNORED
    context[codes[alone]] = text_kernels.CASED
    return context


def with_case(
    given_kinds: NDArray[np.uint8],
    given_words: NDArray[np.int64],
    given_text: NDArray[np.uint8],
    change: Callable[[str], str],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8]]:
    """Return kinds, words and text of strings with changed case; null for other values."""
    size = int((given_words[given_kinds == KIND_STRING] & LENGTH_BITS).sum())
    words: Any = np.empty(len(given_kinds), np.int64)
    text: Any = np.empty(3 * size, np.uint8)
    end = text_kernels.change_case(given_kinds, given_words, given_text, *_cases_of(change), words, text)
    kinds = np.full(len(given_kinds), KIND_NULL, np.uint8)
    kinds[given_kinds == KIND_STRING] = KIND_STRING
    kinds[given_kinds == KIND_ANY] = KIND_ANY
    return frozen(kinds), frozen(words), frozen(text[:end])
