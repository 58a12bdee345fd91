"""Which attributes the rows of a DataFrame can have, and which a filter names that they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    MapType,
    NumericType,
    StringType,
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
    """Whether a row of this schema can have an attribute."""
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
    """What a filter sees in an attribute; None if nothing is known of it."""
    kind = _type_at(schema, path)
    return next((known for spark_type, known in _COLUMN_TYPES if isinstance(kind, spark_type)), None)


def _type_at(schema: StructType, path: Path) -> DataType | None:
    """The type of an attribute; None if no row has it.

    A step goes to a struct's field or a map's value by name, or to an array's element by its index.
    """
    current: DataType = schema
    for step in path:
        if isinstance(step, str) and isinstance(current, StructType) and step in current.names:
            current = current[step].dataType
        elif isinstance(step, int) and isinstance(current, ArrayType):
            current = current.elementType
        elif isinstance(step, str) and isinstance(current, MapType) and _has_names(current):
            current = current.valueType
        else:
            return None
    return current


def _has_names(kind: MapType) -> bool:
    return isinstance(kind.keyType, StringType)


def attribute_names(schema: StructType) -> Iterator[str]:
    """The paths of all attributes that rows of this schema can have; arrays by their first element."""

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
    """FilterError with a place and a hint for every attribute that no row can have, or that has another type.

    Of other dialects only the names are checked: what they compare is converted, or written for any type.
    """
    problems = [
        _problem(compiled, path, schema)
        for path in sorted(compiled.paths, key=format_path)
        if not can_have(schema, path)
    ]
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
    """Where a filter's text first names an attribute: start and end; the whole text if it is not found."""
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
