"""What a function of the filter languages is: its types, its meaning, and what the index may know of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fieldfare.filters.expression import Expression
from fieldfare.filters.values import ValueSet

MAX_OPERANDS = 100
"""How many operands a function has at most that takes any number of them."""

MAX_CHARACTERS = 4_096
"""How long a string can become by functions; a longer result has no value."""


class Type(Enum):
    """What an operand must be, or a result is. Where an operand is of another type, the result is unknown."""

    NUMBER = "number"
    STRING = "string"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    """A point in time. Events have none; it is computed, as a number: the seconds since 1970."""
    INTERVAL = "interval"
    """A length of time; computed, as a number of seconds."""
    ANY = "any"
    """A value of any type, but neither null nor missing; arrays and objects too."""

    @property
    def is_numeric(self) -> bool:
        """Whether values are numbers when they are computed."""
        return self in (Type.NUMBER, Type.TIMESTAMP, Type.INTERVAL)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function.

    Attributes
    ----------
    name
        What docs and messages call it.
    type
        What its value must be.
    literal
        Whether only a literal can stand here.
    optional, repeated
        Whether it may be left out; whether it may come more than once (the last one).
    check
        What is wrong with a literal here, or "".
    no_time
        Of a parameter of any type: whether timestamps and intervals, which are numbers inside, cannot stand
        here.
    """

    name: str
    type: Type
    literal: bool = False
    optional: bool = False
    repeated: bool = False
    check: Callable[[Any], str] | None = None
    no_time: bool = False


Requirements = tuple[Sequence[tuple[Expression, ValueSet]], bool]
"""Sets that operands must be in; and whether being in them is also enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function: how to call it and what it means.

    Attributes
    ----------
    name
        In capitals; names are not case-sensitive.
    parameters, result
        The types.
    summary
        One sentence for the table of functions in the docs.
    compute
        The result for values of the parameters' types, or None where there is none. Numbers come as exact
        ints or Fractions, and a number given back is one of these, or a Decimal.
    expand
        An equivalent expression of simpler parts for some operands, or None. Evaluator, normal form and
        column evaluator use it in the place of the call.
    implied
        Given operands and a set of results, what the operands must be for the result to be in the set; None
        if nothing is known. The index finds its candidates by it.
    true_for
        Of a function of one operand that is never unknown: the values for which it is true.
    takes_null
        Whether ``compute`` is also called with None for operands that are missing or null or of another type.
    group
        The heading of the table in the docs.
    check
        What is wrong with operands that are right one by one, or "".
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
    def least_operands(self) -> int:
        """How many operands it takes at least."""
        return sum(not parameter.optional for parameter in self.parameters)

    @property
    def most_operands(self) -> int:
        """How many operands it takes at most."""
        return MAX_OPERANDS if self.parameters and self.parameters[-1].repeated else len(self.parameters)

    def parameter(self, place: int) -> Parameter:
        """The parameter that an operand, counted from 0, stands for."""
        return self.parameters[min(place, len(self.parameters) - 1)]

    @property
    def signature(self) -> str:
        """The call as the docs write it: ``SUBSTRING(text, start [, length])``."""
        text = ""
        for parameter in self.parameters:
            name = parameter.name + (", ..." if parameter.repeated else "")
            comma = ", " if text else ""
            text += f" [{comma}{name}]" if parameter.optional else comma + name
        return f"{self.name}({text.lstrip()})"
