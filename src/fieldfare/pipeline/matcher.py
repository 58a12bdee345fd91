"""M, the second operator of the pipeline: the events of one space against the index of that space."""

from __future__ import annotations

from fieldfare.matching.columns import ColumnBatch
from fieldfare.matching.grouping import Pairs
from fieldfare.matching.index import Index
from fieldfare.pipeline.access_point import SpaceEvents


def match_space(events: SpaceEvents, columns: ColumnBatch, index: Index) -> list[Pairs]:
    """Match every event against the subscription versions that were valid at its record's offset.

    Returns
    -------
    list of Pairs
        Events are counted as in the batch that `events` were taken from.
    """
    found = index.collect(columns, events.offsets)
    return found if events.places is None else [part.moved(events.places) for part in found]
