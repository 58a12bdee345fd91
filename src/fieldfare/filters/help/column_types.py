"""What a filter never finds, or finds wrongly, in a table whose columns have known types.

A filter alone cannot tell: ``squawk = 1000`` is meant for numbers. In a column of strings it is never true,
and says nothing. Dates and timestamps of a table are texts to a filter: compared with a text of another form
they are in another order than the moments are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fieldfare.filters.expression import (
    Arithmetic,
    Attribute,
    Between,
    Call,
    Comparison,
    Expression,
    In,
    Like,
    Literal,
    Negate,
    walk,
)
from fieldfare.filters.functions import FUNCTIONS, Type
from fieldfare.filters.functions.numbers import number_of
from fieldfare.filters.functions.times import timestamp
from fieldfare.filters.help.statements import written
from fieldfare.model import Path


class ColumnType(Enum):
    """The types of columns of which it is known what filters see; the value says what a column has."""

    NUMBER = "numbers"
    STRING = "strings"
    BOOLEAN = "booleans"
    DATE = "dates"
    TIMESTAMP = "timestamps"
    TIMESTAMP_NTZ = "timestamps without a time zone"


_TIMES = (ColumnType.DATE, ColumnType.TIMESTAMP, ColumnType.TIMESTAMP_NTZ)
_FORMS = {
    ColumnType.DATE: re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    ColumnType.TIMESTAMP: re.compile(r"[0-9-]{10}T[0-9:]{8}(\.[0-9]*[1-9])?\+00:00"),
    ColumnType.TIMESTAMP_NTZ: re.compile(r"[0-9-]{10}T[0-9:]{8}(\.[0-9]*[1-9])?"),
}
"""How a filter sees the values: texts in these forms, and no other, are in order as they are."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Something that does not fit a column: which, what it is, and what to write instead."""

    path: Path
    message: str
    hint: str


TypeOf = Callable[[Path], ColumnType | None]


def misfits(e: Expression, type_of: TypeOf) -> list[Misfit]:
    """What in a filter does not fit the types of a table's columns.

    Parameters
    ----------
    type_of
        The type of the column, or of the part of one, that a path names; None if nothing is known of it.
    """
    found: list[Misfit] = []
    for part in walk(e):
        find = _FINDERS.get(type(part))
        if find is not None:
            found += find(part, type_of)
    return list(dict.fromkeys(found))


def _comparison(e: Comparison, type_of: TypeOf) -> Iterator[Misfit]:
    return _compared(e.operator, e.left, e.right, type_of)


def _compared(operator: str, left: Expression, right: Expression, type_of: TypeOf) -> Iterator[Misfit]:
    if isinstance(left, Literal):
        left, right = right, left
        operator = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
    kind = _type(left, type_of)
    if kind is None or not isinstance(left, Attribute):
        return
    if isinstance(right, Literal):
        yield from _with_constant(operator, left, kind, right.value)
    elif (other := _type(right, type_of)) is not None and other is not kind:
        in_time = kind in _TIMES or other in _TIMES
        hint = (
            f"write {_timestamp(left)} {operator} {_timestamp(right)}"
            if in_time
            else _cast(left, right, kind)
        )
        message = f"{written(left)} has {kind.value} and {written(right)} has {other.value}"
        yield Misfit(left.path, message, hint)


def _between(e: Between, type_of: TypeOf) -> Iterator[Misfit]:
    for operator, bound in ((">=", e.low), ("<=", e.high)):
        yield from _compared(operator, e.operand, bound, type_of)


def _in(e: In, type_of: TypeOf) -> Iterator[Misfit]:
    for item in {id(item): item for item in e.items}.values():
        yield from _compared("=", e.operand, item, type_of)


