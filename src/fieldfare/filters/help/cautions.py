"""Warnings about parts of a filter that never hold or always hold: allowed, but probably not intended.

They follow from normal forms: the normal form of a part contains every event for which the part takes a truth
value, so if it is empty there is no such event. Where normal forms do not decide, there is no warning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import combinations, islice
from typing import TypeGuard

from fieldfare.filters.expression import (
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
    walk,
    with_element,
    with_parts,
)
from fieldfare.filters.functions import FUNCTIONS, Type
from fieldfare.filters.functions.times import timestamp
from fieldfare.filters.help.statements import written
from fieldfare.filters.normal_form import normal_form
from fieldfare.filters.predicate_sets import INVERSE
from fieldfare.filters.values import exact_number

WORK_MAX = 20_000
"""Maximum parts examined, counting a part once for each part that contains it; the rest gets no warnings."""

_OPERANDS_TO_PAIR_MAX = 30
_PARTS_TO_TRY_MAX = 100


@dataclass(frozen=True, slots=True)
class Caution:
    """A warning about text that is allowed, but probably not intended.

    Attributes
    ----------
    message
        A sentence without a full stop.
    hint
        A correction, or "".
    """

    message: str
    hint: str = ""


def never(e: Expression, wanted: bool = True) -> bool:
    """Return whether it is certain that no event makes an expression true (or false)."""
    return not normal_form(e if wanted else Not(e)).conjunctions


def always(e: Expression, wanted: bool = True) -> bool:
    """Return whether it is certain that every event makes an expression true (or false)."""
    return not normal_form(Not(IsTruth(e, wanted))).conjunctions


def _is_open(e: Expression) -> TypeGuard[Comparison]:
    """Whether a part is certain to be true for some events and false for others: what most parts are.

    It is told from the part's form, and saves the normal form.
    """
    return isinstance(e, Comparison) and e.operator in ("=", "<>") and _is_of_text_or_number(e)


def _is_of_text_or_number(e: Comparison) -> bool:
    sides = (e.left, e.right) if isinstance(e.left, Attribute) else (e.right, e.left)
    constant = sides[1].value if isinstance(sides[1], Literal) else None
    is_of_many = isinstance(constant, str | int | Decimal) and not isinstance(constant, bool)
    return isinstance(sides[0], Attribute) and is_of_many


def cautions_of(e: Expression, text: str) -> list[Caution]:
    """Return the warnings about a filter's parts, in the order of the text."""
    return list(dict.fromkeys([*_Search().part(e, True), *_lost_digits(e, text)]))


_FRACTION = re.compile(r"\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+")
"""A number that JSON parsers read as a double, even if it is whole."""


def _lost_digits(e: Expression, text: str) -> Iterator[Caution]:
    """Warn of compared constants with more digits than a double keeps: numbers copied from an event."""
    fractions = set(map(Decimal, _FRACTION.findall(text)))
    for part in walk(e):
        for side in _compared(part):
            constant = side.operand if isinstance(side, Negate) else side
            value = constant.value if isinstance(constant, Literal) else None
            if isinstance(value, bool) or not isinstance(value, int | Decimal):
                continue
            kept = _read_as_double(value)
            is_double = isinstance(value, Decimal) or abs(value) in fractions
            if kept != value and is_double:
                number, nearest = written(constant), written(Literal(kept))
                yield Caution(
                    f"`{number}` has more digits than a number in JSON keeps: an event with this text has "
                    f"{nearest}, and numbers are compared exactly",
                    f"write {nearest}, except for columns of decimals, which keep all digits",
                )


def _read_as_double(value: int | Decimal) -> int | Decimal:
    """Return the decimal of the double nearest to a number; the number itself if that double is infinite."""
    try:
        double = float(value)
    except OverflowError:
        return value
    return value if math.isinf(double) else exact_number(double)


def _compared(e: Expression) -> tuple[Expression, ...]:
    """Return the values that a predicate compares."""
    if isinstance(e, Comparison):
        return e.left, e.right
    if isinstance(e, Between):
        return e.low, e.high
    return e.items if isinstance(e, In) else ()


