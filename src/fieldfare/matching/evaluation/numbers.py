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
    """Allocate kinds, words and second words for output."""
    return np.empty(size, np.uint8), np.empty(size, np.int64), np.empty(size, np.int64)


def step_of(*given: Values) -> int:
    """Return the step of a result computed from these values."""
    return max(each.step for each in given)


def arithmetic(operator: str, nearly: bool) -> Compute:
    """Make ``left <operator> right``; without ``nearly``, only results that are exact in 64 bits."""

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
    """Keep numbers, and replace other values by null."""
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
    """Make a cast that keeps values of the right kinds and range, and leaves other values to Python.

    Parameters
    ----------
    least, most
        The first and the last kind to keep. (Null and missing values become null.)
    bits
        Maximum bits of an integer, with its sign.
    """

    def compute(size: int, given: Values) -> Values:
        kinds: Any = np.empty(size, np.uint8)
        number_kernels.cast_values(given, least, most, (1 << bits - 1) - 1, kinds)
        return filled(kinds, given.words, given.seconds, given.text, given.step)

    return compute
