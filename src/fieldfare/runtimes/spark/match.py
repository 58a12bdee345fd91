"""Matching in a Spark job of a user's own: a DataFrame of events against many subscriptions at once.

The subscriptions are compiled on the driver into one index file, which every executor gets once and maps
into memory; events go through it as Arrow batches. No event is handled in Python one by one, unless it is a
candidate of a filter that the index cannot decide alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from fieldfare.runtimes.spark.compile import SubscriptionSource, compile_subscriptions
from fieldfare.runtimes.spark.matching_rows import matching_rows
from fieldfare.runtimes.spark.partitioned.rows import Partitioned, match_partitioned
from fieldfare.runtimes.spark.saved_index import NAMES_FILE, PART_FILE, SavedIndex
from fieldfare.runtimes.spark.shipping import ship_files, shipped_file


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
        `partitioned` names what there is not, or lacks a sample.

    Examples
    --------
    >>> matches = match(events, subscriptions, keep=["id"])         # doctest: +SKIP
    >>> matches.groupBy("subscription").count().show()              # doctest: +SKIP
    """
    kept = _kept_columns(events, keep)
    attributes = schema or events.schema
    output = StructType([StructField("subscription", StringType(), False), *(events.schema[k] for k in kept)])
    if partitioned is not None:
        if isinstance(subscriptions, DataFrame):
            compiled = compile_subscriptions(subscriptions, attributes)
        else:
            names = SavedIndex.open(Path(subscriptions)).names.select(["id", "filter", "dialect"])
            compiled = compile_subscriptions(zip(*names.to_pydict().values(), strict=True), attributes)
        return match_partitioned(events, compiled, kept, output, partitioned)
    if isinstance(subscriptions, DataFrame):
        compiled = compile_subscriptions(subscriptions, attributes)
        with tempfile.TemporaryDirectory(prefix="fieldfare-") as folder:
            SavedIndex.write(Path(folder) / "index", compiled)
            shipped = ship_index(events.sparkSession, Path(folder) / "index")
    else:
        SavedIndex.open(Path(subscriptions)).check_attributes(attributes)
        shipped = ship_index(events.sparkSession, Path(subscriptions))
    return events.mapInArrow(MatchRows(shipped, tuple(kept)), output)


def _kept_columns(events: DataFrame, keep: Sequence[str] | None) -> list[str]:
    kept = list(events.columns if keep is None else keep)
    unknown = [name for name in kept if name not in events.columns]
    if unknown:
        raise ValueError(f"keep names {unknown[0]!r}, which is no column of the events: {events.columns}")
    if "subscription" in kept:
        raise ValueError(
            "the events have a column called 'subscription', and so has the result:"
            " rename it, or leave it out of keep"
        )
    return kept


def ship_index(session: SparkSession, index: Path) -> str:
    """Give every executor the two files of an index; the name under which they have them."""
    return ship_files(session, [index / PART_FILE, index / NAMES_FILE])


@lru_cache(maxsize=4)
def open_shipped(shipped: str) -> SavedIndex:
    """The index that was shipped under a name; a Python worker maps it once."""
    part, names = (shipped_file(shipped, name) for name in (PART_FILE, NAMES_FILE))
    return SavedIndex.open_files(part, names)


@dataclass(frozen=True, slots=True)
class MatchRows:
    """The function that ``mapInArrow`` runs: batches of events in, a row for each match out."""

    shipped: str
    keep: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        saved = open_shipped(self.shipped)
        for batch in batches:
            yield from matching_rows(batch, saved.index, saved.ids, self.keep)
