"""Filters that need not be parsed, because they differ from a parsed one in their numbers only.

    DISTANCE_KM(lat, lon, 34.05, -118.2) < 3        DISTANCE_KM(lat, lon, ?, -?) < ?      34.05  118.2  3

A text's *template* has a placeholder for each plain number. Two texts of one template parse to expressions
that differ in these numbers only, provided that the parser takes numbers over unchanged. This is checked when
a template is first met: the constants of the parsed filter must be the text's numbers, in the order of the
text, except for signs. A filter whose numbers are folded, converted to other units or dropped has no
template; nor has one with a call that may be simplified depending on its numbers.
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
"""The text before a number or before the end, and the number. One alternative always matches, so there is no
backtracking. A possessive repetition would state this, but is broken before Python 3.11.5 (gh-106052)."""
_ODD = ("--", "/*", "`", _MARK)
"""Comments, and quotes of other languages: texts with these have no template."""


class Known(NamedTuple):
    """The shared properties of the filters of a template.

    Attributes
    ----------
    form
        Their shape.
    constants
        The constants of one of the filters.
    places, signs
        The indices of the constants that are numbers, and the sign by which each of the text's numbers is
        multiplied.
    work
        The work of each of the filters.
    """

    form: Expression
    constants: tuple[Constant, ...]
    places: tuple[int, ...]
    signs: tuple[int, ...]
    work: Work | None

    def constants_with(self, numbers: list[int | Decimal]) -> tuple[Constant, ...]:
        """Return the constants of the filter whose text has these numbers."""
        found = list(self.constants)
        for place, sign, number in zip(self.places, self.signs, numbers, strict=True):
            found[place] = number * sign
        return tuple(found)


def cut(text: str) -> tuple[str, list[int | Decimal]] | None:
    """Return the template of a text of the sql dialect, and its numbers; None if it has no template."""
    if any(odd in text for odd in _ODD):
        return None
    pieces = _PIECES.findall(text)
    numbers = [_value(number) for _, number in pieces if number]
    return (_MARK.join(before for before, _ in pieces), numbers) if numbers else None


def _value(number: str) -> int | Decimal:
    whole, _, fraction = number.partition(".")
    return Decimal(number) if fraction.strip("0") else int(whole)


def known_of(expression: Expression, work: Work | None, numbers: list[int | Decimal]) -> Known | None:
    """Return the properties of a template from a parsed filter with these numbers; None if they are
    ambiguous.

    Equal numbers, and 0, do not tell which constant, or which sign, they belong to.
    """
    if any(_may_be_simplified(part) for part in walk(expression)):
        return None
    if work is not None and not work.is_of_numbers(numbers):
        return None
    form, constants = shape_of(expression)
    places = tuple(place for place, value in enumerate(constants) if not isinstance(value, str | bytes))
    sizes = [abs(value) for value in constants if isinstance(value, int | Decimal)]
    if sizes != numbers or len(set(numbers)) < len(numbers) or 0 in numbers:
        return None
    signs = tuple(-1 if value < 0 else 1 for value in constants if isinstance(value, int | Decimal))
    return Known(form, constants, places, signs, work)


def _may_be_simplified(e: Expression) -> bool:
    """Whether a call is folded or rewritten depending on the values of its numbers."""
    if not isinstance(e, Call):
        return False
    if all(isinstance(operand, Literal) for operand in e.operands):
        return True
    return FUNCTIONS[e.function].expand is not None and any(
        isinstance(part, Literal) and not isinstance(part.value, str | bool | None) for part in walk(e)
    )
