"""The attributes that rows of a DataFrame can have, and checks of filters against them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DoubleType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from fieldfare.filters import Filter, FilterError, format_path
from fieldfare.filters.errors import Mistake, Problem, problem_at
from fieldfare.filters.help.column_types import ColumnType, misfits, parts_of_elements
from fieldfare.filters.sql.lexer import tokens_of
from fieldfare.filters.sql.mistakes import shortened
from fieldfare.filters.sql.paths import read_path
from fieldfare.model import Path


def can_have(schema: StructType, path: Path) -> bool:
    """Return whether rows of this schema can have an attribute."""
    return _type_at(schema, path) is not None


_COLUMN_TYPES = (
    (NumericType, ColumnType.NUMBER),
    (StringType, ColumnType.STRING),
    (BooleanType, ColumnType.BOOLEAN),
    (DateType, ColumnType.DATE),
    (TimestampType, ColumnType.TIMESTAMP),
    (TimestampNTZType, ColumnType.TIMESTAMP_NTZ),
    (ArrayType, ColumnType.ARRAY),
    ((StructType, MapType), ColumnType.OBJECT),
    ((BinaryType, DayTimeIntervalType, YearMonthIntervalType), ColumnType.OTHER),
)


def column_type(schema: StructType, path: Path) -> ColumnType | None:
    """Return the type that a filter sees in an attribute; None if nothing is known about it."""
    kind = _type_at(schema, path)
    return next((known for spark_type, known in _COLUMN_TYPES if isinstance(kind, spark_type)), None)


def _type_at(schema: StructType, path: Path) -> DataType | None:
    """Return the type of an attribute; None if no row has it.

    A step names a struct's field or a map's value, or is the index of an array's element.
    """
    current: DataType = schema
    for step in path:
        if isinstance(step, str) and isinstance(current, StructType) and step in current.names:
            current = current[step].dataType
        elif isinstance(step, int) and isinstance(current, ArrayType):
            current = current.elementType
        elif isinstance(step, str) and isinstance(current, MapType):
            if not isinstance(current.keyType, StringType):
                return None
            current = current.valueType
        else:
            return None
    return current


@dataclass(frozen=True, slots=True)
class ComparisonWarning:
    """Why Spark compares a column's strings differently from filters, and what to do about it."""

    message: str
    hint: str


def odd_comparison(schema: StructType, path: Path) -> ComparisonWarning | None:
    """Describe how Spark compares an attribute's strings (or an array's elements); None if by their bytes."""
    kind = _type_at(schema, path)
    waiting = [] if kind is None or isinstance(kind, (StructType, MapType)) else [kind]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, ArrayType):
            waiting.append(kind.elementType)
        elif isinstance(kind, StructType):
            waiting += [field.dataType for field in kind]
        elif isinstance(kind, MapType):
            waiting.append(kind.valueType)
        elif isinstance(kind, CharType):
            return ComparisonWarning(
                f"of the type CHAR({kind.length}), whose padding Spark ignores and filters do not",
                "match a STRING without the padding: RTRIM of the column",
            )
        elif isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            return ComparisonWarning(
                f"of the collation {kind.collation}, and filters compare strings by their bytes",
                "match a plain STRING: COLLATE(the column, 'UTF8_BINARY')",
            )
    return None


_PADDED = re.compile(r"(?<!var)char\(", re.IGNORECASE)
_CHAR_NOTE = "__CHAR_VARCHAR_TYPE_STRING"


def noted_types(schema: StructType) -> StructType:
    """Return a schema with CHAR(n) columns restored from metadata, where Spark notes the type."""
    return StructType(
        [
            StructField(field.name, DataType.fromDDL(note), field.nullable, field.metadata)
            if _PADDED.search(note := str((field.metadata or {}).get(_CHAR_NOTE, "")))
            else field
            for field in schema
        ]
    )


def attributes_of(schema: pa.Schema, noted: StructType) -> StructType:
    """Return the columns of an Arrow table in the form that filters are checked against.

    Parameters
    ----------
    schema
        The columns.
    noted
        What Spark has noted of some, and Arrow does not know: intervals, collations.
    """
    return StructType(
        [
            noted[field.name]
            if field.name in noted.names
            else StructField(field.name, _spark_type(field.type))
            for field in schema
        ]
    )


