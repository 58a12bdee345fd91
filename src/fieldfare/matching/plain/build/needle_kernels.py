"""The compiled loops that choose the gram under which each needle is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled, inlined
from fieldfare.matching.plain.grams import HASH_BITS, hash_gram

RARITY_BITS = 20
"""Grams are counted by so many bits of their hash."""


@compiled
def choose_grams(offset: Any, text: Any, needles: Any, sizes: Any, at: Any, hashes: Any) -> None:
    """Write which gram each of some needles stands under: where it begins, and its hash.

    Of its grams of the largest of `sizes` that it has, the one that fewest grams of needles are like.
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
    """The largest of ascending sizes that is not above a length."""
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
