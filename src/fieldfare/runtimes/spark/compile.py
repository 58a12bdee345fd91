"""Compile many filters at once, on the executors: a hundred thousand take seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from fieldfare.filters import FilterError, Problem, compile_filter, format_path
from fieldfare.filters.encrypted import ENCRYPTED, EPOCH_PATH, VECTOR_PATH, compile_encrypted
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.runtimes.spark.attributes import can_have, check_attributes
from fieldfare.runtimes.spark.event_columns import by_place, place_name
from fieldfare.runtimes.spark.worker_python import own_python

SHOWN_PROBLEMS = 10

SubscriptionRow = tuple[Any, Any] | tuple[Any, Any, Any]
"""An id, a filter, and its dialect; a filter that is an object or an array is encoded as JSON."""
SubscriptionSource: TypeAlias = "DataFrame | Iterable[SubscriptionRow]"

COMPILED = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("filter", pa.string()),
        pa.field("dialect", pa.string()),
        pa.field("compiled", pa.binary()),
        pa.field("problem", pa.string()),
    ]
)
_COMPILED_SQL = "id string, filter string, dialect string, compiled binary, problem string"


class SubscriptionsError(ValueError):
    """Some subscriptions cannot be used, so none was.

    Attributes
    ----------
    problems : tuple of (str, str)
        The first ten: the subscription's id, and what is wrong with it.
    count : int
        Number of subscriptions that cannot be used.
    """

    def __init__(self, problems: Sequence[tuple[str, str]], count: int) -> None:
        self.problems = tuple(problems)
        self.count = count
        indented = ((id, problem.replace("\n", "\n    ")) for id, problem in problems)
        shown = "\n".join(f"subscription {id!r}: {problem}" for id, problem in indented)
        more = f"\n... and {count - len(problems)} more" if count > len(problems) else ""
        some = "1 subscription cannot" if count == 1 else f"{count} subscriptions cannot"
        super().__init__(f"{some} be used\n{shown}{more}")


@dataclass(frozen=True, slots=True)
class CompiledSubscriptions:
    """Subscriptions whose filters are all valid: columns of ``COMPILED``; a row's index is its number."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def entries(self) -> Iterator[IndexEntry]:
        """Yield the entries of an index in which every subscription is valid for every event."""
        columns = [self.table.column(name).to_pylist() for name in ("filter", "dialect", "compiled")]
        for number, (text, dialect, compiled) in enumerate(zip(*columns, strict=True)):
            yield IndexEntry(number, number, 0, OPEN_END, compiled, text, dialect)


def compile_subscriptions(
    subscriptions: SubscriptionSource, schema: StructType | None = None
) -> CompiledSubscriptions:
    """Compile all filters; SubscriptionsError lists the first ones that cannot be used.

    Parameters
    ----------
    subscriptions : DataFrame or iterable of (id, filter) or (id, filter, dialect)
    schema : StructType, optional
        The attributes that events can have; a filter that names another is rejected. Default: any.
    """
    if isinstance(subscriptions, DataFrame):
        table = _compile_frame(subscriptions, schema)
    else:
        rows = [_row_of(row) for row in subscriptions]
        table = pa.Table.from_batches([compile_rows(rows, schema)])
    _raise_problems(table)
    return CompiledSubscriptions(table)


def _row_of(row: Any) -> tuple[str | None, str | None, str]:
    """Return a subscription given by a program as strings: id, filter, dialect."""
    if not isinstance(row, (tuple, list)) or len(row) not in (2, 3):
        raise ValueError(f"a subscription is (id, filter) or (id, filter, dialect), not {row!r:.80}")
    id, filter, dialect = (*row, None)[:3]
    if isinstance(id, int) and not isinstance(id, bool):
        id = str(id)
    if isinstance(filter, (dict, list)):
        filter = msgspec.json.encode(filter).decode()
    for name, value in ("id", id), ("filter", filter), ("dialect", dialect):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"the {name} of a subscription is a string, not {value!r:.80}")
    return id, filter, dialect or "sql"


