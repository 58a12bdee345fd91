"""The one internal expression: what every filter language is parsed into.

An expression is a value (a number, a string, a boolean, or unknown) computed from the attributes
of one event. Those that are true, false or unknown are *conditions*; a filter is a condition, and
matches where it is true. Unknown is SQL's: ``docs/filters.md`` has the table. Depth is bounded by
the parsers (``MAX_DEPTH``), so functions over expressions may recurse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import TypeAlias

from fieldfare.model import Path

MAX_DEPTH = 100
"""How deep an expression may be nested. Parsers refuse what is deeper."""

Scalar: TypeAlias = "str | bool | int | Decimal | None"
"""A constant. Decimals are finite and have a fraction; whole numbers are ints."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant. None is unknown, whatever it is compared with."""

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
    """The value of an attribute; as a condition: true or false if it is that, else unknown."""

    path: Path


@dataclass(frozen=True, slots=True)
class Negate:
    """Minus a number."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``+ - * / %`` of two numbers, exactly; unknown where there is no such number."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Comparison:
    """``= <> < <= > >=`` of two values of one type; else unknown."""

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
    """Any number of characters, also none."""


Pattern = tuple[str | Wild, ...]
"""Literal pieces and wildcards in order; no two literal pieces and no two RUNs are neighbours."""


@dataclass(frozen=True, slots=True)
class Like:
    """Whether the whole of a string fits a pattern; unknown for what is not a string."""

    operand: Expression
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether the event has the attribute, be it null. Never unknown."""

    path: Path


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


Expression: TypeAlias = (
    Literal
    | Attribute
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
)

CONDITIONS = (Comparison, Between, In, Like, Exists, IsNull, IsTruth, Not, And, Or)
"""The expressions that are conditions, whatever their parts are."""

_CHILDREN: dict[type, Callable[..., tuple[Expression, ...]]] = {
    Literal: lambda e: (),
    Attribute: lambda e: (),
    Exists: lambda e: (),
    Negate: lambda e: (e.operand,),
    Like: lambda e: (e.operand,),
    IsNull: lambda e: (e.operand,),
    IsTruth: lambda e: (e.operand,),
    Not: lambda e: (e.operand,),
    Arithmetic: lambda e: (e.left, e.right),
    Comparison: lambda e: (e.left, e.right),
    Between: lambda e: (e.operand, e.low, e.high),
    In: lambda e: (e.operand, *e.items),
    And: lambda e: e.operands,
    Or: lambda e: e.operands,
}


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and all its parts, each before its own parts."""
    waiting = [expression]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(_CHILDREN[type(current)](current)))


def attribute_paths(expression: Expression) -> frozenset[Path]:
    """All attributes that the expression reads."""
    return frozenset(part.path for part in walk(expression) if isinstance(part, Attribute | Exists))
