"""From subscriptions to the parts of a space's slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from fieldfare.matching.library import Library
from fieldfare.matching.part import ENTRIES_AT_ONCE, Part, PartBuilder
from fieldfare.matching.versions import IndexEntry
from fieldfare.partitioning import ONE_SLICE, Extents, Partitioning, Placement
from fieldfare.partitioning.placing import place


class SlicesBuilder:
    """Takes in subscription versions, some at a time, in any order, and builds a part for each slice."""

    def __init__(self, partitioning: Partitioning = ONE_SLICE, library: Library | None = None) -> None:
        self._partitioning = partitioning
        self._originals = partitioning.originals
        self._builders = {number: PartBuilder(library) for number in sorted(set(self._originals))}

    def add(self, entries: Iterable[IndexEntry], extents: Extents | None = None) -> None:
        """Take in versions; ValueError if a filter is not compiled as it should be.

        Parameters
        ----------
        extents : Extents, optional
            Where they lie on the partitioning's attributes, in the same order, if that has been read already.
        """
        if extents is not None:
            given = list(entries)
            self._place(given, self._partitioning.place(extents))
            return
        remaining = iter(entries)
        while page := list(islice(remaining, ENTRIES_AT_ONCE)):
            if len(self._builders) == 1:
                self._builders[self._originals[0]].add(page)
            else:
                self._place(page, place(self._partitioning, page))

    def _place(self, entries: Sequence[IndexEntry], placement: Placement) -> None:
        for number, builder in self._builders.items():
            stored = placement.of(number).tolist()
            for start in range(0, len(stored), ENTRIES_AT_ONCE):
                builder.add([entries[place] for place in stored[start : start + ENTRIES_AT_ONCE]])

    def finish(self) -> list[Part]:
        """The part of each slice, by number, to be called once; slices that hold the same have one part."""
        parts = {number: builder.finish() for number, builder in self._builders.items()}
        return [parts[original] for original in self._originals]