def _with_constant(operator: str, column: Attribute, kind: ColumnType, value: Any) -> Iterator[Misfit]:
    if value is None:
        return
    name, constant = written(column), written(Literal(value))
    given = (
        Type.BOOLEAN if isinstance(value, bool) else Type.STRING if isinstance(value, str) else Type.NUMBER
    )
    if kind in _TIMES:
        if given is Type.STRING and _is_in_order(operator, kind, value):
            return
        if given is Type.STRING and timestamp(value) is not None:
            message = f"{name} has {kind.value}, and this text is written otherwise than these are"
            yield Misfit(column.path, message, f"write {name} {operator} TIMESTAMP {constant}")
            return
        example = "DATE '2026-01-31'" if kind is ColumnType.DATE else "TIMESTAMP '2026-01-31T12:00:00Z'"
        message = f"{name} has {kind.value}, which {constant} is not"
        yield Misfit(column.path, message, f"write {name} {operator} {example}")
    elif _CONSTANTS[kind] is not given:
        hint = ""
        if kind is ColumnType.STRING and given is Type.NUMBER:
            hint = f"write {name} {operator} '{constant}', or NUMBER({name}) {operator} {constant}"
        elif kind is ColumnType.NUMBER and given is Type.STRING and number_of(value) is not None:
            hint = f"write {name} {operator} {value.strip()}"
        elif kind is ColumnType.BOOLEAN:
            hint = f"write {name} or NOT {name}"
        yield Misfit(
            column.path, f"{name} has {kind.value}, and is never compared with a {given.value}", hint
        )


_CONSTANTS = {
    ColumnType.NUMBER: Type.NUMBER,
    ColumnType.STRING: Type.STRING,
    ColumnType.BOOLEAN: Type.BOOLEAN,
}


def _is_in_order(operator: str, kind: ColumnType, text: str) -> bool:
    """Whether a comparison with a text is as one with the moment that it writes."""
    if timestamp(text) is None:
        return False
    if _FORMS[kind].fullmatch(text):
        return True
    # No timestamp is a date alone, and all of a day begin with it.
    return operator in ("<", ">=") and _FORMS[ColumnType.DATE].fullmatch(text) is not None


def _like(e: Like, type_of: TypeOf) -> Iterator[Misfit]:
    yield from _needing(e.operand, Type.STRING, "LIKE", type_of)


def _calculation(e: Arithmetic | Negate, type_of: TypeOf) -> Iterator[Misfit]:
    for operand in (e.operand,) if isinstance(e, Negate) else (e.left, e.right):
        yield from _needing(operand, Type.NUMBER, "arithmetic", type_of)


def _call(e: Call, type_of: TypeOf) -> Iterator[Misfit]:
    if e.function == "EQUAL_NULL":
        left, right = e.operands
        yield from _compared("=", left, right, type_of)
    if e.function.startswith("CESQL_"):
        return
    for place, operand in enumerate(e.operands):
        yield from _needing(operand, FUNCTIONS[e.function].parameter(place).type, e.function, type_of)


def _needing(e: Expression, wanted: Type, what: str, type_of: TypeOf) -> Iterator[Misfit]:
    """A column where only numbers, or only strings, have a result."""
    kind = _type(e, type_of)
    if kind is None or not isinstance(e, Attribute):
        return
    name = written(e)
    if wanted is Type.NUMBER and kind is not ColumnType.NUMBER:
        hint = f"write TIMESTAMP({name}) to calculate with moments" if kind in _TIMES else ""
        hint = f"write NUMBER({name}) where strings write numbers" if kind is ColumnType.STRING else hint
        yield Misfit(e.path, f"{what} needs numbers, and {name} has {kind.value}", hint)
    if wanted is Type.STRING and kind in (ColumnType.NUMBER, ColumnType.BOOLEAN):
        hint = f"write STRING({name})"
        if what == "TIMESTAMP":
            hint = f"write TIMESTAMP '1970-01-01T00:00:00Z' + INTERVAL({name}) where numbers are seconds"
        yield Misfit(e.path, f"{what} needs strings, and {name} has {kind.value}", hint)


def _type(e: Expression, type_of: TypeOf) -> ColumnType | None:
    return type_of(e.path) if isinstance(e, Attribute) else None


def _timestamp(e: Expression) -> str:
    return f"TIMESTAMP({written(e)})"


def _cast(left: Expression, right: Expression, kind: ColumnType) -> str:
    """How a column of strings is compared with one of numbers."""
    text = left if kind is ColumnType.STRING else right
    return f"write NUMBER({written(text)}) if its strings write numbers"


_FINDERS: dict[type, Callable[[Any, TypeOf], Iterator[Misfit]]] = {
    Comparison: _comparison,
    Between: _between,
    In: _in,
    Like: _like,
    Arithmetic: _calculation,
    Negate: _calculation,
    Call: _call,
}
