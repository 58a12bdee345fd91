"""Which subscriptions of a part were closed after it was built, kept up to date as closings come.

A change to an index of a million subscriptions adds one closing to thousands, and looking all of these up
in the part takes longer than matching an event. So what is known is kept, and only what is new looked up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.compiled import compiled
from fieldfare.matching.layout import Overlay

NO_OVERLAY = Overlay(np.zeros(0, np.uint8), np.zeros(0, np.int32), np.zeros(0, np.int64))


class Closed(NamedTuple):
    """Closings that may concern a part, ascending by version, and what they end of it."""

    versions: NDArray[np.int64]
    valid_to: NDArray[np.int64]
    overlay: Overlay


NOTHING_CLOSED = Closed(np.zeros(0, np.int64), np.zeros(0, np.int64), NO_OVERLAY)


def closed_of(
    version: NDArray[np.int64], versions: NDArray[np.int64], valid_to: NDArray[np.int64], before: Closed
) -> Closed:
    """What closings end of a part.

    Parameters
    ----------
    version : int64[S], ascending, at least one: the versions that the part holds
    versions, valid_to : int64[k], the versions that ended, ascending, and the offset from which on each is
        no longer valid
    before : the outcome for earlier closings, which may be like these
    """
    start, end = np.searchsorted(versions, [version[0], version[-1] + 1]).tolist()
    mine, ends = versions[start:end], valid_to[start:end]
    added = np.empty(len(mine), np.int64)
    count = find_added(before.versions, before.valid_to, mine, ends, added)
    if count < 0:  # some are there no more: they were folded into another part
        before, added, count = NOTHING_CLOSED, np.arange(len(mine)), len(mine)
    place, found = _look_up(version, mine, added[:count])
    if not len(place):
        return Closed(mine, ends, before.overlay)
    known = before.overlay
    closed = known.closed.copy() if len(known.closed) else np.zeros((len(version) + 7) // 8, np.uint8)
    np.bitwise_or.at(closed, place >> 3, np.left_shift(1, place & 7).astype(np.uint8))
    at = np.searchsorted(known.subscription, place)
    overlay = Overlay(
        closed, np.insert(known.subscription, at, place), np.insert(known.valid_to, at, ends[found])
    )
    return Closed(mine, ends, overlay)


def _look_up(
    version: NDArray[np.int64], closed: NDArray[np.int64], which: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Of some closings those whose version the part holds: the place there, and which closing."""
    place = np.searchsorted(version, closed[which])
    here = version[place] == closed[which]
    return place[here].astype(np.int32), which[here]


@compiled
def find_added(old_versions: Any, old_ends: Any, versions: Any, ends: Any, added: Any) -> Any:
    """Write which closings are not among the old ones; return how many, or -1 if an old one is gone."""
    count, i = 0, 0
    for k in range(len(versions)):
        if i < len(old_versions) and old_versions[i] == versions[k]:
            if old_ends[i] != ends[k]:
                return -1
            i += 1
        else:
            added[count] = k
            count += 1
    return count if i == len(old_versions) else -1
