"""The internal expression into which every filter language is parsed.

An expression is a value (a number, a string, a boolean, or unknown) computed from the attributes
of one event. An expression that is true, false or unknown is a *condition*; a filter is a condition, and
matches where it is true. Unknown is SQL's: ``docs/filters.md`` has the table. Depth is bounded by
the parsers (``DEPTH_MAX``), so functions over expressions may recurse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias

from fieldfare.model import Path

DEPTH_MAX = 100
"""Maximum nesting depth of an expression; parsers reject deeper ones."""

Scalar: TypeAlias = "str | bool | int | Decimal | None"
"""A constant. Decimals are finite and have a fraction; whole numbers are ints."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant. None is unknown in every comparison."""

    value: Scalar

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        # Python's True equals its 1; here they are different constants.
        return self.value == other.value and isinstance(self.value, bool) == isinstance(other.value, bool)

    def __hash__(self) -> int:
        return hash((isinstance(self.value, bool), self.value))


@dataclass(frozen=True, slots=True)
class Attribute:
    """The value of an attribute; as a condition: its boolean value, or unknown if it is no boolean."""

    path: Path


@dataclass(frozen=True, slots=True)
class Element:
    """The current element of an enclosing quantifier, or its part at ``path``."""

    variable: str
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function of ``filters.functions``; unknown where it has no value."""

    function: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Negate:
    """The negative of a number."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``+ - * / %`` of two numbers, exactly; unknown where there is no result."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Comparison:
    """``= <> < <= > >=`` of two values; unknown if their types differ."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Between:
    """``low <= operand AND operand <= high``."""

    operand: Expression
    low: Expression
    high: Expression


@dataclass(frozen=True, slots=True)
class In:
    """``operand = items[0] OR operand = items[1] ...``; at least one item."""

    operand: Expression
    items: tuple[Expression, ...]


class Wild(Enum):
    """The wildcards of a pattern."""

    ONE = "_"
    """Exactly one character."""
    RUN = "%"
    """Zero or more characters."""


Pattern = tuple[str | Wild, ...]
"""Literal pieces and wildcards in order; no two literal pieces and no two RUNs are adjacent."""


@dataclass(frozen=True, slots=True)
class Like:
    """Whether an entire string matches a pattern; unknown for other types."""

    operand: Expression
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether an attribute (or a part of an element) exists, null included. Never unknown."""

    operand: Attribute | Element


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a value is missing, null or unknown. Never unknown itself."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class IsTruth:
    """Whether a condition is true, is false, or is unknown (None). Never unknown itself."""

    operand: Expression
    truth: bool | None


@dataclass(frozen=True, slots=True)
class Not:
    """Three-valued NOT."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class And:
    """Three-valued AND of at least two conditions."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Three-valued OR of at least two conditions."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class AndThen:
    """AND from left to right: the result is the first operand that is false or unknown, else true."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class OrElse:
    """OR from left to right: the result is the first operand that is true or unknown, else false."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Quantified:
    """Whether a condition holds for ANY or for ALL elements of an array.

    Lax mode of SQL/JSON: a value that is not an array, null included, counts as an array of one element.
    Unknown if the array is missing; else the three-valued OR or AND over its elements.
    """

    quantifier: str
    array: Attribute | Element
    variable: str
    condition: Expression


Expression: TypeAlias = (
    Literal
    | Attribute
    | Element
    | Call
    | Negate
    | Arithmetic
    | Comparison
    | Between
    | In
    | Like
    | Exists
    | IsNull
    | IsTruth
    | Not
    | And
    | Or
    | AndThen
    | OrElse
    | Quantified
)

CONDITIONS = (
    *(Comparison, Between, In, Like, Exists, IsNull, IsTruth),
    *(Not, And, Or, AndThen, OrElse, Quantified),
)
"""The expression types that are always conditions. (A Call may be one too.)"""

_PARTS: dict[type, tuple[str, ...]] = {
    Literal: (),
    Attribute: (),
    Element: (),
    Exists: ("operand",),
    Negate: ("operand",),
    Like: ("operand",),
    IsNull: ("operand",),
    IsTruth: ("operand",),
    Not: ("operand",),
    Arithmetic: ("left", "right"),
    Comparison: ("left", "right"),
    Between: ("operand", "low", "high"),
    In: ("operand", "items"),
    Call: ("operands",),
    And: ("operands",),
    Or: ("operands",),
    AndThen: ("operands",),
    OrElse: ("operands",),
    Quantified: ("array", "condition"),
}
"""For each type, the fields that hold its parts: an expression each, or a tuple of expressions."""


def parts_of(expression: Expression) -> list[Expression]:
    """Return the direct parts of an expression, in the order of the text."""
    parts: list[Expression] = []
    for name in _PARTS[type(expression)]:
        part = getattr(expression, name)
        if type(part) is tuple:
            parts += part
        else:
            parts.append(part)
    return parts


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all its parts at any depth, in pre-order."""
    waiting = [expression]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(parts_of(current)))


def attribute_paths(expression: Expression) -> frozenset[Path]:
    """Return the paths of all attributes that an expression reads."""
    return frozenset(part.path for part in walk(expression) if isinstance(part, Attribute))


def with_parts(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Return an expression with `change` applied to each direct part."""
    changed: dict[str, Any] = {}
    for name in _PARTS[type(expression)]:
        part = getattr(expression, name)
        changed[name] = tuple(map(change, part)) if type(part) is tuple else change(part)
    return replace(expression, **changed) if changed else expression


def with_element(condition: Expression, variable: str, value: Attribute) -> Expression:
    """Return a quantifier's condition with an attribute in place of the element."""

    def change(part: Expression) -> Expression:
        if isinstance(part, Element):
            return Attribute(value.path + part.path) if part.variable == variable else part
        if isinstance(part, Quantified) and part.variable == variable:  # the inner variable hides this one
            array = change(part.array)
            assert isinstance(array, Attribute | Element)
            return replace(part, array=array)
        return with_parts(part, change)

    return change(condition)


def without_quantifiers(e: Expression) -> Expression:
    """Return an equivalent of an expression for events in which no quantified value is an array.

    A quantifier over an attribute becomes its condition for the attribute itself. (Where the attribute
    is missing, the quantifier is unknown; its condition may not be.)
    """
    if isinstance(e, Quantified) and isinstance(e.array, Attribute):
        return without_quantifiers(with_element(e.condition, e.variable, e.array))
    return with_parts(e, without_quantifiers)
