"""EP, the last operator of the pipeline: the match lists of all spaces, put together event by event."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.part import Matches


def merge_spaces(size: int, parts: Sequence[tuple[NDArray[np.int64] | None, Matches]]) -> Matches:
    """Put the matches of disjoint sets of events together.

    Parameters
    ----------
    size : int
        How many events there are.
    parts : sequence of (places int64[k] or None, Matches over k events)
        Where these events stand among all (None: they are all). An event that is in no part matches nothing.

    Returns
    -------
    Matches
        Over all `size` events.
    """
    if len(parts) == 1 and parts[0][0] is None:
        return parts[0][1]
    counts = np.zeros(size, np.int64)
    for places, matches in parts:
        counts[places] = np.diff(matches.indptr)
    indptr = np.zeros(size + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    subscriptions = np.empty(int(indptr[-1]), np.uint32)
    for places, matches in parts:
        # Each event's list moves as a whole, by the difference between where it must start and where it does.
        shifts = indptr[:-1][places] - matches.indptr[:-1]
        targets = np.arange(len(matches.subscriptions)) + np.repeat(shifts, np.diff(matches.indptr))
        subscriptions[targets] = matches.subscriptions
    return Matches(indptr, subscriptions)


def concatenate(parts: Sequence[Matches]) -> Matches:
    """The matches of batches of events that follow each other, as those of one batch."""
    if len(parts) == 1:
        return parts[0]
    indptrs, start = [np.zeros(1, np.int64)], 0
    for part in parts:
        indptrs.append(part.indptr[1:] + start)
        start += int(part.indptr[-1])
    subscriptions = [np.zeros(0, np.uint32), *(part.subscriptions for part in parts)]
    return Matches(np.concatenate(indptrs), np.concatenate(subscriptions))
