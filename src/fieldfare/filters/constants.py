"""What does not depend on the event, computed: the index can only compare with literals."""

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

MAX_DIGITS = 1_000
"""How long a computed number can be to become a literal, and how many powers of ten away from 1."""

_EXACT = Context(prec=2 * MAX_DIGITS)
_COMPUTED = (Call, Arithmetic, Negate)


def with_constants(predicate: Expression) -> Expression:
    """A predicate with literals in the place of what is computed from literals only."""
    if not any(isinstance(part, _COMPUTED) for part in parts_of(predicate)):
        return predicate
    return with_parts(predicate, constant_value)


def with_constant_parts(predicate: Expression) -> Expression:
    """The same, but a part that reads anything stays as it is."""
    if not any(isinstance(part, _COMPUTED) for part in parts_of(predicate)):
        return predicate

    def change(part: Expression) -> Expression:
        known = constant_value(part)
        return known if isinstance(known, Literal) else part

    return with_parts(predicate, change)


def constant_value(e: Expression) -> Expression:
    """A literal if the value is computed from literals only; else as much of it as can be."""
    if not isinstance(e, _COMPUTED):
        return e
    changed = with_constants(e)
    if not all(isinstance(part, Literal) for part in parts_of(changed)):
        return changed
    return _literal(Compiler(lookup_getter).value(changed)(None)) or changed


def _literal(value: Any) -> Literal | None:
    """A value as a literal; None for a number that is no decimal, or is too long."""
    if value is None or isinstance(value, str | bool):
        return Literal(value)
    if isinstance(value, Fraction):
        value = decimal_of(value, MAX_DIGITS)
    if not isinstance(value, int | Decimal):
        return None
    number = Decimal(value)
    if len(number.as_tuple().digits) > MAX_DIGITS or abs(number.adjusted()) > MAX_DIGITS:
        return None
    if value == (whole := int(number)):
        return Literal(whole)
    return Literal(number.normalize(_EXACT))
