"""Derived columns: expressions over attributes that the index treats as one more attribute.

``HOUR(time) BETWEEN 3 AND 5`` is a range of ``HOUR(TIMESTAMP(time))``, and ``a < b`` is a condition that is
true, false or unknown. A derived column has a path (``model.derived_path``) made of its canonical text, so
that value sets constrain it as they constrain attributes, and NOT and IS stay exact. Where it is unknown, its
value is null. A matcher that compares it computes it for each event.

An expression has a path only if its text is short and is parsed back to the same expression. An expression
with a quantifier inside has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fieldfare.filters.errors import FilterError
from fieldfare.filters.evaluator import MIRRORED, Compiler
from fieldfare.filters.expression import (
    Attribute,
    Between,
    Call,
    Comparison,
    Element,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Quantified,
    attribute_paths,
    walk,
    without_quantifiers,
)
from fieldfare.filters.sql.parser import parse_value
from fieldfare.filters.sql.printer import format_expression
from fieldfare.model import Path, derived_path, derived_text

NAME_CHARACTERS_MAX = 256
"""Maximum characters of a derived column's text; a longer expression has no derived column."""
PARTS_MAX = 48
"""Maximum parts of a derived column's expression; a larger expression has no derived column."""
_REMEMBERED = 4_096


def path_of(e: Expression) -> Path | None:
    """Return the path of an expression's derived column; None if it has none."""
    try:
        return _path_of(e)
    except _NoColumnError:
        return None


class _NoColumnError(Exception):
    """An expression that has no derived column.

    An exception, so that ``lru_cache`` does not keep the expression: its texts may have any length.
    """


@lru_cache(_REMEMBERED)
def _path_of(e: Expression) -> Path:
    reads, goes_through = False, isinstance(e, Quantified)
    for place, part in enumerate(walk(e)):
        reads = reads or isinstance(part, Attribute)
        inside = isinstance(part, Quantified) and place > 0
        if place == PARTS_MAX or inside or (isinstance(part, Element) and not goes_through):
            raise _NoColumnError
    try:
        text = format_expression(e) if reads else ""
        if 0 < len(text) <= NAME_CHARACTERS_MAX and parse_value(text) == e:
            return derived_path(text)
    except FilterError:
        pass
    raise _NoColumnError


@lru_cache(_REMEMBERED)
def expression_of(path: Path) -> Expression:
    """Return the expression that a derived column's path stands for."""
    text = derived_text(path)
    assert text is not None
    return parse_value(text)


def base_paths(path: Path) -> frozenset[Path]:
    """Return the attributes that a derived column reads, parts of elements included.

    For the path of an attribute, return that path.
    """
    if derived_text(path) is None:
        return frozenset((path,))
    expression = expression_of(path)
    return attribute_paths(expression) | attribute_paths(without_quantifiers(expression))


def value_getter(path: Path, getter: Callable[[Path], Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return a function that reads an attribute, or computes a derived column, from a subject.

    Parameters
    ----------
    getter
        Returns such a function for an attribute.
    """
    return getter(path) if derived_text(path) is None else Compiler(getter).value(expression_of(path))


def on_column(e: Expression) -> Expression | None:
    """Return a predicate rewritten to test a derived column (an ``Attribute``); None if it has none."""
    if isinstance(e, Call):
        return _attribute(e)
    if isinstance(e, Comparison):
        side = "right" if isinstance(e.left, Literal) else "left"
        if not (isinstance(e.left, Literal) or isinstance(e.right, Literal)):
            return _compared(e)
    elif isinstance(e, Between | In | Like | IsNull):
        side = "operand"
    else:
        return None
    operand = getattr(e, side)
    column = None if isinstance(operand, Literal | Attribute | Element) else _attribute(operand)
    return None if column is None else replace(e, **{side: column})  # type: ignore[arg-type]


def _attribute(e: Expression) -> Attribute | None:
    path = path_of(e)
    return None if path is None else Attribute(path)


def _compared(e: Comparison) -> Expression | None:
    """Return the derived column of a comparison; equivalent comparisons share one column, or its NOT."""
    operator, left, right = e.operator, e.left, e.right
    if operator in (">", "<="):
        operator, left, right = MIRRORED[operator], right, left
    is_negated = operator in ("<>", ">=")
    operator = {"<>": "=", ">=": "<"}.get(operator, operator)
    column = _attribute(Comparison(operator, left, right))
    if operator == "=" and column is not None:
        other = _attribute(Comparison(operator, right, left))
        if other is not None and str(other.path[1]) < str(column.path[1]):
            column = other
    return Not(column) if column is not None and is_negated else column
