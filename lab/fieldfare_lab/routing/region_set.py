"""A set of filters, searched for those that cover a filter, are covered by it, or intersect it.

Most filters name a constant: ``symbol = 'X'``, ``type IN ('a', 'b')``. Each filter is filed under the values
of one such attribute; a search compares only filters with common values, and those that name none.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from fieldfare.filters.boxes import Box
from fieldfare.filters.covering import FilterRegion, covers, intersects
from fieldfare.filters.values import AFTER, BEFORE, Ranges, ValueSet
from fieldfare.model import Path

VALUES_MAX = 16
"""Maximum values of an attribute under which a filter is filed; a longer list is not used."""

_Members = dict[Hashable, FilterRegion]


class RegionSet:
    """Compiled filters by key.

    A search returns the keys for which `covers` or `intersects` is true, in no particular order. A member
    that matches nothing may be left out by `covered_by`.
    """

    def __init__(self) -> None:
        self._members: _Members = {}
        self._filed: dict[Hashable, tuple[Path, frozenset[Any]] | None] = {}
        self._by_value: dict[Path, dict[Any, _Members]] = {}
        self._others: _Members = {}

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, key: Hashable) -> FilterRegion:
        return self._members[key]

    def add(self, key: Hashable, region: FilterRegion) -> None:
        """Add a filter, or replace the one with this key."""
        self.discard(key)
        self._members[key] = region
        place = self._filed[key] = self._place(region)
        if place is None:
            self._others[key] = region
            return
        path, values = place
        found = self._by_value.setdefault(path, {})
        for value in values:
            found.setdefault(value, {})[key] = region

    def discard(self, key: Hashable) -> None:
        """Remove a filter, if it is there."""
        if self._members.pop(key, None) is None:
            return
        place = self._filed.pop(key)
        if place is None:
            del self._others[key]
            return
        path, values = place
        found = self._by_value[path]
        for value in values:
            del found[value][key]
            if not found[value]:
                del found[value]
        if not found:
            del self._by_value[path]

    def intersecting(self, region: FilterRegion) -> list[Hashable]:
        """Return the keys of the filters that may match an event that a filter matches."""
        return [key for key, other in self._near(region) if intersects(other, region)]

    def covering(self, region: FilterRegion) -> list[Hashable]:
        """Return the keys of the filters that cover a filter."""
        return [key for key, other in self._near(region) if covers(other, region)]

    def covered_by(self, region: FilterRegion) -> list[Hashable]:
        """Return the keys of the filters that a filter covers."""
        return [key for key, other in self._near(region) if covers(region, other)]

    def _place(self, region: FilterRegion) -> tuple[Path, frozenset[Any]] | None:
        """Return the attribute and values under which a filter is filed: where fewest others are."""
        if not region.outer:
            return None
        best: tuple[int, Path, frozenset[Any]] | None = None
        for path in region.outer[0].sets:
            values = _values_of(region, path)
            if values is None:
                continue
            known = self._by_value.get(path, {})
            size = sum(len(known.get(value, ())) for value in values)
            if best is None or size < best[0]:
                best = (size, path, values)
        return None if best is None else best[1:]

    def _near(self, region: FilterRegion) -> Iterator[tuple[Hashable, FilterRegion]]:
        """Yield the filters that may have an event in common with a filter."""
        if not region.outer:
            yield from self._members.items()
            return
        yield from self._others.items()
        for path, by_value in self._by_value.items():
            values = _values_of(region, path)
            found: _Members = {}
            for value in by_value if values is None else values:
                found.update(by_value.get(value, {}))
            yield from found.items()


def _values_of(region: FilterRegion, path: Path) -> frozenset[Any] | None:
    """Return the values that an attribute has in a region; None if they are not a few constants."""
    found: set[Any] = set()
    for box in region.outer:
        values = _constants(box, path)
        if values is None or len(found) + len(values) > VALUES_MAX:
            return None
        found.update(values)
    return frozenset(found)


def _constants(box: Box, path: Path) -> list[Any] | None:
    values: ValueSet | None = box.sets.get(path)
    if values is None or values.atoms:
        return None
    numbers, strings = _points(values.numbers), _points(values.strings)
    return None if numbers is None or strings is None else numbers + strings


def _points(ranges: Ranges) -> list[Any] | None:
    """Return the values of a set of single values; None if it has intervals, or more than ``VALUES_MAX``."""
    cuts = ranges.cuts
    if ranges.starts_inside:  # the empty string is the lowest one: it has no cut before it
        if not cuts or cuts[0] != ("", AFTER):
            return None
        cuts = (("", BEFORE), *cuts)
    if len(cuts) % 2 or len(cuts) > 2 * VALUES_MAX:
        return None
    pairs = list(zip(cuts[::2], cuts[1::2], strict=True))
    if any(low[0] != high[0] or low[1] != BEFORE for low, high in pairs):
        return None
    return [low[0] for low, _ in pairs]
