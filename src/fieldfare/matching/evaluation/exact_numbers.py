"""Numbers in kernels: the value of a kind, a word and a second word, exactly or within a bound."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import inlined
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK, KIND_NEAR, KIND_RATIO
from fieldfare.matching.events.columns import KIND_EXACT, KIND_FLOAT, KIND_INT

LEAST = -(2**63)
WHOLE = 2.0**53
"""Up to this magnitude, integral floats equal the integers that they print as."""
_MANTISSA_MAX = 1e15
"""No two decimals of at most 15 digits have equal nearest float64, so such a float equals what it prints
as."""
_POWERS = 10.0 ** np.arange(16)
WHOLE_POWERS = 10 ** np.arange(19)
ROUNDING = 2.0**-52
TINY = 1e-300
"""Upper bound of the error of rounding to a subnormal number."""
_SMALL, _LARGE = 1e-30, 1e30
LEAVES_MAX = 9
"""Maximum numbers in an arithmetic expression whose result may be kept inexactly.

With more, only exact results are kept, because a result whose fraction exceeds 2,048 bits
(``filters.exact.BITS_MAX``) is no value. No float between ``_SMALL`` and ``_LARGE`` has more than 220 bits as
a fraction, and an operation at most adds up the bits of its operands.
"""
_WORD = np.uint64(32)


@inlined
def as_float(word: Any) -> Any:
    """Return the float64 with the bits of a word."""
    return np.int64(word).view(np.float64)


@inlined
def as_word(value: Any) -> Any:
    """Return the bits of a float64."""
    return np.float64(value).view(np.int64)


@inlined
def _is_decimal(size: Any, digits: Any) -> Any:
    """Whether a positive float prints as a decimal of `digits` digits after the point, and at most 15 in
    all."""
    mantissa = np.rint(size * _POWERS[digits])
    return mantissa < _MANTISSA_MAX and mantissa / _POWERS[digits] == size


@inlined
def _decimal_of(value: Any, guess: Any) -> Any:
    """Convert a float to the decimal it prints as: (numerator, digits after the point), or (0, -1) if it is
    long.

    ``guess`` is the previous number's digits after the point; more digits than needed give an equal number.
    """
    size = abs(value)
    if size >= _MANTISSA_MAX:  # an integer, since all floats of this size are
        return (np.int64(value), np.int64(0)) if size <= WHOLE else (np.int64(0), np.int64(-1))
    digits = guess
    if not _is_decimal(size, digits):
        most = 15
        while most > 0 and size * _POWERS[most] >= _MANTISSA_MAX - 0.5:
            most -= 1
        if not _is_decimal(size, most):  # fewer digits fail, too
            return np.int64(0), np.int64(-1)
        digits = np.int64(0)
        while not _is_decimal(size, digits):
            digits += 1
    numerator = np.int64(np.rint(size * _POWERS[digits]))
    return -numerator if value < 0.0 else numerator, digits


@inlined
def fraction_of(kind: Any, word: Any, denominator: Any, guess: Any) -> Any:
    """Return (numerator, denominator, next guess) of a number; denominator 0 if not known exactly."""
    if kind == KIND_INT and word != LEAST:
        return word, np.int64(1), guess
    if kind == KIND_RATIO:
        return word, denominator, guess
    if kind == KIND_FLOAT:
        numerator, digits = _decimal_of(as_float(word), guess)
        if digits >= 0:
            return numerator, WHOLE_POWERS[digits], digits
    return np.int64(0), np.int64(0), guess


@inlined
def near_of(kind: Any, word: Any, second: Any) -> Any:
    """Return (a float, the maximum distance of the number from it); (NaN, NaN) if unknown."""
    if kind == KIND_INT:
        value = float(word)
        return value, abs(value) * ROUNDING
    if kind == KIND_FLOAT:
        value = as_float(word)
        return value, abs(value) * ROUNDING + TINY  # the number is the decimal that the float prints as
    if kind == KIND_RATIO:
        value = float(word) / float(second)
        return value, abs(value) * (4.0 * ROUNDING)
    if kind == KIND_NEAR:
        return as_float(word), as_float(second)
    return np.nan, np.nan


@inlined
def near_for_arithmetic(kind: Any, word: Any, second: Any) -> Any:
    """Like `near_of`, but unknown for floats that are long as a fraction; see ``LEAVES_MAX``."""
    if kind == KIND_FLOAT:
        size = abs(as_float(word))
        if size != 0.0 and not _SMALL <= size <= _LARGE:
            return np.nan, np.nan
    return near_of(kind, word, second)


@inlined
def product_of(a: Any, b: Any) -> Any:
    """Return (a * b, whether the product is certainly in range)."""
    return a * b, abs(float(a) * float(b)) < 9.2e18


@inlined
def _upper_half(a: Any, b: Any) -> Any:
    """Return the upper 64 bits of the product of two uint64."""
    mask = np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> _WORD, b & mask, b >> _WORD
    cross, other = a_low * b_high, a_high * b_low
    middle = ((a_low * b_low) >> _WORD) + (cross & mask) + (other & mask)
    return a_high * b_high + (cross >> _WORD) + (other >> _WORD) + (middle >> _WORD)


@inlined
def order_of_fractions(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return the order of a / b and c / d, for positive b and d, by 128-bit products."""
    if b == d:
        return np.int64(a > c) - np.int64(a < c)
    if (a < 0) != (c < 0):
        return np.int64(-1) if a < 0 else np.int64(1)
    left_a, right_c = np.uint64(abs(a)), np.uint64(abs(c))
    b, d = np.uint64(b), np.uint64(d)
    left_high, right_high = _upper_half(left_a, d), _upper_half(right_c, b)
    left_low, right_low = left_a * d, right_c * b
    if left_high != right_high:
        order = np.int64(left_high > right_high) - np.int64(left_high < right_high)
    else:
        order = np.int64(left_low > right_low) - np.int64(left_low < right_low)
    return -order if a < 0 else order


