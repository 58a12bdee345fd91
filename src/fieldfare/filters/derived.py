"""Derived columns: what filters compute from attributes, as if it were one more attribute.

``HOUR(time) BETWEEN 3 AND 5`` is a range of ``HOUR(TIMESTAMP(time))``, and ``a < b`` is a condition that is
true, false or unknown. Each has a path (``model.derived_path``) by its canonical text, so value sets say of
it what they say of attributes, and NOT and IS stay exact; where it is unknown it is null. Who compares it
computes it for each event. That would be right of any expression; but only what has a short text that is read
back as the same expression has a path, and nothing that goes through arrays.
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

MAX_NAME_CHARACTERS = 256
"""How long the text of a derived column can be."""
MAX_PARTS = 48
"""How many parts its expression can have."""
_REMEMBERED = 4_096


def path_of(e: Expression) -> Path | None:
    """The path of a derived column; None for an expression that is none."""
    try:
        return _path_of(e)
    except _NoColumnError:
        return None


class _NoColumnError(Exception):
    """Raised, for what is raised is not remembered: such an expression may hold texts of any length."""


@lru_cache(_REMEMBERED)
def _path_of(e: Expression) -> Path:
    reads, goes_through = False, isinstance(e, Quantified)
    for place, part in enumerate(walk(e)):
        reads = reads or isinstance(part, Attribute)
        inside = isinstance(part, Quantified) and place > 0
        if place == MAX_PARTS or inside or (isinstance(part, Element) and not goes_through):
            raise _NoColumnError
    try:
        text = format_expression(e) if reads else ""
        if 0 < len(text) <= MAX_NAME_CHARACTERS and parse_value(text) == e:
            return derived_path(text)
    except FilterError:
        pass
    raise _NoColumnError


@lru_cache(_REMEMBERED)
def expression_of(path: Path) -> Expression:
    """What a derived column is, by its path."""
    text = derived_text(path)
    assert text is not None
    return parse_value(text)


def base_paths(path: Path) -> frozenset[Path]:
    """The attributes that a derived column reads, also as parts of an element; of an attribute itself."""
    if derived_text(path) is None:
        return frozenset((path,))
    expression = expression_of(path)
    return attribute_paths(expression) | attribute_paths(without_quantifiers(expression))


def value_getter(path: Path, getter: Callable[[Path], Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """The function that reads an attribute, or computes a derived column, from a subject.

    Parameters
    ----------
    getter
        Gives that function for an attribute.
    """
    return getter(path) if derived_text(path) is None else Compiler(getter).value(expression_of(path))


def on_column(e: Expression) -> Expression | None:
    """A predicate as one on a derived column, which an ``Attribute`` stands for; None if there is none."""
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
    """Two sides compared: all that say the same of the same two are one column, or its NOT."""
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
