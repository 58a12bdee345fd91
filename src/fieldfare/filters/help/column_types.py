"""Mismatches between a filter and the types of a table's columns.

They cannot be found in the filter alone: ``squawk = 1000`` is valid for numbers, but never true for a column
of strings. Dates and timestamps of a table are texts in a filter: compared with a text in another format,
they are not in chronological order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from fieldfare.filters.expression import (
    And,
    AndThen,
    Arithmetic,
    Attribute,
    Between,
    Call,
    Comparison,
    Element,
    Expression,
    In,
    IsTruth,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    OrElse,
    Quantified,
    parts_of,
    walk,
)
from fieldfare.filters.functions import FUNCTIONS, Type
from fieldfare.filters.functions.numbers import number_of
from fieldfare.filters.functions.times import timestamp
from fieldfare.filters.help.statements import written
from fieldfare.filters.sql.predicates import EACH
from fieldfare.model import Path


class ColumnType(Enum):
    """The types of columns; the value names a column's values in messages."""

    NUMBER = "numbers"
    STRING = "strings"
    BOOLEAN = "booleans"
    DATE = "dates"
    TIMESTAMP = "timestamps"
    TIMESTAMP_NTZ = "timestamps without a time zone"
    ARRAY = "arrays"
    OBJECT = "objects"
    OTHER = "values that filters do not read"
    """Bytes and durations."""


_TIMES = (ColumnType.DATE, ColumnType.TIMESTAMP, ColumnType.TIMESTAMP_NTZ)
_FORMS = {
    ColumnType.DATE: re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    ColumnType.TIMESTAMP: re.compile(r"[0-9-]{10}T[0-9:]{8}(\.[0-9]*[1-9])?\+00:00"),
    ColumnType.TIMESTAMP_NTZ: re.compile(r"[0-9-]{10}T[0-9:]{8}(\.[0-9]*[1-9])?"),
}
"""The formats of values as texts in filters; only texts in the same format are in chronological order."""
_BEGINNING = re.compile(r"[0-9]{4}(-[0-9]{2}(-[0-9]{2})?)?")
"""A year, a month or a day: as a text it is a lower bound of all times in it, and above all earlier times."""
_NEVER_IN = {
    ColumnType.DATE: re.compile(r"[^0-9-]"),
    ColumnType.TIMESTAMP: re.compile(r"[^0-9T:.+-]"),
    ColumnType.TIMESTAMP_NTZ: re.compile(r"[^0-9T:.-]"),
}
"""Characters that occur in no text of the type."""


def form_of(text: str) -> ColumnType:
    """Return the type whose format a text has; STRING if it has none of these formats."""
    return next((kind for kind, form in _FORMS.items() if form.fullmatch(text)), ColumnType.STRING)


@dataclass(frozen=True, slots=True)
class TypeMismatch:
    """A mismatch between a filter and a column: the column's path, a message, and a correction."""

    path: Path
    message: str
    hint: str


TypeOf = Callable[[Path], ColumnType | None]


def misfits(e: Expression, type_of: TypeOf) -> list[TypeMismatch]:
    """Return the mismatches between a filter and the types of a table's columns.

    Parameters
    ----------
    type_of
        Returns the type of a column, or of a part of one, by its path; None if it is not known.
    """
    found = [*_condition(e, _Columns(type_of, {}))]
    for part, columns in _parts(e, _Columns(type_of, {})):
        find = _FINDERS.get(type(part))
        if find is not None:
            found += find(part, columns)
    return list(dict.fromkeys(found))


def parts_of_elements(e: Expression, type_of: TypeOf) -> list[tuple[Path, Path]]:
    """Return the parts of elements that a filter reads, as pairs of paths.

    The first is the array's path in the text, the second the part's path, in which 0 stands for any element.
    """
    found = [
        columns.paths(part)
        for part, columns in _parts(e, _Columns(type_of, {}))
        if not isinstance(part, Attribute)
    ]
    return list(dict.fromkeys(paths for paths in found if paths is not None))