def _spark_type(kind: pa.DataType) -> DataType:
    if pa.types.is_struct(kind):
        return StructType([StructField(field.name, _spark_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if hasattr(kind, "value_field"):  # lists of every layout
        return ArrayType(_spark_type(kind.value_type))
    if pa.types.is_timestamp(kind):
        return TimestampNTZType() if kind.tz is None else TimestampType()
    return next((found for belongs, found in _SPARK_TYPES if belongs(kind)), BinaryType())


_SPARK_TYPES: tuple[tuple[Callable[[pa.DataType], bool], DataType], ...] = (
    (pa.types.is_integer, DoubleType()),
    (pa.types.is_floating, DoubleType()),
    (pa.types.is_decimal, DoubleType()),
    (pa.types.is_string, StringType()),
    (pa.types.is_boolean, BooleanType()),
    (pa.types.is_date, DateType()),
    (pa.types.is_time, NullType()),  # nothing is known about its values
    (pa.types.is_null, NullType()),
)
"""The Spark type for what filters see of a type without parts; any number is a DOUBLE."""


def attribute_names(schema: StructType) -> Iterator[str]:
    """Yield the paths of all attributes that rows of this schema can have; arrays by their first element."""

    def below(path: Path, kind: DataType) -> Iterator[Path]:
        yield path
        if isinstance(kind, StructType):
            for field in kind:
                yield from below((*path, field.name), field.dataType)
        elif isinstance(kind, ArrayType):
            yield from below((*path, 0), kind.elementType)

    for field in schema:
        for path in below((field.name,), field.dataType):
            yield format_path(path)


def check_attributes(compiled: Filter, schema: StructType) -> None:
    """Raise FilterError, with places and hints, if attributes are missing or of the wrong type.

    Types are checked for SQL filters only; other dialects convert what they compare, or accept any type.
    """
    paths = sorted(compiled.paths, key=format_path)
    problems = [_problem(compiled, path, schema) for path in paths if not can_have(schema, path)]
    for path in paths:
        if odd := odd_comparison(schema, path):
            start, end = place_of(compiled.text, path)
            message = f"{shortened(format_path(path))} is {odd.message}"
            problems.append(problem_at(compiled.text, start, end, message, odd.hint))
    if compiled.dialect == "sql":

        def type_of(path: Path) -> ColumnType | None:
            return column_type(schema, path)

        for array, path in parts_of_elements(compiled.expression, type_of):
            if can_have(schema, path[:-1]) and not can_have(schema, path):
                problems.append(_problem_of_element(compiled, array, path, schema))
        for found in misfits(compiled.expression, type_of):
            start, end = place_of(compiled.text, found.path)
            problems.append(problem_at(compiled.text, start, end, found.message, found.hint))
    if problems:
        raise FilterError(compiled.text, sorted(problems, key=lambda problem: (problem.line, problem.column)))


def _problem(compiled: Filter, path: Path, schema: StructType) -> Problem:
    name = format_path(path)
    names = list(attribute_names(schema))
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    by_case = [known for known in names if known.lower() == name.lower()]
    ends_so = [known for known in names if known.endswith(f".{name}")]
    if found := (by_case or ends_so or close):
        hint = f"did you mean {found[0]}?"
    else:
        hint = f"the events have {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
    start, end = place_of(compiled.text, path)
    return problem_at(compiled.text, start, end, f"the events have no attribute {shortened(name)}", hint)


def _problem_of_element(compiled: Filter, array: Path, path: Path, schema: StructType) -> Problem:
    kind = _type_at(schema, path[:-1])
    names = kind.names if isinstance(kind, StructType) else []
    hint = f"there is {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else ""
    start, end = place_of(compiled.text, array)
    message = f"no element of {shortened(format_path(array))} has {shortened(str(path[-1]))}"
    return problem_at(compiled.text, start, end, message, hint)


def place_of(text: str, path: Path) -> tuple[int, int]:
    """Return start and end of an attribute's first mention in a filter; the full text if not found."""
    tokens, _ = tokens_of(text)
    for index, token in enumerate(tokens):
        if token.kind not in ("path", "quoted"):
            continue
        try:
            found, after = read_path(tokens, index)
        except Mistake:
            continue
        if found == path:
            return token.start, tokens[after - 1].end
    return 0, len(text)