OPEN = 2
"""The order is unknown: the kernel cannot determine it."""


@inlined
def order_of_numbers(
    kind: Any, word: Any, second: Any, other_kind: Any, other_word: Any, other_second: Any, guess: Any
) -> Any:
    """Return (-1, 0, 1, or OPEN; the next guess)."""
    if kind == KIND_INT and other_kind == KIND_INT:
        return np.int64(word > other_word) - np.int64(word < other_word), guess
    value, away = near_of(kind, word, second)
    other_value, other_away = near_of(other_kind, other_word, other_second)
    if kind == KIND_FLOAT and other_kind == KIND_FLOAT:
        return np.int64(value > other_value) - np.int64(value < other_value), guess
    if value - other_value > away + other_away:
        return np.int64(1), guess
    if other_value - value > away + other_away:
        return np.int64(-1), guess
    numerator, denominator, guess = fraction_of(kind, word, second, guess)
    other_numerator, other_denominator, guess = fraction_of(other_kind, other_word, other_second, guess)
    if denominator == 0 or other_denominator == 0:
        return np.int64(OPEN), guess
    return order_of_fractions(numerator, denominator, other_numerator, other_denominator), guess


@inlined
def is_number(kind: Any) -> Any:
    return KIND_INT <= kind <= KIND_EXACT or KIND_RATIO <= kind <= KIND_ASK


@inlined
def second_of(kind: Any, seconds: Any, i: Any) -> Any:
    """Return the second word of a number, 0 if its kind has none."""
    return seconds[i] if KIND_RATIO <= kind <= KIND_NEAR else np.int64(0)


@inlined
def has_arithmetic(kind: Any, word: Any) -> Any:
    if kind == KIND_FLOAT:
        return abs(as_float(word)) < np.inf
    return is_number(kind) or kind == KIND_ANY


@inlined
def is_zero(kind: Any, word: Any) -> Any:
    if kind == KIND_FLOAT:
        return as_float(word) == 0.0
    return kind in (KIND_INT, KIND_RATIO) and word == 0


@inlined
def floor_of(kind: Any, word: Any, second: Any) -> Any:
    """Return (whether the floor is known, the floor of a number)."""
    if kind == KIND_INT:
        return True, word
    if kind == KIND_RATIO:
        return True, word // second
    value, away = near_of(kind, word, second)
    if kind == KIND_FLOAT:
        # A float below WHOLE lies between the same integers as the decimal that it prints as.
        return abs(value) <= WHOLE, np.int64(np.floor(value)) if abs(value) <= WHOLE else np.int64(0)
    away += abs(value) * (4.0 * ROUNDING)
    low, high = np.floor(value - away), np.floor(value + away)
    if low == high and abs(low) < WHOLE:
        return True, np.int64(low)
    return False, np.int64(0)


NOT_WHOLE, IS_WHOLE, PERHAPS_WHOLE = 0, 1, 2


@inlined
def whole_of(kind: Any, word: Any, second: Any) -> Any:
    """Return (NOT_WHOLE, IS_WHOLE or PERHAPS_WHOLE; the integer if IS_WHOLE)."""
    if kind == KIND_INT:
        return np.int64(IS_WHOLE), word
    if kind == KIND_RATIO:
        whole = word // second
        return np.int64(IS_WHOLE if whole * second == word else NOT_WHOLE), whole
    if kind == KIND_FLOAT:
        value = as_float(word)
        if abs(value) > WHOLE:
            return np.int64(PERHAPS_WHOLE if abs(value) < np.inf else NOT_WHOLE), np.int64(0)
        whole = np.int64(np.floor(value))
        return np.int64(IS_WHOLE if float(whole) == value else NOT_WHOLE), whole
    return np.int64(PERHAPS_WHOLE if is_number(kind) or kind == KIND_ANY else NOT_WHOLE), np.int64(0)
