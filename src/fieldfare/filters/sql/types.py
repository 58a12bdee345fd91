"""Static types of values in the ``sql`` dialect.

Attributes are of type ANY. Only static types distinguish timestamps, intervals and numbers, because all
three are represented as numbers.
"""

from __future__ import annotations

from fieldfare.filters.expression import Arithmetic, Attribute, Call, Element, Expression, Literal, Scalar
from fieldfare.filters.functions import Type

SHOWN = {
    Type.NUMBER: "a number",
    Type.STRING: "a string",
    Type.BOOLEAN: "a condition",
    Type.TIMESTAMP: "a timestamp",
    Type.INTERVAL: "an interval",
    Type.ANY: "a value",
}
"""Names of types in messages."""

_ARITHMETIC = {
    **{(Type.NUMBER, operator, Type.NUMBER): Type.NUMBER for operator in "+-*/%"},
    (Type.TIMESTAMP, "-", Type.TIMESTAMP): Type.INTERVAL,
    (Type.TIMESTAMP, "-", Type.INTERVAL): Type.TIMESTAMP,
    (Type.TIMESTAMP, "+", Type.INTERVAL): Type.TIMESTAMP,
    (Type.INTERVAL, "+", Type.TIMESTAMP): Type.TIMESTAMP,
    (Type.INTERVAL, "+", Type.INTERVAL): Type.INTERVAL,
    (Type.INTERVAL, "-", Type.INTERVAL): Type.INTERVAL,
    (Type.INTERVAL, "*", Type.NUMBER): Type.INTERVAL,
    (Type.NUMBER, "*", Type.INTERVAL): Type.INTERVAL,
    (Type.INTERVAL, "/", Type.NUMBER): Type.INTERVAL,
    (Type.INTERVAL, "/", Type.INTERVAL): Type.NUMBER,
    (Type.INTERVAL, "%", Type.INTERVAL): Type.INTERVAL,
}

_READ_AS = {
    **dict.fromkeys([("-", Type.TIMESTAMP), ("+", Type.INTERVAL), ("-", Type.INTERVAL)], Type.TIMESTAMP),
}
"""The type to which an attribute is converted, by operator and type on its right; else it is a number."""


def literal_type(value: Scalar) -> Type:
    """Return the type of a constant; ANY for NULL."""
    if isinstance(value, bool):
        return Type.BOOLEAN
    if isinstance(value, str):
        return Type.STRING
    return Type.ANY if value is None else Type.NUMBER


def arithmetic_type(left: Type, operator: str, right: Type) -> tuple[Type, Type, Type] | None:
    """Return the types of an operator's two sides and its result; None if there is no result."""
    if left is right is Type.ANY:
        left = right = Type.NUMBER
    elif left is Type.ANY:
        left = _READ_AS.get((operator, right), Type.NUMBER)
    elif right is Type.ANY:
        right = Type.TIMESTAMP if (left, operator) in _BEFORE_TIMESTAMP else Type.NUMBER
    result = _ARITHMETIC.get((left, operator, right))
    return None if result is None else (left, right, result)


_BEFORE_TIMESTAMP = ((Type.TIMESTAMP, "-"), (Type.INTERVAL, "+"))


def as_timestamp(e: Expression) -> Expression:
    """Return a value of any type converted to a timestamp; a literal is returned unchanged."""
    return e if isinstance(e, Literal) else Call("TIMESTAMP", (e,))


def as_interval(e: Expression) -> Expression | None:
    """Return a difference of two attributes as that of two timestamps; None for other expressions."""
    if not isinstance(e, Arithmetic) or e.operator != "-":
        return None
    if not isinstance(e.left, Attribute | Element) or not isinstance(e.right, Attribute | Element):
        return None
    return Arithmetic("-", as_timestamp(e.left), as_timestamp(e.right))
