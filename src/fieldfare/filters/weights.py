"""The weights of an expression's parts in the steps of a filter (``filters.work``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fieldfare.filters.expression import (
    Arithmetic,
    Attribute,
    Between,
    Call,
    Comparison,
    Element,
    Expression,
    In,
    Like,
    Literal,
    Negate,
    Pattern,
    Quantified,
    Wild,
    parts_of,
)
from fieldfare.filters.functions import FUNCTIONS
from fieldfare.filters.functions.table import CHARACTERS_MAX, Type
from fieldfare.filters.measuring import WORD_DIGITS

TEXT_CHARACTERS = 64
TRIMMED_MAX = 8
"""Maximum characters to trim at a weight of 1."""
SEARCH_WEIGHT = 8
"""Steps per TEXT_CHARACTERS of a search for a part that is no literal, and of REPLACE."""
LONG_PIECE = 256
"""Steps per TEXT_CHARACTERS of a pattern that is searched for character by character and has a long part."""
CASE_WEIGHT = 8
"""Steps per TEXT_CHARACTERS of a change of case."""
INSTANT_CHARACTERS = 30
"""Maximum characters of a timestamp that is read without Python."""

_OF_NUMBERS = frozenset(("NUMBER", "DECIMAL", "STRING", "INT", "BIGINT", "GREATEST", "LEAST"))
"""Functions of values of any type that calculate if the values are numbers."""

TO_TEXT = frozenset(("STRING",))
_FROM_TEXT = frozenset(("NUMBER", "DECIMAL", "INT", "BIGINT"))
"""Functions that make text from numbers, and numbers from text."""
_TRIMS = frozenset(("TRIM", "LTRIM", "RTRIM"))
_CASES = frozenset(("LOWER", "UPPER", "CASEFOLD"))
_PARTS = {"CONTAINS": 1, "POSITION": 0, "REPLACE": 1}
"""Functions that search for a part, and the index of this operand."""


def inside(condition: Expression) -> Iterator[Expression]:
    """Yield the parts of a condition, except those in quantifiers inside it."""
    waiting = [condition]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Quantified):
            yield part
            waiting += parts_of(part)


def references(e: Expression) -> list[Attribute | Element]:
    """Return the names that an expression reads, except those in quantifiers inside it."""
    return [name for name, _ in texts_of(e)]


def texts_of(e: Expression) -> list[tuple[Attribute | Element, int]]:
    """Return the names that an expression reads, except those in quantifiers inside it, each with the growth
    of its text by REPLACE."""
    found, waiting = list[tuple[Attribute | Element, int]](), [(e, 1)]
    while waiting:
        part, growth = waiting.pop()
        if isinstance(part, Attribute | Element):
            found.append((part, growth))
        elif not isinstance(part, Quantified):
            if isinstance(part, Call) and part.function == "REPLACE":
                growth = min(growth * _growth(*part.operands), CHARACTERS_MAX)
            waiting += [(each, growth) for each in parts_of(part)]
    return found


def _growth(_text: Expression, old: Expression, new: Expression) -> int:
    """Return how many times as long REPLACE makes a text, at most."""
    lengths = [
        len(each.value) for each in (old, new) if isinstance(each, Literal) and isinstance(each.value, str)
    ]
    return max(1, -(-lengths[1] // max(1, lengths[0]))) if len(lengths) == 2 else CHARACTERS_MAX


def word_of(e: Expression) -> int | None:
    """Return how long a string may be that a cast reads without Python."""
    if not isinstance(e, Call):
        return None
    return (
        WORD_DIGITS if e.function in _FROM_TEXT else INSTANT_CHARACTERS if e.function == "TIMESTAMP" else None
    )


def text_weight(e: Expression, is_repeated: bool) -> int:
    """Return the steps per TEXT_CHARACTERS of the strings that an expression reads; 0 if it reads little."""
    if isinstance(e, Like):
        return (LONG_PIECE if _has_long(e.pattern) else TEXT_CHARACTERS) if _is_slow(e.pattern) else 1
    if isinstance(e, Call):
        return _weight_of_call(e)
    if is_repeated and isinstance(e, Comparison | Between | In):
        return sum(not isinstance(part, Literal) for part in parts_of(e)) > 1
    return 0


def _weight_of_call(e: Call) -> int:
    if e.function.endswith(("_IGNORE_CASE", "TRIM")) or e.function.startswith("CESQL"):
        others = e.operands[1:] if e.function in _TRIMS else e.operands
        is_quick = e.function in _TRIMS and all(_is_short(each) for each in others)
        return 1 if is_quick else TEXT_CHARACTERS
    if e.function in _CASES:
        return CASE_WEIGHT
    part = _PARTS.get(e.function)
    is_search = part is not None and not isinstance(e.operands[part], Literal)
    return SEARCH_WEIGHT if is_search or e.function == "REPLACE" else 1


def _is_short(e: Expression) -> bool:
    return isinstance(e, Literal) and len(str(e.value)) <= TRIMMED_MAX


def _has_long(pattern: Pattern) -> bool:
    return any(isinstance(part, str) and len(part) > TEXT_CHARACTERS for part in pattern)


def _is_slow(pattern: Pattern) -> bool:
    """Return whether a piece between two RUNs has a ONE between strings."""
    pieces: list[list[Any]] = [[]]
    for part in pattern:
        if part is Wild.RUN:
            pieces.append([])
        else:
            pieces[-1].append(part)
    return any(sum(isinstance(part, str) for part in piece) > 1 for piece in pieces[1:-1])


def calculates(e: Expression) -> bool:
    """Return whether a part of an expression may calculate with Python's fractions."""
    if isinstance(e, Call):
        function = FUNCTIONS[e.function]
        return function.expand is None and (
            e.function in _OF_NUMBERS or any(each.type.is_numeric for each in function.parameters)
        )
    return isinstance(e, Arithmetic | Negate)


def chooses(e: Expression) -> bool:
    """Return whether a part of an expression compares or chooses values that may be exact numbers."""
    if isinstance(e, Call):
        function = FUNCTIONS[e.function]
        return function.expand is None and any(each.type is Type.ANY for each in function.parameters)
    if isinstance(e, In):
        return True
    if isinstance(e, Comparison | Between):
        return sum(not isinstance(part, Literal) for part in parts_of(e)) > 1
    return False
