"""Evaluation of CESQL expressions, with values and errors strictly by the specification.

Evaluation uses the fail-fast mode that the specification recommends for filters (1.2, 4.1): the first error
ends it. If the operator or function that failed is the root of the expression, the value is the one that the
specification defines for its error; if it is nested, the value is the zero value of the expression's type.
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
"""Attributes that every event has: EXISTS is true for them without a look-up (3.4.4)."""

NOT_ATTRIBUTES = frozenset(("data",))
"""Members of a JSON event that are not context attributes; a CESQL name cannot be ``data_base64``."""

Event = Mapping[str, Any]


def evaluate(node: syntax.Node, event: Event) -> tuple[Value, tuple[str, ...]]:
    """Return the value of an expression for an event, and the kind of the error, if there was one."""
    try:
        return _value(node, event), ()
    except _Error as error:
        if error.node is node:
            return error.value, (error.kind,)
        return _zero(node), (error.kind,)


class _Error(Exception):
    """An error, the node in which it occurred, and the value that the node returns with it."""

    def __init__(self, kind: str, node: syntax.Node, value: Value) -> None:
        super().__init__(kind)
        self.kind, self.node, self.value = kind, node, value


def _zero(node: syntax.Node) -> Value:
    """Return the zero value of an expression's type; an unknown type counts as boolean (3.2)."""
    return (result_type(node) or CesqlType.BOOLEAN).zero


def _value(node: syntax.Node, event: Event) -> Value:
    return _VALUES[type(node)](node, event)


def _cast(node: syntax.Node, value: Value, wanted: CesqlType) -> Any:
    """Cast an operand of ``node`` to the type that it needs; raise a cast error if that is impossible."""
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
    # Section 3.7 would cast an integer, as for BOOL and AND. The conformance tests require that NOT 10 is
    # an error, with the negated zero value as its value.
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
    """Evaluate AND up to the first false operand, OR up to the first true one, and XOR completely."""
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
    """Compare with the items from left to right, up to the first that is equal."""
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
