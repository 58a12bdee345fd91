"""The type of a CESQL expression's value, as far as its text tells."""

from __future__ import annotations

from fieldfare.filters.cesql import syntax
from fieldfare.filters.cesql.builtins import BUILTINS
from fieldfare.filters.cesql.values import Type, type_of


def result_type(node: syntax.Node) -> Type | None:
    """The type that an expression always has; None for an attribute, which only the event decides."""
    if isinstance(node, syntax.Attribute):
        return None
    if isinstance(node, syntax.Literal):
        return type_of(node.value)
    if isinstance(node, syntax.Minus | syntax.Arithmetic):
        return Type.INTEGER
    if isinstance(node, syntax.Call):
        builtin = BUILTINS.get(node.function)
        return builtin.result if builtin and builtin.takes(len(node.arguments)) else Type.BOOLEAN
    return Type.BOOLEAN
