"""The compiled loops over strings: patterns, lengths, and letters of ASCII.

UTF-8's characters never begin inside one another, so a piece of text is found by its bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined, prefetch
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK
from fieldfare.matching.evaluation.truth import ASK, FALSE, TRUE, UNKNOWN
from fieldfare.matching.events.columns import KIND_INT, KIND_NULL, KIND_STRING
from fieldfare.matching.events.json_bytes import load_part, same_bytes

MOST_PIECE_BYTES = 64
"""Looking for a longer piece is left to Python, which does it in linear time whatever the bytes are."""

ONE_BYTE = 0xFF
"""What stands for ONE in a piece: a byte that UTF-8 does not have."""

_AHEAD = 16


@inlined
def fetch_ahead(text: Any, words: Any, row: Any, step: Any) -> None:
    """Ask for the text of a later row: an event's strings are far from those of the one before."""
    place = (row + _AHEAD) * step
    if place < words.size:
        prefetch(text, words[place] >> 32)


@inlined
def find_piece(text: Any, i: Any, end: Any, pieces: Any, at: Any, length: Any) -> Any:
    """Where the first occurrence of a piece in text[i:end] ends, or -1."""
    if length == 0:
        return i
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
        fetch_ahead(text, words, row, 1)
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
            i = find_piece(text, i, end, wanted, starts[piece], starts[piece + 1] - starts[piece])
            if i < 0:
                break
        if i >= 0:
            truths[row] = TRUE
    return asked


@inlined
def _fit_from(text: Any, i: Any, end: Any, pieces: Any, at: Any, length: Any) -> Any:
    """Where a piece with ONEs that stands at text[i] ends, or -1."""
    for k in range(length):
        if i >= end:
            return np.int64(-1)
        wanted = pieces[np.uint64(at + k)]
        if wanted != ONE_BYTE:
            if text[np.uint64(i)] != wanted:
                return np.int64(-1)
            i += 1
        else:
            i += 1
            while i < end and (text[np.uint64(i)] & 0xC0) == 0x80:
                i += 1
    return i


@inlined
def _fit_until(text: Any, start: Any, end: Any, pieces: Any, at: Any, length: Any) -> Any:
    """Where a piece with ONEs that ends at the end begins, or -1."""
    for k in range(length - 1, -1, -1):
        if end <= start:
            return np.int64(-1)
        wanted = pieces[np.uint64(at + k)]
        end -= 1
        if wanted != ONE_BYTE:
            if text[np.uint64(end)] != wanted:
                return np.int64(-1)
        else:
            while end > start and (text[np.uint64(end)] & 0xC0) == 0x80:
                end -= 1
    return end


@inlined
def _find_with_ones(text: Any, i: Any, end: Any, pieces: Any, at: Any, length: Any) -> Any:
    """Where the first occurrence of a piece with ONEs ends, or -1."""
    while True:
        found = _fit_from(text, i, end, pieces, at, length)
        if found >= 0 or i >= end:
            return found
        i += 1
        while i < end and (text[np.uint64(i)] & 0xC0) == 0x80:
            i += 1


@inlined
def _fits_with_ones(text: Any, start: Any, end: Any, wanted: Any, starts: Any, first: Any, count: Any) -> Any:
    """Whether text[start:end] fits pieces, of which a single one must be the whole text."""
    i = _fit_from(text, start, end, wanted, starts[first], starts[first + 1] - starts[first])
    if count == 1 or i < 0:
        return i == end
    last = first + count - 1
    end = _fit_until(text, i, end, wanted, starts[last], starts[last + 1] - starts[last])
    if end < 0:
        return False
    for piece in range(first + 1, last):
        i = _find_with_ones(text, i, end, wanted, starts[piece], starts[piece + 1] - starts[piece])
        if i < 0:
            return False
    return True


@compiled
def fit_with_ones(kinds: Any, words: Any, text: Any, pieces: Any, count: Any, truths: Any) -> Any:
    """The same for pieces in which ``ONE_BYTE`` stands for any character; there may be one only."""
    kinds, words, text, truths = borrowed(kinds), borrowed(words), borrowed(text), borrowed(truths)
    wanted, starts, owners = borrowed(pieces.text), borrowed(pieces.starts), borrowed(pieces.owners)
    step = pieces.step
    asked = 0
    for row in range(kinds.size):
        fetch_ahead(text, words, row, 1)
        if kinds[row] != KIND_STRING:
            truths[row] = ASK if kinds[row] == KIND_ANY else UNKNOWN
            asked += kinds[row] == KIND_ANY
            continue
        start = words[row] >> 32
        end = start + (words[row] & 0xFFFFFFFF)
        first = owners[row * step] * count
        truths[row] = TRUE if _fits_with_ones(text, start, end, wanted, starts, first, count) else FALSE
    return asked


@compiled
def measure_values(kinds: Any, words: Any, text: Any, out_kinds: Any, lengths: Any) -> None:
    """How many characters each string has."""
    kinds, words, text = borrowed(kinds), borrowed(words), borrowed(text)
    out_kinds, lengths = borrowed(out_kinds), borrowed(lengths)
    for row in range(kinds.size):
        fetch_ahead(text, words, row, 1)
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
    kinds: Any, words: Any, text: Any, table: Any, out_kinds: Any, out_words: Any, out_text: Any
) -> Any:
    """Write strings with the case of characters of at most two bytes changed: where the text ends.

    ``table`` has for each character below 0x800 what it becomes, of as many bytes, or -1. A string with
    another character gets the word -1.
    """
    kinds, words, text, table = borrowed(kinds), borrowed(words), borrowed(text), borrowed(table)
    out_kinds, out_words, out_text = borrowed(out_kinds), borrowed(out_words), borrowed(out_text)
    end = np.int64(0)
    for row in range(kinds.size):
        fetch_ahead(text, words, row, 1)
        out_words[row] = 0
        if kinds[row] != KIND_STRING:
            out_kinds[row] = KIND_ANY if kinds[row] == KIND_ANY else KIND_NULL
            continue
        out_kinds[row] = KIND_STRING
        start, length = words[row] >> 32, words[row] & 0xFFFFFFFF
        known, k = True, np.int64(0)
        while k < length:
            byte = np.int64(text[np.uint64(start + k)])
            if byte < 0x80:
                out_text[np.uint64(end + k)] = table[byte]
                k += 1
                continue
            changed = np.int64(-1)
            if byte < 0xE0:
                changed = np.int64(table[(byte & 0x1F) << 6 | (text[np.uint64(start + k + 1)] & 0x3F)])
            if changed < 0:
                known = False
                break
            out_text[np.uint64(end + k)] = 0xC0 | changed >> 6
            out_text[np.uint64(end + k + 1)] = 0x80 | changed & 0x3F
            k += 2
        out_words[row] = end << 32 | length if known else np.int64(-1)
        end += length
    return end


@compiled
def pack_strings(kinds: Any, words: Any, from_other: Any, text: Any, other: Any, out: Any) -> None:
    """Copy the strings of two texts to one, and have their words say where they are in it."""
    kinds, words, from_other = borrowed(kinds), borrowed(words), borrowed(from_other)
    text, other, out = borrowed(text), borrowed(other), borrowed(out)
    end = np.int64(0)
    for row in range(kinds.size):
        if kinds[row] == KIND_STRING:
            start, length = words[row] >> 32, words[row] & 0xFFFFFFFF
            source = other if from_other[row] else text
            for k in range(length):
                out[np.uint64(end + k)] = source[np.uint64(start + k)]
            words[row] = end << 32 | length
            end += length
