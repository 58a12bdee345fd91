"""SQL's CAST, exactly. Where the standard has an error, the result has no value.

Numbers are exact and their types have no width, so ``DOUBLE`` and ``FLOAT`` are NUMBER.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from fieldfare.filters import exact
from fieldfare.filters.functions.numbers import NUMERAL_SPACE, number_of, round_half_away
from fieldfare.filters.functions.table import CHARACTERS_MAX, Function, Parameter, Type

PRECISION_MAX = 38
"""Maximum digits of a DECIMAL; a filter with a larger precision or scale is rejected."""

_TRUE = frozenset(("true", "t", "yes", "y", "1"))
_FALSE = frozenset(("false", "f", "no", "n", "0"))


def whole_number(value: Any, bits: int) -> int | None:
    """Convert a value to an integer of `bits` bits; None if it is none or does not fit.

    A number is truncated towards zero, a string must be a whole number, true is 1 and false is 0.
    """
    if isinstance(value, bool):
        return int(value)
    number = number_of(value)
    if number is None or (isinstance(value, str) and not value.strip(NUMERAL_SPACE).lstrip("+-").isdigit()):
        return None
    whole = int(number)
    return whole if -(1 << bits - 1) <= whole < 1 << bits - 1 else None


def decimal_number(value: Any, precision: Any = 10, scale: Any = 0) -> exact.Rational | None:
    """Round a number to `scale` digits after the point; None if it has more than `precision` digits."""
    number = int(value) if isinstance(value, bool) else number_of(value)
    if number is None or type(precision) is not int or type(scale) is not int:
        return None
    rounded = round_half_away(number, scale)
    return rounded if rounded is not None and abs(rounded) < 10 ** (precision - scale) else None


def text_of(value: Any) -> str | None:
    """Convert a value to text: a number to decimal digits without trailing zeros, or ``true`` or ``false``.

    None for other values, and for a number without a finite decimal or with too many digits.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    number = exact.rational(value)
    if number is None:
        return None
    if isinstance(number, Fraction):
        decimal = exact.decimal_of(number, CHARACTERS_MAX)
        return None if decimal is None else format(decimal, "f")
    return str(number)


def truth_of(value: Any) -> bool | None:
    """Convert a value to a boolean: a string by its word, a number by whether it is not 0; or to None."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip(NUMERAL_SPACE).lower() if len(value) <= CHARACTERS_MAX else ""
        return True if word in _TRUE else False if word in _FALSE else None
    number = exact.rational(value)
    return None if number is None else number != 0


def _check_digits(value: Any) -> str:
    fits = type(value) is int and 0 <= value <= PRECISION_MAX
    return "" if fits else f"a DECIMAL has at most {PRECISION_MAX} digits; write DECIMAL(10, 2)"


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
        "a number truncated towards zero, or the whole number in a string, as a 64-bit integer",
        lambda value: whole_number(value, 64),
    ),
    _cast("INT", Type.NUMBER, "as BIGINT, but of 32 bits", lambda value: whole_number(value, 32)),
    _cast(
        "DECIMAL",
        Type.NUMBER,
        "a number, or the number in a string, with `scale` (0) digits after the point and `precision` "
        "(10) in all",
        decimal_number,
        Parameter("precision", Type.NUMBER, literal=True, optional=True, check=_check_digits),
        Parameter("scale", Type.NUMBER, literal=True, optional=True, check=_check_digits),
    ),
    _cast("STRING", Type.STRING, "a number's digits, `true`, `false`, or a string as it is", text_of),
    _cast(
        "BOOLEAN",
        Type.BOOLEAN,
        "a string such as `true`, `f`, `yes`, `0` as a boolean; a number is false if it is 0",
        truth_of,
    ),
]
