"""M, the second operator of the pipeline: the events of one space against the index of that space."""

from __future__ import annotations

from fieldfare.matching.columns import ColumnBatch
from fieldfare.matching.index import Index
from fieldfare.matching.part import Matches
from fieldfare.pipeline.access_point import SpaceEvents


def match_space(events: SpaceEvents, columns: ColumnBatch, index: Index) -> Matches:
    """Match every event against the subscription versions that were valid at its record's offset."""
    return index.match(columns, events.offsets)
