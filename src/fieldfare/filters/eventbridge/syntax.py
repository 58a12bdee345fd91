"""The syntax of event patterns: objects of fields, and for each field the tests of its values."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from fieldfare.filters.expression import Pattern


@dataclass(frozen=True, slots=True)
class Equals:
    """The value is this string, number, boolean or null.

    Attributes
    ----------
    any_spelling
        Whether all spellings of an IPv6 address are equal.
    """

    value: str | int | Decimal | bool | None
    any_spelling: bool = False


@dataclass(frozen=True, slots=True)
class EqualsIgnoreCase:
    """The value is this string, ignoring case."""

    text: str


@dataclass(frozen=True, slots=True)
class Prefix:
    """The value is a string that starts with this text."""

    text: str
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class Suffix:
    """The value is a string that ends with this text."""

    text: str
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class Wildcard:
    """The value is a string that matches a pattern in which ``*`` stands for any characters."""

    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Numeric:
    """The value is a number for which all comparisons hold: pairs of operator and number."""

    comparisons: tuple[tuple[str, int | Decimal], ...]


@dataclass(frozen=True, slots=True)
class Cidr:
    """The value is a string with an IP address in this block."""

    block: str


@dataclass(frozen=True, slots=True)
class AnythingBut:
    """There is a value, and none of these tests holds for it."""

    tests: tuple[Equals | EqualsIgnoreCase | Prefix | Suffix | Wildcard, ...]


@dataclass(frozen=True, slots=True)
class PatternExists:
    """The field has a value (``wanted``), or it has none."""

    wanted: bool


Test: TypeAlias = (
    Equals | EqualsIgnoreCase | Prefix | Suffix | Wildcard | Numeric | Cidr | AnythingBut | PatternExists
)


@dataclass(frozen=True, slots=True)
class PatternValues:
    """The tests of a field's values; one of them must hold for one value."""

    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a pattern: all of its fields must match, and one of the alternatives of its ``$or``."""

    members: tuple[tuple[str, Fields | PatternValues], ...]
    alternatives: tuple[Fields, ...] = ()
