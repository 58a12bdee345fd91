"""Positions as keys, ``offset << 16 | index``: their order and arithmetic are those of integers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fieldfare.model import Position

INDEX_BITS = 16
INDEX_MASK = (1 << INDEX_BITS) - 1
OFFSET_END = 1 << (62 - INDEX_BITS)
"""No key leaves 63 bits: NumPy and the registry hold it."""

NO_KEYS: NDArray[np.int64] = np.empty(0, dtype=np.int64)


def key_of(position: Position) -> int:
    """The key of a position; ValueError for one that has none, which would be another position's."""
    if position.partition != 0:
        raise ValueError(f"the log has one partition, 0; {position} names another")
    if not (0 <= position.offset < OFFSET_END and 0 <= position.index <= INDEX_MASK):
        raise ValueError(f"no event can be at {position}")
    return position.offset << INDEX_BITS | position.index


def position_of(key: int) -> Position:
    """The position that a key stands for."""
    return Position(0, key >> INDEX_BITS, key & INDEX_MASK)
