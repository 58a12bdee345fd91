"""Values by columns: attributes, constants, arithmetic, and conditions used as values."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.expression import Arithmetic, Literal, Negate, Scalar
from fieldfare.matching.columns import (
    KIND_EXACT,
    KIND_FALSE,
    KIND_INT,
    KIND_MISSING,
    KIND_NULL,
    KIND_STRING,
    KIND_TRUE,
)
from fieldfare.matching.evaluation import kernels
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.truth import FALSE, TRUE, UNKNOWN
from fieldfare.matching.evaluation.view import Truths, View
from fieldfare.model import Path

NO_WORDS: Any = frozen(np.zeros(0, np.int64))
NO_TEXT: Any = frozen(np.zeros(0, np.uint8))
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

OPERATORS = {
    "+": kernels.ADD,
    "-": kernels.SUBTRACT,
    "*": kernels.MULTIPLY,
    "/": kernels.DIVIDE,
    "%": kernels.REMAINDER,
}


class Values(NamedTuple):
    """One value a row, as the kernels read them; see ``kernels`` for the kinds.

    Row i's are at ``i * step``, so a constant (step 0) is kept once.
    """

    kinds: NDArray[np.uint8]
    words: NDArray[np.int64]
    seconds: NDArray[np.int64]
    text: NDArray[np.uint8]
    step: int


def spread(values: Values, size: int) -> Values:
    """The values with one for each row, also of a constant."""
    if values.step:
        return values
    kinds, words = np.repeat(values.kinds, size), np.repeat(values.words, size)
    seconds = np.repeat(values.seconds, size)
    return Values(frozen(kinds), frozen(words), frozen(seconds), values.text, 1)


class Operand(Protocol):
    """Something that has a value for each row."""

    cost_ns: float
    """What a row costs, roughly."""

    def values(self, view: View) -> Values: ...


def _constant(kind: int, word: int = 0, second: int = 0, text: bytes = b"") -> Values:
    return Values(
        frozen(np.array([kind], np.uint8)),
        frozen(np.array([word], np.int64)),
        frozen(np.array([second], np.int64)),
        np.frombuffer(text, np.uint8) if text else NO_TEXT,
        0,
    )


_MISSING = _constant(KIND_MISSING)


class AttributeOperand:
    """The value of an attribute."""

    cost_ns = 1.0

    def __init__(self, path: Path) -> None:
        self.path = path

    def values(self, view: View) -> Values:
        column = view.column(self.path)
        if column is None:
            return _MISSING
        return Values(column.kinds, column.words, NO_WORDS, view.text, 1)


class LiteralOperand:
    """A constant."""

    cost_ns = 0.0

    def __init__(self, value: Scalar) -> None:
        self._values = _constant_of(value)

    def values(self, _view: View) -> Values:
        return self._values


def _constant_of(value: Scalar) -> Values:
    if value is None:
        return _constant(KIND_NULL)
    if isinstance(value, bool):
        return _constant(KIND_TRUE if value else KIND_FALSE)
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return _constant(KIND_STRING, len(text), 0, text)
    if isinstance(value, Decimal) and not -30 <= value.adjusted() <= 30:
        return _constant(KIND_EXACT)
    fraction = Fraction(value)
    if not (_LEAST <= fraction.numerator <= _MOST and fraction.denominator <= _MOST):
        return _constant(KIND_EXACT)
    if fraction.denominator == 1:
        return _constant(KIND_INT, fraction.numerator)
    return _constant(kernels.KIND_RATIO, fraction.numerator, fraction.denominator)


class ArithmeticOperand:
    """``left <operator> right``."""

    def __init__(self, operator: str, left: Operand, right: Operand) -> None:
        self.operator = OPERATORS[operator]
        self.left = left
        self.right = right
        self.cost_ns = left.cost_ns + right.cost_ns + 20

    def values(self, view: View) -> Values:
        known: Values | None = view.memo.get(id(self))
        if known is None:
            left, right = self.left.values(view), self.right.values(view)
            size = view.size if left.step or right.step else 1
            kinds, words, seconds = (
                np.empty(size, np.uint8),
                np.empty(size, np.int64),
                np.empty(size, np.int64),
            )
            kernels.calculate_values(self.operator, left, right, kinds, words, seconds)
            step = left.step | right.step
            known = Values(frozen(kinds), frozen(words), frozen(seconds), NO_TEXT, step)
            view.memo[id(self)] = known
        return known


class AbsoluteOperand:
    """ABS(number)."""

    def __init__(self, operand: Operand) -> None:
        self.operand = operand
        self.cost_ns = operand.cost_ns + 5

    def values(self, view: View) -> Values:
        given = spread(self.operand.values(view), view.size)
        kinds: Any = np.empty(view.size, np.uint8)
        words: Any = np.empty(view.size, np.int64)
        kernels.absolute_values(given.kinds, given.words, kinds, words)
        return Values(frozen(kinds), frozen(words), given.seconds, NO_TEXT, 1)


class TruthOperand:
    """A condition as a value: true, false, or none."""

    _KINDS = np.zeros(3, np.uint8)
    _KINDS[[FALSE, UNKNOWN, TRUE]] = KIND_FALSE, KIND_NULL, KIND_TRUE

    def __init__(self, condition: Any) -> None:
        self.condition = condition
        self.cost_ns = condition.cost_ns

    def values(self, view: View) -> Values:
        known: Values | None = view.memo.get(id(self))
        if known is None:
            truths: Truths = self.condition.truths(view, True)
            words: Any = frozen(np.zeros(view.size, np.int64))
            kinds: Any = frozen(self._KINDS[truths])
            known = view.memo[id(self)] = Values(kinds, words, NO_WORDS, NO_TEXT, 1)
        return known


def negated(e: Negate) -> Arithmetic:
    """Minus a number, as what is left of 0."""
    return Arithmetic("-", Literal(0), e.operand)
