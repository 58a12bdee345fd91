"""What SQL's CAST makes of a value, exactly. Where the standard has an error there is no value.

Numbers are exact here and their types have no width, so ``DOUBLE`` and ``FLOAT`` are NUMBER.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from fieldfare.filters import exact
from fieldfare.filters.functions.numbers import NUMERAL_SPACE, number_of, round_half_away
from fieldfare.filters.functions.table import MAX_CHARACTERS, Function, Parameter, Type

MAX_PRECISION = 38
"""How many digits a DECIMAL has at most."""

_TRUE = frozenset(("true", "t", "yes", "y", "1"))
_FALSE = frozenset(("false", "f", "no", "n", "0"))


def whole_number(value: Any, bits: int) -> int | None:
    """A number cut towards zero, the whole number that a string writes, or 1 for true and 0 for false."""
    if isinstance(value, bool):
        return int(value)
    number = number_of(value)
    if number is None or (isinstance(value, str) and not value.strip(NUMERAL_SPACE).lstrip("+-").isdigit()):
        return None
    whole = int(number)
    return whole if -(1 << bits - 1) <= whole < 1 << bits - 1 else None


def decimal_number(value: Any, precision: Any = 10, scale: Any = 0) -> exact.Rational | None:
    """A number rounded to so many digits after the point, if it has no more before it."""
    number = int(value) if isinstance(value, bool) else number_of(value)
    if number is None or type(precision) is not int or type(scale) is not int:
        return None
    rounded = round_half_away(number, scale)
    return rounded if rounded is not None and abs(rounded) < 10 ** (precision - scale) else None


def text_of(value: Any) -> str | None:
    """A number as decimal digits without zeros at the end of a fraction; true and false as these words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    number = exact.rational(value)
    if number is None:
        return None
    if isinstance(number, Fraction):
        decimal = exact.decimal_of(number, MAX_CHARACTERS)
        return None if decimal is None else format(decimal, "f")
    return str(number)


def truth_of(value: Any) -> bool | None:
    """A truth that a string writes; of numbers 0 is false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip(NUMERAL_SPACE).lower() if len(value) <= MAX_CHARACTERS else ""
        return True if word in _TRUE else False if word in _FALSE else None
    number = exact.rational(value)
    return None if number is None else number != 0


def _check_digits(value: Any) -> str:
    fits = type(value) is int and 0 <= value <= MAX_PRECISION
    return "" if fits else f"a DECIMAL has at most {MAX_PRECISION} digits; write DECIMAL(10, 2)"


_VALUE = Parameter("value", Type.ANY, no_time=True)


def _cast(
    name: str, result: Type, summary: str, compute: Callable[..., object], *more: Parameter
) -> Function:
    return Function(
        name=name,
        parameters=(_VALUE, *more),
        result=result,
        summary=summary,
        group="Casts",
        compute=compute,
    )


FUNCTIONS = [
    _cast(
        "BIGINT",
        Type.NUMBER,
        "a number cut towards zero, or the whole number that a string writes; of 64 bits",
        lambda value: whole_number(value, 64),
    ),
    _cast("INT", Type.NUMBER, "the same, of 32 bits", lambda value: whole_number(value, 32)),
    _cast(
        "DECIMAL",
        Type.NUMBER,
        "a number, or what a string writes, with `scale` (0) digits after the point and `precision` "
        "(10) in all",
        decimal_number,
        Parameter("precision", Type.NUMBER, literal=True, optional=True, check=_check_digits),
        Parameter("scale", Type.NUMBER, literal=True, optional=True, check=_check_digits),
    ),
    _cast("STRING", Type.STRING, "a number's digits, `true`, `false`, or a string as it is", text_of),
    _cast(
        "BOOLEAN",
        Type.BOOLEAN,
        "what a string such as `true`, `f`, `yes`, `0` says; of numbers 0 is false",
        truth_of,
    ),
]
