"""Necessary attribute values of predicates over computed values: these give the index its candidates.

``data.high - data.low > 2`` can hold only where both are numbers; ``LOWER(type) = 'a'`` only where
type is a string; ``DISTANCE_KM(...) < 5`` only in a neighbourhood. A predicate on one operand holds for a
set of that operand's values; ``required`` derives from it the sets of the attributes, function by function.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from fieldfare.filters import values as sets
from fieldfare.filters.derived import path_of
from fieldfare.filters.expression import (
    CONDITIONS,
    Arithmetic,
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
    Negate,
)
from fieldfare.filters.functions import FUNCTIONS, Type
from fieldfare.filters.functions.numbers import mirrored, shifted
from fieldfare.filters.predicate_sets import SETS
from fieldfare.filters.values import Ranges, ValueSet
from fieldfare.model import Path

Needed = tuple[list[tuple[Path, ValueSet]], bool]
"""Necessary sets of attributes, and whether they are also sufficient."""

_BOOLEANS = ValueSet(sets.FALSE | sets.TRUE)
_COMPARABLE = ValueSet(sets.FALSE | sets.TRUE, sets.EVERYTHING, sets.EVERYTHING)
_HAS_VALUE = ValueSet(sets.MISSING | sets.NULL).complement()
_RESULTS = {
    Type.NUMBER: sets.NUMBERS,
    Type.TIMESTAMP: sets.NUMBERS,
    Type.INTERVAL: sets.NUMBERS,
    Type.STRING: sets.STRINGS,
    Type.BOOLEAN: _BOOLEANS,
    Type.ANY: _HAS_VALUE,
}
_STAND_IN = Attribute(("",))


def expanded(e: Call) -> Expression:
    """Return the simpler expression that is equivalent to a call, or the call itself."""
    expand = FUNCTIONS[e.function].expand
    return (expand(e.operands) if expand else None) or e


def implied_by(e: Expression, truth: bool | None) -> Needed | None:
    """Return the necessary sets for a predicate to be true, false, or (None) either; None if unknown."""
    if isinstance(e, Call):
        return required(e, _BOOLEANS if truth is None else ValueSet(sets.TRUE if truth else sets.FALSE))
    values = _operand_set(e, truth)
    if values is not None:
        operand, wanted, is_exact = values
        needed, enough = required(operand, wanted)
        return needed, enough and is_exact
    if isinstance(e, Comparison):
        kinds = _kinds(e.left).intersection(_kinds(e.right))
        needed = required(e.left, kinds)[0] + required(e.right, kinds)[0]
        return ([(("",), sets.NO_VALUES)] if kinds.is_empty else needed), False
    if isinstance(e, In) or (isinstance(e, IsNull) and truth is False):
        return required(e.operand, _kinds(e.operand))[0], False
    return None


def _operand_set(e: Any, truth: bool | None) -> tuple[Expression, ValueSet, bool] | None:
    """Return the computed operand of a predicate, its values where that holds, and whether these are exact.

    None if the predicate is not on one computed operand.
    """
    if truth is None:
        return None
    if isinstance(e, Comparison):
        side = "right" if isinstance(e.left, Literal) else "left"
    elif isinstance(e, Between | In | Like):
        side = "operand"
    else:
        return None
    operand = getattr(e, side)
    if not isinstance(operand, Call | Negate | Arithmetic):
        return None
    found = SETS[type(e)](replace(e, **{side: _STAND_IN}), truth)
    return None if found is None else (operand, found[1], found[2])


def moved_column(e: Expression) -> tuple[Path, tuple[ValueSet, ValueSet]] | None:
    """Return the shared column of predicates on an attribute plus a constant: ``ABS(delay - 30) <= 2``.

    The column is ``delay + 0``, the attribute as arithmetic sees it: unknown for values that are not numbers,
    are infinite, or are too long. The sum of an attribute and any constant is unknown for the same values
    (``exact.SUM_BITS``), so that all such predicates can share it. The column comes with two sets: its values
    where the predicate is true, and where it is false. None if the predicate is not of this form.
    """
    true, false = _operand_set(e, True), _operand_set(e, False)
    if true is None or false is None or not (true[2] and false[2]):
        return None
    operand = true[0].operands[0] if isinstance(true[0], Call) and true[0].function == "ABS" else true[0]
    attribute = operand
    if isinstance(operand, Arithmetic) and operand.operator in ("+", "-"):
        attribute = operand.left if _constant_number(operand.right) is not None else operand.right
        if attribute is operand.right and _constant_number(operand.left) is None:
            return None
    path = path_of(Arithmetic("+", attribute, Literal(0))) if isinstance(attribute, Attribute) else None
    if path is None:
        return None
    values = [required(true[0], each[1])[0][0][1] for each in (true, false)]
    return path, (values[0], values[1])


def required(e: Expression, wanted: ValueSet) -> Needed:
    """Return the necessary sets of attributes for an expression's value to be in a set."""
    if isinstance(e, Attribute):
        return [(e.path, wanted)], True
    if isinstance(e, Literal):
        return ([], True) if e.value in wanted else _IMPOSSIBLE
    if isinstance(e, Negate):
        return required(e.operand, ValueSet(numbers=mirrored(wanted.numbers)))[0], False
    if isinstance(e, Arithmetic):
        if e.operator in ("+", "-") and (found := _moved(e, wanted.numbers)):
            return required(found[0], ValueSet(numbers=found[1]))[0], False
        if e.operator in ("/", "%") and _constant_number(e.right) == 0:
            return _IMPOSSIBLE
        return required(e.left, sets.NUMBERS)[0] + required(e.right, sets.NUMBERS)[0], False
    if isinstance(e, Call):
        return _required_by_call(e, wanted)
    if isinstance(e, (Element, *CONDITIONS)):
        return [], False
    raise AssertionError(e)


