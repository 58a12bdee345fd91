"""CESQL's operators and functions by columns, for values that need no cast; Python does the casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.filters.cesql.builtins import RESULT_CHARACTERS_MAX
from fieldfare.matching.evaluation import cesql_kernels, strings, texts
from fieldfare.matching.evaluation.numbers import cast, step_of
from fieldfare.matching.evaluation.operands import Compute, filled, spread
from fieldfare.matching.evaluation.view import Values
from fieldfare.matching.events.columns import KIND_FALSE, KIND_INT, KIND_NULL, KIND_STRING, KIND_TRUE

as_integer = cast(KIND_INT, KIND_INT, bits=32)
as_string = cast(KIND_STRING, KIND_STRING)
as_boolean = cast(KIND_FALSE, KIND_TRUE)


def of_strings(compute: Compute) -> Compute:
    """Make a function of strings."""
    return lambda size, *given: compute(size, *[_cast(as_string, each) for each in given])


def of_string_and_count(compute: Compute) -> Compute:
    """Make a function of a string and an integer."""
    return lambda size, text, count: compute(size, _cast(as_string, text), _cast(as_integer, count))


def _cast(casting: Compute, given: Values) -> Values:
    return casting(len(given.kinds), given)


def calculated(operator: int) -> Compute:
    """An operator of 32-bit integers (a constant of ``cesql_kernels``); for unary ones the second is
    ignored."""

    def compute(size: int, left: Values, right: Values | None = None) -> Values:
        right = left if right is None else right
        kinds: Any = np.empty(size, np.uint8)
        words: Any = np.empty(size, np.int64)
        cesql_kernels.calculate_integers(operator, left, right, kinds, words)
        return filled(kinds, words, step=step_of(left, right))

    return compute


def equal(size: int, left: Values, right: Values) -> Values:
    """CESQL_EQUAL(left, right)."""
    kinds: Any = np.empty(size, np.uint8)
    cesql_kernels.equal_values(left, right, kinds)
    return filled(kinds, np.zeros(size, np.int64), step=step_of(left, right))


def negated(size: int, given: Values) -> Values:
    """CESQL_NOT(value)."""
    kinds: Any = np.empty(size, np.uint8)
    cesql_kernels.negate_values(given, kinds)
    return filled(kinds, np.zeros(size, np.int64), step=given.step)


def is_in(size: int, given: Values, *items: Values) -> Values:
    """CESQL_IN(value, item, ...): the first item that is equal, or an error, decides."""
    kinds: Any = np.full(size, KIND_FALSE, np.uint8)
    for item in items:
        found = spread(equal(size, item, given), size).kinds
        kinds = np.where(kinds == KIND_FALSE, found, kinds)
    kinds[spread(given, size).kinds <= KIND_NULL] = KIND_NULL
    return filled(kinds, np.zeros(size, np.int64), step=step_of(given, *items))


length = of_strings(texts.length)
lower = of_strings(texts.case_changed(str.lower))
upper = of_strings(texts.case_changed(str.upper))
concatenated = of_strings(strings.joined(RESULT_CHARACTERS_MAX))
