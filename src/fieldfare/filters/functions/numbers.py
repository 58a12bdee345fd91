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

MAX_ROUNDED_DIGITS = 100
"""How far from the decimal point ROUND rounds."""

MAX_NUMERAL_CHARACTERS = 1_000
"""How long a text can be that NUMBER reads."""

NUMERAL_SPACE = " \t\n\v\f\r"
"""What may stand around a numeral."""

Number = int | Fraction

_EXACT = Context(prec=4_000)
_NUMERAL = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]{1,4})?")


def round_half_away(number: Number, digits: Number = 0) -> Number | None:
    """To so many digits after the decimal point (before it, if negative); a half away from zero."""
    if type(digits) is not int or abs(digits) > MAX_ROUNDED_DIGITS:
        return None
    unit = Fraction(10) ** -digits
    rounded = math.floor((-number if number < 0 else number) / unit + Fraction(1, 2)) * unit
    return exact.rational(-rounded if number < 0 else rounded)


def number_of(value: Any) -> Number | None:
    """A number, or the number that a text writes, white space around it aside (as SQL's CAST has it)."""
    if isinstance(value, str):
        if len(value) > MAX_NUMERAL_CHARACTERS:
            return None
        numeral = value.strip(NUMERAL_SPACE)
        return exact.rational(Decimal(numeral)) if _NUMERAL.fullmatch(numeral) else None
    return exact.rational(value)


def shifted(ranges: Ranges, by: Decimal) -> Ranges:
    """All numbers of ranges, moved."""
    return Ranges(ranges.starts_inside, tuple([(_EXACT.add(value, by), side) for value, side in ranges.cuts]))


def widened(ranges: Ranges, below: Decimal, above: Decimal) -> Ranges:
    """All numbers that are so near to one of the ranges."""
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
    """The numbers whose negatives are in the ranges."""
    cuts = tuple((value.copy_negate(), 1 - side) for value, side in reversed(ranges.cuts))
    return Ranges(ranges.starts_inside ^ bool(len(cuts) & 1), cuts)


def _tidy(starts_inside: bool, cuts: list[Cut]) -> Ranges:
    """Ranges from cuts in order, of which neighbours that are equal undo each other."""
    kept: list[Cut] = []
    for cut in cuts:
        if kept and kept[-1] == cut:
            kept.pop()
        else:
            kept.append(cut)
    return Ranges(starts_inside, tuple(kept))


def _whole(cut: Cut, rounding: Callable[[Decimal], int]) -> Cut:
    """The cut between numbers whose floor (or ceiling) is on one side and on the other side of a cut."""
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
    if not -MAX_ROUNDED_DIGITS <= digits <= MAX_ROUNDED_DIGITS:
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
        summary="the nearest number with so many digits after the point (0; negative: before it), a half "
        "away from zero",
        group="Numbers",
        compute=round_half_away,
        implied=_implied_rounded,
    ),
    Function(
        name="FLOOR",
        parameters=(_NUMBER,),
        result=Type.NUMBER,
        summary="the greatest whole number that is not above it",
        group="Numbers",
        compute=math.floor,
        implied=_implied_whole(math.floor),
    ),
    Function(
        name="CEIL",
        parameters=(_NUMBER,),
        result=Type.NUMBER,
        summary="the least whole number that is not below it",
        group="Numbers",
        compute=math.ceil,
        implied=_implied_whole(math.ceil),
    ),
    Function(
        name="NUMBER",
        parameters=(Parameter("value", Type.ANY),),
        result=Type.NUMBER,
        summary="the number that a string writes (`'18.50'`, `' -1e3 '`), or a number as it is",
        group="Numbers",
        compute=number_of,
    ),
]
