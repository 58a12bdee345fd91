"""Exact numbers: order and arithmetic over ints, floats, Decimals and Fractions.

A float stands for the shortest decimal that reads back as it, so 0.1 is 0.1. An infinity is beyond
all numbers and has no arithmetic. A NaN is not a number.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

BITS_MAX = 2_048
"""Maximum bits of a numerator or denominator (about 616 digits); beyond, arithmetic is unknown."""

SUM_BITS = 2 * BITS_MAX + 1
"""Maximum bits of a sum's numerator and denominator; operands within ``BITS_MAX`` never exceed it."""

POWER_MAX = 620
"""An exponent of ten whose power has more than ``BITS_MAX`` bits."""

_EXACT_UP_TO = 2**53
_WIDE = Context(prec=4_000)
"""A context with room for the digits of any number of ``BITS_MAX``."""

Rational = int | Fraction


def order(left: Any, right: Any) -> int | None:
    """Compare two values: -1, 0 or 1 if the left one is below, equal to or above the right one.

    Numbers are ordered exactly, strings by code point, and false is below true. Values of different types,
    and of all other types, have no order, even with themselves: None.
    """
    kind = type(left)
    if kind is type(right) and (kind is int or kind is str or kind is bool):
        return bool(left > right) - bool(left < right)
    if isinstance(left, bool) or isinstance(right, bool):
        return None
    if isinstance(left, str):
        return (left > right) - (left < right) if isinstance(right, str) else None
    if not isinstance(left, _NUMBERS) or not isinstance(right, _NUMBERS):
        return None
    return order_of_numbers(left, right)


_NUMBERS = (int, float, Decimal, Fraction)


def order_of_numbers(left: Any, right: Any) -> int | None:
    """Compare two numbers: -1, 0 or 1; None if one is a NaN."""
    if left != left or right != right:
        return None
    if isinstance(left, float):
        if isinstance(right, float):
            return bool(left > right) - bool(left < right)
        left = _exact(left, right)
    elif isinstance(right, float):
        right = _exact(right, left)
    return bool(left > right) - bool(left < right)


def _exact(number: float, other: Any) -> float | Decimal:
    """Return a float as a number that Python compares with ``other`` as the float's decimal would compare."""
    if isinstance(other, int) and (-_EXACT_UP_TO <= other <= _EXACT_UP_TO):
        return number  # between whole floats lie no whole numbers this small, so rounding is harmless
    if math.isinf(number):
        return Decimal(number)
    return Decimal(repr(number))


def rational(value: Any) -> Rational | None:
    """Return the exact number that a value is, for arithmetic; None if it is no number or is too long."""
    kind = type(value)
    if kind is not int and kind is not Fraction:
        if isinstance(value, bool):
            return None
        if isinstance(value, float):
            if not math.isfinite(value):
                return None
            value = Fraction(Decimal(repr(float(value))))
        elif isinstance(value, Decimal):
            if not value:
                return 0
            if not value.is_finite() or _is_long(value):
                return None
            value = Fraction(value)
        elif isinstance(value, int):
            value = int(value)
        else:
            return None
    return _bounded(value)


def _is_long(value: Decimal) -> bool:
    """Return whether a finite nonzero Decimal is certainly too long, without converting it."""
    digits, exponent = len(value.as_tuple().digits), value.as_tuple().exponent
    return value.adjusted() > POWER_MAX or int(exponent) < -POWER_MAX - digits


def calculate(operator: str, left: Rational, right: Rational) -> Rational | None:
    """Compute ``+ - * / %`` of two numbers; None where there is no result or it is too long.

    The remainder has the sign of the left number, as in SQL.
    """
    result: Rational
    if operator == "+":
        return _bounded(left + right, SUM_BITS)
    if operator == "-":
        return _bounded(left - right, SUM_BITS)
    if operator == "*":
        result = left * right
    elif right == 0:
        return None
    elif operator == "/":
        result = Fraction(left) / right
    else:
        truncated = abs(Fraction(left) / right).__floor__()
        result = left - right * (truncated if (left < 0) == (right < 0) else -truncated)
    return _bounded(result)


def _bounded(value: Rational, most: int = BITS_MAX) -> Rational | None:
    if value.numerator.bit_length() > most or value.denominator.bit_length() > most:
        return None
    if type(value) is Fraction and value.denominator == 1:
        return value.numerator
    return value


def decimal_of(value: Fraction, most_places: int) -> Decimal | None:
    """Convert a fraction to a decimal; None if it is infinite or has more than `most_places` places."""
    rest = value.denominator
    twos = (rest & -rest).bit_length() - 1
    rest >>= twos
    fives = 0
    while rest % 5 == 0:
        rest //= 5
        fives += 1
    places = max(twos, fives)
    if rest != 1 or places > most_places:
        return None
    digits = value.numerator * 2 ** (places - twos) * 5 ** (places - fives)
    return Decimal(digits).scaleb(-places, _WIDE)


def whole_bounds(constant: int | Decimal) -> tuple[int, int]:
    """Return (floor, ceiling) of a constant: a whole number is below it iff it is below the ceiling."""
    if isinstance(constant, int):
        return constant, constant
    return math.floor(constant), math.ceil(constant)


def float_bounds(constant: int | Decimal) -> tuple[float, float]:
    """Return (floor, ceiling): the greatest float at most the constant, and the least float at least it.

    Comparing a float with one of these gives the exact comparison with the constant.
    """
    nearest = float(Decimal(constant))
    if math.isinf(nearest):
        largest = math.copysign(math.nextafter(math.inf, 0), nearest)
        return (largest, nearest) if nearest > 0 else (nearest, largest)
    exact = Decimal(repr(nearest))
    floor = nearest if exact <= constant else math.nextafter(nearest, -math.inf)
    ceiling = nearest if exact >= constant else math.nextafter(nearest, math.inf)
    return floor, ceiling
