"""Matching in a user's own Spark job: a DataFrame of events against many subscriptions at once.

The subscriptions are compiled into one index file, which every executor receives once and maps into memory;
events go through it as Arrow batches. Python handles a single event only if it is a candidate of a filter
that the index cannot decide alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fieldfare.runtimes.spark.attributes import noted_types, odd_comparison
from fieldfare.runtimes.spark.compile import SubscriptionSource, compile_subscriptions
from fieldfare.runtimes.spark.distributed.rows import Partitioned, match_partitioned
from fieldfare.runtimes.spark.event_columns import EventColumns, by_place, one_row_each, place_name
from fieldfare.runtimes.spark.matching_rows import matching_ids
from fieldfare.runtimes.spark.saved_index import SavedIndex
from fieldfare.runtimes.spark.shipping import ShippedIndex, check_stream, ship_index
from fieldfare.runtimes.spark.worker_python import own_python


def save_index(subscriptions: SubscriptionSource, path: str | Path) -> int:
    """Compile subscriptions into an index that `match` opens at once.

    Parameters
    ----------
    subscriptions : DataFrame or iterable
        A DataFrame with the columns `id` and `filter` (strings) and, where wanted, `dialect` (default
        ``sql``); or an iterable of (id, filter) or (id, filter, dialect).
    path : str or Path
        The folder to write. It appears complete or not at all; an existing saved index is replaced.

    Returns
    -------
    int
        Number of subscriptions in it.

    Raises
    ------
    SubscriptionsError
        Some filters are invalid, or an id is missing or duplicated: the first ten are listed.
    """
    compiled = compile_subscriptions(subscriptions)
    SavedIndex.write(Path(path), compiled)
    return len(compiled)


def match(
    events: DataFrame,
    subscriptions: SubscriptionSource | str | Path,
    schema: StructType | None = None,
    *,
    keep: Sequence[str] | None = None,
    partitioned: Partitioned | None = None,
) -> DataFrame:
    """Find for every event the subscriptions whose filter it matches.

    Parameters
    ----------
    events : DataFrame
        A batch or a streaming DataFrame. Its columns are the attributes; a field of a struct is named by its
        path: ``data.price``.
    subscriptions : DataFrame, iterable, str or Path
        A DataFrame with the columns `id` and `filter` and, optionally, `dialect` (default ``sql``); an
        iterable of (id, filter) or (id, filter, dialect); or the path of an index that `save_index` wrote.
        They are read once, by this call. A filter that is an object or an array is encoded as JSON.
    schema : StructType, optional
        The attributes that filters may name, if there are more than the columns of `events`: an attribute
        that is not a column is missing from every event. Default: the columns.
    keep : sequence of str, optional
        The columns of `events` to return with each match. Default: all. Fewer are faster.
    partitioned : Partitioned, optional
        Distribute the subscriptions over matchers and send each event to one that holds what it can match:
        for an index that exceeds one machine's memory. Default: every executor has the complete index, and
        nothing is shuffled.

    Returns
    -------
    DataFrame
        One row for each match: `subscription` (string, the id), then the event's columns. An event without
        matches gives no row.

    Raises
    ------
    SubscriptionsError
        Some filters are invalid, or name an attribute that the events cannot have: the first ten are listed
        with their subscription, place and a hint.
    ValueError
        `keep` names a column that `events` does not have, or there is a column called `subscription`;
        `partitioned` names an unknown partitioning or forwarding, or needs a sample; a stream over Spark
        Connect needs a saved index.

    Examples
    --------
    >>> matches = match(events, subscriptions, keep=["id"])         # doctest: +SKIP
    >>> matches.groupBy("subscription").count().show()              # doctest: +SKIP
    """
    check_stream(events)
    kept, attributes = _kept_columns(events, keep), _attributes(events.schema, schema)
    with own_python(events.sparkSession):
        if isinstance(subscriptions, (str, os.PathLike)) and partitioned is None:
            saved = SavedIndex.open(Path(subscriptions))
            saved.check_attributes(attributes)
            found = _match_all(events, saved, Path(subscriptions))
        else:
            compiled = compile_subscriptions(_source(subscriptions), attributes)
            if partitioned is not None:
                found = match_partitioned(events, compiled, partitioned)
            else:
                with tempfile.TemporaryDirectory(prefix="fieldfare-") as folder:
                    index = Path(folder) / "index"
                    found = _match_all(events, SavedIndex.write(index, compiled), index)
    found = one_row_each(found, "found", F.col("found"))
    columns = [F.col("found"), *(F.col(place_name(place)) for place in kept)]
    return found.select(*columns).toDF("subscription", *(events.columns[place] for place in kept))


def _source(subscriptions: SubscriptionSource | str | Path) -> SubscriptionSource:
    """Return the subscriptions themselves; for a saved index, those that it was built from."""
    if not isinstance(subscriptions, (str, os.PathLike)):
        return subscriptions
    names = SavedIndex.open(Path(subscriptions)).names.select(["id", "filter", "dialect"])
    return zip(*names.to_pydict().values(), strict=True)


def _attributes(events: StructType, given: StructType | None) -> StructType:
    """Return the schema to check filters against; columns with Spark's own comparison keep their type."""
    columns = noted_types(events)
    if given is None:
        return columns
    odd = {column.name: column for column in columns if odd_comparison(columns, (column.name,))}
    return noted_types(StructType([odd.get(field.name, field) for field in given]))


def _kept_columns(events: DataFrame, keep: Sequence[str] | None) -> list[int]:
    """Return the positions of the columns to keep."""
    names = events.columns
    if keep is None:
        places = list(range(len(names)))
    else:
        places = []
        for name in keep:
            if name not in names:
                raise ValueError(f"keep names {name!r}, which is no column of the events: {names}")
            if names.count(name) > 1:
                raise ValueError(f"keep names {name!r}, and the events have two columns of this name")
            places.append(names.index(name))
    for name in (names[place] for place in places):
        if name.lower() == "subscription":
            raise ValueError(
                f"the events have a column called {name!r}, and so has the result:"
                " rename it, or leave it out of keep"
            )
    return places


def _match_all(events: DataFrame, saved: SavedIndex, folder: Path) -> DataFrame:
    """Return the events with columns by position, and in `found` the ids of each one's matches."""
    columns = EventColumns.of(events.schema, saved.slices.paths)
    shipped = ship_index(events.sparkSession, saved, folder)
    return by_place(events).withColumn("found", columns.call(MatchRows(shipped), "string"))


@dataclass(frozen=True, slots=True)
class MatchRows:
    """Match a batch of events in a Python worker: yields, for each event, the ids of its matches."""

    shipped: ShippedIndex

    def __call__(self, events: pa.RecordBatch, _more: Sequence[pa.Array]) -> Iterable[pa.Array]:
        saved = self.shipped.open()
        return matching_ids(events, saved.slices, saved.ids)
