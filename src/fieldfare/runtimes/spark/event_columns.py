"""Which part of a DataFrame's rows is sent to Python, and which stays in the JVM.

    events ─▶ the columns that filters name ─▶ Python ─▶ a list for each event ─▶ exploded, beside the kept

Only the columns that filters name are sent, and of a struct only the named fields. Other columns never leave
the JVM, so their number, size and types cost nothing. Columns are addressed by position, not by name: Spark
would read a name with a dot as a path, and `a` as `A` too.
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
"""Name of the column that is sent if filters name no column: Python has to learn the number of rows."""


def by_place(frame: DataFrame) -> DataFrame:
    """Return the same rows in columns that are named after their positions."""
    return frame.toDF(*map(place_name, range(len(frame.columns))))


def place_name(place: int) -> str:
    """Return the name that `by_place` gives a column."""
    return f"c{place}"


def one_row_each(frame: DataFrame, name: str, found: Column) -> DataFrame:
    """Return a row for each element of the array `found`, which becomes the column `name`."""
    # A plain `explode` makes Spark call the function twice: first only to drop the events without matches.
    return frame.withColumn(name, F.explode_outer(found)).where(F.col(name).isNotNull())


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The columns of a DataFrame that filters need.

    Attributes
    ----------
    names
        Their names in filters.
    columns
        The columns, in a DataFrame that `by_place` returned.
    """

    names: tuple[str, ...]
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, schema: StructType, paths: Iterable[Path]) -> EventColumns:
        """Return the columns that hold the attributes with these paths.

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
        """Return the column of a function's results: an array for each event, with elements of a type.

        Parameters
        ----------
        function
            The function that the Python workers run.
        element
            The type of an element, as SQL writes it.
        more
            Further columns that the function receives, after those of the filters.
        """
        names = list(self.names)

        def run(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            for batch in batches:
                # Spark passes a single column without a tuple.
                arrays = [batch] if isinstance(batch, pa.Array) else list(batch)
                events = pa.RecordBatch.from_arrays(arrays[: len(names)], names=names)
                yield from function(events, arrays[len(names) :])

        found: Column = arrow_udf(run, f"array<{element}>")(*self.columns, *more)
        return found


BatchFunction = Callable[[pa.RecordBatch, Sequence[pa.Array]], Iterable[pa.Array]]
"""Takes events and further columns; yields a list for each event, a piece of the batch at a time."""


def _needed(column: Column, kind: DataType, below: set[Path]) -> Column:
    """Return a column, reduced in a struct to the fields that paths lead to."""
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
    """Return a column with values that Arrow cannot carry replaced by bytes, which no filter reads."""
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
    """Yield the fields of a struct; by position if names differ only in case."""
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