class _Columns(NamedTuple):
    """The context of a part of a filter: the types of columns and the variables in scope.

    Attributes
    ----------
    type_of
        Returns the type of a column by its path.
    elements
        For each enclosing quantifier, by its variable: the array's path in the text, and an element's path.
    """

    type_of: TypeOf
    elements: Mapping[str, tuple[Path, Path]]

    def column(self, e: Expression) -> tuple[Path, ColumnType] | None:
        """Return the path of the column that a part reads, and the part's type; None if it is not known."""
        kind = self._kind(e)
        if kind is None:
            return None
        names = (paths[0] for part in walk(e) if (paths := self.paths(part)) is not None)
        name = next(names, None)
        return None if name is None else (name, kind)

    def _computed(self, e: Expression) -> ColumnType | None:
        """Return the type of a computed value; None if it is not known."""
        if isinstance(e, Arithmetic | Negate):
            return ColumnType.NUMBER
        if not isinstance(e, Call) or e.function.startswith("CESQL_"):
            return None
        if e.function in _CHOSEN:
            values = [value for value in _CHOSEN[e.function](e.operands) if value != Literal(None)]
            kinds = {self._kind(value) for value in values}
            return kinds.pop() if len(kinds) == 1 else None
        if e.function == "STRING" and (kind := self._kind(e.operands[0])) in _TIMES:
            return kind
        return _OF_TYPE.get(FUNCTIONS[e.function].result)

    def _kind(self, e: Expression) -> ColumnType | None:
        if isinstance(e, Literal):
            return None if e.value is None else _OF_TYPE[_type_of(e.value)]
        known = self.paths(e)
        return self._computed(e) if known is None else self.type_of(known[1])

    def paths(self, e: Expression) -> tuple[Path, Path] | None:
        """Return the path in the text and the column's path of an attribute or a part of an element."""
        if isinstance(e, Attribute):
            return e.path, e.path
        if isinstance(e, Call) and e.function == "ELEMENT_AT" and isinstance(e.operands[1], Literal):
            known, key = self.paths(e.operands[0]), e.operands[1].value
            if known is not None and isinstance(key, int | str):
                return known[0], (*known[1], key if isinstance(key, str) else 0)
        if not isinstance(e, Element) or e.variable not in self.elements:
            return None
        array, element = self.elements[e.variable]
        return array, element + e.path

    def within(self, e: Quantified) -> _Columns:
        """Return the context for a quantifier's condition."""
        elements = {name: paths for name, paths in self.elements.items() if name != e.variable}
        known = self.paths(e.array)
        if known is not None:  # a value that is not an array counts as an array of one element
            array, path = known
            elements[e.variable] = array, (*path, 0) if self.type_of(path) is ColumnType.ARRAY else path
        return self._replace(elements=elements)


_CHOSEN: dict[str, Callable[[tuple[Expression, ...]], tuple[Expression, ...]]] = {
    **dict.fromkeys(("COALESCE", "GREATEST", "LEAST"), lambda operands: operands),
    "CASE": lambda operands: (*operands[1::2], operands[-1]),
    "NULLIF": lambda operands: operands[:1],
}
"""Functions that return one of some operands, with a function that selects those operands."""


def _parts(e: Expression, columns: _Columns) -> Iterator[tuple[Expression, _Columns]]:
    """Yield all parts of an expression with their contexts."""
    yield e, columns
    inner = columns.within(e) if isinstance(e, Quantified) else columns
    for part in parts_of(e):
        yield from _parts(part, inner)


def _quantified(e: Quantified, columns: _Columns) -> Iterator[TypeMismatch]:
    yield from _condition(e.condition, columns.within(e))


def _named(e: Expression) -> str:
    if isinstance(e, Element) and not e.path and EACH.fullmatch(e.variable):
        return "each element"
    return written(e)


def _condition(e: Expression, columns: _Columns) -> Iterator[TypeMismatch]:
    """Find a column in place of a condition."""
    column = columns.column(e)
    if column is not None and column[1] is not ColumnType.BOOLEAN:
        hint = f"compare it, or write {written(e)} IS NOT NULL"
        yield TypeMismatch(column[0], f"{_named(e)} has {column[1].value}, and is not a condition", hint)


def _conditions(e: And | Or | AndThen | OrElse, columns: _Columns) -> Iterator[TypeMismatch]:
    for operand in e.operands:
        yield from _condition(operand, columns)


def _tested(e: Not | IsTruth, columns: _Columns) -> Iterator[TypeMismatch]:
    yield from _condition(e.operand, columns)


def _comparison(e: Comparison, columns: _Columns) -> Iterator[TypeMismatch]:
    return _compared(e.operator, e.left, e.right, columns)


def _compared(
    operator: str, left: Expression, right: Expression, columns: _Columns
) -> Iterator[TypeMismatch]:
    if isinstance(left, Literal):
        left, right = right, left
        operator = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
    left, right = _without_cast(left, columns), _without_cast(right, columns)
    column, other = columns.column(left), columns.column(right)
    if column is None:
        return
    path, kind = column
    if isinstance(right, Literal):
        yield from _with_constant(operator, left, path, kind, right.value)
    elif kind in _NEVER_EQUAL:
        yield TypeMismatch(path, f"{_named(left)} has {kind.value}, which are never equal to anything", "")
    elif other is not None and other[1] is not kind:
        hint = f"write {_moment(left, kind)} {operator} {_moment(right, other[1])}"
        if kind not in _TIMES and other[1] not in _TIMES:
            hint = _cast(left, right, kind)
        yield TypeMismatch(
            path, f"{_named(left)} has {kind.value} and {_named(right)} has {other[1].value}", hint
        )


