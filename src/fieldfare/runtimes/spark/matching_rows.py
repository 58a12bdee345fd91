"""Rows of events in, what they match out: the heart of matching DataFrames."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.matching.events.arrow_decoder import columns_from_arrow
from fieldfare.matching.events.arrow_numpy import array_of
from fieldfare.matching.grouping import Matches
from fieldfare.pipeline.slices import Searched

OUTPUT_ROWS = 32_768
"""What goes back at once has about so many matches, so that broad filters do not fill the memory."""


def matching_rows(batch: pa.RecordBatch, index: Searched, ids: pa.Array) -> Iterator[pa.RecordBatch]:
    """One row for each match of a batch of events: the subscription's id and the event's columns.

    Parameters
    ----------
    ids : pa.Array
        The id of each subscription number.
    """
    bounds, subscriptions = match_rows(batch, index)
    events = np.repeat(np.arange(batch.num_rows, dtype=np.int64), np.diff(bounds))
    for start in range(0, len(events), OUTPUT_ROWS):
        rows = slice(start, start + OUTPUT_ROWS)
        found = ids.take(array_of(subscriptions[rows]))
        taken = batch.take(array_of(events[rows]))
        names = ["subscription", *batch.schema.names]
        yield pa.RecordBatch.from_arrays([found, *taken.columns], names=names)


def matching_ids(batch: pa.RecordBatch, index: Searched, ids: pa.Array) -> Iterator[pa.Array]:
    """For each event of a batch the list of the ids of what it matches, a piece of the batch at a time."""
    return lists_of_ids(*match_rows(batch, index), ids)


def lists_of_ids(
    bounds: NDArray[np.int64], subscriptions: NDArray[np.integer], ids: pa.Array
) -> Iterator[pa.Array]:
    """For each event the list of the ids of what it matches, a piece at a time.

    Parameters
    ----------
    bounds
        Where in `subscriptions` those of each event begin, and the last one's end.
    subscriptions
        numbers.
    ids
        The id of each subscription number.
    """
    start, last = 0, len(bounds) - 1
    while start < last:
        # At least one event, and as many as have no more matches than a piece should.
        end = int(np.searchsorted(bounds, bounds[start] + OUTPUT_ROWS, side="right")) - 1
        end = max(end, start + 1)
        found = ids.take(array_of(subscriptions[bounds[start] : bounds[end]]))
        offsets = (bounds[start : end + 1] - bounds[start]).astype(np.int32)
        yield pa.ListArray.from_arrays(array_of(offsets), found)
        start = end


def match_rows(batch: pa.RecordBatch, index: Searched) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
    """Where the matches of each event begin and end, and the numbers of the subscriptions."""
    columns = columns_from_arrow(batch, index.paths)
    matches = Matches.from_pairs(batch.num_rows, index.find(columns, np.zeros(batch.num_rows, np.int64)))
    return matches.indptr.astype(np.int64, copy=False), matches.subscriptions
