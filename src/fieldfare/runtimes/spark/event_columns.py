"""What of a DataFrame's rows goes to Python, and what stays in the JVM.

    events ─▶ the columns that filters name ─▶ Python ─▶ a list for each event ─▶ exploded, beside the kept

Only what filters name is shipped, of a struct only the fields that they name. The other columns never leave
the JVM, so their number, their size and their types cost nothing. Columns are found by their place, not by
their name: Spark would take a name with a dot for a path, and `a` for `A` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from fieldfare.model import Path

_NOTHING = "\0"
"""What is shipped where filters name no column is called so: Python has to learn how many rows there are."""


def by_place(frame: DataFrame) -> DataFrame:
    """The same rows in columns that are called by their place."""
    return frame.toDF(*map(place_name, range(len(frame.columns))))


def place_name(place: int) -> str:
    """What `by_place` calls a column."""
    return f"c{place}"


def one_row_each(frame: DataFrame, name: str, found: Column) -> DataFrame:
    """A row for each element of what was found, which is in the column `name`."""
    # A plain `explode` makes Spark call the function twice: first only to drop the events with nothing found.
    return frame.withColumn(name, F.explode_outer(found)).where(F.col(name).isNotNull())


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The columns that filters need of a DataFrame.

    Attributes
    ----------
    names
        What filters call them.
    columns
        Where they are in a DataFrame that `by_place` gave.
    """

    names: tuple[str, ...]
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, schema: StructType, paths: Iterable[Path]) -> EventColumns:
        """Those that the attributes with these paths are read from.

        Raises
        ------
        ValueError
            A filter names a column, and there are two of this name.
        """
        wanted: dict[str, set[Path]] = {}
        for path in paths:
            wanted.setdefault(str(path[0]), set()).add(path[1:])
        names: list[str] = []
        columns: list[Column] = []
        for place, field in enumerate(schema):
            if field.name not in wanted:
                continue
            if field.name in names:
                raise ValueError(
                    f"a filter names {field.name!r}, and the events have two columns of this name"
                )
            names.append(field.name)
            columns.append(_needed(F.col(place_name(place)), field.dataType, wanted[field.name]))
        if not names:
            return cls((_NOTHING,), (F.lit(True),))
        return cls(tuple(names), tuple(columns))

    def call(self, function: BatchFunction, element: str, *more: Column) -> Column:
        """What a function finds for each event: an array with elements of a type.

        Parameters
        ----------
        function
            What the Python workers run.
        element
            The type of what it finds, as SQL writes it.
        more
            Further columns that the function gets, after those of the filters.
        """
        names = list(self.names)

        def run(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            for batch in batches:
                # Of a single column Spark makes no tuple.
                arrays = [batch] if isinstance(batch, pa.Array) else list(batch)
                events = pa.RecordBatch.from_arrays(arrays[: len(names)], names=names)
                yield from function(events, arrays[len(names) :])

        found: Column = arrow_udf(run, f"array<{element}>")(*self.columns, *more)
        return found


BatchFunction = Callable[[pa.RecordBatch, Sequence[pa.Array]], Iterable[pa.Array]]
"""A batch of events and the further columns in; a list for each event out, a piece of the batch at a time."""


def _needed(column: Column, kind: DataType, below: set[Path]) -> Column:
    """A column, of a struct only the fields that paths lead to."""
    if () in below or not isinstance(kind, StructType):
        return _readable(column, kind)
    wanted = {path[0] for path in below}
    fields = [
        _needed(part, field.dataType, {path[1:] for path in below if path[0] == field.name}).alias(field.name)
        for part, field in _fields(column, kind)
        if field.name in wanted
    ]
    return F.when(column.isNotNull(), F.struct(*fields) if fields else F.lit(True))


def _readable(column: Column, kind: DataType) -> Column:
    """A column in which bytes, that filters cannot look into, stand for values that Arrow cannot carry."""
    if _is_carried(kind):
        return column
    there = column.isNotNull()
    if isinstance(kind, StructType):
        fields = [_readable(part, field.dataType).alias(field.name) for part, field in _fields(column, kind)]
        return F.when(there, F.struct(*fields))
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.transform(column, lambda part: _readable(part, element))
    if isinstance(kind, MapType) and _is_carried(kind.keyType):
        value = kind.valueType
        return F.transform_values(column, lambda _, part: _readable(part, value))
    return F.when(there, F.lit("").cast("binary"))


def _fields(column: Column, kind: StructType) -> Iterator[tuple[Column, StructField]]:
    """The fields of a struct; where names differ in their case at most, by their place."""
    names = kind.names
    if len({name.lower() for name in names}) < len(names):
        names = [place_name(place) for place in range(len(kind))]
        column = column.cast(
            StructType([StructField(name, field.dataType) for name, field in zip(names, kind, strict=True)])
        )
    for name, field in zip(names, kind, strict=True):
        yield column.getField(name), field


def _is_carried(kind: DataType) -> bool:
    try:
        to_arrow_type(kind, timezone="UTC")
    except PySparkTypeError:
        return False
    return True