def _without_cast(e: Expression, columns: _Columns) -> Expression:
    """Remove a cast of a column of times to STRING, because the column is compared as text anyway."""
    if isinstance(e, Call) and e.function == "STRING":
        column = columns.column(e)
        return e.operands[0] if column is not None and column[1] in _TIMES else e
    return e


def _between(e: Between, columns: _Columns) -> Iterator[TypeMismatch]:
    for operator, bound in ((">=", e.low), ("<=", e.high)):
        yield from _compared(operator, e.operand, bound, columns)


def _in(e: In, columns: _Columns) -> Iterator[TypeMismatch]:
    for item in {id(item): item for item in e.items}.values():
        yield from _compared("=", e.operand, item, columns)


def _with_constant(
    operator: str, column: Expression, path: Path, kind: ColumnType, value: Any
) -> Iterator[TypeMismatch]:
    if value is None:
        return
    name, constant = _named(column), written(Literal(value))
    written_so = "write {} in place of " + constant
    if name == written(column):
        written_so = f"write {name} {operator} {{}}"
    given = _type_of(value)
    if kind in _TIMES:
        if given is Type.STRING and _is_in_order(operator, kind, value):
            return
        if given is Type.STRING and timestamp(value) is not None:
            message = f"{name} has {kind.value}, and this text has another format"
            yield TypeMismatch(path, message, written_so.format(f"TIMESTAMP {constant}"))
            return
        example = "DATE '2026-01-31'" if kind is ColumnType.DATE else "TIMESTAMP '2026-01-31T12:00:00Z'"
        yield TypeMismatch(
            path, f"{name} has {kind.value}, which {constant} is not", written_so.format(example)
        )
    elif kind in _NEVER_EQUAL or _OF_TYPE[given] is not kind:
        hint = _NEVER_EQUAL.get(kind, "").format(name=name, constant=constant)
        if kind is ColumnType.STRING and given is Type.NUMBER:
            hint = written_so.format(f"'{constant}'")
            hint += f", or NUMBER({name}) {operator} {constant}" if name == written(column) else ""
        elif kind is ColumnType.NUMBER and given is Type.STRING and number_of(value) is not None:
            hint = written_so.format(value.strip())
        elif kind is ColumnType.BOOLEAN:
            hint = f"write {written(column)} or NOT {written(column)}"
        message = f"{name} has {kind.value}, and cannot be compared with a {given.value}"
        yield TypeMismatch(path, message, hint)


_NEVER_EQUAL = {
    ColumnType.ARRAY: "write {constant} = ANY({name})",
    ColumnType.OBJECT: "compare one of its fields, as in {name}.field",
    ColumnType.OTHER: "",
}
_OF_TYPE = {
    Type.NUMBER: ColumnType.NUMBER,
    Type.STRING: ColumnType.STRING,
    Type.BOOLEAN: ColumnType.BOOLEAN,
}


def _type_of(value: Any) -> Type:
    return Type.BOOLEAN if isinstance(value, bool) else Type.STRING if isinstance(value, str) else Type.NUMBER


def _is_in_order(operator: str, kind: ColumnType, text: str) -> bool:
    """Return whether a comparison with a text is equivalent to one with the timestamp that it denotes."""
    if _FORMS[kind].fullmatch(text):
        return timestamp(text) is not None
    if operator not in ("<", ">=") or not _BEGINNING.fullmatch(text):
        return False
    return timestamp(text + "0001-01-01"[len(text) :]) is not None


def _like(e: Like, columns: _Columns) -> Iterator[TypeMismatch]:
    yield from _needing(e.operand, Type.STRING, "LIKE", columns)
    column = columns.column(e.operand)
    never = _NEVER_IN.get(column[1]) if column is not None else None
    found = [never.search(part) for part in e.pattern if isinstance(part, str)] if never is not None else []
    if column is not None and any(found):
        path, kind = column
        example = {
            ColumnType.DATE: "2017-07-28",
            ColumnType.TIMESTAMP: "2017-07-28T09:00:00+00:00",
            ColumnType.TIMESTAMP_NTZ: "2017-07-28T09:00:00",
        }[kind]
        message = f"{_named(e.operand)} has {kind.value}, which LIKE matches as texts such as {example}"
        yield TypeMismatch(path, message, "compare it with TIMESTAMP '...' or DATE '...'")


def _calculation(e: Arithmetic | Negate, columns: _Columns) -> Iterator[TypeMismatch]:
    for operand in (e.operand,) if isinstance(e, Negate) else (e.left, e.right):
        yield from _needing(operand, Type.NUMBER, "arithmetic", columns)


