"""The only compiled loop of partitioning: locates strings among the boundaries of an axis."""

from __future__ import annotations

from typing import Any

from fieldfare.matching.compiled import compiled
from fieldfare.matching.events.columns import KIND_STRING


@compiled
def locate_strings(
    boundary_text: Any, boundary_start: Any, kinds: Any, words: Any, text: Any, segments: Any
) -> None:
    """For every event with a string value, add the number of boundaries up to it to the event's segment.

    Parameters
    ----------
    boundary_text, boundary_start : uint8[b], int64[m + 1]
        The UTF-8 of m boundaries end to end, ascending.
    kinds, words, text : uint8[n], int64[n], uint8[t]
        A column of ``matching.columns``.
    segments : int32[n]
        Updated in place; UTF-8 has the order of code points, so bytes are compared.
    """
    for e in range(len(kinds)):
        if kinds[e] != KIND_STRING:
            continue
        start = words[e] >> 32
        length = words[e] & 0xFFFFFFFF
        low = 0
        high = len(boundary_start) - 1
        while low < high:
            middle = (low + high) >> 1
            first = boundary_start[middle]
            size = boundary_start[middle + 1] - first
            shared = min(size, length)
            i = 0
            while i < shared and boundary_text[first + i] == text[start + i]:
                i += 1
            if i == size or (i < length and boundary_text[first + i] < text[start + i]):
                low = middle + 1
            else:
                high = middle
        segments[e] += low
