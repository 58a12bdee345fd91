"""The canonical ``sql`` text of an expression; parsing it returns an equal expression."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from fieldfare.filters.errors import FilterError, Problem
from fieldfare.filters.expression import (
    And,
    AndThen,
    Arithmetic,
    Attribute,
    Between,
    Call,
    Comparison,
    Element,
    Exists,
    Expression,
    In,
    IsNull,
    IsTruth,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    OrElse,
    Quantified,
    Scalar,
    parts_of,
    walk,
)
from fieldfare.filters.patterns import folded, format_like
from fieldfare.filters.sql.literals import INTERVAL_UNITS
from fieldfare.filters.sql.paths import format_path

_OR, _AND, _NOT, _IS, _COMPARE, _ADD, _MULTIPLY, _NEGATE, _PRIMARY = range(1, 10)
_EXACT = Context(prec=2_000)
_LONG = 20

WRITTEN_PARTS_MAX = 20_000
"""Maximum parts of a text in which operands are repeated; a larger one is rejected with a FilterError."""

_ARITHMETIC = {"+": _ADD, "-": _ADD, "*": _MULTIPLY, "/": _MULTIPLY, "%": _MULTIPLY}
_TRUTHS = {True: "TRUE", False: "FALSE", None: "UNKNOWN"}


def format_expression(expression: Expression) -> str:
    """Return the ``sql`` text of an expression.

    Raises
    ------
    FilterError
        The text would be too long. ``sql`` has no AND and OR from left to right; their equivalent contains
        all operands but the last twice.
    """
    if any(isinstance(part, AndThen | OrElse) for part in walk(expression)):
        written = _parts_written(expression, {})
        if written > WRITTEN_PARTS_MAX:
            message = "in sql this filter would exceed the maximum size of a filter"
            raise FilterError("", [Problem(message, 1, 1, "split it into several subscriptions", 0)])
    return _FORMATS[type(expression)](expression)[0]


def _parts_written(e: Expression, known: dict[int, int]) -> int:
    """Return the number of parts in the text of an expression."""
    found = known.get(id(e))
    if found is None:
        sizes = [_parts_written(part, known) for part in parts_of(e)]
        found = 1 + sum(sizes) + (sum(sizes[:-1]) if isinstance(e, AndThen | OrElse) else 0)
        known[id(e)] = found
    return found


def format_literal(value: Scalar) -> str:
    """Return a constant as an ``sql`` literal."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return _TRUTHS[value]
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    plain = str(value)
    if len(plain) <= _LONG:
        return plain
    exponential = format(Decimal(value).normalize(_EXACT), "E")
    return min(plain, exponential, key=len)


def _part(expression: Expression, least: int) -> str:
    """Return a part's text, in parentheses if it binds less tightly than ``least``."""
    text, level = _FORMATS[type(expression)](expression)
    return text if level >= least else f"({text})"


def _operand(expression: Expression) -> str:
    """Return the text of a part after an operator; a quoted name, similar to a string, in parentheses."""
    text = _part(expression, _ADD)
    return f"({text})" if text[0] == '"' and isinstance(expression, Attribute) else text


def _literal(e: Literal) -> tuple[str, int]:
    return format_literal(e.value), _PRIMARY


def _negate(e: Negate) -> tuple[str, int]:
    number = isinstance(e.operand, Literal) and isinstance(e.operand.value, int | Decimal)
    operand = _part(e.operand, _PRIMARY)
    return f"-({operand})" if number else f"- {operand}" if operand[0] == "-" else f"-{operand}", _NEGATE


def _arithmetic(e: Arithmetic) -> tuple[str, int]:
    level = _ARITHMETIC[e.operator]
    return f"{_part(e.left, level)} {e.operator} {_part(e.right, level + 1)}", level


def _comparison(e: Comparison) -> tuple[str, int]:
    return f"{_part(e.left, _ADD)} {e.operator} {_operand(e.right)}", _COMPARE


def _between(e: Between, negation: str = "") -> tuple[str, int]:
    return f"{_part(e.operand, _ADD)} {negation}BETWEEN {_operand(e.low)} AND {_operand(e.high)}", _COMPARE


def _in(e: In, negation: str = "") -> tuple[str, int]:
    return f"{_part(e.operand, _ADD)} {negation}IN ({', '.join(map(_operand, e.items))})", _COMPARE


def _like(e: Like, negation: str = "") -> tuple[str, int]:
    pattern, escape = format_like(e.pattern)
    ending = f" ESCAPE {format_literal(escape)}" if escape else ""
    operand, keyword = e.operand, "LIKE"
    if isinstance(operand, Call) and operand.function == "CASEFOLD" and folded(e.pattern) == e.pattern:
        operand, keyword = operand.operands[0], "ILIKE"
    return f"{_part(operand, _ADD)} {negation}{keyword} {format_literal(pattern)}{ending}", _COMPARE


def _exists(e: Exists) -> tuple[str, int]:
    return f"EXISTS({format_expression(e.operand)})", _PRIMARY


def _element(e: Element) -> tuple[str, int]:
    return format_path((e.variable, *e.path)), _PRIMARY


