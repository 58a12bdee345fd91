"""A filter evaluated over batches of events, by columns: many times faster than event by event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.filters import Filter
from fieldfare.matching.evaluation.compiler import ColumnEvaluator
from fieldfare.matching.evaluation.steps import fitting
from fieldfare.matching.events.arrow_decoder import columns_from_arrow
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.events.event_columns import columns_of_events
from fieldfare.model import Path

Batch: TypeAlias = ColumnBatch | pa.RecordBatch | Sequence[Mapping[str, Any]]


class BatchFilter:
    """A filter, prepared for batches of events. Requires ``pip install 'fieldfare[matching]'``.

    Parameters
    ----------
    filter
        A filter returned by ``compile_filter``.
    """

    def __init__(self, filter: Filter) -> None:
        self._filter = filter
        self._evaluator = ColumnEvaluator(filter.expression)

    def matches(self, batch: Batch, rows: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
        """Return which events of a batch match.

        Parameters
        ----------
        batch
            n events: as columns (for every path of ``filter.paths``, or better of ``filter.column_paths``,
            that some event has), as an Arrow batch, or as parsed JSON objects. To evaluate many filters over
            one batch, make the columns only once: ``columns_of_events``, ``decode_json_lines`` and
            ``columns_from_arrow`` in ``matching.events``.
        rows : int64[k]
            Evaluate only these events.

        Returns
        -------
        bool[n], or bool[k]
        """
        columns = columns_of(batch, self._filter.column_paths)
        if self._filter.work is None:
            return self.decides(columns, rows)
        return fitting(columns, self._filter.work, rows, self.decides)

    def decides(self, columns: ColumnBatch, rows: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
        """Like `matches`, for columns and a filter whose work has been counted already."""
        return self._evaluator.matches(columns, rows)


def columns_of(batch: Batch, paths: Iterable[Path]) -> ColumnBatch:
    """Convert a batch of events to columns of at least these attributes."""
    if isinstance(batch, ColumnBatch):
        return batch
    if isinstance(batch, pa.RecordBatch):
        return columns_from_arrow(batch, list(paths))
    return columns_of_events(batch, paths)