class _Search:
    """A search for warnings in the parts that must be true, or false, to match; bounded by ``WORK_MAX``."""

    def __init__(self) -> None:
        self.work_left = WORK_MAX

    def part(self, e: Expression, wanted: bool) -> Iterator[Caution]:
        """Yield the warnings about a part that must be true, or false, for the filter to match."""
        self.work_left -= sum(1 for _ in walk(e))
        if self.work_left < 0:
            return
        if isinstance(e, Not):
            yield from self.part(e.operand, not wanted)
        elif isinstance(e, And | Or | AndThen | OrElse):
            yield from self.joined(e, wanted)
        elif isinstance(e, IsTruth):
            if wanted and e.truth is not None:
                yield from self.part(e.operand, e.truth)
        elif isinstance(e, Quantified):
            element = Attribute((e.variable,))
            yield from self.part(with_element(e.condition, e.variable, element), wanted)
        elif not _is_open(e) and (_is_mismatched(e) or never(e, wanted)):
            valueless = next(_without_value(e), None)
            yield _why_never(e, wanted) if valueless is None else _has_no_value(e, valueless, wanted)
        else:
            yield from _useless_items(e)
            yield from _texts_for_moments(e)
            yield from _places_from_the_end(e)

    def joined(self, e: And | Or | AndThen | OrElse, wanted: bool) -> Iterator[Caution]:
        """Yield the warnings about the operands; if there are none, those about their combination."""
        found = [caution for operand in e.operands for caution in self.part(operand, wanted)]
        yield from found
        all_are_needed = isinstance(e, And | AndThen) is wanted
        if not found and self.work_left > 0:
            if all_are_needed and never(e, wanted):
                yield _contradiction(e, wanted)
            elif not all_are_needed and _is_always_true(e, wanted):
                yield _tautology(e, wanted)


def _without_value(e: Expression) -> Iterator[Expression]:
    """Yield the parts that have no value for any event, such as `a / 0`; the innermost first."""
    for part in reversed(list(islice(walk(e), _PARTS_TO_TRY_MAX))):
        if isinstance(part, Call | Arithmetic | Negate) and never(IsNull(part), False):
            yield part


def _has_no_value(e: Expression, part: Expression, wanted: bool) -> Caution:
    why = "has no value, whatever the event"
    if isinstance(part, Arithmetic) and part.operator in ("/", "%"):
        why = "divides by 0, which has no value"
    elif isinstance(part, Call) and part.function in ("LEFT", "RIGHT", "SUBSTRING"):
        why = "has no value: positions and counts must be whole numbers, and counts must not be negative"
    return Caution(f"{_quoted(e, wanted)} is never true: `{written(part)}` {why}")


def _places_from_the_end(e: Expression) -> Iterator[Caution]:
    """Warn of negative positions in SUBSTRING, which other databases count from the end."""
    for part in walk(e):
        if isinstance(part, Call) and part.function == "SUBSTRING":
            start = part.operands[1]
            if isinstance(start, Literal) and type(start.value) is int and start.value < 0:
                hint = f"write RIGHT({written(part.operands[0])}, {-start.value}) for the last characters"
                message = f"`{written(part)}` counts from before the first character, not from the end"
                yield Caution(message, hint)


def _texts_for_moments(e: Expression) -> Iterator[Caution]:
    """Warn of comparisons for order with texts of timestamps."""
    bounds: list[Expression] = []
    if isinstance(e, Comparison) and e.operator not in ("=", "<>"):
        bounds = [e.left, e.right]
    elif isinstance(e, Between):
        bounds = [e.low, e.high]
    if any(_as_moment(bound) is not bound for bound in bounds):
        message = f"{_quoted(e, True)} compares texts, not times: as a text, 12:00:00.5Z is before 12:00:00Z"
        yield Caution(message, f"write {written(with_parts(e, _as_moment))}")


def _as_moment(e: Expression) -> Expression:
    """Return a text with a time of day as a timestamp; dates alone are ordered correctly as texts."""
    text = e.value if isinstance(e, Literal) and isinstance(e.value, str) else ""
    is_moment = len(text) > len("2026-01-31") and timestamp(text) is not None
    return Call("TIMESTAMP", (e,)) if is_moment else e


def _contradiction(e: And | Or | AndThen | OrElse, wanted: bool) -> Caution:
    """Warn of the first two operands that exclude each other, or of all together."""
    operands = e.operands
    if len(operands) <= _OPERANDS_TO_PAIR_MAX:
        for pair in combinations(operands, 2):
            if never(replace(e, operands=pair), wanted):
                operands = pair
                break
    part = replace(e, operands=operands)
    shared = frozenset.intersection(*(attribute_paths(operand) for operand in operands))
    equal = all(isinstance(operand, Comparison) and operand.operator == "=" for operand in operands)
    hint = "did you mean OR?" if wanted and equal else ""
    if len(shared) == 1:
        name = written(Attribute(*shared))
        return Caution(f"{_quoted(part, wanted)} is never true: no value of {name} fits both", hint)
    return Caution(f"{_quoted(part, wanted)} is never true: its parts exclude each other", hint)


def _is_always_true(e: And | Or | AndThen | OrElse, wanted: bool) -> bool:
    """Return whether a combination holds for all values of an attribute, as `a <> 1 OR a <> 2` does."""
    if len(attribute_paths(e)) != 1 or not isinstance(e, And | Or):
        return False
    equality = "=" if wanted else "<>"
    if all(_is_open(operand) and operand.operator == equality for operand in e.operands):
        return False  # a text or a number that none of them names is another value
    a_part_fails = Or(tuple(IsTruth(operand, not wanted) for operand in e.operands))
    fails = Not(IsTruth(e, wanted))
    return not always(e, wanted) and not never(a_part_fails) and never(And((a_part_fails, fails)))


