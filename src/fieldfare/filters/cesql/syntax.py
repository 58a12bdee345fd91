"""The syntax tree of CESQL: what the parser gives, before any meaning is attached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fieldfare.filters.expression import Pattern


@dataclass(frozen=True, slots=True)
class CesqlLiteral:
    """A string, an integer of 32 bits, or a boolean."""

    value: str | int | bool


@dataclass(frozen=True, slots=True)
class CesqlAttribute:
    """The value of a context attribute; its name is in lower case."""

    name: str


@dataclass(frozen=True, slots=True)
class CesqlExists:
    """Whether the event has a context attribute."""

    name: str


@dataclass(frozen=True, slots=True)
class CesqlNot:
    """NOT of a boolean."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Minus:
    """Minus an integer."""

    operand: Node


@dataclass(frozen=True, slots=True)
class CesqlArithmetic:
    """``+ - * / %`` of two integers."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class CesqlComparison:
    """``= <> < <= > >=``; ``!=`` is ``<>``."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Logic:
    """AND, OR or XOR of at least two operands, from left to right."""

    operator: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class CesqlLike:
    """LIKE and NOT LIKE."""

    operand: Node
    pattern: Pattern
    negated: bool


@dataclass(frozen=True, slots=True)
class CesqlIn:
    """IN and NOT IN; at least one item."""

    operand: Node
    items: tuple[Node, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class CesqlCall:
    """A function, its name in capitals. It may have the wrong number of arguments."""

    function: str
    arguments: tuple[Node, ...]


Node: TypeAlias = (
    CesqlLiteral
    | CesqlAttribute
    | CesqlExists
    | CesqlNot
    | Minus
    | CesqlArithmetic
    | CesqlComparison
    | Logic
    | CesqlLike
    | CesqlIn
    | CesqlCall
)
