"""M, the second operator of the pipeline: matches the events of one space against its slices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.pairs import Pairs
from fieldfare.pipeline.access_point import SpaceEvents, decoded
from fieldfare.pipeline.dispatch import Consignment
from fieldfare.pipeline.slices import Searched, Slices


def match_space(events: SpaceEvents, columns: ColumnBatch, index: Searched) -> Iterator[Pairs]:
    """Match every event against the subscription versions valid at its record's stamp.

    Yields
    ------
    Pairs
        Matches as they are found. Events are numbered as in the batch that `events` were taken from.
    """
    for found in index.find(columns, events.stamps):
        yield found if events.places is None else found.moved(events.places)


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """The events that visit one slice.

    Attributes
    ----------
    slice, size : int
        The slice's number, and the number of events that visit it.
    """

    slice: int
    size: int
    _slices: Slices
    _columns: ColumnBatch
    _stamps: NDArray[np.int64]
    _visitors: NDArray[np.int64]
    _places: NDArray[np.int64]

    def find(self) -> Iterator[Pairs]:
        """Yield the matches in this slice; events are numbered as in the block that they came from."""
        for pairs in self._slices.find_in(self.slice, self._columns, self._stamps, self._visitors):
            yield pairs.moved(self._places)


def visits(events: SpaceEvents, slices: Slices, consignment: Consignment) -> Iterator[Visit]:
    """Yield the visits of a consignment, one per slice and decoded piece.

    Parameters
    ----------
    events
        The events of the consignment, and no others.
    """
    for some, columns in decoded(events, slices.paths_of(consignment.slices)):
        first = 0 if some.places is None else int(some.places[0])
        places = consignment.events[first : first + some.size]
        for number, positions in zip(consignment.slices, consignment.positions, strict=True):
            start, end = np.searchsorted(positions, [first, first + some.size]).tolist()
            if start < end:
                visitors = positions[start:end] - first
                yield Visit(number, len(visitors), slices, columns, some.stamps, visitors, places)
