"""Conditions and values over strings, by columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.expression import Wild
from fieldfare.matching.evaluation import text_kernels
from fieldfare.matching.evaluation.operands import Operand, spread
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.truth import ASK
from fieldfare.matching.evaluation.view import NO_TEXT, NO_WORDS, Pieces, RowByRow, Truths, Values, View
from fieldfare.matching.events.columns import KIND_STRING

_LENGTH_BITS = 0xFFFFFFFF


class Fits:
    """LIKE with a pattern of pieces between RUNs.

    Parameters
    ----------
    operand
        What must fit.
    parts
        The pieces; a number stands for one that each row has its own of.
    """

    def __init__(self, operand: Operand, parts: list[bytes | int], asked: RowByRow) -> None:
        self.operand = operand
        self.asked = asked
        self.parts = parts
        self.pieces = pieces_as_arrays([[part if isinstance(part, bytes) else b"" for part in parts]])
        self.cost_ns = operand.cost_ns + (30.0 if len(parts) > 2 else 8.0)

    def truths(self, view: View, exactly: bool) -> Truths:
        values = spread(self.operand.values(view), view.size)
        truths = np.empty(view.size, np.uint8)
        pieces = view.pieces(self.pieces, self.parts)
        if text_kernels.fit_values(values.kinds, values.words, values.text, pieces, len(self.parts), truths):
            self.asked.settle(view, truths, ASK)
        return truths


def pieces_as_arrays(patterns: Sequence[Sequence[bytes]]) -> Pieces:
    """The pieces of patterns of equally many, one pattern after the other; for the first pattern."""
    pieces = [piece for pattern in patterns for piece in pattern]
    text = frozen(np.frombuffer(b"".join(pieces), np.uint8))
    starts = frozen(np.cumsum([0, *map(len, pieces)], dtype=np.int64))
    return Pieces(text, starts, frozen(np.zeros(1, np.int64)), 0)


def pieces_of(pattern: Sequence[Any]) -> list[bytes | int] | None:
    """What stands before, between and after the RUNs of a pattern; None if no kernel looks for it.

    Beside what a Pattern has there may be ints in place of texts: they stay as they are.
    """
    pieces: list[bytes | int] = [b""]
    for part in pattern:
        if part is Wild.RUN:
            pieces.append(b"")
        elif part is Wild.ONE or pieces[-1] != b"":
            return None
        else:
            pieces[-1] = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
    if len(pieces) < 2 or any(is_long(piece) for piece in pieces[1:-1]):
        return None
    return pieces


def is_long(piece: bytes | int) -> bool:
    """Whether a piece between others is too long for the kernel."""
    return isinstance(piece, bytes) and len(piece) > text_kernels.MOST_PIECE_BYTES


class LengthOperand:
    """LENGTH(text)."""

    def __init__(self, operand: Operand) -> None:
        self.operand = operand
        self.cost_ns = operand.cost_ns + 10

    def values(self, view: View) -> Values:
        given = spread(self.operand.values(view), view.size)
        kinds: Any = np.empty(view.size, np.uint8)
        lengths: Any = np.empty(view.size, np.int64)
        text_kernels.measure_values(given.kinds, given.words, given.text, kinds, lengths)
        return Values(frozen(kinds), frozen(lengths), NO_WORDS, NO_TEXT, 1)


class CaseOperand:
    """LOWER(text), UPPER(text) or CASEFOLD(text); Python does it for strings that are not all ASCII."""

    def __init__(self, operand: Operand, change: Callable[[str], str]) -> None:
        self.operand = operand
        self.change = change
        self.cost_ns = operand.cost_ns + 15

    def values(self, view: View) -> Values:
        known: Values | None = view.memo.get(id(self))
        if known is None:
            given = spread(self.operand.values(view), view.size)
            changed = with_case(given.kinds, given.words, given.text, self.change)
            known = view.memo[id(self)] = Values(*changed[:2], NO_WORDS, changed[2], 1)
        return known


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
    first = ord("A") if change("A") == "a" else ord("a")
    text_kernels.change_case(given_kinds, given_words, given_text, first, kinds, words, text)
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
