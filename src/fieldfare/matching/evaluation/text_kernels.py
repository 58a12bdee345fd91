"""Kernels for strings: patterns, lengths, and changes of case.

UTF-8 characters never begin inside another, so a piece of text can be searched for by bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined, prefetch
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK
from fieldfare.matching.evaluation.truth import ASK, FALSE, TRUE, UNKNOWN
from fieldfare.matching.events.columns import KIND_INT, KIND_NULL, KIND_STRING
from fieldfare.matching.events.json_bytes import load_part, same_bytes

PIECE_BYTES_MAX = 64
"""Maximum bytes of a piece to search for; Python searches for longer ones, in linear time for any input."""

ONE_BYTE = 0xFF
"""Stands for ONE in a piece: a byte that does not occur in UTF-8."""

CASED, IGNORED = 1, 2
"""Characters beside a capital sigma: cased ones make it final or not, the rule ignores others."""
SIGMA = -1_000
"""Stands for a capital sigma in a table of cases, if it has two lower cases."""

_MISSES_MAX = 16
"""Maximum places of a text where only the head of a piece fits; after these it is searched by bits."""

_AHEAD = 16


@inlined
def fetch_ahead(text: Any, words: Any, row: Any, step: Any) -> None:
    """Prefetch the text of a later row: the strings of different events are far apart in memory."""
    place = (row + _AHEAD) * step
    if place < words.size:
        prefetch(text, words[place] >> 32)


@compiled
def _find_by_bits(text: Any, i: Any, end: Any, pieces: Any, at: Any, length: Any) -> Any:
    """Like `find_piece`, in linear time for any text, by Shift-And: bit k: the last k + 1 bytes fit."""
    masks = np.zeros(256, np.uint64)
    for k in range(length):
        masks[pieces[np.uint64(at + k)]] |= np.uint64(1) << np.uint64(k)
    goal, state = np.uint64(1) << np.uint64(length - 1), np.uint64(0)
    while i < end:
        state = (state << np.uint64(1) | np.uint64(1)) & masks[text[np.uint64(i)]]
        i += 1
        if state & goal:
            return i
    return np.int64(-1)


@inlined
def find_piece(text: Any, i: Any, end: Any, pieces: Any, at: Any, length: Any) -> Any:
    """Return the end of the first occurrence of a piece in text[i:end], or -1."""
    if length == 0:
        return i
    head_bytes = min(length, 8)
    head = load_part(pieces, at, head_bytes)
    misses = 0
    while i + length <= end:
        if load_part(text, i, head_bytes) == head:
            if length <= 8 or same_bytes(text, i + 8, pieces, at + 8, length - 8):
                return i + length
            misses += 1
            if misses > _MISSES_MAX:
                return _find_by_bits(text, i + 1, end, pieces, at, length)
        i += 1
    return -1


@compiled
def fit_values(kinds: Any, words: Any, text: Any, pieces: Any, count: Any, truths: Any) -> Any:
    """Write whether each string begins with the first piece, ends with the last, and has the others between.

    ``pieces`` (``view.Pieces``) has ``count`` pieces for each row, at least two. Returns how many rows are
    ASK.
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
    """Return the end of a piece with ONEs that begins at text[i], or -1."""
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
    """Return the start of a piece with ONEs that ends at `end`, or -1."""
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
    """Return the end of the first occurrence of a piece with ONEs, or -1.

    If no ONE is between others, the others are found by themselves, in linear time.
    """
    before, after = np.int64(0), np.int64(0)
    while before < length and pieces[np.uint64(at + before)] == ONE_BYTE:
        before += 1
    while after < length - before and pieces[np.uint64(at + length - 1 - after)] == ONE_BYTE:
        after += 1
    between = before
    while between < length - after and pieces[np.uint64(at + between)] != ONE_BYTE:
        between += 1
    if between == length - after:
        i = _fit_from(text, i, end, pieces, at, before)
        if i >= 0:
            i = find_piece(text, i, end, pieces, at + before, between - before)
        return _fit_from(text, i, end, pieces, at + between, after) if i >= 0 else np.int64(-1)
    while True:
        found = _fit_from(text, i, end, pieces, at, length)
        if found >= 0 or i >= end:
            return found
        i += 1
        while i < end and (text[np.uint64(i)] & 0xC0) == 0x80:
            i += 1


