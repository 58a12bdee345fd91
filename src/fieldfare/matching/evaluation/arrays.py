"""Array functions by columns: the number of elements, and the element at an index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fieldfare.matching.evaluation.elements import Elements, shared_elements
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK
from fieldfare.matching.evaluation.operands import Operand, filled, spread
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.values import either
from fieldfare.matching.evaluation.view import NO_WORDS, Key, Rows, Values, View, readable
from fieldfare.matching.events.columns import KIND_EXACT, KIND_INT, KIND_MISSING, KIND_NULL, KIND_OTHER
from fieldfare.model import Path

Read = Callable[..., Values]
"""``read(known, elements, rows, which, *operands)``: what is known, and with it what a function gives for the
rows that have one of the arrays; which of them it is."""


class ArrayOperand:
    """The result of a function of an attribute's arrays; null for values that are neither array nor object.

    Parameters
    ----------
    read
        The function: `cardinality` or `element_at`.
    operands
        The function's other operands.
    key
        Identifies the result, if other filters may compute it too; None if it cannot be shared.
    """

    def __init__(self, read: Read, path: Path, operands: Sequence[Operand], key: Key | None) -> None:
        self.read = read
        self.path = path
        self.operands = operands
        self.key = key
        self.cost_ns = 200.0 + sum(operand.cost_ns for operand in operands)

    def values(self, view: View) -> Values:
        return view.shared(self.key or self, self._compute)

    def _compute(self, view: View) -> Values:
        is_open = spread(view.operand(self.path), view.size).kinds == KIND_OTHER
        kinds: Any = np.where(is_open, np.uint8(KIND_ANY), np.uint8(KIND_NULL))
        known = filled(kinds, np.zeros(view.size, np.int64))
        owner, owners = view.owner(self.path)
        arrays = np.flatnonzero(owner.arrays(self.path))
        if len(arrays):
            given = [spread(operand.values(view), view.size) for operand in self.operands]
            for found in shared_elements(owner, self.path, arrays, [()]):
                which = np.full(owner.size, -1)
                which[found.rows] = np.arange(len(found.rows))
                which = which if owners is None else which[owners]
                rows = np.flatnonzero(which >= 0)
                known = self.read(known, found, rows, which[rows], *given)
        return known


def cardinality(known: Values, found: Elements, rows: Rows, which: Rows) -> Values:
    """CARDINALITY(array)."""
    kinds, words = known.kinds.copy(), known.words.copy()
    kinds[rows], words[rows] = KIND_INT, found.counts[which]
    return filled(kinds, words)


def element_at(known: Values, found: Elements, rows: Rows, which: Rows, places: Values) -> Values:
    """ELEMENT_AT(array, place)."""
    place, counts = places.words[rows], found.counts[which]
    at = np.where(place > 0, place - 1, np.where(place < 0, place + counts, -1))
    is_told = places.kinds[rows] == KIND_INT
    is_there = is_told & (at >= 0) & (at < counts)
    known_kinds = known.kinds.copy()
    known_kinds[rows[is_told]] = KIND_NULL
    known = known._replace(kinds=frozen(known_kinds))
    batch, path = found.batches[()]
    column = batch.columns.get(path)
    if column is None or not is_there.any():
        return known
    starts = np.cumsum(found.counts) - found.counts
    rows, chosen = rows[is_there], (starts[which] + at)[is_there]
    kinds = np.maximum(column.kinds[chosen], np.uint8(KIND_NULL))
    kinds[kinds == KIND_EXACT] = KIND_ASK
    of_rows, words = np.zeros(len(known_kinds), np.uint8), np.zeros(len(known_kinds), np.int64)
    of_rows[rows], words[rows] = kinds, column.words[chosen]
    given = filled(of_rows, words, NO_WORDS, readable(batch.text))
    return either(of_rows != KIND_MISSING, given, known, 1)


ARRAYS: dict[str, Read] = {"CARDINALITY": cardinality, "ELEMENT_AT": element_at}
"""The array functions, by name."""
