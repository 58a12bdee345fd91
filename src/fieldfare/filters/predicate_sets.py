"""Value sets of predicates on one attribute: where a predicate is true, and where it is false.

For all other values the predicate is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from fieldfare.filters import values as sets
from fieldfare.filters.evaluator import MIRRORED, OPERATIONS
from fieldfare.filters.expression import (
    Attribute,
    Between,
    Comparison,
    Exists,
    In,
    IsNull,
    Like,
    Literal,
    Scalar,
    Wild,
)
from fieldfare.filters.values import AFTER, BEFORE, Ranges, ValueSet
from fieldfare.model import Path

INVERSE = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
"""For each comparison, its negation: true where it is false, and unknown where it is unknown."""

_Found = tuple[Path, ValueSet, bool]
"""A path, the values for which a predicate on it is true (or false), and whether the set is exact."""


def _comparison_set(e: Comparison, truth: bool) -> _Found | None:
    operator, left, right = e.operator, e.left, e.right
    if isinstance(left, Literal):
        operator, left, right = MIRRORED[operator], right, left
    if not isinstance(left, Attribute) or not isinstance(right, Literal):
        return None
    return left.path, _compared(operator if truth else INVERSE[operator], right.value), True


def _compared(operator: str, constant: Scalar) -> ValueSet:
    """Return the values for which a comparison with a constant is true."""
    if constant is None:
        return sets.NO_VALUES
    if isinstance(constant, bool):
        test = OPERATIONS[operator]
        return ValueSet(
            (sets.FALSE if test(False, constant) else 0) | (sets.TRUE if test(True, constant) else 0)
        )
    if isinstance(constant, str):
        return ValueSet(strings=_ranges(operator, constant, constant == ""))
    return ValueSet(numbers=_ranges(operator, Decimal(constant), False))


def _ranges(operator: str, constant: Any, least: bool) -> Ranges:
    """Return the values for which a comparison with a constant is true; ``least``: no value is below it."""
    before, after = (constant, BEFORE), (constant, AFTER)
    if operator in ("=", "<>"):
        inside = operator == "<>"
        return Ranges(not inside, (after,)) if least else Ranges(inside, (before, after))
    cut = before if operator in ("<", ">=") else after
    below = operator in ("<", "<=")
    if least and cut is before:
        return sets.NOTHING if below else sets.EVERYTHING
    return Ranges(below, (cut,))


def _between_set(e: Between, truth: bool) -> _Found | None:
    """Return the set of BETWEEN with two numbers or two strings; None if its bounds have different types."""
    if not (isinstance(e.operand, Attribute) and isinstance(e.low, Literal) and isinstance(e.high, Literal)):
        return None
    low, high = e.low.value, e.high.value
    if isinstance(low, bool) or isinstance(high, bool) or low is None or high is None:
        return None
    if isinstance(low, str) and isinstance(high, str):
        if not low:
            return None
        inside = Ranges(False, ((low, BEFORE), (high, AFTER))) if low <= high else sets.NOTHING
        return e.operand.path, ValueSet(strings=inside if truth else inside.complement()), True
    if isinstance(low, str) or isinstance(high, str):
        return None
    cuts = ((Decimal(low), BEFORE), (Decimal(high), AFTER))
    inside = Ranges(False, cuts) if low <= high else sets.NOTHING
    return e.operand.path, ValueSet(numbers=inside if truth else inside.complement()), True


def _in_set(e: In, truth: bool) -> _Found | None:
    if not isinstance(e.operand, Attribute):
        return None
    atoms = 0
    numbers: list[Decimal] = []
    strings: list[str] = []
    has_null = False
    for item in {id(item): item for item in e.items}.values():  # long lists often repeat the same objects
        value = item.value if isinstance(item, Literal) else None
        if isinstance(value, str):
            strings.append(value)
        elif isinstance(value, bool):
            atoms |= sets.TRUE if value else sets.FALSE
        elif value is None:
            has_null = True
        else:
            numbers.append(Decimal(value))
    if truth:
        return e.operand.path, ValueSet(atoms, sets.points(numbers), sets.points(strings)), True
    if has_null or bool(atoms) + bool(numbers) + bool(strings) > 1:
        return e.operand.path, sets.NO_VALUES, True  # it is never false: true or unknown
    if numbers:
        return e.operand.path, ValueSet(numbers=sets.points(numbers).complement()), True
    if strings:
        return e.operand.path, ValueSet(strings=sets.points(strings).complement()), True
    return e.operand.path, ValueSet(atoms ^ (sets.TRUE | sets.FALSE)), True


def _like_set(e: Like, truth: bool) -> _Found | None:
    if not isinstance(e.operand, Attribute):
        return None
    first = e.pattern[0] if e.pattern else ""
    is_exact = len(e.pattern) <= 1 or e.pattern[1:] == (Wild.RUN,)
    if isinstance(first, str):
        strings = _ranges("=", first, not first) if len(e.pattern) <= 1 else sets.with_prefix(first)
    else:
        strings = sets.EVERYTHING
        is_exact = e.pattern == (Wild.RUN,)
    if not truth:
        strings = strings.complement() if is_exact else sets.EVERYTHING
    return e.operand.path, ValueSet(strings=strings), is_exact


def _attribute_set(e: Attribute, truth: bool) -> _Found:
    return e.path, ValueSet(sets.TRUE if truth else sets.FALSE), True


def _exists_set(e: Exists, truth: bool) -> _Found | None:
    if not isinstance(e.operand, Attribute):
        return None
    return e.operand.path, _PRESENT if truth else _MISSING, True


def _null_set(e: IsNull, truth: bool) -> _Found | None:
    if not isinstance(e.operand, Attribute):
        return None
    return e.operand.path, _NULL if truth else _NOT_NULL, True


_MISSING = ValueSet(sets.MISSING)
_PRESENT = _MISSING.complement()
_NULL = ValueSet(sets.MISSING | sets.NULL)
_NOT_NULL = _NULL.complement()

SETS: dict[type, Callable[[Any, bool], _Found | None]] = {
    Comparison: _comparison_set,
    Between: _between_set,
    In: _in_set,
    Like: _like_set,
    Attribute: _attribute_set,
    Exists: _exists_set,
    IsNull: _null_set,
}
"""For each type of predicate, a function that returns the set where it is true, or where it is false."""
