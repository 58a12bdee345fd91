"""Kernels for the elements of JSON arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled
from fieldfare.matching.evaluation.text_kernels import fetch_ahead
from fieldfare.matching.events.json_bytes import (
    CLOSE_ARRAY,
    COMMA,
    KIND_ESCAPED,
    byte_at,
    read_value,
    skip_space,
)
from fieldfare.matching.events.json_numbers import KIND_UNREAD


@compiled
def read_elements(arrays: Any, text: Any, counts: Any, kinds: Any, words: Any) -> Any:
    """Write the number of elements of each array, and their kinds and words, array by array.

    ``arrays`` has the place of each in the text. An array that has an element of KIND_UNREAD, or is
    malformed, gets the count -1 and no elements. Returns the number of elements, and the bytes of strings
    with escapes.
    """
    arrays, text, counts = borrowed(arrays), borrowed(text), borrowed(counts)
    kinds, words = borrowed(kinds), borrowed(words)
    end, escaped_bytes = np.int64(0), np.int64(0)
    for row in range(arrays.size):
        fetch_ahead(text, arrays, row, 1)
        first = end
        i = skip_space(text, (arrays[row] >> 32) + 1)
        while byte_at(text, i) != CLOSE_ARRAY:
            i, kind, word = read_value(text, i)
            if i < 0 or kind == KIND_UNREAD:
                i = np.int64(-1)  # otherwise an unread last element would go unnoticed
                break
            kinds[end], words[end] = kind, word
            escaped_bytes += word & 0xFFFFFFFF if kind == KIND_ESCAPED else 0
            end += 1
            i = skip_space(text, i)
            if byte_at(text, i) == COMMA:
                i = skip_space(text, i + 1)
            elif byte_at(text, i) != CLOSE_ARRAY:
                i = np.int64(-1)
                break
        if i < 0 or byte_at(text, i) != CLOSE_ARRAY:
            counts[row], end = -1, first
        else:
            counts[row] = end - first
    return end, escaped_bytes


MEMBER = np.frombuffer(b'{"":', np.uint8)
LINE_BYTES = MEMBER.size + 2
"""Bytes of a line of `gather_lines` beside the piece of text."""


@compiled
def gather_lines(places: Any, text: Any, out: Any) -> None:
    """Copy pieces of a text, each as the member of an object without a name, in a line."""
    places, text, out = borrowed(places), borrowed(text), borrowed(out)
    end = np.int64(0)
    for row in range(places.size):
        start, length = places[row] >> 32, places[row] & 0xFFFFFFFF
        for k in range(MEMBER.size):
            out[np.uint64(end + k)] = MEMBER[k]
        end += MEMBER.size
        for k in range(length):
            out[np.uint64(end + k)] = text[np.uint64(start + k)]
        out[np.uint64(end + length)] = 0x7D
        out[np.uint64(end + length + 1)] = 0x0A
        end += length + 2


@compiled
def join_elements(truths: Any, counts: Any, decisive: Any, joined: Any) -> None:
    """Write for each array the greatest truth of its elements if TRUE is decisive, else the least.

    The truth of an empty array is the one that is not decisive.
    """
    truths, counts, joined = borrowed(truths), borrowed(counts), borrowed(joined)
    end = np.int64(0)
    for row in range(counts.size):
        truth = np.uint8(0 if decisive != 0 else 2)
        for _ in range(counts[row]):
            other = truths[end]
            truth = max(truth, other) if decisive != 0 else min(truth, other)
            end += 1
        joined[row] = truth
