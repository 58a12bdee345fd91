"""Functions that return one of their operands, and the comparison that treats null as a value."""

from __future__ import annotations

from collections.abc import Callable
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
    """Return the value after the first true condition, or the last operand if none is true.

    Parameters
    ----------
    operands
        Pairs of condition and value, and the value of ELSE.
    """
    for place in range(0, len(operands) - 1, 2):
        if operands[place] is True:
            return operands[place + 1]
    return operands[-1]


def unless_equal(value: Any, other: Any) -> Any:
    return None if exact.order(value, other) == 0 else value


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal or both are None."""
    return exact.order(left, right) == 0 if left is not None else right is None


def _most(wanted: int, values: tuple[Any, ...]) -> Any:
    """Return the greatest (1) or least (-1) value that is not None; None if the values are not comparable."""
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
    """Return an equivalent of EQUAL_NULL if one operand is a constant or both are simple; else None."""
    left, right = operands
    if isinstance(left, Literal):
        left, right = right, left
    if isinstance(right, Literal):
        return IsNull(left) if right.value is None else IsTruth(Comparison("=", left, right), True)
    if not (isinstance(left, _SIMPLE) and isinstance(right, _SIMPLE)):
        return None  # the expansion repeats the operands, and would compute them twice
    equal = IsTruth(Comparison("=", left, right), True)
    return Or((equal, And((IsNull(left), IsNull(right)))))


_VALUE = Parameter("value", Type.ANY)
_OTHER = Parameter("other", Type.ANY)
_MORE_VALUES = Parameter("value", Type.ANY, repeated=True)


def _function(
    name: str,
    parameters: tuple[Parameter, ...],
    summary: str,
    compute: Callable[..., object],
    result: Type = Type.ANY,
    *,
    group: str = "Any type",
    expand: Callable[[tuple[Expression, ...]], Expression | None] | None = None,
) -> Function:
    return Function(
        name=name,
        parameters=parameters,
        result=result,
        summary=summary,
        group=group,
        compute=compute,
        expand=expand,
        takes_null=True,
    )


FUNCTIONS = [
    _function(
        "COALESCE",
        (_VALUE, _MORE_VALUES),
        "the first of the values that is neither null nor missing nor unknown",
        first_value,
    ),
    _function("NULLIF", (_VALUE, _OTHER), "the value, or no value if it equals the other", unless_equal),
    _function(
        "GREATEST",
        (_VALUE, _MORE_VALUES),
        "the greatest of the values, ignoring missing ones; no value if they are of several types",
        greatest,
    ),
    _function(
        "LEAST",
        (_VALUE, _MORE_VALUES),
        "the least of the values, ignoring missing ones; no value if they are of several types",
        least,
    ),
    _function(
        "EQUAL_NULL",
        (_VALUE, _OTHER),
        "whether both are equal, or neither has a value: `a IS NOT DISTINCT FROM b`, `a <=> b`",
        same,
        Type.BOOLEAN,
        expand=_expand_same,
    ),
    _function(
        "CASE",
        (
            Parameter("condition", Type.ANY),
            _VALUE,
            Parameter("otherwise", Type.ANY, repeated=True),
        ),
        "the value after the first condition that is true, or else the last one",
        case_value,
        group="",
    ),
]
