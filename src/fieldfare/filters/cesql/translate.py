"""Translation of CESQL's syntax tree to the internal expression.

The expression is true where CESQL returns true without an error, and false where it returns false
without an error; where there is an error, or a value that is no boolean, it is unknown. AND and OR
become ``AndThen`` and ``OrElse``, which evaluate in order, so that an error decides the result.

Casts depend on an attribute's type in the event, so they are functions (``CESQL_STRING`` ...). They are
omitted where false and unknown are equivalent, as in a filter that is one comparison or several joined by
AND, if the plain predicate is true for the same values: ``type = 'com.example'`` is true only for a string;
for the number 5 CESQL returns false, and the plain predicate is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fieldfare.filters.cesql import syntax
from fieldfare.filters.cesql.builtins import BUILTINS
from fieldfare.filters.cesql.evaluate import NOT_ATTRIBUTES, REQUIRED
from fieldfare.filters.cesql.types import result_type
from fieldfare.filters.cesql.values import INFINITIES, CesqlType, cast
from fieldfare.filters.errors import FilterError, Problem
from fieldfare.filters.expression import (
    DEPTH_MAX,
    And,
    AndThen,
    Attribute,
    Call,
    Comparison,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    OrElse,
    Pattern,
    parts_of,
)
from fieldfare.filters.functions.cesql import ARITHMETIC, equal_to_any, with_text
from fieldfare.filters.patterns import matcher_of

_ERROR = Literal(None)
_NUMERIC = frozenset("-.0123456789")
_OTHER_TEXTS = ("true", "false", *INFINITIES)
"""The results of STRING for values that are neither strings nor finite numbers."""


def translate(text: str, node: syntax.Node) -> Expression:
    """Translate a filter to the internal expression.

    Raises
    ------
    FilterError
        With its casts, the expression is nested deeper than ``DEPTH_MAX``.
    """
    expression = _ERROR if result_type(node) in (CesqlType.STRING, CesqlType.INTEGER) else _when_true(node)
    level: list[Expression] = [expression]
    for _ in range(DEPTH_MAX):
        level = [part for e in level for part in parts_of(e) if type(part) is not Literal]
        if not level:
            return expression
    message = f"the filter is nested too deeply, with its casts more than {DEPTH_MAX} levels"
    raise FilterError(text, [Problem(message, 1, 1, "", 0)])


def _when_true(node: syntax.Node) -> Expression:
    """Return a simple expression that is true where the node's value is true, else false or unknown."""
    simpler: Expression | None = None
    if isinstance(node, syntax.Logic) and node.operator == "AND":
        simpler = And(tuple(map(_truth_when_true, node.operands)))
    elif isinstance(node, syntax.Logic) and node.operator == "OR":
        simpler = _or_when_true(node)
    elif isinstance(node, syntax.CesqlComparison) and _tested_as_text(node):
        constant = node.right.value if isinstance(node.right, syntax.CesqlLiteral) else None
        simpler = _listed(node.left, with_text(str(constant)))
    elif (
        isinstance(node, syntax.CesqlIn)
        and not node.negated
        and isinstance(node.operand, syntax.CesqlAttribute)
    ):
        constants = [item.value for item in node.items if isinstance(item, syntax.CesqlLiteral)]
        if len(constants) == len(node.items):
            simpler = _listed(node.operand, equal_to_any(constants))
    elif (
        isinstance(node, syntax.CesqlLike)
        and _tested_as_text(node)
        and not _may_fit_other_texts(node.pattern)
    ):
        simpler = Like(_value(node.operand), node.pattern)
    return simpler or _value(node)


def _or_when_true(node: syntax.Logic) -> Expression:
    tested = set(map(_tested_as_text, node.operands))
    if len(tested) == 1 and None not in tested:  # if one of them has an error, all do
        return Or(tuple(map(_when_true, node.operands)))
    *others, last = node.operands
    return OrElse((*map(_truth, others), _truth_when_true(last)))


def _tested_as_text(node: syntax.Node) -> str | None:
    """Return the attribute of ``x = 'a'`` or ``x LIKE 'a%'``, which fail only without a value; else None."""
    if isinstance(node, syntax.CesqlComparison) and node.operator == "=":
        is_test = isinstance(node.right, syntax.CesqlLiteral) and isinstance(node.right.value, str)
        operand = node.left
    elif isinstance(node, syntax.CesqlLike):
        is_test, operand = not node.negated, node.operand
    else:
        return None
    return operand.name if is_test and isinstance(operand, syntax.CesqlAttribute) else None


