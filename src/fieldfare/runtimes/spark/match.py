"""Matching in a Spark job of a user's own: a DataFrame of events against many subscriptions at once.

The subscriptions are compiled on the driver into one index file, which every executor gets once and maps
into memory; events go through it as Arrow batches. No event is handled in Python one by one, unless it is a
candidate of a filter that the index cannot decide alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fieldfare.runtimes.spark.compile import SubscriptionSource, compile_subscriptions
from fieldfare.runtimes.spark.event_columns import EventColumns, by_place, one_row_each, place_name
from fieldfare.runtimes.spark.matching_rows import matching_ids
from fieldfare.runtimes.spark.saved_index import SavedIndex
from fieldfare.runtimes.spark.shipping import ShippedIndex, check_stream, ship_index
from fieldfare.runtimes.spark.spread.rows import Partitioned, match_partitioned
from fieldfare.runtimes.spark.worker_python import own_python


def save_index(subscriptions: SubscriptionSource, path: str | Path) -> int:
    """Compile subscriptions into an index that `match` opens at once.

    Parameters
    ----------
    subscriptions : DataFrame or iterable
        A DataFrame with the columns `id` and `filter` (strings) and, where wanted, `dialect` (default
        ``sql``); or an iterable of (id, filter) or (id, filter, dialect).
    path : str or Path
        The folder to write. It is there whole or not at all; a saved index that was there is replaced.

    Returns
    -------
    int
        How many subscriptions it holds.

    Raises
    ------
    SubscriptionsError
        Some filters are invalid, or an id is missing or there twice: the first ten are listed.
    """
    compiled = compile_subscriptions(subscriptions)
    SavedIndex.write(Path(path), compiled)
    return len(compiled)


def match(
    events: DataFrame,
    subscriptions: DataFrame | str | Path,
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
    subscriptions : DataFrame, str or Path
        A DataFrame with the columns `id` and `filter` (strings) and, where wanted, `dialect` (default
        ``sql``); or the path of an index that `save_index` wrote. They are read now, once.
    schema : StructType, optional
        The attributes that filters may name, where these are more than the columns of `events`: what is not a
        column is missing from every event. Default: the columns.
    keep : sequence of str, optional
        The columns of `events` to give back with each match. Default: all. Fewer are faster.
    partitioned : Partitioned, optional
        Spread the subscriptions over matchers and send each event to one that holds what it can match: for an
        index that outgrows one machine's memory. Default: every executor has the whole index, and nothing is
        shuffled.

    Returns
    -------
    DataFrame
        One row for each match: `subscription` (string, the id), then the event's columns. An event that
        matches nothing gives no row.

    Raises
    ------
    SubscriptionsError
        Some filters are invalid, or name an attribute that the events cannot have: the first ten are listed
        with their subscription, place and a hint.
    ValueError
        `keep` names a column that `events` does not have, or there is a column called `subscription`;
        `partitioned` names what there is not, or lacks a sample; a stream of Spark Connect lacks the index.

    Examples
    --------
    >>> matches = match(events, subscriptions, keep=["id"])         # doctest: +SKIP
    >>> matches.groupBy("subscription").count().show()              # doctest: +SKIP
    """
    check_stream(events)
    kept, attributes = _kept_columns(events, keep), schema or events.schema
    with own_python(events.sparkSession):
        if partitioned is not None:
            if isinstance(subscriptions, DataFrame):
                compiled = compile_subscriptions(subscriptions, attributes)
            else:
                names = SavedIndex.open(Path(subscriptions)).names.select(["id", "filter", "dialect"])
                compiled = compile_subscriptions(zip(*names.to_pydict().values(), strict=True), attributes)
            found = match_partitioned(events, compiled, partitioned)
        elif isinstance(subscriptions, DataFrame):
            compiled = compile_subscriptions(subscriptions, attributes)
            with tempfile.TemporaryDirectory(prefix="fieldfare-") as folder:
                index = Path(folder) / "index"
                found = _match_all(events, SavedIndex.write(index, compiled), index)
        else:
            saved = SavedIndex.open(Path(subscriptions))
            saved.check_attributes(attributes)
            found = _match_all(events, saved, Path(subscriptions))
    found = one_row_each(found, "found", F.col("found"))
    columns = [F.col("found"), *(F.col(place_name(place)) for place in kept)]
    return found.select(*columns).toDF("subscription", *(events.columns[place] for place in kept))


def _kept_columns(events: DataFrame, keep: Sequence[str] | None) -> list[int]:
    """The places of the columns to keep."""
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
    """The events by place, and in `found` the ids of what each matches; executors have the whole index."""
    columns = EventColumns.of(events.schema, saved.slices.paths)
    shipped = ship_index(events.sparkSession, saved, folder)
    return by_place(events).withColumn("found", columns.call(MatchRows(shipped), "string"))


@dataclass(frozen=True, slots=True)
class MatchRows:
    """What a Python worker does with a batch of events: for each the ids of what it matches."""

    shipped: ShippedIndex

    def __call__(self, events: pa.RecordBatch, _more: Sequence[pa.Array]) -> Iterable[pa.Array]:
        saved = self.shipped.open()
        return matching_ids(events, saved.slices, saved.ids)
