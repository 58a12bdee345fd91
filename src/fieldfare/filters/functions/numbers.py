"""Functions over numbers, all exact."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from fieldfare.filters import exact
from fieldfare.filters import values as sets
from fieldfare.filters.expression import Expression, Literal
from fieldfare.filters.functions.table import Function, Parameter, Requirements, Type
from fieldfare.filters.values import AFTER, BEFORE, Cut, Ranges, ValueSet

ROUNDED_DIGITS_MAX = 100
"""Maximum digits after the point, or before it, to which ROUND rounds; beyond, it has no value."""

NUMERAL_CHARACTERS_MAX = 1_000
"""Maximum characters of a text that NUMBER converts; a longer text has no value."""

NUMERAL_SPACE = " \t\n\v\f\r"
"""White space that may surround a numeral."""

Number = int | Fraction

_EXACT = Context(prec=4_000)
_NUMERAL = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]{1,4})?")


def round_half_away(number: Number, digits: Number = 0) -> Number | None:
    """Round to `digits` digits after the decimal point (before it, if negative); a half away from zero."""
    if type(digits) is not int or abs(digits) > ROUNDED_DIGITS_MAX:
        return None
    numerator, denominator = abs(number.numerator), number.denominator
    if digits > 0:
        numerator *= 10**digits
    else:
        denominator *= 10**-digits
    rounded = (2 * numerator + denominator) // (2 * denominator) * (-1 if number < 0 else 1)
    return exact.rational(Fraction(rounded, 10**digits) if digits > 0 else rounded * 10**-digits)


def number_of(value: Any) -> Number | None:
    """Return a number, or parse one from a text with optional white space around it, as SQL's CAST does."""
    if isinstance(value, str):
        if len(value) > NUMERAL_CHARACTERS_MAX:
            return None
        numeral = value.strip(NUMERAL_SPACE)
        return exact.rational(Decimal(numeral)) if _NUMERAL.fullmatch(numeral) else None
    return exact.rational(value)


def shifted(ranges: Ranges, by: Decimal) -> Ranges:
    """Return ranges moved by a number."""
    return Ranges(ranges.starts_inside, tuple([(_EXACT.add(value, by), side) for value, side in ranges.cuts]))


def widened(ranges: Ranges, below: Decimal, above: Decimal) -> Ranges:
    """Return ranges extended at their lower ends by `below` and at their upper ends by `above`."""
    cuts: list[Cut] = []
    inside = ranges.starts_inside
    for value, _ in ranges.cuts:
        if inside:
            cuts.append((_EXACT.add(value, above), AFTER))
        else:
            start = _EXACT.subtract(value, below), BEFORE
            if cuts and cuts[-1] >= start:
                cuts.pop()
            else:
                cuts.append(start)
        inside = not inside
    return Ranges(ranges.starts_inside, tuple(cuts))


def mirrored(ranges: Ranges) -> Ranges:
    """Return the numbers whose negatives are in the ranges."""
    cuts = tuple((value.copy_negate(), 1 - side) for value, side in reversed(ranges.cuts))
    return Ranges(ranges.starts_inside ^ bool(len(cuts) & 1), cuts)


def _tidy(starts_inside: bool, cuts: list[Cut]) -> Ranges:
    """Return ranges from sorted cuts; two equal adjacent cuts cancel each other."""
    kept: list[Cut] = []
    for cut in cuts:
        if kept and kept[-1] == cut:
            kept.pop()
        else:
            kept.append(cut)
    return Ranges(starts_inside, tuple(kept))


def _whole(cut: Cut, rounding: Callable[[Decimal], int]) -> Cut:
    """Return the cut of numbers that corresponds to a cut of their floors (or ceilings)."""
    value, side = cut
    if rounding is math.floor:  # floor(x) < 2.5 where x < 3; floor(x) <= 2 where x < 3
        return Decimal(math.floor(value) + 1 if side == AFTER else math.ceil(value)), BEFORE
    return Decimal(math.floor(value) if side == AFTER else math.ceil(value) - 1), AFTER


def _implied_whole(
    rounding: Callable[[Decimal], int],
) -> Callable[[tuple[Expression, ...], ValueSet], Requirements | None]:
    def implied(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements:
        cuts = [_whole(cut, rounding) for cut in wanted.numbers.cuts]
        return [(operands[0], ValueSet(numbers=_tidy(wanted.numbers.starts_inside, cuts)))], False

    return implied


def _implied_absolute(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements:
    positive = wanted.numbers.intersection(sets.greater_than(Decimal(0), or_equal=True))
    return [(operands[0], ValueSet(numbers=positive.union(mirrored(positive))))], False


def _implied_rounded(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements | None:
    digits = operands[1].value if len(operands) == 2 and isinstance(operands[1], Literal) else 0
    if type(digits) is not int or (len(operands) == 2 and not isinstance(operands[1], Literal)):
        return None
    if not -ROUNDED_DIGITS_MAX <= digits <= ROUNDED_DIGITS_MAX:
        return [(operands[0], sets.NO_VALUES)], True
    unit = Decimal(1).scaleb(-digits)
    down, up = shifted(wanted.numbers, -unit), shifted(wanted.numbers, unit)
    near = down.union(up).union(wanted.numbers)
    cuts = wanted.numbers.cuts
    if not wanted.numbers.starts_inside and len(cuts) == 2:  # the common case, without a hole
        near = Ranges(False, ((down.cuts[0][0], BEFORE), (up.cuts[1][0], AFTER)))
    elif len(cuts) > 1:
        return None
    return [(operands[0], ValueSet(numbers=near))], False


_NUMBER = Parameter("number", Type.NUMBER)


FUNCTIONS = [
    Function(
        name="ABS",
        parameters=(_NUMBER,),
        result=Type.NUMBER,
        summary="the number without its sign",
        group="Numbers",
        compute=abs,
        implied=_implied_absolute,
    ),
    Function(
        name="ROUND",
        parameters=(_NUMBER, Parameter("digits", Type.NUMBER, optional=True)),
        result=Type.NUMBER,
        summary="the number rounded to `digits` (0) digits after the point (before it, if negative), a half "
        "away from zero",
        group="Numbers",
        compute=round_half_away,
        implied=_implied_rounded,
    ),
    Function(
        name="FLOOR",
        parameters=(_NUMBER,),
        result=Type.NUMBER,
        summary="the greatest whole number that is not above the number",
        group="Numbers",
        compute=math.floor,
        implied=_implied_whole(math.floor),
    ),
    Function(
        name="CEIL",
        parameters=(_NUMBER,),
        result=Type.NUMBER,
        summary="the least whole number that is not below the number",
        group="Numbers",
        compute=math.ceil,
        implied=_implied_whole(math.ceil),
    ),
    Function(
        name="NUMBER",
        parameters=(Parameter("value", Type.ANY),),
        result=Type.NUMBER,
        summary="the number in a string (`'18.50'`, `' -1e3 '`), or a number as it is",
        group="Numbers",
        compute=number_of,
    ),
]
