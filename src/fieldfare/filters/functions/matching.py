"""Functions that compare strings ignoring case, and IS_SCALAR, which is false for arrays and objects."""

from __future__ import annotations

from functools import lru_cache

from fieldfare.filters import values as sets
from fieldfare.filters.expression import Comparison, Expression, In, IsNull, IsTruth, Literal, Or
from fieldfare.filters.functions.table import Function, Parameter, Requirements, Type
from fieldfare.filters.values import ValueSet

_SPELLINGS_MAX = 32
"""Maximum spellings of a text that the index searches for; of a longer text it searches for a prefix."""


@lru_cache(4_096)
def _forms(character: str) -> tuple[str, ...]:
    """Return a character with its lower and upper case, which may have several characters: SS for ß."""
    return tuple(dict.fromkeys((character, character.lower(), character.upper())))


def _fits(text: str, part: str, start: int) -> int:
    """Return the end of a part that occurs at a place of the text, ignoring case; -1 if it does not."""
    if part.isascii():
        end = start + len(part)
        found = text[start:end]
        return end if found.isascii() and found.lower() == part.lower() else -1
    for character in part:
        for form in _forms(character):
            if text.startswith(form, start):
                start += len(form)
                break
        else:
            return -1
    return start


def equals_ignoring_case(text: str, other: str) -> bool:
    """Return whether each character of ``text`` is that of ``other``, or its lower or upper case."""
    return _fits(text, other, 0) == len(text)


def starts_ignoring_case(text: str, part: str) -> bool:
    return _fits(text, part, 0) >= 0


def ends_ignoring_case(text: str, part: str) -> bool:
    if part.isascii():
        return len(text) >= len(part) and _fits(text, part, len(text) - len(part)) >= 0
    end = len(text)
    for character in reversed(part):
        for form in _forms(character):
            if text.endswith(form, 0, end):
                end -= len(form)
                break
        else:
            return False
    return True


def _spellings(text: str) -> tuple[list[str], bool]:
    """Return the spellings of a text in any case, or of its beginning; and whether they are complete."""
    found = [""]
    for character in text:
        forms = _forms(character)
        if len(found) * len(forms) > _SPELLINGS_MAX:
            return found, False
        found = [start + form for start in found for form in forms]
    return found, True


def _expand_equality(operands: tuple[Expression, ...]) -> Expression | None:
    """Return an IN of all spellings of a short constant; None for other operands."""
    text, other = operands
    if not isinstance(other, Literal) or not isinstance(other.value, str):
        return None
    found, are_complete = _spellings(other.value)
    return In(text, tuple(map(Literal, dict.fromkeys(found)))) if are_complete else None


def _implied_start(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements | None:
    """Return the strings that start with a constant, ignoring case."""
    text, part = operands
    if not isinstance(part, Literal) or not isinstance(part.value, str) or False in wanted:
        return None
    found, are_complete = _spellings(part.value)
    values = sets.union_of([ValueSet(strings=sets.with_prefix(start)) for start in found])
    return ([(text, values)], are_complete)


def _implied_equality(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements | None:
    found = _implied_start(operands, wanted)
    return found and (found[0], False)  # a short text is expanded


def _expand_scalar(operands: tuple[Expression, ...]) -> Expression:
    (value,) = operands
    zero = Literal(0)
    tests = (
        IsNull(value),
        In(value, (Literal(True), Literal(False))),
        Comparison(">=", value, Literal("")),
        Comparison("<", value, zero),
        Comparison(">=", value, zero),
    )
    return IsTruth(Or(tests), True)


_TEXT, _OTHER = Parameter("text", Type.STRING), Parameter("other", Type.STRING)
_PART = Parameter("part", Type.STRING)

FUNCTIONS = [
    Function(
        name="EQUALS_IGNORE_CASE",
        parameters=(_TEXT, _OTHER),
        result=Type.BOOLEAN,
        summary="whether every character of the text is that of the other, or its lower or upper case",
        group="Strings",
        compute=equals_ignoring_case,
        expand=_expand_equality,
        implied=_implied_equality,
    ),
    Function(
        name="STARTS_WITH_IGNORE_CASE",
        parameters=(_TEXT, _PART),
        result=Type.BOOLEAN,
        summary="as STARTS_WITH, but a character of the part also stands for its lower and upper case",
        group="Strings",
        compute=starts_ignoring_case,
        implied=_implied_start,
    ),
    Function(
        name="ENDS_WITH_IGNORE_CASE",
        parameters=(_TEXT, _PART),
        result=Type.BOOLEAN,
        summary="as ENDS_WITH, but a character of the part also stands for its lower and upper case",
        group="Strings",
        compute=ends_ignoring_case,
    ),
    Function(
        name="IS_SCALAR",
        parameters=(Parameter("value", Type.ANY),),
        result=Type.BOOLEAN,
        summary="whether the value is a string, a number, a boolean, null or missing: no array and no object",
        group="Values",
        expand=_expand_scalar,
        true_for=ValueSet(sets.OTHER).complement(),
    ),
]
