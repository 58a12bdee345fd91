"""Matching a batch of events against parts in windows of events, so that memory stays bounded.

The number of matches depends on the subscribers: 100,000 filters that match everything have a billion matches
of 10,000 events. Parts therefore match a *window* of events at a time; a window with too many matches is
abandoned and retried in halves. One event has at most as many matches as there are rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.library import TooManyPairs
from fieldfare.matching.pairs import Pairs
from fieldfare.matching.part import Part
from fieldfare.matching.versions import Closings, Overlay
from fieldfare.matching.work_limits import without_given_up

WINDOW_EVENTS = 1 << 14
"""Maximum events matched at a time: more share each tile's load into the cache, fewer need less memory."""
WINDOW_CELLS = 1 << 21
"""Maximum cells (events × attributes) located at a time; bounds memory where there are many attributes."""
WINDOW_PAIRS = 1 << 25
"""Maximum pairs of event and subscription in a window (256 MiB); a window with more is halved unless it is
one event."""
WINDOW_CANDIDATES = 1 << 21
"""Maximum pairs among them whose filter may be expensive; a window with more is halved."""
UNBOUNDED = 1 << 62


def find_pairs(
    parts: Sequence[Part], columns: ColumnBatch, stamps: NDArray[np.int64], closings: Closings
) -> Iterator[Pairs]:
    """Yield the matches of a batch of events, window by window; see ``Index.match``.

    At most one window's matches are held here; consume them as they come to save memory.
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
    """Return the matches of the events [start, end) in all parts. Raise TooManyPairs if several events have
    too many."""
    found: list[Pairs] = []
    left = WINDOW_PAIRS if end - start > 1 else UNBOUNDED
    for part, overlay in zip(parts, overlays, strict=True):
        pairs = part.find(columns, stamps, start, end, overlay, left)
        left -= len(pairs.pairs)
        found.append(pairs)
    found = without_given_up(parts, found, columns, WINDOW_CANDIDATES if end - start > 1 else UNBOUNDED)
    return [part.confirm(columns, pairs) for part, pairs in zip(parts, found, strict=True)]
