"""The bit layout of a needle's entry, and the hash of its gram (``layout.Needles``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import inlined
from fieldfare.matching.events.json_bytes import load_part

OFFSET_SHIFT, BYTES_SHIFT, PLACE_SHIFT, ANCHORS_SHIFT = 32, 24, 16, 14
AT_START_BIT, AT_END_BIT = 1, 2
HASH_BITS = 32
LOWER_HALF = 0xFFFFFFFF


@inlined
def hash_gram(text: Any, i: Any, size: Any) -> Any:
    """Return a 32-bit hash of text[i : i + size], computed in int64 arithmetic that cannot overflow."""
    word = load_part(text, i, size)
    h = np.int64(word & np.uint64(LOWER_HALF)) * 0x1E3779B1
    h = (h ^ (h >> 29)) & LOWER_HALF
    h = (h ^ np.int64(word >> np.uint64(32)) ^ np.int64(size << 13)) * 0x2545F491
    return (h ^ (h >> 29)) & LOWER_HALF
