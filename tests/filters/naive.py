"""A naive interpreter of filters, written from the pages on filters, for comparison with the evaluator.

Values: ABSENT and None (null) are no values; booleans, numbers and strings are; all others are `other`.
Conditions: True, False, None for unknown. Numbers are Fractions, or an infinity as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from math import inf as INFINITY
from typing import Any

from fieldfare.filters import expression as ast
from fieldfare.filters.derived import value_getter
from fieldfare.filters.exact import BITS_MAX, SUM_BITS
from fieldfare.filters.needles import Needle
from fieldfare.filters.normal_form import Conjunction, NormalForm
from fieldfare.filters.values import ABSENT

from . import naive_functions

NO_VALUE = (ABSENT, None)


def read(event: Any, path: tuple[str | int, ...]) -> Any:
    """Return the value of an attribute, or ABSENT."""
    value = event
    for step in path:
        if isinstance(step, str) and isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(step, int) and isinstance(value, Sequence) and not isinstance(value, str):
            if step >= len(value):
                return ABSENT
            value = value[step]
        else:
            return ABSENT
    return value


def evaluate(e: ast.Expression, event: Any) -> Any:
    """Return the value of an expression; that of a condition is True, False or None."""
    match e:
        case ast.Literal(value):
            return value
        case ast.Attribute(path):
            return read(event, path)
        case ast.Negate(operand):
            return calculate("-", 0, evaluate(operand, event))
        case ast.Arithmetic(operator, left, right):
            return calculate(operator, evaluate(left, event), evaluate(right, event))
        case ast.Comparison(operator, left, right):
            return compare(operator, evaluate(left, event), evaluate(right, event))
        case ast.Between(operand, low, high):
            value = evaluate(operand, event)
            return conjunction(
                [compare(">=", value, evaluate(low, event)), compare("<=", value, evaluate(high, event))]
            )
        case ast.In(operand, items):
            value = evaluate(operand, event)
            return disjunction([compare("=", value, evaluate(item, event)) for item in items])
        case ast.Like(operand, pattern):
            value = evaluate(operand, event)
            return fits(tuple(pattern_characters(pattern)), value) if isinstance(value, str) else None
        case ast.Exists(operand):
            return evaluate(operand, event) is not ABSENT
        case ast.IsNull(operand):
            return evaluate(operand, event) in NO_VALUE
        case ast.IsTruth(operand, truth):
            return condition(operand, event) is truth
        case ast.Not(operand):
            value = condition(operand, event)
            return None if value is None else not value
        case ast.And(operands):
            return conjunction([condition(operand, event) for operand in operands])
        case ast.Or(operands):
            return disjunction([condition(operand, event) for operand in operands])
        case ast.AndThen(operands):
            values = [condition(operand, event) for operand in operands]
            return next((value for value in values if value is not True), True)
        case ast.OrElse(operands):
            values = [condition(operand, event) for operand in operands]
            return next((value for value in values if value is not False), False)
        case ast.Element(variable, path):
            return read(event[variable, "element"], path)
        case ast.Quantified(quantifier, array, variable, inner):
            value = evaluate(array, event)
            if value is ABSENT:
                return None
            elements = value if isinstance(value, list) else [value]
            truths = [condition(inner, {**event, (variable, "element"): element}) for element in elements]
            return disjunction(truths) if quantifier == "ANY" else conjunction(truths)
        case ast.Call(name, operands):
            return call(name, [evaluate(operand, event) for operand in operands])
    raise AssertionError(e)


def call(name: str, values: list[Any]) -> Any:
    """Return the result of a function; see ``naive_functions``."""
    return naive_functions.call(name, values)


def condition(e: ast.Expression, event: Any) -> bool | None:
    """Return the value of an expression as a condition: unknown unless it is true or false."""
    value = evaluate(e, event)
    return value if isinstance(value, bool) else None


def conjunction(values: list[bool | None]) -> bool | None:
    if False in values:
        return False
    return None if None in values else True


def disjunction(values: list[bool | None]) -> bool | None:
    if True in values:
        return True
    return None if None in values else False


def number(value: Any) -> Fraction | float | None:
    """Return a number exactly, or None if the value is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction) or value != value:
        return None
    if not isinstance(value, int) and value in (INFINITY, -INFINITY):
        return float(value)
    if isinstance(value, Fraction):
        return value
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def calculate(operator: str, left: Any, right: Any) -> Fraction | None:
    a, b = number(left), number(right)
    if not isinstance(a, Fraction) or not isinstance(b, Fraction) or is_long(a) or is_long(b):
        return None
    if operator in "/%" and b == 0:
        return None
    if operator == "%":
        whole = int(a / b)  # int() cuts towards 0
        result = a - b * whole
    else:
        result = {"+": a.__add__, "-": a.__sub__, "*": a.__mul__, "/": a.__truediv__}[operator](b)
    result = naive_functions.Sum(result) if operator in "+-" else result
    return None if is_long(result) else result


def is_long(value: Fraction) -> bool:
    bits = SUM_BITS if isinstance(value, naive_functions.Sum) else BITS_MAX
    return max(abs(value.numerator), value.denominator) >= 2**bits


def compare(operator: str, left: Any, right: Any) -> bool | None:
    for same_type in (lambda v: v if isinstance(v, bool) else None, number, as_string):
        a, b = same_type(left), same_type(right)
        if a is not None and b is not None:
            return {
                "=": a == b,
                "<>": a != b,
                "<": a < b,
                "<=": a <= b,
                ">": a > b,
                ">=": a >= b,
            }[operator]
    return None


def as_string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def pattern_characters(pattern: ast.Pattern) -> Any:
    for part in pattern:
        yield from [part] if isinstance(part, ast.Wild) else part


def fits(pattern: tuple[Any, ...], text: str) -> bool:
    """Return whether a text matches a pattern, by dynamic programming over prefixes of both."""
    reach = [True] + [False] * len(text)
    for part in pattern:
        if part is ast.Wild.RUN:
            reach = [any(reach[: i + 1]) for i in range(len(text) + 1)]
        else:
            reach = [False] + [
                reach[i] and (part is ast.Wild.ONE or part == text[i]) for i in range(len(text))
            ]
    return reach[-1]


def candidates(form: NormalForm, event: Any) -> list[Conjunction]:
    """Return the conjunctions of a normal form that an event fits."""
    return [
        conjunction
        for conjunction in form.conjunctions
        if all(read_any(event, path) in values for path, values in conjunction.constraints)
        and all(has_needle(read(event, needle.path), needle) for needle in conjunction.needles)
    ]


def read_any(event: Any, path: tuple[str | int, ...]) -> Any:
    """Return the value of an attribute or of a derived column."""
    return value_getter(path, lambda attribute: lambda event: read(event, attribute))(event)


def has_needle(value: Any, needle: Needle) -> bool:
    """Return whether a value is a string with a needle, by comparison at each position."""
    if not isinstance(value, str):
        return False
    text = "".join(character.casefold() for character in value) if needle.kind & 1 else value
    places = [i for i in range(len(text)) if text[i : i + len(needle.text)] == needle.text]
    if needle.kind & 2:
        places = [i for i in places if i == 0]
    if needle.kind & 4:
        places = [i for i in places if i + len(needle.text) == len(text)]
    return bool(places)
