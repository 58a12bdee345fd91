"""Arithmetic and the functions of numbers, by columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fieldfare.matching.evaluation import number_kernels
from fieldfare.matching.evaluation.operands import Compute, filled
from fieldfare.matching.evaluation.view import Values

OPERATORS = {
    "+": number_kernels.ADD,
    "-": number_kernels.SUBTRACT,
    "*": number_kernels.MULTIPLY,
    "/": number_kernels.DIVIDE,
    "%": number_kernels.REMAINDER,
}


def fresh(size: int) -> tuple[Any, Any, Any]:
    """Kinds, words and second words to be written."""
    return np.empty(size, np.uint8), np.empty(size, np.int64), np.empty(size, np.int64)


def step_of(*given: Values) -> int:
    """The step of what is computed of values."""
    return max(each.step for each in given)


def arithmetic(operator: str, nearly: bool) -> Compute:
    """``left <operator> right``; without ``nearly``, only what is exact in 64 bits."""

    def compute(size: int, left: Values, right: Values) -> Values:
        out = fresh(size)
        number_kernels.calculate_values(OPERATORS[operator], nearly, left, right, *out)
        return filled(*out, step=step_of(left, right))

    return compute


def absolute(size: int, given: Values) -> Values:
    """ABS(number)."""
    out = fresh(size)
    number_kernels.absolute_values(given, *out)
    return filled(*out, step=given.step)


def numbers_only(size: int, given: Values) -> Values:
    """A number as it is, null for what is none."""
    kinds: Any = np.empty(size, np.uint8)
    number_kernels.keep_numbers(given, kinds)
    return filled(kinds, given.words, given.seconds, step=given.step)


def rounded_to_whole(up: bool) -> Compute:
    """FLOOR(number), CEIL(number)."""

    def compute(size: int, given: Values) -> Values:
        kinds, words, _ = fresh(size)
        number_kernels.floor_values(given, up, kinds, words)
        return filled(kinds, words, step=given.step)

    return compute


def rounded(size: int, given: Values, digits: Values) -> Values:
    """ROUND(number, digits)."""
    out = fresh(size)
    number_kernels.round_values(given, digits, *out)
    return filled(*out, step=step_of(given, digits))


def read(size: int, given: Values) -> Values:
    """NUMBER(value)."""
    out = fresh(size)
    number_kernels.read_numbers(given, *out)
    return filled(*out, step=given.step)


def cast(least: int, most: int, bits: int = 64) -> Callable[[int, Values], Values]:
    """A value that stays as it is if it is of some kinds, and small enough; else Python casts it.

    Parameters
    ----------
    least, most
        The kinds from the least to the most. (Null and missing values stay null.)
    bits
        How many bits a whole number has at most, with its sign.
    """

    def compute(size: int, given: Values) -> Values:
        kinds: Any = np.empty(size, np.uint8)
        number_kernels.cast_values(given, least, most, (1 << bits - 1) - 1, kinds)
        return filled(kinds, given.words, given.seconds, given.text, given.step)

    return compute