def _call(e: Call) -> tuple[str, int]:
    first = e.operands[0] if e.operands else None
    if isinstance(first, Literal) and len(e.operands) == 1:
        if e.function in ("TIMESTAMP", "TIME") and isinstance(first.value, str):
            return f"{e.function} {format_literal(first.value)}", _PRIMARY
        if e.function == "INTERVAL" and (text := _interval(first.value)):
            return text, _PRIMARY
    if e.function in _WRITTEN:
        return _WRITTEN[e.function](e)
    return f"{e.function}({', '.join([_part(operand, _ADD) for operand in e.operands])})", _PRIMARY


def _case(e: Call) -> tuple[str, int]:
    *pairs, otherwise = e.operands
    text = "CASE"
    for condition, value in zip(pairs[::2], pairs[1::2], strict=True):
        text += f" WHEN {_part(condition, _OR)} THEN {_alone(value)}"
    text += "" if otherwise == Literal(None) else f" ELSE {_alone(otherwise)}"
    return f"{text} END", _PRIMARY


def _alone(e: Expression) -> str:
    """Return the text of any value; a quoted name, which looks like a string, in parentheses."""
    text = _part(e, _OR)
    return f"({text})" if text[0] == '"' and isinstance(e, Attribute) else text


def _same(e: Call) -> tuple[str, int]:
    left, right = e.operands
    return f"{_part(left, _ADD)} <=> {_operand(right)}", _COMPARE


def _element_at(e: Call) -> tuple[str, int]:
    """Return ELEMENT_AT; a constant place is in parentheses, or it would be parsed as a step of the name."""
    value, place = (_part(operand, _ADD) for operand in e.operands)
    named, key = e.operands
    if isinstance(named, Attribute | Element) and isinstance(key, Literal) and place[0] in "'0123456789.":
        place = f"({place})"
    return f"ELEMENT_AT({value}, {place})", _PRIMARY


_WRITTEN: dict[str, Callable[[Call], tuple[str, int]]] = {
    "CASE": _case,
    "ELEMENT_AT": _element_at,
    "EQUAL_NULL": _same,
}
"""Functions whose calls have special syntax."""


def _interval(seconds: Scalar) -> str:
    """Return an interval as a literal in the largest unit in which it is whole; "" if it has no literal."""
    if isinstance(seconds, int) and not isinstance(seconds, bool) and abs(seconds) < 10**18:
        for unit in ("DAY", "HOUR", "MINUTE", "SECOND"):
            if seconds and seconds % INTERVAL_UNITS[unit] == 0:
                return f"INTERVAL '{seconds // INTERVAL_UNITS[unit]}' {unit}"
    return ""


def _quantified(e: Quantified) -> tuple[str, int]:
    array, condition = format_expression(e.array), format_expression(e.condition)
    return f"{e.quantifier} {format_path((e.variable,))} IN {array} SATISFIES ({condition})", _PRIMARY


def _is_null(e: IsNull, negation: str = "") -> tuple[str, int]:
    return f"{_part(e.operand, _IS)} IS {negation}NULL", _IS


def _is_truth(e: IsTruth, negation: str = "") -> tuple[str, int]:
    return f"{_part(e.operand, _IS)} IS {negation}{_TRUTHS[e.truth]}", _IS


_NEGATED: dict[type, Callable[[Any, str], tuple[str, int]]] = {
    Between: _between,
    In: _in,
    Like: _like,
    IsNull: _is_null,
    IsTruth: _is_truth,
}


def _not(e: Not) -> tuple[str, int]:
    negated = _NEGATED.get(type(e.operand))
    return negated(e.operand, "NOT ") if negated else (f"NOT {_part(e.operand, _NOT)}", _NOT)


def _and(e: And) -> tuple[str, int]:
    return " AND ".join(_part(operand, _NOT) for operand in e.operands), _AND


def _or(e: Or) -> tuple[str, int]:
    return " OR ".join(_part(operand, _AND) for operand in e.operands), _OR


def _and_then(e: AndThen) -> tuple[str, int]:
    """Return an equivalent of AndThen with AND: later operands count only if the earlier ones are true."""
    *others, last = e.operands
    before = [f"{_part(each, _NOT)} AND ({_part(Not(IsTruth(each, True)), _AND)} OR " for each in others]
    return "".join(before) + _part(last, _AND) + ")" * len(others), _AND


def _or_else(e: OrElse) -> tuple[str, int]:
    *others, last = e.operands
    before = [f"{_part(each, _AND)} OR {_part(IsTruth(each, False), _NOT)} AND " for each in others]
    return "(".join(before) + _part(last, _NOT) + ")" * (len(others) - 1), _OR


_FORMATS: dict[type, Callable[[Any], tuple[str, int]]] = {
    Literal: _literal,
    Attribute: lambda e: (format_path(e.path), _PRIMARY),
    Element: _element,
    Call: _call,
    Quantified: _quantified,
    Negate: _negate,
    Arithmetic: _arithmetic,
    Comparison: _comparison,
    Between: _between,
    In: _in,
    Like: _like,
    Exists: _exists,
    IsNull: _is_null,
    IsTruth: _is_truth,
    Not: _not,
    And: _and,
    Or: _or,
    AndThen: _and_then,
    OrElse: _or_else,
}