def _call(e: Call, columns: _Columns) -> Iterator[TypeMismatch]:
    if e.function in ("EQUAL_NULL", "NULLIF"):
        left, right = e.operands
        yield from _compared("=", left, right, columns)
    if e.function in ("GREATEST", "LEAST"):
        for other in e.operands[1:]:
            yield from _compared("and", e.operands[0], other, columns)
    if e.function in ("CARDINALITY", "ELEMENT_AT"):
        yield from _looked_into(e, columns)
    if e.function == "CASE":
        for condition in e.operands[:-1:2]:
            yield from _condition(condition, columns)
    if e.function in _CASTS:
        yield from _cast_of(e, columns)
    if e.function.startswith("CESQL_"):
        return
    for place, operand in enumerate(e.operands):
        yield from _needing(operand, FUNCTIONS[e.function].parameter(place).type, e.function, columns)


def _looked_into(e: Call, columns: _Columns) -> Iterator[TypeMismatch]:
    """Find functions that need arrays or objects and have another operand."""
    column = columns.column(e.operands[0])
    if column is not None and column[1] not in (ColumnType.ARRAY, ColumnType.OBJECT):
        name = _named(e.operands[0])
        counted = column[1] is ColumnType.STRING and e.function == "CARDINALITY"
        hint = f"write LENGTH({name}) for the length of a text" if counted else ""
        yield TypeMismatch(column[0], f"{e.function} needs an array, and {name} has {column[1].value}", hint)


_CASTS = ("BIGINT", "INT", "DECIMAL", "NUMBER", "STRING", "BOOLEAN")


def _cast_of(e: Call, columns: _Columns) -> Iterator[TypeMismatch]:
    """Find casts that never have a value for a column's type."""
    operand = e.operands[0]
    column = columns.column(operand)
    if column is None:
        return
    path, kind = column
    if kind in _NEVER_EQUAL:
        hint = "write ELEMENT_AT(...) for one of its elements" if kind is ColumnType.ARRAY else ""
    elif e.function == "STRING" or kind in (ColumnType.NUMBER, ColumnType.STRING):
        return
    elif kind in _TIMES:
        epoch = "TIMESTAMP '1970-01-01T00:00:00Z'"
        hint = f"write ({_named(operand)} - {epoch}) / INTERVAL '1' SECOND for a number"
    elif e.function == "BOOLEAN":
        return
    else:
        hint = f"write CASE WHEN {_named(operand)} THEN 1 ELSE 0 END"
    message = f"{e.function} never has a value here: {_named(operand)} has {kind.value}"
    yield TypeMismatch(path, message, hint)


def _needing(e: Expression, wanted: Type, what: str, columns: _Columns) -> Iterator[TypeMismatch]:
    """Find a column in place of an operand that must be a number or a string."""
    column = columns.column(e)
    if column is None:
        return
    path, kind = column
    name = _named(e)
    if wanted is Type.NUMBER and kind is not ColumnType.NUMBER:
        hint = f"write TIMESTAMP({name}) to calculate with times" if kind in _TIMES else ""
        hint = f"write NUMBER({name}) if its strings contain numbers" if kind is ColumnType.STRING else hint
        yield TypeMismatch(path, f"{what} needs numbers, and {name} has {kind.value}", hint)
    if wanted is Type.STRING and kind not in (ColumnType.STRING, *_TIMES):
        hint = f"write STRING({name})"
        if kind in _NEVER_EQUAL:
            hint = "write 'x' = ANY(...) to find an element" if kind is ColumnType.ARRAY else ""
        elif what == "TIMESTAMP":
            hint = f"write TIMESTAMP '1970-01-01T00:00:00Z' + INTERVAL({name}) if its numbers are seconds"
        yield TypeMismatch(path, f"{what} needs strings, and {name} has {kind.value}", hint)


def _moment(e: Expression, kind: ColumnType) -> str:
    if kind is ColumnType.NUMBER:
        return f"TIMESTAMP '1970-01-01T00:00:00Z' + INTERVAL({written(e)})"
    return f"TIMESTAMP({written(e)})"


def _cast(left: Expression, right: Expression, kind: ColumnType) -> str:
    """Return a hint for a comparison of a column of strings with one of numbers."""
    text = left if kind is ColumnType.STRING else right
    return f"write NUMBER({written(text)}) if its strings contain numbers"


_FINDERS: dict[type, Callable[[Any, _Columns], Iterator[TypeMismatch]]] = {
    Comparison: _comparison,
    Between: _between,
    In: _in,
    Like: _like,
    Arithmetic: _calculation,
    Negate: _calculation,
    Call: _call,
    Quantified: _quantified,
    **dict.fromkeys((And, Or, AndThen, OrElse), _conditions),
    **dict.fromkeys((Not, IsTruth), _tested),
}