@inlined
def _fits_with_ones(text: Any, start: Any, end: Any, wanted: Any, starts: Any, first: Any, count: Any) -> Any:
    """Whether text[start:end] fits the pieces; a single piece must be the complete text."""
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
    """Like `fit_values`, for pieces in which ``ONE_BYTE`` stands for any character; `count` may be 1."""
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
    """Write the number of characters of each string."""
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


@inlined
def _character(text: Any, i: Any) -> Any:
    """Return a character of several bytes, and its size in bytes."""
    first, second = np.int64(text[np.uint64(i)]), np.int64(text[np.uint64(i + 1)]) & 0x3F
    if first < 0xE0:
        return (first & 0x1F) << 6 | second, np.int64(2)
    third = np.int64(text[np.uint64(i + 2)]) & 0x3F
    if first < 0xF0:
        return (first & 0x0F) << 12 | second << 6 | third, np.int64(3)
    fourth = np.int64(text[np.uint64(i + 3)]) & 0x3F
    return (first & 0x07) << 18 | second << 12 | third << 6 | fourth, np.int64(4)


@inlined
def _write_character(code: Any, out: Any, end: Any) -> Any:
    """Write a character; return the end."""
    if code < 0x80:
        out[np.uint64(end)] = code
        return end + 1
    size = np.int64(2) if code < 0x800 else np.int64(3) if code < 0x10000 else np.int64(4)
    for k in range(size - 1, 0, -1):
        out[np.uint64(end + k)] = 0x80 | code & 0x3F
        code >>= 6
    out[np.uint64(end)] = (0xF00 >> size & 0xFF) | code
    return end + size


@inlined
def _is_cased_beside(text: Any, i: Any, stop: Any, step: Any, context: Any) -> Any:
    """Whether the first character from a byte on, in one direction, that is not ignored is cased."""
    while i != stop:
        byte = np.int64(text[np.uint64(i)])
        if byte & 0xC0 != 0x80:
            code = byte
            if byte >= 0x80:
                code, _ = _character(text, i)
            if context[np.uint64(code)] != IGNORED:
                return context[np.uint64(code)] == CASED
        i += step
    return False


@compiled
def change_case(
    kinds: Any, words: Any, text: Any, table: Any, more: Any, context: Any, out_words: Any, out_text: Any
) -> Any:
    """Write strings with changed case, at most three times as long; return the end of the text.

    ``table`` maps each character to its changed one, or to -1 - row in ``more``, which has the number of
    characters and these; characters beyond it do not change. A capital sigma in ``table``, as SIGMA, becomes
    a final sigma by ``context``: for each character 0, CASED or IGNORED.
    """
    kinds, words, text, table = borrowed(kinds), borrowed(words), borrowed(text), borrowed(table)
    context, out_words, out_text = borrowed(context), borrowed(out_words), borrowed(out_text)
    end = np.int64(0)
    for row in range(kinds.size):
        fetch_ahead(text, words, row, 1)
        out_words[row] = 0
        if kinds[row] != KIND_STRING:
            continue
        start, length = words[row] >> 32, words[row] & 0xFFFFFFFF
        begin, i, stop = end, start, start + length
        while i < stop:
            code, size = np.int64(text[np.uint64(i)]), np.int64(1)
            if code < 0x80:
                changed = np.int64(table[np.uint64(code)])
                if changed >= 0:
                    out_text[np.uint64(end)] = changed
                    end += 1
                    i += 1
                    continue
            else:
                code, size = _character(text, i)
                changed = np.int64(table[np.uint64(code)]) if code < table.size else code
            if changed >= 0:
                end = _write_character(changed, out_text, end)
            elif changed == SIGMA:
                is_final = _is_cased_beside(text, i - 1, start - 1, -1, context)
                is_final = is_final and not _is_cased_beside(text, i + 2, stop, 1, context)
                end = _write_character(np.int64(0x3C2 if is_final else 0x3C3), out_text, end)
            else:
                for k in range(more[-1 - changed, 0]):
                    end = _write_character(np.int64(more[-1 - changed, k + 1]), out_text, end)
            i += size
        out_words[row] = begin << 32 | (end - begin)
    return end


@compiled
def pack_strings(kinds: Any, words: Any, from_other: Any, text: Any, other: Any, out: Any) -> None:
    """Copy the strings of two texts to one, and update their words."""
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
