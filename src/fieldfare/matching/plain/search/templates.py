"""Filters that are known without being parsed, because one was that differs in its numbers only.

    DISTANCE_KM(lat, lon, 34.05, -118.2) < 3        DISTANCE_KM(lat, lon, ?, -?) < ?      34.05  118.2  3

A text's *template* has a mark in the place of each plain number. What the parser makes of two texts of one
template differs in these numbers, and only there, if it takes numbers over as they are. Whether it does is
seen where a template is first met: the constants of the parsed filter must be the text's numbers, in the
order of the text, but for signs. A filter with numbers that are folded, counted in other units or dropped has
no template; nor has one with a call that may be simplified by what its numbers are.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

from fieldfare.filters.expression import Call, Expression, Literal, walk
from fieldfare.filters.functions import FUNCTIONS
from fieldfare.filters.work import Work
from fieldfare.matching.evaluation.shapes import Constant, shape_of

_MARK = "\0"
_NUMBER = r"(?<![\w.])(?:0|[1-9][0-9]{0,14}+)(?:\.[0-9]{1,15}+)?+(?![\w.])"
_PIECES = re.compile(
    rf"""
    ((?: '[^']*+(?:''[^']*+)*+' | "[^"]*+(?:""[^"]*+)*+" | [^\W\d][\w.]*+ | \[\s*+-?[0-9]++\s*+\]
       | (?!{_NUMBER}) . )*)
    ({_NUMBER} | \Z)
    """,
    re.VERBOSE | re.DOTALL,
)
"""What stands before a number, or before the text's end; and the number. One of the two is always met, so
nothing is tried twice. A possessive repetition would say so, but is wrong before Python 3.11.5 (gh-106052).
"""
_ODD = ("--", "/*", "`", _MARK)
"""Comments, quotes of other languages: such texts have no template."""


class Known(NamedTuple):
    """What is known of the filters of a template.

    Attributes
    ----------
    form
        Their shape.
    constants
        Those of one of them.
    places, signs
        Which of the constants are numbers, and by what each of the text's is multiplied.
    work
        Of each of them.
    """

    form: Expression
    constants: tuple[Constant, ...]
    places: tuple[int, ...]
    signs: tuple[int, ...]
    work: Work | None

    def constants_with(self, numbers: list[int | Decimal]) -> tuple[Constant, ...]:
        """The constants of the filter whose text has these numbers."""
        found = list(self.constants)
        for place, sign, number in zip(self.places, self.signs, numbers, strict=True):
            found[place] = number * sign
        return tuple(found)


def cut(text: str) -> tuple[str, list[int | Decimal]] | None:
    """The template of a text of the sql dialect, and its numbers; None if it has none."""
    if any(odd in text for odd in _ODD):
        return None
    pieces = _PIECES.findall(text)
    numbers = [_value(number) for _, number in pieces if number]
    return (_MARK.join(before for before, _ in pieces), numbers) if numbers else None


def _value(number: str) -> int | Decimal:
    whole, _, fraction = number.partition(".")
    return Decimal(number) if fraction.strip("0") else int(whole)


def known_of(expression: Expression, work: Work | None, numbers: list[int | Decimal]) -> Known | None:
    """What a parsed filter whose text has these numbers tells of its template; None if that is nothing.

    Numbers that are equal, or 0, would not tell which constant, or of which sign, stands for which.
    """
    if any(_may_be_simplified(part) for part in walk(expression)):
        return None
    form, constants = shape_of(expression)
    places = tuple(place for place, value in enumerate(constants) if not isinstance(value, str | bytes))
    sizes = [abs(value) for value in constants if isinstance(value, int | Decimal)]
    if sizes != numbers or len(set(numbers)) < len(numbers) or 0 in numbers:
        return None
    signs = tuple(-1 if value < 0 else 1 for value in constants if isinstance(value, int | Decimal))
    return Known(form, constants, places, signs, work)


def _may_be_simplified(e: Expression) -> bool:
    """Whether a call is computed, or written in another way, by what its numbers are."""
    if not isinstance(e, Call):
        return False
    if all(isinstance(operand, Literal) for operand in e.operands):
        return True
    return FUNCTIONS[e.function].expand is not None and any(
        isinstance(part, Literal) and not isinstance(part.value, str | bool | None) for part in walk(e)
    )
