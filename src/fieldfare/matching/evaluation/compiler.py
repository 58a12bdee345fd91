"""Compilation of expressions to conditions by columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.evaluator import MIRRORED, Compiler
from fieldfare.filters.expression import (
    CONDITIONS,
    And,
    AndThen,
    Arithmetic,
    Attribute,
    Between,
    Call,
    Comparison,
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
    attribute_paths,
    parts_of,
    walk,
    with_element,
    with_parts,
    without_quantifiers,
)
from fieldfare.filters.functions import FUNCTIONS
from fieldfare.filters.predicate_sets import SETS
from fieldfare.filters.work import LEVELS_MAX
from fieldfare.matching.evaluation.arrays import ARRAYS, ArrayOperand
from fieldfare.matching.evaluation.conditions import (
    ByTable,
    Compared,
    Condition,
    ConstantCondition,
    HasNoValue,
    InOrder,
    InPython,
    Joined,
    Negated,
    Tested,
    accepted,
)
from fieldfare.matching.evaluation.exact_numbers import LEAVES_MAX
from fieldfare.matching.evaluation.functions import VECTORS, Vector
from fieldfare.matching.evaluation.numbers import arithmetic
from fieldfare.matching.evaluation.operands import (
    AttributeOperand,
    ComputedOperand,
    LiteralOperand,
    Operand,
    TruthOperand,
)
from fieldfare.matching.evaluation.quantifiers import ELEMENT, OverElements
from fieldfare.matching.evaluation.tables import table_of
from fieldfare.matching.evaluation.texts import PiecePattern, pieces_of
from fieldfare.matching.evaluation.truth import CODES, FALSE, TRUE
from fieldfare.matching.evaluation.view import Key, PieceParameter, RowByRow, View, has_parameters
from fieldfare.matching.events.columns import ColumnBatch

CHUNK_ROWS = 1 << 15
"""Maximum rows evaluated at a time, so that intermediate results stay in the cache."""

_EXACT = Context(prec=4_000)
_COMPARISONS_MAX = 64
"""Maximum constants of an IN of a computed value; with more, Python evaluates it by a set lookup."""

_ACCEPTED = {
    "=": accepted(False, True, False),
    "<>": accepted(True, False, True),
    "<": accepted(True, False, False),
    "<=": accepted(True, True, False),
    ">": accepted(False, False, True),
    ">=": accepted(False, True, True),
}


class ColumnEvaluator:
    """An expression compiled for evaluation over batches of events."""

    def __init__(self, expression: Expression) -> None:
        self.condition = condition_of(expanded(expression))

    def matches(self, batch: ColumnBatch, rows: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
        """Return for each event, or for each of `rows`, whether the expression is true."""
        size = batch.size if rows is None else len(rows)
        if size <= CHUNK_ROWS:
            matches: NDArray[np.bool_] = self.condition.truths(View(batch, rows), False) == TRUE
            return matches
        parts = []
        for start in range(0, size, CHUNK_ROWS):
            part = slice(start, min(start + CHUNK_ROWS, size))
            view = View(batch, part if rows is None else rows[part])
            parts.append(self.condition.truths(view, False) == TRUE)
        return np.concatenate(parts)


def expanded(e: Expression) -> Expression:
    """Replace every call that is equivalent to simpler parts by these."""
    if isinstance(e, Call):
        function = FUNCTIONS[e.function]
        simpler = function.expand(e.operands) if function.expand else None
        if simpler is not None:
            return expanded(simpler)
        if all(isinstance(operand, Literal) for operand in e.operands):
            return _constant(e)
    return with_parts(e, expanded)


def _constant(e: Call) -> Expression:
    """Evaluate a call of constants, if the result can be written as a literal."""
    value = Compiler(lambda path: lambda row: None).value(e)(None)
    if isinstance(value, Fraction):
        value = _decimal(value)
        return e if value is None else Literal(value)
    return Literal(value) if value is None or isinstance(value, str | bool | int | Decimal) else e


def _decimal(value: Fraction) -> int | Decimal | None:
    """Convert a fraction to a decimal, if it is a short one."""
    if value.denominator == 1:
        return int(value)
    digits = next((digits for digits in range(1, 19) if 10**digits % value.denominator == 0), None)
    return None if digits is None else Decimal(int(value * 10**digits)).scaleb(-digits, _EXACT)


def condition_of(e: Expression) -> Condition:
    """Compile an expression to a condition."""
    compile_condition = _CONDITIONS.get(type(e))
    if compile_condition is None:
        return InPython(RowByRow(e))
    if not any(isinstance(part, Attribute) for part in walk(e)):  # a constant expression: evaluate it once
        return ConstantCondition(CODES[Compiler(lambda path: lambda row: None).condition(e)(None)])
    return compile_condition(e)


def operand_of(e: Expression) -> Operand | None:
    """Compile an expression to an operand; None if there is no kernel for it."""
    if isinstance(e, Literal):
        return LiteralOperand(e.value)
    if isinstance(e, Attribute):
        return AttributeOperand(e.path)
    if isinstance(e, CONDITIONS):
        return TruthOperand(condition_of(e))
    if isinstance(e, Negate):
        e = Arithmetic("-", Literal(0), e.operand)  # -x is 0 - x
    if isinstance(e, Arithmetic):
        leaves = sum(isinstance(part, Literal | Attribute) for part in walk(e))
        vector = Vector(arithmetic(e.operator, leaves <= LEAVES_MAX), 20)
        return _computed(e, vector, [operand_of(e.left), operand_of(e.right)])
    if isinstance(e, Call) and e.function in ARRAYS:
        return _of_array(e)
    if isinstance(e, Call) and e.function in VECTORS:
        return _call(e, VECTORS[e.function])
    return None


def _of_array(e: Call) -> Operand | None:
    array, *others = e.operands
    known = [operand for operand in map(operand_of, others) if operand is not None]
    if not isinstance(array, Attribute) or len(known) < len(others):
        return None
    return ArrayOperand(ARRAYS[e.function], array.path, known, None if has_parameters(e) else Key(e))


def _call(e: Call, vector: Vector) -> Operand | None:
    operands = [operand_of(operand) for operand in e.operands]
    missing = vector.takes - len(operands)
    if missing > 0:
        operands += [LiteralOperand(value) for value in vector.defaults[-missing:]]
    if not vector.folds:
        return _computed(e, vector, operands)
    folded = operands[0]
    for place, operand in enumerate(operands[1:], 2):
        part = e if place == len(operands) else replace(e, operands=e.operands[:place])
        folded = _computed(part, vector, [folded, operand])
    return folded


def _computed(e: Expression, vector: Vector, operands: list[Operand | None]) -> Operand | None:
    known = [operand for operand in operands if operand is not None]
    if len(known) < len(operands):
        return None
    return ComputedOperand(vector.compute, known, vector.cost_ns, None if has_parameters(e) else Key(e))


def _by_table(predicate: Any, place: str, e: Expression) -> Condition | None:
    """Compile a predicate on one value (its field ``place``) to a table lookup; None if that is impossible.

    ``e`` is the expression that Python evaluates where the table cannot decide.
    """
    value = getattr(predicate, place)
    if isinstance(value, Literal) or (operand := operand_of(value)) is None:
        return None
    return _told(operand, replace(predicate, **{place: Attribute(())}), e)


def _told(operand: Operand, predicate: Expression, e: Expression) -> Condition | None:
    """Like `_by_table`, for a predicate on a placeholder attribute, whose value is that of the operand."""
    sets_of = SETS[type(predicate)]
    true, false = sets_of(predicate, True), sets_of(predicate, False)
    if true is None or false is None or not (true[2] and false[2]):
        return None
    return ByTable(operand, table_of(true[1], false[1]), RowByRow(e))


def _bare(e: Attribute | Call) -> Condition:
    operand = operand_of(e)
    condition = None if operand is None else _told(operand, Attribute(()), e)
    return InPython(RowByRow(e)) if condition is None else condition


def _comparison(e: Comparison) -> Condition:
    operator, left, right = e.operator, e.left, e.right
    if isinstance(left, Literal):
        operator, left, right = MIRRORED[operator], right, left
    if isinstance(right, Literal):
        condition = _by_table(Comparison(operator, left, right), "left", e)
        if condition is not None:
            return condition
    first, second = operand_of(left), operand_of(right)
    if first is None or second is None:
        return InPython(RowByRow(e))
    return Compared(first, second, _ACCEPTED[operator], RowByRow(e))


def _between(e: Between) -> Condition:
    condition = _by_table(e, "operand", e)
    if condition is not None:
        return condition
    bounds = (Comparison(">=", e.operand, e.low), Comparison("<=", e.operand, e.high))
    return Joined([condition_of(bound) for bound in bounds], FALSE)


def _in(e: In) -> Condition:
    constants = tuple(item for item in e.items if isinstance(item, Literal))
    others = [Comparison("=", e.operand, item) for item in e.items if not isinstance(item, Literal)]
    if constants:
        only = replace(e, items=constants)
        found = _by_table(only, "operand", only)
        if found is None and len(constants) > _COMPARISONS_MAX:
            return InPython(RowByRow(e))
        if found is None:
            others += [Comparison("=", e.operand, constant) for constant in constants]
    conditions = [condition_of(other) for other in others]
    if constants and found is not None:
        conditions.append(found)
    return conditions[0] if len(conditions) == 1 else Joined(conditions, TRUE)


def _like(e: Like) -> Condition:
    if not any(isinstance(part, PieceParameter) for part in e.pattern):  # see ``shapes``
        condition = _by_table(e, "operand", e)
        if condition is not None:
            return condition
    operand, pieces = operand_of(e.operand), pieces_of(e.pattern)
    return (
        InPython(RowByRow(e))
        if operand is None or pieces is None
        else PiecePattern(operand, pieces, RowByRow(e))
    )


def _is_null(e: IsNull) -> Condition:
    if isinstance(e.operand, CONDITIONS):
        return Tested(condition_of(e.operand), CODES[None])
    if isinstance(e.operand, Attribute):
        condition = _by_table(e, "operand", e)
        if condition is not None:
            return condition
    operand = operand_of(e.operand)
    return InPython(RowByRow(e)) if operand is None else HasNoValue(operand, RowByRow(e))


def _quantified(e: Quantified) -> Condition:
    if not isinstance(e.array, Attribute):
        return InPython(RowByRow(e))
    value = with_element(e.condition, e.variable, e.array)
    place = (ELEMENT, e.variable)
    inside = with_element(e.condition, e.variable, Attribute(place))
    paths = attribute_paths(inside) | attribute_paths(without_quantifiers(inside))
    inner = sorted({(), *(path[2:] for path in paths if path[:2] == place)}, key=repr)
    return OverElements(
        e.array.path,
        TRUE if e.quantifier == "ANY" else FALSE,
        condition_of(value),
        attribute_paths(value),
        (partial(condition_of, inside), place) if _levels(e) <= LEVELS_MAX else None,
        inner,
        RowByRow(e),
    )


def _levels(e: Expression) -> int:
    """Return the nesting depth of quantifiers."""
    return isinstance(e, Quantified) + max(map(_levels, parts_of(e)), default=0)


def _joined(decisive: int) -> Callable[[And | Or], Condition]:
    return lambda e: Joined([condition_of(operand) for operand in e.operands], decisive)


def _in_order(goes_on: int) -> Callable[[AndThen | OrElse], Condition]:
    return lambda e: InOrder([condition_of(operand) for operand in e.operands], goes_on)


_CONDITIONS: dict[type, Callable[[Any], Condition]] = {
    Literal: lambda e: ConstantCondition(CODES[e.value if isinstance(e.value, bool) else None]),
    Attribute: _bare,
    Call: _bare,
    Exists: lambda e: _by_table(e, "operand", e) or InPython(RowByRow(e)),
    Comparison: _comparison,
    Between: _between,
    In: _in,
    Like: _like,
    IsNull: _is_null,
    IsTruth: lambda e: Tested(condition_of(e.operand), CODES[e.truth]),
    Not: lambda e: Negated(condition_of(e.operand)),
    And: _joined(FALSE),
    Or: _joined(TRUE),
    AndThen: _in_order(TRUE),
    OrElse: _in_order(FALSE),
    Quantified: _quantified,
}
