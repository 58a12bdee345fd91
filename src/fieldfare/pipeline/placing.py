"""Assign subscriptions to the parts of a space's slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from fieldfare.matching.library import Library
from fieldfare.matching.part import ENTRIES_BATCH_SIZE, Part, PartBuilder
from fieldfare.matching.versions import IndexEntry
from fieldfare.partitioning import ONE_SLICE, Extents, Partitioning, Placement
from fieldfare.partitioning.placing import place


class SlicesBuilder:
    """A builder of one part per slice: `add` versions in batches, in any order, then `finish`."""

    def __init__(self, partitioning: Partitioning = ONE_SLICE, library: Library | None = None) -> None:
        self._partitioning = partitioning
        self._originals = partitioning.originals
        self._builders = {number: PartBuilder(library) for number in sorted(set(self._originals))}

    def add(self, entries: Iterable[IndexEntry], extents: Extents | None = None) -> None:
        """Add versions. Raise ValueError if the compiled form of a filter is invalid.

        Parameters
        ----------
        extents : Extents, optional
            The versions' extents on the partitioning's attributes, in the same order, if already known.
        """
        if extents is not None:
            listed = list(entries)
            self._place(listed, self._partitioning.place(extents))
            return
        remaining = iter(entries)
        while page := list(islice(remaining, ENTRIES_BATCH_SIZE)):
            if len(self._builders) == 1:
                self._builders[self._originals[0]].add(page)
            else:
                self._place(page, place(self._partitioning, page))

    def _place(self, entries: Sequence[IndexEntry], placement: Placement) -> None:
        for number, builder in self._builders.items():
            stored = placement.of(number).tolist()
            for start in range(0, len(stored), ENTRIES_BATCH_SIZE):
                builder.add([entries[place] for place in stored[start : start + ENTRIES_BATCH_SIZE]])

    def finish(self) -> list[Part]:
        """Return the part of each slice, by number; slices with equal content share one part. Call once."""
        parts = {number: builder.finish() for number, builder in self._builders.items()}
        return [parts[original] for original in self._originals]
