"""Positions as integer keys, which are compared and computed with as integers within a partition.

::

    partition │ offset: 42 bits │ index: 14 bits

A key fits in 63 bits, so NumPy and the registry hold it. Without its index it is the *place* of a record.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fieldfare.model import INDEX_MAX, OFFSET_MAX, PARTITIONS_MAX, Offsets, Position

INDEX_BITS = INDEX_MAX.bit_length()
INDEX_MASK = INDEX_MAX
OFFSET_BITS = OFFSET_MAX.bit_length()
OFFSET_MASK = OFFSET_MAX
PARTITION_SHIFT = OFFSET_BITS + INDEX_BITS

NO_KEYS: NDArray[np.int64] = np.empty(0, dtype=np.int64)


def key_of(position: Position) -> int:
    """Return the key of a position; ValueError if it is out of range: its key would be another position's."""
    if not (
        0 <= position.partition < PARTITIONS_MAX
        and 0 <= position.offset <= OFFSET_MASK
        and 0 <= position.index <= INDEX_MASK
    ):
        raise ValueError(f"no event can be at {position}")
    return key_at(position.partition, position.offset) | position.index


def place_of(partition: int, offset: int) -> int:
    """Return the place of a record."""
    return partition << OFFSET_BITS | offset


def key_at(partition: int, offset: int) -> int:
    """Return the key of a record's first event."""
    return place_of(partition, offset) << INDEX_BITS


def keys_at(offsets: Offsets) -> list[int]:
    """Return the key of the first event of the record at each partition's offset."""
    return [key_at(partition, offset) for partition, offset in enumerate(offsets)]


def offset_of(key: int) -> int:
    """Return the offset of the record that holds the event of a key."""
    return key >> INDEX_BITS & OFFSET_MASK


def position_of(key: int) -> Position:
    """Return the position that a key stands for."""
    return Position(key >> PARTITION_SHIFT, offset_of(key), key & INDEX_MASK)
