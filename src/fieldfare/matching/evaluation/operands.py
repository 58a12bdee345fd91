"""Values by columns: attributes, constants, computed values, and conditions used as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol

import numpy as np

from fieldfare.filters.expression import Scalar
from fieldfare.matching.evaluation.kinds import KIND_RATIO
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.truth import FALSE, TRUE, UNKNOWN
from fieldfare.matching.evaluation.view import NO_TEXT, NO_WORDS, Key, Truths, Values, View, readable
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


def spread(values: Values, size: int) -> Values:
    """Repeat a constant for each row; other values are returned unchanged."""
    if values.step:
        return values
    kinds, words = np.repeat(values.kinds[:1], size), np.repeat(values.words[:1], size)
    seconds = np.repeat(values.seconds[:1], size)
    return Values(frozen(kinds), frozen(words), frozen(seconds), values.text, 1)


class Operand(Protocol):
    """An expression with a value for each row."""

    cost_ns: float
    """Estimated cost per row, in ns."""

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
    """Convert constants to values."""
    kinds: list[int] = []
    words: list[int] = []
    seconds: list[int] = []
    text = bytearray()
    for value in given:
        if isinstance(value, str):
            encoded = value.encode("utf-8", "surrogatepass")
            kind, word, second = KIND_STRING, len(text) << 32 | len(encoded), 0
            text += encoded
        else:
            kind, word, second = _cell(value)
        kinds.append(kind)
        words.append(word)
        seconds.append(second)
    shown = np.frombuffer(bytes(text), np.uint8)
    columns = np.array(kinds, np.uint8), np.array(words, np.int64), np.array(seconds, np.int64)
    return Values(frozen(columns[0]), frozen(columns[1]), frozen(columns[2]), shown, step)


def joined(first: Values, second: Values) -> Values:
    """Concatenate values that have one row each."""
    behind = np.where(second.kinds == KIND_STRING, len(first.text) << 32, 0)
    kinds = np.concatenate((first.kinds, second.kinds))
    words = np.concatenate((first.words, second.words + behind))
    seconds = np.concatenate((first.seconds, second.seconds))
    text = np.concatenate((first.text, second.text))
    return filled(kinds, words, seconds, text)


def _cell(value: int | Decimal | None) -> tuple[int, int, int]:
    """Return (kind, word, second word) of a constant that is not a string."""
    if type(value) is int:
        return (KIND_INT, value, 0) if _LEAST <= value <= _MOST else (KIND_EXACT, 0, 0)
    if value is None:
        return KIND_NULL, 0, 0
    if isinstance(value, bool):
        return (KIND_TRUE if value else KIND_FALSE), 0, 0
    if isinstance(value, Decimal) and not -30 <= value.adjusted() <= 30:
        return KIND_EXACT, 0, 0
    numerator, denominator = value.as_integer_ratio()
    if not (_LEAST <= numerator <= _MOST and denominator <= _MOST):
        return KIND_EXACT, 0, 0
    return (KIND_INT, numerator, 0) if denominator == 1 else (KIND_RATIO, numerator, denominator)


Compute = Callable[..., Values]
"""``compute(size, *operands)`` returns `size` results of a function, or one for all rows if all operands are
constants."""


class ComputedOperand:
    """The result of a function of other operands.

    Parameters
    ----------
    key
        Identifies the result, if other filters may compute it too; None if it cannot be shared.
    """

    def __init__(
        self, compute: Compute, operands: Sequence[Operand], cost_ns: float, key: Key | None
    ) -> None:
        self._of_values = compute
        self.operands = operands
        self.cost_ns = cost_ns + sum(operand.cost_ns for operand in operands)
        self.key = key

    def values(self, view: View) -> Values:
        return view.shared(self.key or self, self._compute)

    def _compute(self, view: View) -> Values:
        given = [operand.values(view) for operand in self.operands]
        return self._of_values(view.size if any(each.step for each in given) else 1, *given)


def filled(kinds: Any, words: Any, seconds: Any = NO_WORDS, text: Any = NO_TEXT, step: int = 1) -> Values:
    """Make values from new arrays, which become read-only."""
    return Values(frozen(kinds), frozen(words), frozen(seconds), readable(text), step)


class TruthOperand:
    """A condition as a value: true, false, or null."""

    _KINDS = np.zeros(3, np.uint8)
    _KINDS[[FALSE, UNKNOWN, TRUE]] = KIND_FALSE, KIND_NULL, KIND_TRUE

    def __init__(self, condition: Any) -> None:
        self.condition = condition
        self.cost_ns = condition.cost_ns

    def values(self, view: View) -> Values:
        return view.shared(self, self._compute)

    def _compute(self, view: View) -> Values:
        truths: Truths = self.condition.truths(view, True)
        words: Any = np.zeros(view.size, np.int64)
        return filled(self._KINDS[truths], words)
