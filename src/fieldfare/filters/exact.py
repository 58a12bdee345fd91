"""Exact numbers: order and arithmetic over ints, floats, Decimals and Fractions.

A float stands for the shortest decimal that reads back as it, so 0.1 is 0.1; an infinity lies
beyond all numbers and has no arithmetic; a NaN is no number.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

MAX_BITS = 2_048
"""Arithmetic is unknown where a number's numerator or denominator is longer (about 616 digits)."""

SUM_BITS = 2 * MAX_BITS + 1
"""What a sum or a difference may have, so that numbers that arithmetic takes always have one."""

MAX_POWER = 620
"""A power of ten that has more than ``MAX_BITS`` bits."""

_EXACT_UP_TO = 2**53
_WIDE = Context(prec=4_000)
"""Has room for the digits of any number of MAX_BITS."""

Rational = int | Fraction


def order(left: Any, right: Any) -> int | None:
    """-1, 0 or 1 as the left value is below, equal to or above the right; None for unlike types.

    Numbers are ordered exactly, strings by code point, and false is below true. All else has no
    order, not even with itself.
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
    """The order of two numbers; None if one is a NaN."""
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
    """A float as something that Python compares with ``other`` as its decimal would compare."""
    if isinstance(other, int) and (-_EXACT_UP_TO <= other <= _EXACT_UP_TO):
        return number  # between whole floats lie no whole numbers this small, so rounding is harmless
    if math.isinf(number):
        return Decimal(number)
    return Decimal(repr(number))


def rational(value: Any) -> Rational | None:
    """The exact number a value is, for arithmetic; None if it is none or is too long."""
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
    """Whether a finite Decimal other than 0 is certainly too long, told without computing its digits."""
    digits, exponent = len(value.as_tuple().digits), value.as_tuple().exponent
    return value.adjusted() > MAX_POWER or int(exponent) < -MAX_POWER - digits


def calculate(operator: str, left: Rational, right: Rational) -> Rational | None:
    """``+ - * / %`` of two numbers; None where there is no result or it is too long.

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


def _bounded(value: Rational, most: int = MAX_BITS) -> Rational | None:
    if value.numerator.bit_length() > most or value.denominator.bit_length() > most:
        return None
    if type(value) is Fraction and value.denominator == 1:
        return value.numerator
    return value


def decimal_of(value: Fraction, most_places: int) -> Decimal | None:
    """A fraction as the decimal that it is; None if it has no end, or more places than that."""
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
    """(floor, ceiling): a whole number is below the constant iff below its ceiling, and so on."""
    if isinstance(constant, int):
        return constant, constant
    return math.floor(constant), math.ceil(constant)


def float_bounds(constant: int | Decimal) -> tuple[float, float]:
    """(floor, ceiling): the greatest float that stands for at most the constant, the least for at least.

    A float is compared exactly with the constant by comparing it with these.
    """
    nearest = float(Decimal(constant))
    if math.isinf(nearest):
        largest = math.copysign(math.nextafter(math.inf, 0), nearest)
        return (largest, nearest) if nearest > 0 else (nearest, largest)
    exact = Decimal(repr(nearest))
    floor = nearest if exact <= constant else math.nextafter(nearest, -math.inf)
    ceiling = nearest if exact >= constant else math.nextafter(nearest, math.inf)
    return floor, ceiling
