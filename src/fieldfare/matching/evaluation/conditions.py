"""Conditions by columns: each computes one truth value for each row of a view.

``truths(view, exactly)`` may return FALSE for UNKNOWN and vice versa unless ``exactly`` is true: at the top
of a filter, and below AND and OR there, only TRUE matters. The caller may modify the returned array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.evaluation import kernels
from fieldfare.matching.evaluation.kinds import KIND_ASK
from fieldfare.matching.evaluation.operands import Operand
from fieldfare.matching.evaluation.tables import Table
from fieldfare.matching.evaluation.truth import ASK, FALSE, TRUE
from fieldfare.matching.evaluation.view import RowByRow, Truths, View
from fieldfare.matching.events.columns import KIND_MISSING, KIND_NULL

TAKE_NS = 6_000
"""Estimated cost in ns of continuing with fewer rows; `_TAKE_ROW_NS` is the cost per remaining row."""
_TAKE_ROW_NS = 8.0


class Condition(Protocol):
    """A condition that is true, false or unknown for each row."""

    cost_ns: float
    """Estimated cost per row, in ns."""

    def truths(self, view: View, exactly: bool) -> Truths: ...


class ConstantCondition:
    """A condition with equal truth for all rows."""

    cost_ns = 0.0

    def __init__(self, truth: int) -> None:
        self.truth = truth

    def truths(self, view: View, exactly: bool) -> Truths:
        return np.full(view.size, self.truth, np.uint8)


class ByTable:
    """A predicate on one value, decided by a table."""

    def __init__(self, operand: Operand, table: Table, asked: RowByRow) -> None:
        self.operand = operand
        self.table = table
        self.asked = asked
        self.cost_ns = operand.cost_ns + (2.0 if len(table.heads) == 0 else 6.0)

    def truths(self, view: View, exactly: bool) -> Truths:
        values = self.operand.values(view)
        truths = np.empty(view.size if values.step else 1, np.uint8)
        is_asked = kernels.test_values(values, self.table, truths)
        if values.step == 0:
            truths = np.full(view.size, truths[0], np.uint8)
        if is_asked:
            self.asked.settle(view, truths, ASK)
        return truths


class Compared:
    """A comparison of two values."""

    def __init__(self, left: Operand, right: Operand, accepted: NDArray[np.uint8], asked: RowByRow) -> None:
        self.left = left
        self.right = right
        self.accepted = accepted
        self.asked = asked
        self.cost_ns = left.cost_ns + right.cost_ns + 8

    def truths(self, view: View, exactly: bool) -> Truths:
        truths = np.empty(view.size, np.uint8)
        left, right = self.left.values(view), self.right.values(view)
        if kernels.compare_values(left, right, self.accepted, truths):
            self.asked.settle(view, truths, ASK)
        return truths


class HasNoValue:
    """IS NULL of a computed value."""

    def __init__(self, operand: Operand, asked: RowByRow) -> None:
        self.operand = operand
        self.asked = asked
        self.cost_ns = operand.cost_ns + 2

    def truths(self, view: View, exactly: bool) -> Truths:
        values = self.operand.values(view)
        kinds = values.kinds if values.step else np.broadcast_to(values.kinds, view.size)
        truths: Truths = ((kinds == KIND_NULL) | (kinds == KIND_MISSING)).astype(np.uint8) * np.uint8(TRUE)
        unknown = kinds >= KIND_ASK
        if unknown.any():
            truths[unknown] = ASK
            self.asked.settle(view, truths, ASK)
        return truths


class InPython:
    """A condition without a kernel, evaluated in Python."""

    cost_ns = 1_000.0

    def __init__(self, asked: RowByRow) -> None:
        self.asked = asked

    def truths(self, view: View, exactly: bool) -> Truths:
        return self.asked.truths(view)


class Negated:
    """NOT."""

    def __init__(self, operand: Condition) -> None:
        self.operand = operand
        self.cost_ns = operand.cost_ns

    def truths(self, view: View, exactly: bool) -> Truths:
        return np.subtract(np.uint8(TRUE), self.operand.truths(view, True))


class Tested:
    """IS TRUE, IS FALSE, IS UNKNOWN."""

    def __init__(self, operand: Condition, truth: int) -> None:
        self.operand = operand
        self.truth = truth
        self.cost_ns = operand.cost_ns

    def truths(self, view: View, exactly: bool) -> Truths:
        truths: Truths = (self.operand.truths(view, True) == self.truth) * np.uint8(TRUE)
        return truths


class Joined:
    """AND and OR with short-circuit evaluation: decided rows are skipped where that pays off.

    Operands have no errors or side effects, so they are evaluated in the order of their cost.
    """

    def __init__(self, operands: Sequence[Condition], decisive: int) -> None:
        self.operands = sorted(operands, key=lambda operand: operand.cost_ns)
        self.decisive = decisive
        self.cost_ns = sum(operand.cost_ns for operand in operands)
        costs = [operand.cost_ns for operand in reversed(self.operands)]
        self._rest_ns = np.cumsum(costs)[::-1].tolist()

    def truths(self, view: View, exactly: bool) -> Truths:
        return self._fold(0, view, exactly)

    def _fold(self, first: int, view: View, exactly: bool) -> Truths:
        """Evaluate the operands from ``first`` on."""
        truths = self.operands[first].truths(view, exactly)
        for place in range(first + 1, len(self.operands)):
            still_open = self._open(truths, exactly)
            count = np.count_nonzero(still_open)
            if count == 0:
                return truths
            if (view.size - count) * self._rest_ns[place] > TAKE_NS + _TAKE_ROW_NS * count:
                rows = np.flatnonzero(still_open)
                rest = self._fold(place, view.take(rows), exactly)
                truths[rows] = self._join(truths[rows], rest)
                return truths
            truths = self._join(truths, self.operands[place].truths(view, exactly))
        return truths

    def _open(self, truths: Truths, exactly: bool) -> NDArray[np.bool_]:
        """Return the rows whose truth another operand may change."""
        rows: NDArray[np.bool_]
        if self.decisive == TRUE:
            rows = truths != TRUE
        else:
            rows = truths != FALSE if exactly else truths == TRUE
        return rows

    def _join(self, truths: Truths, others: Truths) -> Truths:
        if self.decisive == FALSE:
            return np.minimum(truths, others, out=truths)
        return np.maximum(truths, others, out=truths)


class InOrder:
    """AND THEN, OR ELSE: from left to right; the first operand whose truth is not `goes_on` decides, even
    UNKNOWN."""

    def __init__(self, operands: Sequence[Condition], goes_on: int) -> None:
        self.operands = operands
        self.goes_on = goes_on
        self.cost_ns = sum(operand.cost_ns for operand in operands)

    def truths(self, view: View, exactly: bool) -> Truths:
        truths = self.operands[0].truths(view, exactly or self.goes_on == FALSE)
        rest_ns = self.cost_ns - self.operands[0].cost_ns
        for operand in self.operands[1:]:
            undecided = truths == self.goes_on
            count = np.count_nonzero(undecided)
            if count == 0:
                break
            if (view.size - count) * rest_ns > TAKE_NS + _TAKE_ROW_NS * count:
                rows = np.flatnonzero(undecided)
                truths[rows] = operand.truths(view.take(rows), exactly or self.goes_on == FALSE)
            else:
                others = operand.truths(view, exactly or self.goes_on == FALSE)
                truths = np.where(undecided, others, truths)
            rest_ns -= operand.cost_ns
        return truths


def accepted(below: bool, equal: bool, above: bool) -> NDArray[np.uint8]:
    """Return the truth values of an operator for a smaller, an equal and a greater left side, for
    ``Compared``."""
    array = np.array([TRUE if order else FALSE for order in (below, equal, above)], np.uint8)
    array.flags.writeable = False
    return array
