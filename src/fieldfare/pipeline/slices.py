"""The opened slices of a space: an index that is searched slice by slice.

`Slices` has the interface of an index: `paths` lists the columns to decode, and `find` yields pairs. A single
slice is searched directly; among several, `dispatch` selects the slices that each event visits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from fieldfare.forwarding import LoadTable
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.index import Index
from fieldfare.matching.pairs import Pairs
from fieldfare.matching.versions import Closings
from fieldfare.model import Path
from fieldfare.partitioning import Partitioning
from fieldfare.partitioning.encoding import encoded_partitioning
from fieldfare.pipeline.dispatch import FORWARDING, Consignment, Forwarding, dispatch
from fieldfare.pipeline.manifest import SliceManifest, SpaceManifest


class Searched(Protocol):
    """The interface for matching a space's events: an index, or slices of one."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The attributes that a batch of events must have as columns."""

    def find(self, columns: ColumnBatch, stamps: NDArray[np.int64]) -> Iterator[Pairs]:
        """Yield the matches of all events as they are found; see ``Index.match``."""


def cut_of(partitioning: Partitioning) -> int:
    """Return a hash that identifies a partitioning (CRC-32 of its JSON)."""
    return zlib.crc32(msgspec.json.encode(encoded_partitioning(partitioning)))


class Slices:
    """The slices of one space.

    Parameters
    ----------
    open_index : callable
        Opens the index of a slice; called at the slice's first use.
    """

    def __init__(self, space: SpaceManifest, open_index: Callable[[SliceManifest], Index]) -> None:
        self.partitioning = space.partitioning
        self.holders = tuple(part.matcher for part in space.slices)
        self._manifests = space.slices
        self._open_index = open_index
        self._indexes: dict[int, Index] = {}

    def index(self, number: int) -> Index:
        """Return the index of a slice."""
        found = self._indexes.get(number)
        if found is None:
            found = self._indexes[number] = self._open_index(self._manifests[number])
        return found

    def open(self, numbers: Iterable[int] | None = None) -> Self:
        """Open slices, by default all, so that a missing file is noticed here and not later."""
        for number in range(len(self.holders)) if numbers is None else numbers:
            self.index(number)
        return self

    @cached_property
    def cut(self) -> int:
        """A hash that identifies the space's partitioning."""
        return cut_of(self.partitioning)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The attributes that a batch of events must have as columns, whichever slices the events visit."""
        numbers = range(len(self.holders))
        return self.paths_of(numbers) if len(numbers) > 1 else self.index(0).paths

    def paths_of(self, numbers: Iterable[int]) -> tuple[Path, ...]:
        """Return the attributes that are needed to route events and to match them in these slices."""
        searched = (path for number in numbers for path in self.index(number).paths)
        return tuple(dict.fromkeys((*self.partitioning.paths, *searched)))

    def dispatch(
        self,
        columns: ColumnBatch,
        forwarding: Forwarding = FORWARDING,
        draw: int = 0,
        receiver: Callable[[int], int | None] = int,
    ) -> list[Consignment]:
        """Divide a batch of events among the matchers; see ``dispatch.dispatch``."""
        loads = forwarding.loads or self._unmeasured
        return dispatch(columns, self.partitioning, self.holders, loads, forwarding, draw, receiver)

    @cached_property
    def _unmeasured(self) -> LoadTable:
        return LoadTable.of_sizes([part.size for part in self._manifests])

    def find(self, columns: ColumnBatch, stamps: NDArray[np.int64]) -> Iterator[Pairs]:
        """Yield the matches of all events as they are found; see ``Index.match``."""
        if len(self.holders) == 1:
            yield from self.index(0).find(columns, stamps)
            return
        for consignment in self.dispatch(columns):
            for number, positions in zip(consignment.slices, consignment.positions, strict=True):
                yield from self.find_in(number, columns, stamps, consignment.events[positions])

    def find_in(
        self, number: int, columns: ColumnBatch, stamps: NDArray[np.int64], visitors: NDArray[np.int64]
    ) -> Iterator[Pairs]:
        """Yield the matches of the visiting events in one slice; events are numbered as in `columns`."""
        if len(visitors) == columns.size:
            yield from self.index(number).find(columns, stamps)
            return
        for pairs in self.index(number).find(columns.take(visitors), stamps[visitors]):
            yield pairs.moved(visitors)

    @property
    def whole(self) -> Index:
        """The content of all slices as one index, for inspection instead of matching."""
        originals = sorted(set(self.partitioning.originals))
        if len(originals) == 1:
            return self.index(originals[0])
        indexes = [self.index(number) for number in originals]
        ended = {
            version: valid_to
            for index in indexes
            for version, valid_to in zip(
                index.closings.versions.tolist(), index.closings.valid_to.tolist(), strict=True
            )
        }
        closings = Closings(
            np.array(sorted(ended), np.int64), np.array([ended[v] for v in sorted(ended)], np.int64)
        )
        return Index([part for index in indexes for part in index.parts], closings)
