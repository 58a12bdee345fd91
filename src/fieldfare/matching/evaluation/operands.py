"""Values by columns: attributes, constants, arithmetic, and conditions used as values."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Protocol

import numpy as np

from fieldfare.filters.expression import Arithmetic, Literal, Negate, Scalar
from fieldfare.matching.evaluation import kernels
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.truth import FALSE, TRUE, UNKNOWN
from fieldfare.matching.evaluation.view import NO_TEXT, NO_WORDS, Truths, Values, View
from fieldfare.matching.events.columns import (
    KIND_EXACT,
    KIND_FALSE,
    KIND_INT,
    KIND_NULL,
    KIND_STRING,
    KIND_TRUE,
)
from fieldfare.model import Path

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

OPERATORS = {
    "+": kernels.ADD,
    "-": kernels.SUBTRACT,
    "*": kernels.MULTIPLY,
    "/": kernels.DIVIDE,
    "%": kernels.REMAINDER,
}


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


class AttributeOperand:
    """The value of an attribute."""

    cost_ns = 1.0

    def __init__(self, path: Path) -> None:
        self.path = path

    def values(self, view: View) -> Values:
        return view.operand(self.path)


class LiteralOperand:
    """A constant."""

    cost_ns = 0.0

    def __init__(self, value: Scalar) -> None:
        self._values = constants([value], 0)

    def values(self, _view: View) -> Values:
        return self._values


def constants(given: Sequence[Scalar], step: int) -> Values:
    """Constants as values."""
    kinds, words = np.empty(len(given), np.uint8), np.empty(len(given), np.int64)
    seconds, text = np.empty(len(given), np.int64), bytearray()
    for place, value in enumerate(given):
        if isinstance(value, str):
            encoded = value.encode("utf-8", "surrogatepass")
            kinds[place], words[place], seconds[place] = KIND_STRING, len(text) << 32 | len(encoded), 0
            text += encoded
        else:
            kinds[place], words[place], seconds[place] = _cell(value)
    return Values(frozen(kinds), frozen(words), frozen(seconds), np.frombuffer(bytes(text), np.uint8), step)


def _cell(value: int | Decimal | None) -> tuple[int, int, int]:
    """Kind, word and second word of a constant that is no string."""
    if value is None:
        return KIND_NULL, 0, 0
    if isinstance(value, bool):
        return (KIND_TRUE if value else KIND_FALSE), 0, 0
    if isinstance(value, Decimal) and not -30 <= value.adjusted() <= 30:
        return KIND_EXACT, 0, 0
    numerator, denominator = value.as_integer_ratio()
    if not (_LEAST <= numerator <= _MOST and denominator <= _MOST):
        return KIND_EXACT, 0, 0
    return (KIND_INT, numerator, 0) if denominator == 1 else (kernels.KIND_RATIO, numerator, denominator)


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


class CastOperand:
    """A value that stays as it is if it is of some kinds, and small enough; else Python casts it.

    Parameters
    ----------
    operand
        The value; null and missing ones stay null.
    least, most
        The kinds from the least to the most.
    bits
        How many bits a whole number has at most, with its sign.
    """

    def __init__(self, operand: Operand, least: int, most: int, bits: int = 64) -> None:
        self.operand = operand
        self.kinds = (least, most)
        self.reach = (1 << bits - 1) - 1
        self.cost_ns = operand.cost_ns + 2

    def values(self, view: View) -> Values:
        given = spread(self.operand.values(view), view.size)
        kinds: Any = np.empty(view.size, np.uint8)
        kernels.cast_values(given.kinds, given.words, *self.kinds, self.reach, kinds)
        return Values(frozen(kinds), given.words, given.seconds, given.text, 1)


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
