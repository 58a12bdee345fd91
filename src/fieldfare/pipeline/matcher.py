"""M, the second operator of the pipeline: the events of one space against the index of that space."""

from __future__ import annotations

from collections.abc import Iterator

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.grouping import Pairs
from fieldfare.matching.index import Index
from fieldfare.pipeline.access_point import SpaceEvents


def match_space(events: SpaceEvents, columns: ColumnBatch, index: Index) -> Iterator[Pairs]:
    """Match every event against the subscription versions that count for its record's stamp.

    Yields
    ------
    Pairs
        As they are found. Events are counted as in the batch that `events` were taken from.
    """
    for found in index.find(columns, events.stamps):
        yield found if events.places is None else found.moved(events.places)
