"""The syntax tree of CESQL, the parser's result."""

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
    """The negative of an integer."""

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
    """A function call; the name is in upper case. The number of arguments may be wrong."""

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
