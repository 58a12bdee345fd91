"""Kernels that choose the gram under which each needle is stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled, inlined
from fieldfare.matching.plain.grams import HASH_BITS, hash_gram

RARITY_BITS = 20
"""The number of hash bits by which grams are counted."""


@compiled
def choose_grams(offset: Any, text: Any, needles: Any, sizes: Any, at: Any, hashes: Any) -> None:
    """Write the gram under which each needle is stored: its offset, and its hash.

    Among the needle's grams of the largest applicable size, it is the one whose hash the fewest grams of
    needles share.
    """
    counts = np.zeros(1 << RARITY_BITS, np.int32)
    shift = HASH_BITS - RARITY_BITS
    for i in range(len(needles)):
        start, end = offset[needles[i]], offset[needles[i] + 1]
        size = _size_for(end - start, sizes)
        for k in range(start, end - size + 1):
            counts[hash_gram(text, k, size) >> shift] += 1
    for i in range(len(needles)):
        start, end = offset[needles[i]], offset[needles[i] + 1]
        size = _size_for(end - start, sizes)
        fewest = np.int64(1) << 62
        for k in range(start, end - size + 1):
            h = hash_gram(text, k, size)
            if counts[h >> shift] < fewest:
                fewest = np.int64(counts[h >> shift])
                at[i], hashes[i] = k - start, h


@inlined
def _size_for(length: Any, sizes: Any) -> Any:
    """Return the largest of ascending sizes that does not exceed a length."""
    found = np.int64(sizes[0])
    for size in sizes:
        if size <= length:
            found = np.int64(size)
    return found


@compiled
def set_bits(hashes: Any, width: int, bits: Any) -> None:
    """Set the bit of each hash among ``2 ** width``."""
    for h in hashes:
        bit = h >> (HASH_BITS - width)
        bits[bit >> 3] |= np.uint8(1 << (bit & 7))
