"""The value of a CESQL expression and its error, strictly as the specification has them.

Evaluation is in the fail fast mode that filters should use (1.2, 4.1): the first error ends it. The
operator or function in which the error arose gives the value that the specification has for that;
if it stands inside others, the value is the zero value of the whole expression's type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fieldfare.filters.cesql import syntax
from fieldfare.filters.cesql.builtins import ARITHMETIC, BUILTINS, COMPARISONS, Failure, minus
from fieldfare.filters.cesql.types import result_type
from fieldfare.filters.cesql.values import CesqlType, Value, cast, from_json, is_absent, to_string, type_of
from fieldfare.filters.patterns import matcher_of

REQUIRED = frozenset(("specversion", "id", "source", "type"))
"""Attributes that every event has, so EXISTS does not look (3.4.4)."""

NOT_ATTRIBUTES = frozenset(("data",))
"""Members of a JSON event that are no context attributes; a name cannot be ``data_base64``."""

Event = Mapping[str, Any]


def evaluate(node: syntax.Node, event: Event) -> tuple[Value, tuple[str, ...]]:
    """The value of an expression for an event, and the kind of error that ended the evaluation."""
    try:
        return _value(node, event), ()
    except _Error as error:
        if error.node is node:
            return error.value, (error.kind,)
        return _zero(node), (error.kind,)


class _Error(Exception):
    """An error, the node in which it arose, and the value that the node has all the same."""

    def __init__(self, kind: str, node: syntax.Node, value: Value) -> None:
        super().__init__(kind)
        self.kind, self.node, self.value = kind, node, value


def _zero(node: syntax.Node) -> Value:
    """The zero value of an expression's type; where that is not known it is a boolean (3.2)."""
    return (result_type(node) or CesqlType.BOOLEAN).zero


def _value(node: syntax.Node, event: Event) -> Value:
    return _VALUES[type(node)](node, event)


def _cast(node: syntax.Node, value: Value, wanted: CesqlType) -> Any:
    """A value as the operator or function ``node`` needs it."""
    result = cast(value, wanted)
    if result is None:
        raise _Error("cast", node, _zero(node))
    return result


def _settled(node: syntax.Node, result: Value | Failure) -> Value:
    if isinstance(result, Failure):
        raise _Error(result.kind, node, result.value)
    return result


def _literal(node: syntax.CesqlLiteral, event: Event) -> Value:
    return node.value


def _attribute(node: syntax.CesqlAttribute, event: Event) -> Value:
    found = None if node.name in NOT_ATTRIBUTES else event.get(node.name)
    if is_absent(found):
        raise _Error("missingAttribute", node, False)
    value = from_json(found)
    if value is None:
        raise _Error("generic", node, False)
    return value


def _exists(node: syntax.CesqlExists, event: Event) -> Value:
    if node.name in REQUIRED:
        return True
    return node.name not in NOT_ATTRIBUTES and not is_absent(event.get(node.name))


def _not(node: syntax.CesqlNot, event: Event) -> Value:
    operand = _value(node.operand, event)
    # Section 3.7 would cast an integer, as it does for BOOL and AND. The conformance kit wants NOT 10 to
    # be an error, and the value to be what NOT makes of the zero value.
    truth = None if type_of(operand) is CesqlType.INTEGER else cast(operand, CesqlType.BOOLEAN)
    if truth is None:
        raise _Error("cast", node, True)
    return not truth


def _minus(node: syntax.Minus, event: Event) -> Value:
    operand = _cast(node, _value(node.operand, event), CesqlType.INTEGER)
    return _settled(node, minus(operand))


def _arithmetic(node: syntax.CesqlArithmetic, event: Event) -> Value:
    left, right = _integers(node, event)
    return _settled(node, ARITHMETIC[node.operator](left, right))


def _integers(node: syntax.CesqlArithmetic | syntax.CesqlComparison, event: Event) -> tuple[int, int]:
    left, right = _value(node.left, event), _value(node.right, event)
    return _cast(node, left, CesqlType.INTEGER), _cast(node, right, CesqlType.INTEGER)


def _comparison(node: syntax.CesqlComparison, event: Event) -> Value:
    if node.operator not in ("=", "<>"):
        return COMPARISONS[node.operator](*_integers(node, event))
    left, right = _value(node.left, event), _value(node.right, event)
    return COMPARISONS[node.operator](_cast(node, left, type_of(right)), right)


def _logic(node: syntax.Logic, event: Event) -> Value:
    """AND ends at the first operand that is false, OR at the first that is true, XOR never."""
    result = False
    for operand in node.operands:
        truth = _cast(node, _value(operand, event), CesqlType.BOOLEAN)
        if node.operator == "XOR":
            result = result != truth
        elif truth is (node.operator == "OR"):
            return truth
        else:
            result = truth
    return result


def _like(node: syntax.CesqlLike, event: Event) -> Value:
    fits = matcher_of(node.pattern)(to_string(_value(node.operand, event)))
    return fits is not node.negated


def _in(node: syntax.CesqlIn, event: Event) -> Value:
    """Looks at the items from left to right, up to the first that is equal."""
    operand = _value(node.operand, event)
    wanted = type_of(operand)
    for item in node.items:
        if _cast(node, _value(item, event), wanted) == operand:
            return not node.negated
    return node.negated


def _call(node: syntax.CesqlCall, event: Event) -> Value:
    builtin = BUILTINS.get(node.function)
    if builtin is None or not builtin.takes(len(node.arguments)):
        raise _Error("missingFunction", node, False)
    values = [_value(argument, event) for argument in node.arguments]
    arguments = [_cast(node, value, builtin.parameter(place)) for place, value in enumerate(values)]
    if builtin.compute is None:
        return arguments[0]  # type: ignore[no-any-return]
    return _settled(node, builtin.compute(*arguments))


_VALUES: dict[type, Callable[[Any, Event], Value]] = {
    syntax.CesqlLiteral: _literal,
    syntax.CesqlAttribute: _attribute,
    syntax.CesqlExists: _exists,
    syntax.CesqlNot: _not,
    syntax.Minus: _minus,
    syntax.CesqlArithmetic: _arithmetic,
    syntax.CesqlComparison: _comparison,
    syntax.Logic: _logic,
    syntax.CesqlLike: _like,
    syntax.CesqlIn: _in,
    syntax.CesqlCall: _call,
}
