"""Match rows of events: the core of matching DataFrames."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.arrow_events.sizes import json_sizes
from fieldfare.matching.events.arrow_decoder import columns_from_arrow
from fieldfare.matching.events.arrow_numpy import array_of
from fieldfare.matching.grouping import Matches
from fieldfare.pipeline.slices import Searched

OUTPUT_ROWS = 32_768
"""Approximate maximum matches in one output batch, so that broad filters do not fill the memory."""
OUTPUT_BYTES = 64 << 20
"""Approximate maximum bytes of the events in one output batch; one event may exceed it.

A column of a batch holds less than 2 GiB of text.
"""


def matching_rows(batch: pa.RecordBatch, index: Searched, ids: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield one row for each match of a batch of events: the subscription's id and the event's columns.

    Parameters
    ----------
    ids : pa.Array
        The id of each subscription number.
    """
    bounds, subscriptions = match_rows(batch, index)
    events = np.repeat(np.arange(batch.num_rows, dtype=np.int64), np.diff(bounds))
    names = ["subscription", *batch.schema.names]
    for rows in output_slices(json_sizes(batch)[events]):
        found = ids.take(array_of(subscriptions[rows]))
        taken = batch.take(array_of(events[rows]))
        yield pa.RecordBatch.from_arrays([found, *taken.columns], names=names)


def output_slices(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Yield rows that go out together: at most `OUTPUT_ROWS`, of about `OUTPUT_BYTES`; at least one."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + OUTPUT_BYTES, side="right"))
        end = min(max(fitting, start + 1), start + OUTPUT_ROWS)
        yield slice(start, end)
        start = end


def matching_ids(batch: pa.RecordBatch, index: Searched, ids: pa.Array) -> Iterator[pa.Array]:
    """Yield, for each event of a batch, the list of its matches' ids, a piece of the batch at a time."""
    return lists_of_ids(*match_rows(batch, index), ids)


def lists_of_ids(
    bounds: NDArray[np.int64], subscriptions: NDArray[np.integer], ids: pa.Array
) -> Iterator[pa.Array]:
    """Yield, for each event, the list of the ids of its matches, a piece at a time.

    Parameters
    ----------
    bounds
        The index in `subscriptions` at which each event's matches begin, and the end of the last one's.
    subscriptions
        Numbers of the matching subscriptions.
    ids
        The id of each subscription number.
    """
    start, last = 0, len(bounds) - 1
    while start < last:
        # At least one event; more as long as the piece has at most OUTPUT_ROWS matches.
        end = int(np.searchsorted(bounds, bounds[start] + OUTPUT_ROWS, side="right")) - 1
        end = max(end, start + 1)
        found = ids.take(array_of(subscriptions[bounds[start] : bounds[end]]))
        offsets = (bounds[start : end + 1] - bounds[start]).astype(np.int32)
        yield pa.ListArray.from_arrays(array_of(offsets), found)
        start = end


def match_rows(batch: pa.RecordBatch, index: Searched) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
    """Return the bounds of each event's matches, and the numbers of the matching subscriptions."""
    columns = columns_from_arrow(batch, index.paths)
    matches = Matches.from_pairs(batch.num_rows, index.find(columns, np.zeros(batch.num_rows, np.int64)))
    return matches.indptr.astype(np.int64, copy=False), matches.subscriptions
