"""Parts of a filter that can never hold, or always do: allowed, but most likely not meant.

All of it follows from the normal form: it contains every event for which a part takes a truth value,
so where it is empty there is none. What it cannot tell is not warned of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, islice

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

MAX_WORK = 20_000
"""How many parts of a filter are looked at, counting a part once for each part that it is in."""

_MAX_OPERANDS_TO_PAIR = 30
_MAX_PARTS_TO_TRY = 100


@dataclass(frozen=True, slots=True)
class Caution:
    """Something that is allowed, but most likely not meant.

    Attributes
    ----------
    message
        What it is, a sentence without a full stop.
    hint
        What to write instead, or "".
    """

    message: str
    hint: str = ""


def never(e: Expression, wanted: bool = True) -> bool:
    """Whether it is certain that no event makes an expression true (or false)."""
    return not normal_form(e if wanted else Not(e)).conjunctions


def always(e: Expression, wanted: bool = True) -> bool:
    """Whether it is certain that every event makes an expression true (or false)."""
    return not normal_form(Not(IsTruth(e, wanted))).conjunctions


def cautions_of(e: Expression) -> list[Caution]:
    """What a filter's parts are warned of, in the order of the text."""
    return list(dict.fromkeys(_Search().part(e, True)))


class _Search:
    """Goes down to the parts that are to be true, or to be false, as long as there is work left."""

    def __init__(self) -> None:
        self.work_left = MAX_WORK

    def part(self, e: Expression, wanted: bool) -> Iterator[Caution]:
        """The cautions of a part that helps a filter to match where it is as wanted."""
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
        elif _is_mismatched(e) or never(e, wanted):
            valueless = next(_without_value(e), None)
            yield _why_never(e, wanted) if valueless is None else _has_no_value(e, valueless, wanted)
        else:
            yield from _useless_items(e)
            yield from _texts_for_moments(e)
            yield from _places_from_the_end(e)

    def joined(self, e: And | Or | AndThen | OrElse, wanted: bool) -> Iterator[Caution]:
        """The operands' cautions; if they have none, those of the whole."""
        found = [caution for operand in e.operands for caution in self.part(operand, wanted)]
        yield from found
        all_are_needed = isinstance(e, And | AndThen) is wanted
        if not found and self.work_left > 0:
            if all_are_needed and never(e, wanted):
                yield _contradiction(e, wanted)
            elif not all_are_needed and _says_nothing(e, wanted):
                yield _tautology(e, wanted)


def _without_value(e: Expression) -> Iterator[Expression]:
    """Parts that have no value whatever the event, as `a / 0`; the innermost first."""
    for part in reversed(list(islice(walk(e), _MAX_PARTS_TO_TRY))):
        if isinstance(part, Call | Arithmetic | Negate) and never(IsNull(part), False):
            yield part


def _has_no_value(e: Expression, part: Expression, wanted: bool) -> Caution:
    why = "has no value, whatever the event"
    if isinstance(part, Arithmetic) and part.operator in ("/", "%"):
        why = "divides by 0, which has no value"
    elif isinstance(part, Call) and part.function in ("LEFT", "RIGHT", "SUBSTRING"):
        why = "has no value: places and counts are whole numbers, and a count is not below 0"
    return Caution(f"{_quoted(e, wanted)} is never true: `{written(part)}` {why}")


def _places_from_the_end(e: Expression) -> Iterator[Caution]:
    """A place below 1, which other databases count from the end."""
    for part in walk(e):
        if isinstance(part, Call) and part.function == "SUBSTRING":
            start = part.operands[1]
            if isinstance(start, Literal) and type(start.value) is int and start.value < 0:
                hint = f"write RIGHT({written(part.operands[0])}, {-start.value}) for the last characters"
                message = f"`{written(part)}` counts from before the first character, not from the end"
                yield Caution(message, hint)


def _texts_for_moments(e: Expression) -> Iterator[Caution]:
    """Whether something comes before or after a text that writes a timestamp."""
    bounds: list[Expression] = []
    if isinstance(e, Comparison) and e.operator not in ("=", "<>"):
        bounds = [e.left, e.right]
    elif isinstance(e, Between):
        bounds = [e.low, e.high]
    if any(_as_moment(bound) is not bound for bound in bounds):
        message = f"{_quoted(e, True)} compares texts, not moments: 12:00:00.5Z is before 12:00:00Z as a text"
        yield Caution(message, f"write {written(with_parts(e, _as_moment))}")


def _as_moment(e: Expression) -> Expression:
    """A text with a time of day as a timestamp; dates alone are in order as texts, too."""
    text = e.value if isinstance(e, Literal) and isinstance(e.value, str) else ""
    is_moment = len(text) > len("2026-01-31") and timestamp(text) is not None
    return Call("TIMESTAMP", (e,)) if is_moment else e


def _contradiction(e: And | Or | AndThen | OrElse, wanted: bool) -> Caution:
    """The first two operands that exclude each other, or all."""
    operands = e.operands
    if len(operands) <= _MAX_OPERANDS_TO_PAIR:
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


def _says_nothing(e: And | Or | AndThen | OrElse, wanted: bool) -> bool:
    """Whether a choice holds for all values for which one of its parts fails, as `a <> 1 OR a <> 2` does."""
    if len(attribute_paths(e)) != 1 or not isinstance(e, And | Or):
        return False
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
    """Why a predicate is never as wanted."""
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
    return Caution(f"{what} is never true: it is a value, and no condition")


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
    """Whether a comparison's two sides are certain to be of two types."""
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
    """NULL in a list that may be true for its other values."""
    if isinstance(e, In) and Literal(None) in e.items and len(set(e.items)) > 1:
        rest = written(replace(e, items=tuple(item for item in e.items if item != Literal(None))))
        message = f"NULL in {_quoted(e, True)} adds nothing: no value equals it"
        yield Caution(message, f"write {rest} OR {written(e.operand)} IS NULL")


def _quoted(e: Expression, wanted: bool) -> str:
    return f"`{written(e if wanted else Not(e))}`"


_KINDS = {Type.NUMBER: "number", Type.STRING: "string", Type.BOOLEAN: "boolean"}


def _kind(e: Expression) -> str | None:
    """The type that a value has if it has one; None if that is open."""
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
