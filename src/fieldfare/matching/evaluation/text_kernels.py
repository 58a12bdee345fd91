"""The compiled loops over strings: patterns, lengths, and letters of ASCII.

UTF-8's characters never begin inside one another, so a piece of text is found by its bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.evaluation.kernels import KIND_ANY, KIND_ASK
from fieldfare.matching.evaluation.truth import ASK, FALSE, TRUE, UNKNOWN
from fieldfare.matching.events.columns import KIND_INT, KIND_NULL, KIND_STRING
from fieldfare.matching.events.json_bytes import load_part, same_bytes

MOST_PIECE_BYTES = 64
"""Looking for a longer piece is left to Python, which does it in linear time whatever the bytes are."""


@inlined
def _after(text: Any, i: Any, end: Any, pieces: Any, at: Any, length: Any) -> Any:
    """Where the first occurrence of a piece in text[i:end] ends, or -1."""
    head_bytes = min(length, 8)
    head = load_part(pieces, at, head_bytes)
    while i + length <= end:
        if load_part(text, i, head_bytes) == head and (
            length <= 8 or same_bytes(text, i + 8, pieces, at + 8, length - 8)
        ):
            return i + length
        i += 1
    return -1


@compiled
def fit_values(kinds: Any, words: Any, text: Any, pieces: Any, count: Any, truths: Any) -> Any:
    """Whether each string begins with the first piece, ends with the last, and has the others between.

    ``pieces`` (``view.Pieces``) has ``count`` for each row, at least two. Gives how many are ASK.
    """
    kinds, words, text, truths = borrowed(kinds), borrowed(words), borrowed(text), borrowed(truths)
    wanted, starts, owners = borrowed(pieces.text), borrowed(pieces.starts), borrowed(pieces.owners)
    step = pieces.step
    asked = 0
    for row in range(kinds.size):
        if kinds[row] != KIND_STRING:
            truths[row] = ASK if kinds[row] == KIND_ANY else UNKNOWN
            asked += kinds[row] == KIND_ANY
            continue
        truths[row] = FALSE
        start = words[row] >> 32
        end = start + (words[row] & 0xFFFFFFFF)
        first = owners[row * step] * count
        last = first + count - 1
        first_bytes, last_bytes = starts[first + 1] - starts[first], starts[last + 1] - starts[last]
        if end - start < first_bytes + last_bytes:
            continue
        if not same_bytes(text, start, wanted, starts[first], first_bytes):
            continue
        end -= last_bytes
        if not same_bytes(text, end, wanted, starts[last], last_bytes):
            continue
        i = start + first_bytes
        for piece in range(first + 1, last):
            i = _after(text, i, end, wanted, starts[piece], starts[piece + 1] - starts[piece])
            if i < 0:
                break
        if i >= 0:
            truths[row] = TRUE
    return asked


@compiled
def measure_values(kinds: Any, words: Any, text: Any, out_kinds: Any, lengths: Any) -> None:
    """How many characters each string has."""
    kinds, words, text = borrowed(kinds), borrowed(words), borrowed(text)
    out_kinds, lengths = borrowed(out_kinds), borrowed(lengths)
    for row in range(kinds.size):
        lengths[row] = 0
        if kinds[row] != KIND_STRING:
            out_kinds[row] = KIND_ASK if kinds[row] == KIND_ANY else KIND_NULL
            continue
        start = words[row] >> 32
        count = np.int64(0)
        for i in range(start, start + (words[row] & 0xFFFFFFFF)):
            count += (text[np.uint64(i)] & 0xC0) != 0x80
        out_kinds[row], lengths[row] = KIND_INT, count


@compiled
def change_case(
    kinds: Any, words: Any, text: Any, first: Any, out_kinds: Any, out_words: Any, out_text: Any
) -> Any:
    """Write strings with the case of 26 letters changed, from ``first`` (A or a) on: where the text ends.

    A string that is not all ASCII gets the word -1.
    """
    kinds, words, text = borrowed(kinds), borrowed(words), borrowed(text)
    out_kinds, out_words, out_text = borrowed(out_kinds), borrowed(out_words), borrowed(out_text)
    end = np.int64(0)
    for row in range(kinds.size):
        out_words[row] = 0
        if kinds[row] != KIND_STRING:
            out_kinds[row] = KIND_ANY if kinds[row] == KIND_ANY else KIND_NULL
            continue
        out_kinds[row] = KIND_STRING
        start, length = words[row] >> 32, words[row] & 0xFFFFFFFF
        seen = np.uint8(0)
        for k in range(length):
            byte = text[np.uint64(start + k)]
            seen |= byte
            changes = np.uint8(byte - np.uint8(first)) < 26
            out_text[np.uint64(end + k)] = byte ^ np.uint8(0x20 if changes else 0)
        out_words[row] = np.int64(-1) if seen >= 128 else end << 32 | length
        end += length
    return end
