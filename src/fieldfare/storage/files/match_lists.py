"""Reads lists of matches from the match log's format: see `match_kernels`, which writes them.

Not compiled, as the gateway reads with them: numba takes a process 50 MB, and its first compiled function
about a second, in which nothing would be delivered.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)


def unpack_high(packed: NDArray[np.uint8], more: NDArray[np.uint8], size: int) -> NDArray[np.uint8] | None:
    """Return `size` high bytes that `pack_high` has packed; None if `more` has not as many as they need."""
    if 4 * packed.size < size:
        return None
    high: NDArray[np.uint8] = ((packed[:, None] >> _SHIFTS) & np.uint8(3)).ravel()[:size]
    large = np.flatnonzero(high == 3)
    if large.size != more.size:
        return None
    high[large] += more
    return high


def select(
    wanted: NDArray[np.uint32],
    numbers: NDArray[np.uint32],
    starts: NDArray[np.int64],
    low: NDArray[np.uint8],
    high: NDArray[np.uint8],
    event_starts: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]] | None:
    """Decode the lists of the `wanted` numbers from the low and high bytes of their gaps.

    `wanted` and `numbers` ascend. Returns the bounds of each number's matches, the record of every match, and
    the event's index in that record; None if an event does not exist.
    """
    if not numbers.size:
        return np.zeros(wanted.size + 1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32)
    places = np.minimum(numbers.searchsorted(wanted), numbers.size - 1)
    firsts = starts[places]
    lengths = (starts[places + 1] - firsts) * (numbers[places] == wanted)
    bounds = _sums(lengths)
    matches = (firsts - bounds[:-1]).repeat(lengths)
    matches += np.arange(matches.size)
    gaps = high[matches].astype(np.int64)
    gaps <<= 8
    gaps += low[matches]
    passed = _sums(gaps + 1)
    ordinals = passed[1:] - (passed[bounds[:-1]] + 1).repeat(lengths)
    if ordinals.max(initial=-1) >= event_starts[-1]:
        return None
    records = event_starts.searchsorted(ordinals, "right") - 1
    return bounds, records, (ordinals - event_starts[records]).astype(np.int32)


def _sums(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of the first 0, 1, 2, ... values."""
    found = np.zeros(values.size + 1, np.int64)
    values.cumsum(out=found[1:])
    return found
