"""Converts lists of matches to the match log's format and back.

An ordinal's gap is the number of ordinals between it and its predecessor in the list (-1 before the first);
gaps are less than 65,536. Their low bytes are noise and stored as they are. A high byte is nearly always
small: it takes two bits; if these are 3, its excess over 3 is in a separate list. That is as compact as zstd
on the high bytes, and several times as fast.

Not compiled, as the gateway reads and merges blocks: see docs/decisions/match-log.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)
_FIELDS = ((np.arange(256, dtype=np.uint8)[:, None] >> _SHIFTS) & np.uint8(3)).view(np.uint32).ravel()
"""The four fields of two bits of each byte, a byte each."""


def gap_planes(
    starts: NDArray[np.int64], ordinals: NDArray[np.uint16]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], bool]:
    """Return the low and high bytes of all gaps, and whether the ordinals of every number ascend."""
    gaps = ordinals.astype(np.int32)
    gaps[1:] -= ordinals[:-1]
    gaps -= 1
    gaps[starts[:-1]] = ordinals[starts[:-1]]
    ascending = not gaps.size or int(gaps.min()) >= 0
    return gaps.astype(np.uint8), (gaps >> 8).astype(np.uint8), ascending


def pack_high(high: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pack high bytes to two bits each, four per byte; return these and the excesses of values from 3 on."""
    fields = np.zeros(-(-high.size // 4) * 4, np.uint8)
    np.minimum(high, 3, out=fields[: high.size])
    packed = fields[::4].copy()
    for place in range(1, 4):
        packed |= fields[place::4] << np.uint8(2 * place)
    return packed, high[high >= 3] - np.uint8(3)


def unpack_high(packed: NDArray[np.uint8], more: NDArray[np.uint8], size: int) -> NDArray[np.uint8] | None:
    """Return `size` high bytes that `pack_high` has packed; None if either list is too long or too short."""
    if packed.size != -(-size // 4):
        return None
    high = _FIELDS[packed].view(np.uint8)[:size]
    large = np.flatnonzero(high == 3)
    if large.size != more.size:
        return None
    high[large] += more
    return high


def ordinals_of(
    lengths: NDArray[np.int64], low: NDArray[np.uint8], high: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Return the ordinals of consecutive lists, from the low and high bytes of their gaps."""
    gaps = high.astype(np.int64)
    gaps <<= 8
    gaps += low
    gaps += 1
    passed = sums(gaps)
    return passed[1:] - (passed[sums(lengths)[:-1]] + 1).repeat(lengths)


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
    bounds = sums(lengths)
    matches = (firsts - bounds[:-1]).repeat(lengths)
    matches += np.arange(matches.size)
    ordinals = ordinals_of(lengths, low[matches], high[matches])
    if ordinals.max(initial=-1) >= event_starts[-1]:
        return None
    records = event_starts.searchsorted(ordinals, "right") - 1
    return bounds, records, (ordinals - event_starts[records]).astype(np.int32)


def sums(values: NDArray[np.signedinteger[Any]]) -> NDArray[np.int64]:
    """Return the sums of the first 0, 1, 2, ... values."""
    found = np.zeros(values.size + 1, np.int64)
    values.cumsum(out=found[1:])
    return found