def _truth_when_true(node: syntax.Node) -> Expression:
    return _when_true(node) if result_type(node) is CesqlType.BOOLEAN else _truth(node)


def _listed(operand: syntax.Node, values: list[Any] | None) -> Expression | None:
    """Return a test whether an attribute is one of some JSON values; None if there is no list of them."""
    if values is None:
        return None
    attribute = _value(operand)
    if len(values) == 1:
        return Comparison("=", attribute, Literal(values[0]))
    return In(attribute, tuple(map(Literal, values)))


def _may_fit_other_texts(pattern: Pattern) -> bool:
    """Return whether a pattern may match the result of STRING for a value that is not a string."""
    if all(set(part) <= _NUMERIC for part in pattern if isinstance(part, str)):
        return True
    return any(map(matcher_of(pattern), _OTHER_TEXTS))


def _value(node: syntax.Node) -> Expression:
    """Return an expression with the node's value; unknown where it has an error."""
    return _VALUES[type(node)](node)


def _as(wanted: CesqlType, node: syntax.Node) -> Expression:
    """Return an expression with the node's value, cast to a type."""
    if isinstance(node, syntax.CesqlLiteral):
        return Literal(cast(node.value, wanted))
    if result_type(node) is wanted:
        return _value(node)
    return _call(_CASTS[wanted], node)


_CASTS = {CesqlType.STRING: "STRING", CesqlType.INTEGER: "INT", CesqlType.BOOLEAN: "BOOL"}


def _truth(node: syntax.Node) -> Expression:
    return _as(CesqlType.BOOLEAN, node)


def _call(function: str, *operands: syntax.Node) -> Expression:
    return Call(f"CESQL_{function}", tuple(map(_value, operands)))


def _literal(node: syntax.CesqlLiteral) -> Expression:
    return Literal(node.value)


def _attribute(node: syntax.CesqlAttribute) -> Expression:
    return _ERROR if node.name in NOT_ATTRIBUTES else Attribute((node.name,))


def _exists(node: syntax.CesqlExists) -> Expression:
    if node.name in REQUIRED or node.name in NOT_ATTRIBUTES:
        return Literal(node.name in REQUIRED)
    return Not(IsNull(Attribute((node.name,))))


def _not(node: syntax.CesqlNot) -> Expression:
    kind = result_type(node.operand)
    if kind is CesqlType.INTEGER:
        return _ERROR
    return Not(_truth(node.operand)) if kind else _call("NOT", node.operand)


def _minus(node: syntax.Minus) -> Expression:
    return _call("MINUS", node.operand)


def _arithmetic(node: syntax.CesqlArithmetic) -> Expression:
    return _call(ARITHMETIC[node.operator], node.left, node.right)


def _comparison(node: syntax.CesqlComparison) -> Expression:
    if node.operator not in ("=", "<>"):
        return Comparison(
            node.operator, _as(CesqlType.INTEGER, node.left), _as(CesqlType.INTEGER, node.right)
        )
    wanted = result_type(node.right)
    if wanted:
        return Comparison(node.operator, _as(wanted, node.left), _value(node.right))
    equal = _call("EQUAL", node.left, node.right)
    return equal if node.operator == "=" else Not(equal)


def _logic(node: syntax.Logic) -> Expression:
    operands = tuple(map(_truth, node.operands))
    if node.operator == "XOR":
        return _exclusive(operands)
    return (AndThen if node.operator == "AND" else OrElse)(operands)


def _exclusive(operands: tuple[Expression, ...]) -> Expression:
    """Return XOR as a balanced tree, to limit its depth; all operands are evaluated in any case."""
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    return Comparison("<>", _exclusive(operands[:middle]), _exclusive(operands[middle:]))


def _like(node: syntax.CesqlLike) -> Expression:
    like = Like(_as(CesqlType.STRING, node.operand), node.pattern)
    return Not(like) if node.negated else like


def _in(node: syntax.CesqlIn) -> Expression:
    found = _call("IN", node.operand, *node.items)
    return Not(found) if node.negated else found


def _function(node: syntax.CesqlCall) -> Expression:
    builtin = BUILTINS.get(node.function)
    if builtin is None or not builtin.takes(len(node.arguments)):
        return _ERROR
    return _call(node.function, *node.arguments)


_VALUES: dict[type, Callable[[Any], Expression]] = {
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
    syntax.CesqlCall: _function,
}
