"""A part of an index: an immutable set of subscription versions, whatever library their filters are of.

Its file has the arrays of the versions, and beside them those of the library's index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path as FilePath
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.work import Work
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.explanation import IndexPlace, PartExplanation
from fieldfare.matching.files import IndexFileError, open_arrays, save_arrays
from fieldfare.matching.grouping import Pairs, candidate_slots, without_slots
from fieldfare.matching.libraries import LIBRARIES, PLAIN, library_of
from fieldfare.matching.library import Builder, FilterIndex, Library
from fieldfare.matching.versions import (
    NO_OVERLAY,
    NOTHING_CLOSED,
    Closed,
    Closings,
    IndexEntry,
    Overlay,
    VersionColumns,
    Versions,
    closed_of,
    keep_valid,
    open_versions,
    valid_within,
)
from fieldfare.model import Path

CONFIRMED_AT_ONCE = 1 << 20
"""Pairs that are looked at together when filters confirm them: bounds what is noted about each."""

ENTRIES_AT_ONCE = 4096
"""So many entries are held as Python objects at once."""


class Part:
    """Subscription versions and their filters; made by `build_part`, `PartBuilder` or `Part.open`.

    Attributes
    ----------
    versions
        At the i-th place the version whose filter is the i-th of `filters`.
    filters
        What finds the events that match.
    library
        The name of the library whose index that is.
    size
        How many subscription versions it holds.
    paths
        The attributes that a batch of events must have as columns, as far as the events have them.
    """

    def __init__(
        self, versions: Versions, filters: FilterIndex, library: str, within: tuple[int, int] | None = None
    ) -> None:
        self.versions = versions
        self.filters = filters
        self.library = library
        self.size = len(versions.version)
        self.paths: tuple[Path, ...] = filters.paths
        self._valid_within = within or valid_within(versions)
        self._closed: tuple[Closings | None, Closed] = (None, NOTHING_CLOSED)

    @property
    def size_bytes(self) -> int:
        """The bytes of all arrays: the size of the file but for its header."""
        return sum(array.nbytes for array in self._arrays().values())

    def _arrays(self) -> dict[str, NDArray[Any]]:
        mine = {f"subscriptions.{name}": array for name, array in self.versions._asdict().items()}
        return mine | self.filters.arrays()

    def save(self, path: str | FilePath) -> int:
        """Write to a file, all or nothing; return its size in bytes."""
        meta = {"library": self.library, "valid_within": self._valid_within, **self.filters.meta()}
        return save_arrays(path, "part", self._arrays(), meta)

    @classmethod
    def open(
        cls,
        path: str | FilePath,
        *,
        verify: bool = False,
        libraries: Mapping[str, Library] = LIBRARIES,
    ) -> Self:
        """Map a file that `save` wrote, in the same time whatever its size.

        Raises IndexFileError if it is truncated, of another format, of a library that is not among
        `libraries`, or its header is broken; with `verify`, also if any byte of its arrays is not what was
        written.
        """
        meta, arrays = open_arrays(path, "part", verify=verify)
        name = meta.get("library", PLAIN.name)  # the only one there was before files named it
        library = libraries.get(name)
        if library is None:
            raise IndexFileError(f"{path}: of the library {name!r}, which this program does not have")
        versions = Versions(*(arrays[f"subscriptions.{field}"] for field in Versions._fields))
        first, last = meta["valid_within"]
        return cls(versions, library.open(meta, arrays), name, (first, last))

    def find(
        self,
        columns: ColumnBatch,
        stamps: NDArray[np.int64],
        start: int,
        end: int,
        overlay: Overlay,
        most: int,
    ) -> Pairs:
        """The events [start, end) and what they match, ~s where its filter must still `confirm` that.

        A version counts for an event if valid_from <= stamp < valid_to. TooManyPairs if there are more than
        `most` pairs.
        """
        pairs, tile_ends = self.filters.find(columns, start, end, most)
        mine = np.ascontiguousarray(stamps[start:end])
        first, last = self._valid_within
        lowest, highest = (mine[0], mine[0]) if len(mine) == 1 else (mine.min(), mine.max())
        if len(overlay.closed) or lowest < first or highest >= last:
            pairs = pairs[: keep_valid(self.versions, overlay, mine, pairs)]
            tile_ends = _ends_of(pairs, tile_ends)
        return Pairs(pairs, start, self.versions.number, *self._number_bounds, tile_ends)

    @property
    def confirms(self) -> bool:
        """Whether some filters must be evaluated."""
        return self.filters.confirms

    def undecided(self, found: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Which pairs have a filter that could be much work (int64[k]), and what work (int32[k])."""
        chosen, works = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        for places in candidate_slots(found.pairs, CONFIRMED_AT_ONCE):
            mine = self.filters.works(~found.pairs[places, 1])
            chosen.append(places[mine > 0])
            works.append(mine[mine > 0])
        return np.concatenate(chosen), np.concatenate(works)

    def work(self, number: int) -> Work:
        """What a number of `undecided` stands for."""
        return self.filters.work(number)

    def confirm(self, columns: ColumnBatch, found: Pairs) -> Pairs:
        """What `find` found, and filters confirm."""
        if not self.confirms:
            return found
        refused = [np.zeros(0, np.int64)]
        for places in candidate_slots(found.pairs, CONFIRMED_AT_ONCE):
            filters = ~found.pairs[places, 1]
            events = found.pairs[places, 0].astype(np.int64) + found.first_event
            refused.append(places[~self.filters.confirm(columns, events, filters)])
            found.pairs[places, 1] = filters
        return without_slots(found, np.concatenate(refused))

    @cached_property
    def _number_bounds(self) -> tuple[int, int]:
        number = self.versions.number
        return int(number.min()), int(number.max())

    def overlay(self, closings: Closings) -> Overlay:
        """Which of this part's versions the closings end."""
        if not len(closings):
            return NO_OVERLAY
        known, closed = self._closed
        if known is not closings:
            closed = closed_of(self.versions.version, closings.versions, closings.valid_to, closed)
            self._closed = (closings, closed)
        return closed.overlay

    def open_versions(self, numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
        """For each subscription the version that nothing had ended when the part was built; -1 for none."""
        return open_versions(self.versions, numbers)

    def explain(self) -> PartExplanation:
        """What the library chose for its filters."""
        size_bytes = sum(array.nbytes for array in self.versions)
        return PartExplanation(self.size, size_bytes, self.filters.explain())

    def explain_version(self, number: int, version: int) -> tuple[IndexPlace, ...]:
        """What the library chose for the filter of a version that it holds; `number` is the part's."""
        place = int(np.searchsorted(self.versions.version, version))
        return tuple(IndexPlace(number, chosen) for chosen in self.filters.explain_filter(place))


def _ends_of(pairs: NDArray[np.int32], tile_ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where tiles end; not known if some pairs were dropped."""
    return tile_ends[:0] if len(tile_ends) and tile_ends[-1] != len(pairs) else tile_ends


class PartBuilder:
    """Takes in subscription versions, some at a time, in any order.

    Parameters
    ----------
    library : Library, optional
        Of the filters; else what the dialect of the first says. A part has filters of one library.
    """

    def __init__(self, library: Library | None = None) -> None:
        self._library = library
        self._filters: Builder | None = None if library is None else library.builder()
        self._versions = VersionColumns()

    def add(self, entries: Sequence[IndexEntry]) -> None:
        """Take in versions; ValueError if a filter is not compiled as it should be."""
        if entries:
            self._builder(entries[0].dialect).add(entries)
            self._versions.add(entries)

    def _builder(self, dialect: str | None) -> Builder:
        if self._library is None:
            self._library = library_of(dialect)
        if self._filters is None:
            self._filters = self._library.builder()
        return self._filters

    def finish(self) -> Part:
        """A part of all that was taken in, to be called once; ValueError if a version came twice."""
        versions, order = self._versions.finish()
        filters = self._builder(None).finish(order)
        assert self._library is not None
        return Part(versions, filters, self._library.name)


def build_part(entries: Iterable[IndexEntry], library: Library | None = None) -> Part:
    """Build a part from subscription versions, in any order; no version may come twice."""
    builder = PartBuilder(library)
    remaining = iter(entries)
    while chunk := list(islice(remaining, ENTRIES_AT_ONCE)):
        builder.add(chunk)
    return builder.finish()
