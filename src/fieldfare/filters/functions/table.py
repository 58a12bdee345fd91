"""Descriptions of the filter languages' functions: types, semantics, and implications for the index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fieldfare.filters.expression import Expression
from fieldfare.filters.values import ValueSet

OPERANDS_MAX = 100
"""Maximum operands of a function with a repeated parameter; calls with more are rejected."""

CHARACTERS_MAX = 4_096
"""Maximum characters of a function's result; a longer result has no value."""


class Type(Enum):
    """The type of an operand or a result. If an operand has another type, the result is unknown."""

    NUMBER = "number"
    STRING = "string"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    """A point in time, computed from a text; represented as a number: seconds since 1970."""
    INTERVAL = "interval"
    """A length of time; represented as a number of seconds."""
    ANY = "any"
    """A value of any type, arrays and objects included, that is neither null nor missing."""

    @property
    def is_numeric(self) -> bool:
        """Whether values of the type are represented as numbers."""
        return self in (Type.NUMBER, Type.TIMESTAMP, Type.INTERVAL)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function.

    Attributes
    ----------
    name
        Its name in docs and messages.
    type
        Its type.
    literal
        Whether only a literal is allowed.
    optional, repeated
        Whether it may be left out; whether it may occur more than once (the last one).
    check
        Returns a message if a literal is invalid, else "".
    no_time
        For a parameter of any type: whether timestamps and intervals, which are represented as numbers, are
        not allowed.
    """

    name: str
    type: Type
    literal: bool = False
    optional: bool = False
    repeated: bool = False
    check: Callable[[Any], str] | None = None
    no_time: bool = False


Requirements = tuple[Sequence[tuple[Expression, ValueSet]], bool]
"""Necessary sets of operands, and whether they are also sufficient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function: its name, its types, and its semantics.

    Attributes
    ----------
    name
        In upper case; names are not case-sensitive.
    parameters, result
        The types.
    summary
        One phrase for the table of functions in the docs.
    compute
        Returns the result for values of the parameters' types, or None if there is none. Numbers are passed
        as exact ints or Fractions; a number is returned as one of these or as a Decimal.
    expand
        Returns an equivalent, simpler expression for some operands, or None. Evaluator, normal form and
        column evaluator use it in place of the call.
    implied
        Returns the sets of operands that are necessary for the result to be in a given set; None if nothing
        is known. The index finds its candidates with it.
    true_for
        For a function of one operand that is never unknown: the values for which it is true.
    takes_null
        Whether ``compute`` is also called with None for operands that are missing, null or of another type.
    group
        The heading of its table in the docs.
    check
        Returns a message if operands that are valid one by one are invalid together, else "".
    """

    name: str
    parameters: tuple[Parameter, ...]
    result: Type
    summary: str
    group: str
    compute: Callable[..., Any] | None = None
    expand: Callable[[tuple[Expression, ...]], Expression | None] | None = None
    implied: Callable[[tuple[Expression, ...], ValueSet], Requirements | None] | None = None
    true_for: ValueSet | None = None
    takes_null: bool = False
    check: Callable[[tuple[Expression, ...]], str] | None = None

    @property
    def operands_min(self) -> int:
        """The minimum number of operands."""
        return sum(not parameter.optional for parameter in self.parameters)

    @property
    def most_operands(self) -> int:
        """The maximum number of operands."""
        return OPERANDS_MAX if self.parameters and self.parameters[-1].repeated else len(self.parameters)

    def parameter(self, place: int) -> Parameter:
        """Return the parameter of the operand at an index, counted from 0."""
        return self.parameters[min(place, len(self.parameters) - 1)]

    @property
    def signature(self) -> str:
        """The call in the docs' notation: ``SUBSTRING(text, start [, length])``."""
        text = ""
        for parameter in self.parameters:
            name = parameter.name + (", ..." if parameter.repeated else "")
            comma = ", " if text else ""
            text += f" [{comma}{name}]" if parameter.optional else comma + name
        return f"{self.name}({text.lstrip()})"