def _tautology(e: Expression, wanted: bool) -> Caution:
    (path,) = attribute_paths(e)
    name = written(Attribute(path))
    message = f"{_quoted(e, wanted)} holds for every value of {name} that its parts can be compared with"
    word = "AND" if isinstance(e, Or) is wanted else "OR"
    return Caution(message, f"did you mean {word}?")


def _why_never(e: Expression, wanted: bool) -> Caution:
    """Return the warning about a predicate that is never true (or false), with the reason."""
    what = _quoted(e, wanted)
    if isinstance(e, Comparison):
        return _why_comparison_never(e, what, wanted)
    if isinstance(e, In):
        return _why_in_never(e, what, wanted)
    if isinstance(e, Between) and isinstance(e.low, Literal) and isinstance(e.high, Literal):
        low, high = _kind(e.low), _kind(e.high)
        if None in (e.low.value, e.high.value):
            return Caution(f"{what} is never true: nothing can be compared with NULL")
        if low != high:
            message = f"{what} is never true: no value can be compared with a {low} and with a {high}"
            return Caution(message)
        hint = f"the lower bound comes first: {written(replace(e, low=e.high, high=e.low))}"
        return Caution(f"{what} is never true: {written(e.low)} is above {written(e.high)}", hint)
    if isinstance(e, Literal):
        return Caution(f"{what} is never true")
    if isinstance(e, Exists | IsNull | Like | Call):
        return Caution(f"{what} is never true")
    return Caution(f"{what} is never true: it is a value, not a condition")


def _why_comparison_never(e: Comparison, what: str, wanted: bool) -> Caution:
    sides = (e.left, e.right)
    if any(isinstance(side, Literal) and side.value is None for side in sides):
        other = e.right if isinstance(e.left, Literal) and e.left.value is None else e.left
        operator = e.operator if wanted else INVERSE[e.operator]
        test = {"=": " IS NULL", "<>": " IS NOT NULL"}.get(operator)
        hint = f"write {written(other)}{test}" if test and not isinstance(other, Literal) else ""
        return Caution(f"{what} is never true: nothing can be compared with NULL", hint)
    if _is_mismatched(e):
        message = f"{what} is never true: a {_kind(e.left)} cannot be compared with a {_kind(e.right)}"
        return Caution(message)
    return Caution(f"{what} is never true")


def _is_mismatched(e: Expression) -> bool:
    """Return whether the two sides of a comparison certainly have different types."""
    if not isinstance(e, Comparison):
        return False
    left, right = _kind(e.left), _kind(e.right)
    return left is not None and right is not None and left != right


def _why_in_never(e: In, what: str, wanted: bool) -> Caution:
    items = [item for item in e.items if isinstance(item, Literal)]
    others = [item for item in items if item.value is not None]
    if len(others) < len(items):
        if wanted:
            return Caution(
                f"{what} is never true: nothing equals NULL", f"write {written(e.operand)} IS NULL"
            )
        rest = written(Not(replace(e, items=tuple(others)))) if others else ""
        hint = f"leave NULL out: {rest}" if rest else f"write {written(e.operand)} IS NOT NULL"
        return Caution(f"{what} is never true: whether a value equals NULL is unknown", hint)
    by_kind: dict[str | None, list[Literal]] = {}
    for item in others:
        by_kind.setdefault(_kind(item), []).append(item)
    if not wanted and len(by_kind) > 1:
        kinds = " and ".join(f"{kind}s" for kind in by_kind)
        hint = " OR ".join(written(Not(replace(e, items=tuple(some)))) for some in by_kind.values())
        message = f"{what} is never true: no value can be compared with {kinds} at once"
        return Caution(message, f"write {hint}")
    return Caution(f"{what} is never true")


def _useless_items(e: Expression) -> Iterator[Caution]:
    """Warn of NULL in a list with other values."""
    if isinstance(e, In) and Literal(None) in e.items and len(set(e.items)) > 1:
        rest = written(replace(e, items=tuple(item for item in e.items if item != Literal(None))))
        message = f"NULL in {_quoted(e, True)} adds nothing: no value equals it"
        yield Caution(message, f"write {rest} OR {written(e.operand)} IS NULL")


def _quoted(e: Expression, wanted: bool) -> str:
    return f"`{written(e if wanted else Not(e))}`"


_KINDS = {Type.NUMBER: "number", Type.STRING: "string", Type.BOOLEAN: "boolean"}


def _kind(e: Expression) -> str | None:
    """Return the type of a value; None if it is not certain."""
    if isinstance(e, Attribute):
        return None
    if isinstance(e, Literal):
        if e.value is None:
            return None
        return "boolean" if isinstance(e.value, bool) else "string" if isinstance(e.value, str) else "number"
    if isinstance(e, Arithmetic | Negate):
        return "number"
    if isinstance(e, Call):
        return _KINDS.get(FUNCTIONS[e.function].result)
    return None
