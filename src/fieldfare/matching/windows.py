"""A batch of events matched against parts, some events at a time, so that memory stays bounded.

What a subscriber asks for decides how many matches a batch has: 100,000 filters that match everything make a
billion of 10,000 events. So parts look at a *window* of events together, and one that has too many matches is
given up and tried again in halves; one event has at most as many as there are rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.giving_up import without_given_up
from fieldfare.matching.grouping import Pairs
from fieldfare.matching.library import TooManyPairs
from fieldfare.matching.part import Part
from fieldfare.matching.versions import Closings, Overlay

WINDOW_EVENTS = 1 << 14
"""Events matched at once, at most: more share each tile's way into the cache, fewer need less memory."""
WINDOW_CELLS = 1 << 21
"""Cells (events times attributes) located at once, at most: bounds memory where attributes are many."""
WINDOW_PAIRS = 1 << 25
"""Pairs of event and subscription that parts may find in a window of more than one event: 256 MiB."""
WINDOW_CANDIDATES = 1 << 21
"""Pairs among them whose filter could be much work."""
UNBOUNDED = 1 << 62


def find_pairs(
    parts: Sequence[Part], columns: ColumnBatch, stamps: NDArray[np.int64], closings: Closings
) -> Iterator[Pairs]:
    """The matches of a batch of events, a window of events after the other; see ``Index.match``.

    Never are more held here than those of one window: whoever needs little memory takes them as they come.
    """
    parts = [part for part in parts if part.size]
    if not parts or not columns.size:
        return
    stamps = np.ascontiguousarray(stamps, np.int64)
    overlays = [part.overlay(closings) for part in parts]
    attributes = max(part.filters.width for part in parts)
    full = window = max(1, min(WINDOW_EVENTS, WINDOW_CELLS // max(1, attributes)))
    start = 0
    while start < columns.size:
        end = min(start + window, columns.size)
        try:
            found = _find_window(parts, overlays, columns, stamps, start, end)
        except TooManyPairs:
            window = (end - start) // 2
            continue
        yield from found
        start = end
        if window < full and 4 * sum(len(part.pairs) for part in found) < WINDOW_PAIRS:
            window = min(2 * window, full)


def _find_window(
    parts: Sequence[Part],
    overlays: Sequence[Overlay],
    columns: ColumnBatch,
    stamps: NDArray[np.int64],
    start: int,
    end: int,
) -> list[Pairs]:
    """What all parts find in the events [start, end); TooManyPairs if that is too much for several events."""
    found: list[Pairs] = []
    left = WINDOW_PAIRS if end - start > 1 else UNBOUNDED
    for part, overlay in zip(parts, overlays, strict=True):
        pairs = part.find(columns, stamps, start, end, overlay, left)
        left -= len(pairs.pairs)
        found.append(pairs)
    found = without_given_up(parts, found, columns, WINDOW_CANDIDATES if end - start > 1 else UNBOUNDED)
    return [part.confirm(columns, pairs) for part, pairs in zip(parts, found, strict=True)]
