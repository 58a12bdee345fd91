"""Static types of CESQL expressions."""

from __future__ import annotations

from fieldfare.filters.cesql import syntax
from fieldfare.filters.cesql.builtins import BUILTINS
from fieldfare.filters.cesql.values import CesqlType, type_of


def result_type(node: syntax.Node) -> CesqlType | None:
    """Return the type that an expression always has; None for an attribute, whose type the event decides."""
    if isinstance(node, syntax.CesqlAttribute):
        return None
    if isinstance(node, syntax.CesqlLiteral):
        return type_of(node.value)
    if isinstance(node, syntax.Minus | syntax.CesqlArithmetic):
        return CesqlType.INTEGER
    if isinstance(node, syntax.CesqlCall):
        builtin = BUILTINS.get(node.function)
        return builtin.result if builtin and builtin.takes(len(node.arguments)) else CesqlType.BOOLEAN
    return CesqlType.BOOLEAN
