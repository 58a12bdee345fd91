"""Constant folding: parts of a filter that read no attribute become literals.

The index can only compare attributes with literals.
"""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from fieldfare.filters.evaluator import Compiler, lookup_getter
from fieldfare.filters.exact import decimal_of
from fieldfare.filters.expression import (
    Arithmetic,
    Call,
    Expression,
    Literal,
    Negate,
    parts_of,
    with_parts,
)
from fieldfare.filters.text import DIGITS_MAX

_EXACT = Context(prec=2 * DIGITS_MAX)
_COMPUTED = (Call, Arithmetic, Negate)


def with_constants(predicate: Expression) -> Expression:
    """Return a predicate with each subexpression of literals only replaced by its value."""
    if not any(isinstance(part, _COMPUTED) for part in parts_of(predicate)):
        return predicate
    return with_parts(predicate, constant_value)


def with_constant_parts(predicate: Expression) -> Expression:
    """Return a predicate with those direct parts folded that are constant; other parts stay unchanged.

    Unlike ``with_constants``, this does not fold inside a part that reads an attribute.
    """
    if not any(isinstance(part, _COMPUTED) for part in parts_of(predicate)):
        return predicate

    def change(part: Expression) -> Expression:
        known = constant_value(part)
        return known if isinstance(known, Literal) else part

    return with_parts(predicate, change)


def constant_value(e: Expression) -> Expression:
    """Return an expression as a literal if it is constant; otherwise with its constant parts folded."""
    if not isinstance(e, _COMPUTED):
        return e
    changed = with_constants(e)
    if not all(isinstance(part, Literal) for part in parts_of(changed)):
        return changed
    return _literal(Compiler(lookup_getter).value(changed)(None)) or changed


def _literal(value: Any) -> Literal | None:
    """Return a value as a literal; None for a number that is no finite decimal or exceeds ``DIGITS_MAX``."""
    if value is None or isinstance(value, str | bool):
        return Literal(value)
    if isinstance(value, Fraction):
        value = decimal_of(value, DIGITS_MAX)
    if not isinstance(value, int | Decimal):
        return None
    number = Decimal(value)
    if len(number.as_tuple().digits) > DIGITS_MAX or abs(number.adjusted()) > DIGITS_MAX:
        return None
    if value == (whole := int(number)):
        return Literal(whole)
    return Literal(number.normalize(_EXACT))
