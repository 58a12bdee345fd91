"""The types of CESQL, the casts between them, and what an event's JSON value is to CESQL (3.1, 3.2, 3.7).

A value is a Python str, bool, or int of 32 bits. Casts give None where the specification has an error.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

from fieldfare.filters.values import ABSENT

INTEGER_MIN, INTEGER_MAX = -(1 << 31), (1 << 31) - 1

Value = str | int | bool

_INFINITE = 10**1_000
"""Numbers from here on count as infinite: to write out their digits would cost too much."""

_MAX_PLACES = 10_000
"""A Decimal with more places after the point than this is no value."""

INFINITIES = ("Infinity", "-Infinity")
"""What an infinite number is as a string."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*[1-9])?")
_TRUTHS = {"true": True, "false": False}


class CesqlType(Enum):
    """A type of CESQL. Its zero value stands for the result where there is an error."""

    STRING = "a string"
    INTEGER = "a number"
    BOOLEAN = "a boolean"

    @property
    def zero(self) -> Value:
        """The zero value: empty, 0 or false."""
        return _ZEROS[self]


_ZEROS: dict[CesqlType, Value] = {CesqlType.STRING: "", CesqlType.INTEGER: 0, CesqlType.BOOLEAN: False}


def type_of(value: Value) -> CesqlType:
    """The type of a value."""
    if isinstance(value, str):
        return CesqlType.STRING
    return CesqlType.BOOLEAN if isinstance(value, bool) else CesqlType.INTEGER


def from_json(value: Any) -> Value | None:
    """What the JSON value of an attribute is; None if it is nothing that CESQL knows.

    A number that is no integer of 32 bits is the string of its digits, as all that is of no primitive
    type is a string (3.2). An array, an object and a NaN, which no attribute of a CloudEvent is, are
    nothing. The caller has looked for null and for what is missing.
    """
    kind = type(value)
    if kind is str or kind is bool:
        return value  # type: ignore[no-any-return]
    if kind is int and INTEGER_MIN <= value <= INTEGER_MAX:
        return value  # type: ignore[no-any-return]
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int | float | Decimal | Fraction):
        return _from_number(value)
    return None


def is_absent(value: Any) -> bool:
    """Whether an attribute is missing; null is how JSON writes that."""
    return value is None or value is ABSENT


def _from_number(value: int | float | Decimal | Fraction) -> Value | None:
    if isinstance(value, float | Decimal) and math.isnan(value):
        return None
    if not -_INFINITE < value < _INFINITE:
        return INFINITIES[value < 0]
    if isinstance(value, int):
        return int(value) if INTEGER_MIN <= value <= INTEGER_MAX else _digits(Decimal(value))
    if isinstance(value, Fraction):
        return _from_fraction(value)
    exact = Decimal(repr(float(value))) if isinstance(value, float) else value
    if INTEGER_MIN <= exact <= INTEGER_MAX and exact == (whole := int(exact)):
        return whole
    return _digits(exact)


def _digits(number: Decimal) -> str | None:
    """All digits of a number, without an exponent, so that equal numbers have equal texts."""
    exponent = number.as_tuple().exponent
    if int(exponent) < -_MAX_PLACES:
        return None
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _from_fraction(value: Fraction) -> Value | None:
    """As the decimal it is; None for one like 1/3, which no JSON number is."""
    places, rest = 0, value.denominator
    for prime in 2, 5:
        count = 0
        while rest % prime == 0 and count <= _MAX_PLACES:
            rest, count = rest // prime, count + 1
        places = max(places, count)
    if rest != 1 or places > _MAX_PLACES:
        return None
    sign, digits, _ = Decimal((value * 10**places).numerator).as_tuple()
    return _from_number(Decimal((sign, digits, -places)))


def number_with_text(text: str) -> int | Decimal | None:
    """The number, if there is one, that STRING makes this text of; infinities aside."""
    if text == "-0" or not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text)
    if abs(number) >= _INFINITE:
        return None
    return int(number) if INTEGER_MIN <= number <= INTEGER_MAX and "." not in text else number


def to_string(value: Value) -> str:
    """STRING: always possible."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def to_integer(value: Value) -> int | None:
    """INT: of a string, decimal digits with or without a sign, within 32 bits; None for any other."""
    if not isinstance(value, str):
        return int(value)
    if not _INTEGER.fullmatch(value):
        return None
    digits = value.lstrip("+-").lstrip("0") or "0"
    if len(digits) > len(str(INTEGER_MAX)):
        return None
    number = -int(digits) if value[0] == "-" else int(digits)
    return number if INTEGER_MIN <= number <= INTEGER_MAX else None


def to_boolean(value: Value) -> bool | None:
    """BOOL: a number is true unless it is 0; a string only if it is "true" or "false", in any case."""
    if isinstance(value, str):
        return _TRUTHS.get(value.lower()) if len(value) <= len("false") else None
    return bool(value)


CASTS = {CesqlType.STRING: to_string, CesqlType.INTEGER: to_integer, CesqlType.BOOLEAN: to_boolean}


def cast(value: Value, wanted: CesqlType) -> Value | None:
    """A value as a value of another type; None where the specification has a cast error."""
    return CASTS[wanted](value)
