"""Rows of events in, a row for each match out: the heart of matching DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from fieldfare.matching.arrow_decoder import columns_from_arrow
from fieldfare.matching.index import Index

OUTPUT_ROWS = 32_768
"""A batch of output rows is cut at about this many, so that broad filters do not fill the memory."""


def matching_rows(
    batch: pa.RecordBatch, index: Index, ids: pa.Array, keep: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """One row for each match of a batch of events: the subscription's id and the event's kept columns.

    Parameters
    ----------
    ids : pa.Array
        The id of each subscription number.
    """
    columns = columns_from_arrow(batch, index.paths)
    matches = index.match(columns, np.zeros(batch.num_rows, np.int64))
    events = np.repeat(np.arange(batch.num_rows, dtype=np.int64), np.diff(matches.indptr))
    kept = batch.select(list(keep))
    for start in range(0, len(events), OUTPUT_ROWS):
        rows = slice(start, start + OUTPUT_ROWS)
        found = ids.take(pa.array(matches.subscriptions[rows]))
        taken = kept.take(pa.array(events[rows]))
        yield pa.RecordBatch.from_arrays([found, *taken.columns], names=["subscription", *keep])
