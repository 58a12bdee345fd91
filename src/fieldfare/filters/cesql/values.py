"""The types of CESQL, the casts between them, and the conversion from JSON values (3.1, 3.2, 3.7).

A value is a Python str, bool, or int of 32 bits. Casts return None where the specification has an error.
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
"""Numbers of at least this magnitude count as infinite: formatting their digits would cost too much."""

_PLACES_MAX = 10_000
"""Maximum digits of a number after the point; a number with more has no value."""

INFINITIES = ("Infinity", "-Infinity")
"""Infinite numbers as strings: positive, negative."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*[1-9])?")
_TRUTHS = {"true": True, "false": False}


class CesqlType(Enum):
    """A type of CESQL. Its zero value is the result where there is an error."""

    STRING = "a string"
    INTEGER = "a number"
    BOOLEAN = "a boolean"

    @property
    def zero(self) -> Value:
        """The zero value: empty, 0 or false."""
        return _ZEROS[self]


_ZEROS: dict[CesqlType, Value] = {CesqlType.STRING: "", CesqlType.INTEGER: 0, CesqlType.BOOLEAN: False}


def type_of(value: Value) -> CesqlType:
    """Return the type of a value."""
    if isinstance(value, str):
        return CesqlType.STRING
    return CesqlType.BOOLEAN if isinstance(value, bool) else CesqlType.INTEGER


def from_json(value: Any) -> Value | None:
    """Convert the JSON value of an attribute; None if it has no equivalent in CESQL.

    A number that is not an integer of 32 bits is the string of its digits, because values of other than
    primitive types are strings (3.2). Arrays, objects and NaN, which no attribute of a CloudEvent can be,
    have no equivalent. The caller must handle null and missing values first.
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
    """Return whether an attribute is missing; null in JSON means that it is."""
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
    """Format a number without an exponent, so that equal numbers have equal texts."""
    exponent = number.as_tuple().exponent
    if int(exponent) < -_PLACES_MAX:
        return None
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _from_fraction(value: Fraction) -> Value | None:
    """Convert a fraction by its decimal; None if that is infinite, as for 1/3, which no JSON number is."""
    places, rest = 0, value.denominator
    for prime in 2, 5:
        count = 0
        while rest % prime == 0 and count <= _PLACES_MAX:
            rest, count = rest // prime, count + 1
        places = max(places, count)
    if rest != 1 or places > _PLACES_MAX:
        return None
    sign, digits, _ = Decimal((value * 10**places).numerator).as_tuple()
    return _from_number(Decimal((sign, digits, -places)))


def number_with_text(text: str) -> int | Decimal | None:
    """Return the finite number that STRING converts to a text; None if there is none."""
    if text == "-0" or not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text)
    if abs(number) >= _INFINITE:
        return None
    return int(number) if INTEGER_MIN <= number <= INTEGER_MAX and "." not in text else number


def to_string(value: Value) -> str:
    """Cast to STRING, which is always possible."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def to_integer(value: Value) -> int | None:
    """Cast to INT: a string must be decimal digits with an optional sign, within 32 bits; None for others."""
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
    """Cast to BOOL: a number is true unless it is 0; a string must be "true" or "false", in any case."""
    if isinstance(value, str):
        return _TRUTHS.get(value.lower()) if len(value) <= len("false") else None
    return bool(value)


CASTS = {CesqlType.STRING: to_string, CesqlType.INTEGER: to_integer, CesqlType.BOOLEAN: to_boolean}


def cast(value: Value, wanted: CesqlType) -> Value | None:
    """Cast a value to another type; None where the specification has a cast error."""
    return CASTS[wanted](value)
