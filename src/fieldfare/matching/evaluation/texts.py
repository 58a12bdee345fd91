"""Conditions and values over strings, by columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.filters.expression import Pattern, Wild
from fieldfare.matching.columns import KIND_STRING
from fieldfare.matching.evaluation import text_kernels
from fieldfare.matching.evaluation.operands import NO_TEXT, NO_WORDS, Operand, Values, spread
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.view import Truths, View

_LENGTH_BITS = 0xFFFFFFFF


class Fits:
    """LIKE with a pattern of pieces between RUNs."""

    def __init__(self, operand: Operand, pieces: list[bytes]) -> None:
        self.operand = operand
        self.pieces: Any = frozen(np.frombuffer(b"".join(pieces) or b"\0", np.uint8))
        self.starts: Any = frozen(np.cumsum([0, *map(len, pieces)], dtype=np.int64))
        self.cost_ns = operand.cost_ns + (30.0 if len(pieces) > 2 else 8.0)

    def truths(self, view: View, exactly: bool) -> Truths:
        values = spread(self.operand.values(view), view.size)
        truths = np.empty(view.size, np.uint8)
        text_kernels.fit_values(values.kinds, values.words, values.text, self.pieces, self.starts, truths)
        return truths


def pieces_of(pattern: Pattern) -> list[bytes] | None:
    """What stands before, between and after the RUNs of a pattern; None if no kernel looks for it."""
    pieces = [b""]
    for part in pattern:
        if part is Wild.RUN:
            pieces.append(b"")
        elif isinstance(part, str):
            pieces[-1] += part.encode("utf-8", "surrogatepass")
        else:
            return None
    if len(pieces) < 2 or any(len(piece) > text_kernels.MOST_PIECE_BYTES for piece in pieces[1:-1]):
        return None
    return pieces


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
    """LOWER(text) or UPPER(text); Python does it for strings that are not all ASCII."""

    def __init__(self, operand: Operand, lower: bool) -> None:
        self.operand = operand
        self.change = str.lower if lower else str.upper
        self.first = ord("A") if lower else ord("a")
        self.cost_ns = operand.cost_ns + 15

    def values(self, view: View) -> Values:
        known: Values | None = view.memo.get(id(self))
        if known is None:
            known = view.memo[id(self)] = self._changed(spread(self.operand.values(view), view.size))
        return known

    def _changed(self, given: Values) -> Values:
        size = int((given.words[given.kinds == KIND_STRING] & _LENGTH_BITS).sum())
        kinds: Any = np.empty(len(given.kinds), np.uint8)
        words: Any = np.empty(len(given.kinds), np.int64)
        text: Any = np.empty(size, np.uint8)
        text_kernels.change_case(given.kinds, given.words, given.text, self.first, kinds, words, text)
        further = []
        for row in np.flatnonzero(words < 0).tolist():
            start, length = divmod(int(given.words[row]), 1 << 32)
            string = given.text[start : start + length].tobytes().decode("utf-8", "surrogatepass")
            changed = self.change(string).encode("utf-8", "surrogatepass")
            words[row] = size << 32 | len(changed)
            size += len(changed)
            further.append(changed)
        if further:
            text = np.concatenate([text, np.frombuffer(b"".join(further), np.uint8)])
        return Values(frozen(kinds), frozen(words), NO_WORDS, frozen(text), 1)
