"""Functions that give back one of their operands, and the comparison for which null is a value."""

from __future__ import annotations

from typing import Any

from fieldfare.filters import exact
from fieldfare.filters.expression import (
    And,
    Attribute,
    Comparison,
    Element,
    Expression,
    IsNull,
    IsTruth,
    Literal,
    Or,
)
from fieldfare.filters.functions.table import Function, Parameter, Type


def first_value(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def case_value(*operands: Any) -> Any:
    """The value behind the first condition that is true; the last operand if none is."""
    for place in range(0, len(operands) - 1, 2):
        if operands[place] is True:
            return operands[place + 1]
    return operands[-1]


def unless_equal(value: Any, other: Any) -> Any:
    return None if exact.order(value, other) == 0 else value


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal, or there is neither."""
    return exact.order(left, right) == 0 if left is not None else right is None


def _most(wanted: int, values: tuple[Any, ...]) -> Any:
    """The first value that none is above (or below); None if some cannot be compared."""
    found = None
    for value in values:
        if value is None:
            continue
        order = exact.order(value, value if found is None else found)
        if order is None:
            return None
        if found is None or order == wanted:
            found = value
    return found


def greatest(*values: Any) -> Any:
    return _most(1, values)


def least(*values: Any) -> Any:
    return _most(-1, values)


_SIMPLE = (Attribute, Element, Literal)


def _expand_same(operands: tuple[Expression, ...]) -> Expression | None:
    """What says the same of a constant and anything, or of two attributes."""
    left, right = operands
    if isinstance(left, Literal):
        left, right = right, left
    if isinstance(right, Literal):
        return IsNull(left) if right.value is None else IsTruth(Comparison("=", left, right), True)
    if not (isinstance(left, _SIMPLE) and isinstance(right, _SIMPLE)):
        return None  # what is computed is computed once
    equal = IsTruth(Comparison("=", left, right), True)
    return Or((equal, And((IsNull(left), IsNull(right)))))


_VALUE = Parameter("value", Type.ANY)
_MORE_VALUES = Parameter("value", Type.ANY, repeated=True)
_GROUP = "Any type"

FUNCTIONS = [
    Function(
        name="COALESCE",
        parameters=(_VALUE, _MORE_VALUES),
        result=Type.ANY,
        summary="the first of the values that is neither null nor missing nor unknown",
        group=_GROUP,
        compute=first_value,
        takes_null=True,
    ),
    Function(
        name="NULLIF",
        parameters=(_VALUE, Parameter("other", Type.ANY)),
        result=Type.ANY,
        summary="the value, but none if it equals the other",
        group=_GROUP,
        compute=unless_equal,
        takes_null=True,
    ),
    Function(
        name="GREATEST",
        parameters=(_VALUE, _MORE_VALUES),
        result=Type.ANY,
        summary="the greatest of the values that there are; none if they are of several types",
        group=_GROUP,
        compute=greatest,
        takes_null=True,
    ),
    Function(
        name="LEAST",
        parameters=(_VALUE, _MORE_VALUES),
        result=Type.ANY,
        summary="the least of the values that there are; none if they are of several types",
        group=_GROUP,
        compute=least,
        takes_null=True,
    ),
    Function(
        name="EQUAL_NULL",
        parameters=(_VALUE, Parameter("other", Type.ANY)),
        result=Type.BOOLEAN,
        summary="whether both are equal, or neither has a value: `a IS NOT DISTINCT FROM b`, `a <=> b`",
        group=_GROUP,
        compute=same,
        expand=_expand_same,
        takes_null=True,
    ),
    Function(
        name="CASE",
        parameters=(
            Parameter("condition", Type.ANY),
            _VALUE,
            Parameter("otherwise", Type.ANY, repeated=True),
        ),
        result=Type.ANY,
        summary="the value behind the first condition that is true, or else the last one",
        group="",
        compute=case_value,
        takes_null=True,
    ),
]
