"""A part of an index: an immutable set of subscription versions with filters of one library.

The part's file contains the arrays of the versions and those of the library's index.
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
from fieldfare.matching.files import IndexFileError, open_arrays, read_only, save_arrays
from fieldfare.matching.grouping import candidate_slots, without_slots
from fieldfare.matching.libraries import LIBRARIES, PLAIN, library_of
from fieldfare.matching.library import Builder, FilterIndex, Library
from fieldfare.matching.pairs import Pairs
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

CONFIRMED_BATCH_SIZE = 1 << 20
"""Pairs confirmed together; bounds the memory for intermediate results."""

ENTRIES_BATCH_SIZE = 4096
"""Maximum entries held as Python objects at a time."""

_DESTINATIONS = "subscriptions.destination"
"""Array of a part's file: absent if all matches are reported under the subscriptions' own numbers."""


class Part:
    """Subscription versions and their filters; made by `build_part`, `PartBuilder` or `Part.open`.

    Attributes
    ----------
    versions
        The versions; the i-th belongs to the i-th filter of `filters`.
    destinations
        uint32[size]: the number under which the matches of each version are reported.
    filters
        The index of the filters.
    library
        The name of the library of that index.
    size
        The number of subscription versions.
    paths
        The attributes that a batch of events must have as columns, if any event has them.
    """

    def __init__(
        self,
        versions: Versions,
        filters: FilterIndex,
        library: str,
        within: tuple[int, int] | None = None,
        destinations: NDArray[np.uint32] | None = None,
    ) -> None:
        self.versions = versions
        self.destinations = versions.number if destinations is None else destinations
        self.filters = filters
        self.library = library
        self.size = len(versions.version)
        self.paths: tuple[Path, ...] = filters.paths
        self._valid_within = within or valid_within(versions)
        self._closed: tuple[Closings | None, Closed] = (None, NOTHING_CLOSED)

    @property
    def size_bytes(self) -> int:
        """The size of all arrays in bytes: the file's size without its header."""
        return sum(array.nbytes for array in self._arrays().values())

    def _arrays(self) -> dict[str, NDArray[Any]]:
        mine = {f"subscriptions.{name}": array for name, array in self.versions._asdict().items()}
        if self.destinations is not self.versions.number:
            mine[_DESTINATIONS] = self.destinations
        return mine | self.filters.arrays()

    def save(self, path: str | FilePath) -> int:
        """Write the part to a file atomically; return its size in bytes."""
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
        """Map a file written by `save`, in time independent of its size.

        Raises IndexFileError if the file is truncated, of another format, of a library that is not in
        `libraries`, or has a corrupt header; with `verify`, also if any array is corrupt.
        """
        meta, arrays = open_arrays(path, "part", verify=verify)
        name = meta.get("library", PLAIN.name)  # older files do not name their library
        library = libraries.get(name)
        if library is None:
            raise IndexFileError(f"{path}: library {name!r} is unknown to this program")
        versions = Versions(*(arrays[f"subscriptions.{field}"] for field in Versions._fields))
        first, last = meta["valid_within"]
        return cls(versions, library.open(meta, arrays), name, (first, last), arrays.get(_DESTINATIONS))

    def find(
        self,
        columns: ColumnBatch,
        stamps: NDArray[np.int64],
        start: int,
        end: int,
        overlay: Overlay,
        most: int,
    ) -> Pairs:
        """Return the pairs of the events [start, end) and the subscriptions s that they match, ~s if a filter
        must still be evaluated by `confirm`.

        A version is valid for an event if valid_from <= stamp < valid_to. Raises TooManyPairs if there are
        more than `most` pairs.
        """
        pairs, tile_ends = self.filters.find(columns, start, end, most)
        mine = np.ascontiguousarray(stamps[start:end])
        first, last = self._valid_within
        lowest, highest = (mine[0], mine[0]) if len(mine) == 1 else (mine.min(), mine.max())
        if len(overlay.closed) or lowest < first or highest >= last:
            pairs = pairs[: keep_valid(self.versions, overlay, mine, pairs)]
            tile_ends = _ends_of(pairs, tile_ends)
        return Pairs(pairs, start, self.destinations, *self._number_bounds, tile_ends)

    @property
    def confirms(self) -> bool:
        """Whether some filters must be evaluated after `find`."""
        return self.filters.confirms

    def undecided(self, found: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the indices of the pairs whose filter may be expensive (int64[k]), and their work numbers
        (int32[k])."""
        chosen, works = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        for places in candidate_slots(found.pairs, CONFIRMED_BATCH_SIZE):
            mine = self.filters.works(~found.pairs[places, 1])
            chosen.append(places[mine > 0])
            works.append(mine[mine > 0])
        return np.concatenate(chosen), np.concatenate(works)

    def work(self, number: int) -> Work:
        """Return the work that a number from `undecided` identifies."""
        return self.filters.work(number)

    def confirm(self, columns: ColumnBatch, found: Pairs) -> Pairs:
        """Return the pairs of `find` that match, after evaluating the filters that must be confirmed."""
        if not self.confirms:
            return found
        refused = [np.zeros(0, np.int64)]
        for places in candidate_slots(found.pairs, CONFIRMED_BATCH_SIZE):
            filters = ~found.pairs[places, 1]
            events = found.pairs[places, 0].astype(np.int64) + found.first_event
            refused.append(places[~self.filters.confirm(columns, events, filters)])
            found.pairs[places, 1] = filters
        return without_slots(found, np.concatenate(refused))

    @cached_property
    def _number_bounds(self) -> tuple[int, int]:
        return int(self.destinations.min()), int(self.destinations.max())

    def overlay(self, closings: Closings) -> Overlay:
        """Return the versions of this part that the closings end."""
        if not len(closings):
            return NO_OVERLAY
        known, closed = self._closed
        if known is not closings:
            closed = closed_of(self.versions.version, closings.versions, closings.valid_to, closed)
            self._closed = (closings, closed)
        return closed.overlay

    def open_versions(self, numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return each subscription's version that was open when the part was built; -1 for none."""
        return open_versions(self.versions, numbers)

    def explain(self) -> PartExplanation:
        """Return the structures that the library chose for the filters."""
        size_bytes = sum(array.nbytes for array in self.versions)
        return PartExplanation(self.size, size_bytes, self.filters.explain())

    def explain_version(self, number: int, version: int) -> tuple[IndexPlace, ...]:
        """Return the structures chosen for the filter of a version in this part; `number` is the part's
        number."""
        place = int(np.searchsorted(self.versions.version, version))
        return tuple(IndexPlace(number, chosen) for chosen in self.filters.explain_filter(place))


def _ends_of(pairs: NDArray[np.int32], tile_ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ends of the tiles; empty (unknown) if pairs were dropped."""
    return tile_ends[:0] if len(tile_ends) and tile_ends[-1] != len(pairs) else tile_ends


class PartBuilder:
    """A builder of a part: `add` subscription versions in batches, in any order, then `finish`.

    Parameters
    ----------
    library : Library, optional
        The library of all filters. Default: the library of the first filter's dialect.
    """

    def __init__(self, library: Library | None = None) -> None:
        self._library = library
        self._filters: Builder | None = None if library is None else library.builder()
        self._versions = VersionColumns()
        self._destinations: list[NDArray[np.uint32]] = []
        self._has_destinations = False

    def add(self, entries: Sequence[IndexEntry]) -> None:
        """Add versions. Raise ValueError if a filter's compiled form is invalid."""
        if entries:
            self._builder(entries[0].dialect).add(entries)
            self._versions.add(entries)
            found = [each.number if each.destination is None else each.destination for each in entries]
            self._destinations.append(np.array(found, np.uint32))
            self._has_destinations |= any(each.destination is not None for each in entries)

    def _builder(self, dialect: str | None) -> Builder:
        if self._library is None:
            self._library = library_of(dialect)
        if self._filters is None:
            self._filters = self._library.builder()
        return self._filters

    def finish(self) -> Part:
        """Return the part. Raise ValueError if a version was added twice. Call once."""
        versions, order = self._versions.finish()
        filters = self._builder(None).finish(order)
        assert self._library is not None
        destinations = None
        if self._has_destinations:
            destinations = read_only(np.concatenate(self._destinations)[order])
        return Part(versions, filters, self._library.name, destinations=destinations)


def build_part(entries: Iterable[IndexEntry], library: Library | None = None) -> Part:
    """Build a part from subscription versions, in any order. Raise ValueError for a duplicate version."""
    builder = PartBuilder(library)
    remaining = iter(entries)
    while chunk := list(islice(remaining, ENTRIES_BATCH_SIZE)):
        builder.add(chunk)
    return builder.finish()