def _text_of(column: Column, kind: DataType) -> Column:
    """Return a column as strings: objects and arrays as JSON, without their null fields."""
    is_nested = isinstance(kind, (StructType, ArrayType, MapType, VariantType))
    return F.to_json(column) if is_nested else column.cast("string")


def _compile_frame(subscriptions: DataFrame, schema: StructType | None) -> pa.Table:
    missing = {"id", "filter"} - set(subscriptions.columns)
    if missing:
        lacking = ", ".join(sorted(missing))
        raise ValueError(
            f"subscriptions need the columns id and filter; {lacking} is not in {subscriptions.columns}"
        )
    if subscriptions.isStreaming:
        raise ValueError(
            "the subscriptions are a streaming DataFrame, but they are read once: pass a batch DataFrame"
        )
    places = {name: F.col(place_name(place)) for place, name in enumerate(subscriptions.columns)}
    dialect = places.get("dialect", F.lit("sql"))
    chosen = by_place(subscriptions).select(
        places["id"].cast("string").alias("id"),
        _text_of(places["filter"], subscriptions.schema["filter"].dataType).alias("filter"),
        F.coalesce(dialect.cast("string"), F.lit("sql")).alias("dialect"),
    )

    def compile_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("id", "filter", "dialect")]
            yield compile_rows(list(zip(*columns, strict=True)), schema)

    with own_python(chosen.sparkSession):
        compiled = chosen.mapInArrow(compile_batches, _COMPILED_SQL)
    return compiled.toArrow().cast(COMPILED)


def compile_rows(
    rows: Sequence[tuple[str | None, str | None, str]], schema: StructType | None
) -> pa.RecordBatch:
    """Compile filters one by one: a row of ``COMPILED`` for each, with its normal form or its problem."""
    compiled: list[bytes | None] = []
    problems: list[str | None] = []
    for id, text, dialect in rows:
        form, problem = None, None
        if not id:
            problem = "it has no id"
        elif text is None:
            problem = "it has no filter"
        else:
            try:
                form = _compiled(text, dialect, schema)
            except FilterError as error:
                problem = str(error)
        compiled.append(form)
        problems.append(problem)
    ids, texts, dialects = ([row[place] for row in rows] for place in range(3))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip((ids, texts, dialects, compiled, problems), COMPILED, strict=True)
        ],
        schema=COMPILED,
    )


def _compiled(text: str, dialect: str, schema: StructType | None) -> bytes:
    """Return a filter in its library's compiled form; FilterError if it cannot be used."""
    if dialect == ENCRYPTED:
        encrypted = compile_encrypted(text)
        for path in (VECTOR_PATH, EPOCH_PATH):
            if schema is not None and not can_have(schema, path):
                raise FilterError("", [Problem(f"the events have no {format_path(path)}", 1, 1, "", 0)])
        return encrypted.compiled
    found = compile_filter(text, dialect)
    if schema is not None:
        check_attributes(found, schema)
    return found.compiled


def _raise_problems(table: pa.Table) -> None:
    bad = table.filter(table.column("problem").is_valid())
    if bad.num_rows:
        first = bad.slice(0, SHOWN_PROBLEMS).to_pylist()
        raise SubscriptionsError([(str(row["id"]), row["problem"]) for row in first], bad.num_rows)
    encrypted = pc.equal(table.column("dialect"), ENCRYPTED)
    if pc.any(encrypted).as_py() and not pc.all(encrypted).as_py():
        first = table.filter(encrypted).column("id")[0].as_py()
        raise SubscriptionsError(
            [(first, "its filter is encrypted, but other filters are not: match them in separate calls")], 1
        )
    counted = table.column("id").value_counts()
    twice = [entry["values"] for entry in counted.to_pylist() if entry["counts"] > 1]
    if twice:
        raise SubscriptionsError(
            [(id, "there is more than one subscription with this id") for id in twice[:SHOWN_PROBLEMS]],
            len(twice),
        )
