"""What ``Filter.matches_batch`` accepts as a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from fieldfare.matching.columns import ColumnBatch
from fieldfare.model import Path


def columns_of(batch: Any, paths: Iterable[Path]) -> ColumnBatch:
    """A batch of events as columns of at least these attributes.

    Parameters
    ----------
    batch : ColumnBatch, pyarrow.RecordBatch, or sequence of mappings
    """
    if isinstance(batch, ColumnBatch):
        return batch
    arrow = sys.modules.get("pyarrow")  # whoever has an Arrow batch has imported it
    if arrow is not None and isinstance(batch, arrow.RecordBatch):
        from fieldfare.matching.arrow_decoder import columns_from_arrow

        return columns_from_arrow(batch, list(paths))
    from fieldfare.matching.event_columns import columns_of_events

    return columns_of_events(batch, paths)
