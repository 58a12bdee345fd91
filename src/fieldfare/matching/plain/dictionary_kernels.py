"""Kernels that find events' values among the constants of an attribute."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.events.columns import KIND_STRING
from fieldfare.matching.events.json_bytes import load_part, same_bytes

_HALF, _LOWER_HALF = np.uint64(32), np.uint64(0xFFFFFFFF)


@inlined
def _hash(text: Any, start: Any, length: Any) -> Any:
    h: Any = np.int64(length)
    i, left = start, length
    while left > 0:
        word = load_part(text, i, min(left, 8))
        h = (h ^ np.int64(word & _LOWER_HALF)) * 0x1E3779B1
        h = (h ^ (h >> 29)) & 0xFFFFFFFF
        h = (h ^ np.int64(word >> _HALF)) * 0x2545F491
        h = (h ^ (h >> 29)) & 0xFFFFFFFF
        i += 8
        left -= 8
    return h ^ (h >> 15)


@compiled
def hash_string(text: Any, start: int, length: int) -> Any:
    """Return a 32-bit hash, computed in int64 arithmetic that cannot overflow."""
    return _hash(text, start, length)


@compiled
def grid_step(value: float, origin: float, scale: float, size: int) -> Any:
    """Return the grid step that contains a value: a nondecreasing function of the value."""
    x = (value - origin) * scale
    if not x > 0.0:
        return 0
    if x >= size - 1:
        return size - 1
    return int(x)


@inlined
def _is_below(constants: Any, offset: Any, end: Any, text: Any, start: Any, length: Any) -> Any:
    """Whether a constant string sorts before an event's string."""
    for i in range(min(end - offset, length)):
        x, y = constants[offset + i], text[start + i]
        if x != y:
            return x < y
    return end - offset < length


@compiled
def locate_strings(
    string_offset: Any,
    string_bytes: Any,
    slots: Any,
    ordered: bool,
    first_cell: int,
    kinds: Any,
    words: Any,
    text: Any,
    cells: Any,
) -> None:
    """Write the cells of one attribute's strings. A word equal to the previous event's is not looked up
    again."""
    string_offset, constants, slots = borrowed(string_offset), borrowed(string_bytes), borrowed(slots)
    kinds, words, text, cells = borrowed(kinds), borrowed(words), borrowed(text), borrowed(cells)
    count, mask = len(string_offset) - 1, len(slots) - 1
    known_word: Any = np.int64(-1)
    known_cell: Any = first_cell
    for e in range(np.uint64(len(kinds))):
        if kinds[e] != KIND_STRING:
            continue
        word = words[e]
        if word == known_word or count == 0:
            cells[e] = known_cell
            continue
        start, length = word >> 32, word & 0xFFFFFFFF
        slot = _hash(text, start, length) & mask
        cell: Any = -1
        while slots[slot] >= 0:
            s = np.int64(slots[slot])
            offset = string_offset[s]
            if string_offset[s + 1] - offset == length and same_bytes(text, start, constants, offset, length):
                cell = first_cell + 2 * s + 1
                break
            slot = (slot + 1) & mask
        if cell < 0:  # not a constant
            low, high = 0, count if ordered else 0
            while low < high:
                middle = (low + high) >> 1
                offset, end = string_offset[middle], string_offset[middle + 1]
                if _is_below(constants, offset, end, text, start, length):
                    low = middle + 1
                else:
                    high = middle
            cell = first_cell + 2 * low
        cells[e] = cell
        known_word, known_cell = word, cell
