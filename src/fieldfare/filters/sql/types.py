"""Static types: what a parser knows of a value before there is an event.

Attributes are of ANY type. Whether numbers are timestamps, intervals or plain can only be told
here, since all three are computed as numbers.
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
"""Types as messages name them."""

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
"""What an attribute is read as, by the operator and the type on the other side; else as a number."""


def literal_type(value: Scalar) -> Type:
    """The type of a constant; NULL may be of any."""
    if isinstance(value, bool):
        return Type.BOOLEAN
    if isinstance(value, str):
        return Type.STRING
    return Type.ANY if value is None else Type.NUMBER


def arithmetic_type(left: Type, operator: str, right: Type) -> tuple[Type, Type, Type] | None:
    """What the sides of an operator are read as, and the result's type; None if it cannot work."""
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
    """A value of any type, read as a timestamp."""
    return e if isinstance(e, Literal) else Call("TIMESTAMP", (e,))


def as_interval(e: Expression) -> Expression | None:
    """The difference of two attributes, read as that of two timestamps; None if it is no such."""
    if not isinstance(e, Arithmetic) or e.operator != "-":
        return None
    if not isinstance(e.left, Attribute | Element) or not isinstance(e.right, Attribute | Element):
        return None
    return Arithmetic("-", as_timestamp(e.left), as_timestamp(e.right))