def _moved(e: Arithmetic, wanted: Ranges) -> tuple[Expression, Ranges] | None:
    """Return the other operand of a sum with a constant, and its wanted ranges; None without a constant."""
    left, right = _constant_number(e.left), _constant_number(e.right)
    if right is not None:
        return e.left, shifted(wanted, right.copy_negate() if e.operator == "+" else right)
    if left is None:
        return None
    if e.operator == "+":
        return e.right, shifted(wanted, left.copy_negate())
    return e.right, shifted(mirrored(wanted), left)


def _constant_number(e: Expression) -> Decimal | None:
    value = e.value if isinstance(e, Literal) else None
    return Decimal(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else None


_IMPOSSIBLE: Needed = ([(("",), sets.NO_VALUES)], True)


def _required_by_call(e: Call, wanted: ValueSet) -> Needed:
    function = FUNCTIONS[e.function]
    found = function.implied(e.operands, wanted) if function.implied else None
    if found is None:
        if function.takes_null or function.true_for is not None:  # it has a value even if an operand has none
            return [], False
        kinds = [_RESULTS[function.parameter(place).type] for place in range(len(e.operands))]
        found = list(zip(e.operands, kinds, strict=True)), False
    requirements, is_exact = found
    needed: list[tuple[Path, ValueSet]] = []
    for operand, values in requirements:
        more, enough = required(operand, values)
        needed += more
        is_exact = is_exact and enough
    return needed, is_exact


def _kinds(e: Expression) -> ValueSet:
    """Return the set of comparable values that an operand can have, by its type."""
    if isinstance(e, Attribute | Element):
        return _COMPARABLE
    if isinstance(e, Call):
        return _RESULTS[FUNCTIONS[e.function].result].intersection(_COMPARABLE)
    if isinstance(e, Arithmetic | Negate):
        return sets.NUMBERS
    if not isinstance(e, Literal) or isinstance(e.value, bool):
        return _BOOLEANS
    if e.value is None:
        return sets.NO_VALUES
    return sets.STRINGS if isinstance(e.value, str) else sets.NUMBERS
