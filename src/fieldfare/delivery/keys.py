"""Positions as keys: their order within a partition, and their arithmetic, are those of integers.

::

    partition │ offset: 42 bits │ index: 14 bits

A key fits in 63 bits, so NumPy and the registry hold it. Without its index it is the *place* of a record.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fieldfare.model import Offsets, Position

INDEX_BITS = 14
INDEX_MASK = (1 << INDEX_BITS) - 1
OFFSET_BITS = 42
OFFSET_MASK = (1 << OFFSET_BITS) - 1
PARTITION_SHIFT = OFFSET_BITS + INDEX_BITS
PARTITIONS_MAX = 127

NO_KEYS: NDArray[np.int64] = np.empty(0, dtype=np.int64)


def key_of(position: Position) -> int:
    """The key of a position; ValueError for one that has none, which would be another position's."""
    if not (
        0 <= position.partition < PARTITIONS_MAX
        and 0 <= position.offset <= OFFSET_MASK
        and 0 <= position.index <= INDEX_MASK
    ):
        raise ValueError(f"no event can be at {position}")
    return key_at(position.partition, position.offset) | position.index


def place_of(partition: int, offset: int) -> int:
    """The place of a record."""
    return partition << OFFSET_BITS | offset


def key_at(partition: int, offset: int) -> int:
    """The key of a record's first event."""
    return place_of(partition, offset) << INDEX_BITS


def keys_at(offsets: Offsets) -> list[int]:
    """The keys of the first events behind an offset in each partition."""
    return [key_at(partition, offset) for partition, offset in enumerate(offsets)]


def offset_of(key: int) -> int:
    """In which record of its partition the event of a key is."""
    return key >> INDEX_BITS & OFFSET_MASK


def position_of(key: int) -> Position:
    """The position that a key stands for."""
    return Position(key >> PARTITION_SHIFT, offset_of(key), key & INDEX_MASK)
