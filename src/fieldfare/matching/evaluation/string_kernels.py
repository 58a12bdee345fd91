"""Kernels for substrings, concatenation and search in strings.

A character is a code point: each byte that is not a UTF-8 continuation byte begins one. Substrings are not
copied; only concatenated strings are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.evaluation.exact_numbers import IS_WHOLE, NOT_WHOLE, second_of, whole_of
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK
from fieldfare.matching.evaluation.text_kernels import PIECE_BYTES_MAX, fetch_ahead, find_piece
from fieldfare.matching.events.columns import KIND_FALSE, KIND_INT, KIND_NULL, KIND_STRING, KIND_TRUE
from fieldfare.matching.events.json_bytes import same_bytes

LEFT_END, RIGHT_END, BOTH_ENDS = 1, 2, 3
SUBSTRING, LEFT, RIGHT = 0, 1, 2
STARTS, ENDS, CONTAINS, EQUALS_FOLDED, STARTS_FOLDED, ENDS_FOLDED = range(6)

TRIMMED_BYTES_MAX = 24
"""Maximum bytes to trim that each character is compared with; Python looks up more."""
LEFT_OUT = 255
_FAR = 1 << 40
"""More characters than any string has."""


@inlined
def _continues(text: Any, i: Any) -> Any:
    return (text[np.uint64(i)] & 0xC0) == 0x80


@inlined
def _next(text: Any, i: Any, end: Any) -> Any:
    """Return the start of the next character."""
    i += 1
    while i < end and _continues(text, i):
        i += 1
    return i


@inlined
def _before(text: Any, i: Any, start: Any) -> Any:
    """Return the start of the previous character."""
    i -= 1
    while i > start and _continues(text, i):
        i -= 1
    return i


@inlined
def _forward(text: Any, i: Any, end: Any, count: Any) -> Any:
    """Return the offset `count` characters after `i`, or the end."""
    while count > 0 and i < end:
        i = _next(text, i, end)
        count -= 1
    return i


@inlined
def count_characters(text: Any, start: Any, length: Any) -> Any:
    count = np.int64(0)
    for i in range(start, start + length):
        count += not _continues(text, i)
    return count


@inlined
def _no_string(kind: Any, other: Any) -> Any:
    """Return the kind of a result if one of two operands is not a string."""
    if (kind in (KIND_STRING, KIND_ANY)) and (other in (KIND_STRING, KIND_ANY)):
        return np.uint8(KIND_ANY)
    return np.uint8(KIND_NULL)


@inlined
def _is_among(text: Any, i: Any, end: Any, characters: Any, at: Any, length: Any) -> Any:
    """Whether the character text[i:end] occurs in a string."""
    k = np.int64(0)
    while k < length:
        if k + end - i <= length and same_bytes(text, i, characters, at + k, end - i):
            return True
        k += 1
    return False


@compiled
def trim_values(given: Any, characters: Any, ends: Any, kinds: Any, words: Any) -> None:
    """Write strings without the given characters at their ends."""
    given_kinds, given_words, text = borrowed(given.kinds), borrowed(given.words), borrowed(given.text)
    other_kinds, other_words = borrowed(characters.kinds), borrowed(characters.words)
    other, step, other_step = borrowed(characters.text), given.step, characters.step
    kinds, words = borrowed(kinds), borrowed(words)
    for row in range(kinds.size):
        fetch_ahead(text, given_words, row, step)
        kind, word = given_kinds[row * step], given_words[row * step]
        other_kind, other_word = other_kinds[row * other_step], other_words[row * other_step]
        words[row] = 0
        if kind != KIND_STRING or other_kind != KIND_STRING:
            kinds[row] = _no_string(kind, other_kind)
            continue
        start, end = word >> 32, (word >> 32) + (word & 0xFFFFFFFF)
        at, length = other_word >> 32, other_word & 0xFFFFFFFF
        if length > TRIMMED_BYTES_MAX:
            kinds[row] = KIND_ANY
            continue
        while ends & LEFT_END and start < end:
            after = _next(text, start, end)
            if not _is_among(text, start, after, other, at, length):
                break
            start = after
        while ends & RIGHT_END and start < end:
            before = _before(text, end, start)
            if not _is_among(text, before, end, other, at, length):
                break
            end = before
        kinds[row], words[row] = KIND_STRING, start << 32 | (end - start)


@compiled
def cut_values(part: Any, given: Any, first: Any, second: Any, kinds: Any, words: Any) -> None:
    """Write substrings, by numbers of characters.

    ``part`` is SUBSTRING (``first`` is the start, ``second`` the count), LEFT or RIGHT (``first`` is the
    count). The kind LEFT_OUT stands for an omitted count.
    """
    given_kinds, given_words, text = borrowed(given.kinds), borrowed(given.words), borrowed(given.text)
    kinds, words, step = borrowed(kinds), borrowed(words), given.step
    first_kinds, first_words, first_step = borrowed(first.kinds), borrowed(first.words), first.step
    second_kinds, second_words, second_step = borrowed(second.kinds), borrowed(second.words), second.step
    first_seconds, second_seconds = borrowed(first.seconds), borrowed(second.seconds)
    for row in range(kinds.size):
        fetch_ahead(text, given_words, row, step)
        kind, word = given_kinds[row * step], given_words[row * step]
        j, k = row * first_step, row * second_step
        known, number = whole_of(first_kinds[j], first_words[j], second_of(first_kinds[j], first_seconds, j))
        to_the_end = part != SUBSTRING or second_kinds[k] == LEFT_OUT
        also, count = np.int64(IS_WHOLE), np.int64(_FAR)
        if not to_the_end:
            also, count = whole_of(
                second_kinds[k], second_words[k], second_of(second_kinds[k], second_seconds, k)
            )
        words[row], kinds[row] = 0, KIND_NULL
        if known == NOT_WHOLE or also == NOT_WHOLE or kind not in (KIND_STRING, KIND_ANY):
            continue
        if also == IS_WHOLE and count < 0:
            continue
        if part != SUBSTRING and known == IS_WHOLE and number < 0:
            continue
        kinds[row] = KIND_ANY
        if kind == KIND_ANY or known != IS_WHOLE or also != IS_WHOLE or abs(number) > _FAR or count > _FAR:
            continue
        start, end = word >> 32, (word >> 32) + (word & 0xFFFFFFFF)
        if part == LEFT:
            end = _forward(text, start, end, number)
        elif part == RIGHT:
            i = end
            while number > 0 and i > start:
                i = _before(text, i, start)
                number -= 1
            start = i
        else:
            skipped = max(np.int64(0), number - 1)
            start = _forward(text, start, end, skipped)
            if not to_the_end:
                end = _forward(text, start, end, max(np.int64(0), number - 1 + count - skipped))
        kinds[row], words[row] = KIND_STRING, start << 32 | (end - start)


@compiled
def find_values(part: Any, given: Any, kinds: Any, places: Any) -> None:
    """Write the positions, counted from 1, of the first occurrences of parts in strings; 0 for none."""
    given_kinds, given_words, text = borrowed(given.kinds), borrowed(given.words), borrowed(given.text)
    part_kinds, part_words, pieces = borrowed(part.kinds), borrowed(part.words), borrowed(part.text)
    kinds, places, step, part_step = borrowed(kinds), borrowed(places), given.step, part.step
    for row in range(kinds.size):
        fetch_ahead(text, given_words, row, step)
        kind, word = given_kinds[row * step], given_words[row * step]
        part_kind, part_word = part_kinds[row * part_step], part_words[row * part_step]
        places[row] = 0
        if kind != KIND_STRING or part_kind != KIND_STRING:
            kinds[row] = KIND_ASK if _no_string(kind, part_kind) == KIND_ANY else KIND_NULL
            continue
        start, length = word >> 32, part_word & 0xFFFFFFFF
        if length > PIECE_BYTES_MAX:
            kinds[row] = KIND_ASK
            continue
        end = find_piece(text, start, start + (word & 0xFFFFFFFF), pieces, part_word >> 32, length)
        kinds[row] = KIND_INT
        if end >= 0:
            places[row] = count_characters(text, start, end - length - start) + 1


@inlined
def _same_folded(text: Any, i: Any, part: Any, at: Any, length: Any) -> Any:
    """Return (whether the part is ASCII, whether the bytes equal it up to the case of ASCII letters)."""
    same = True
    for k in range(length):
        wanted, byte = part[np.uint64(at + k)], text[np.uint64(i + k)]
        if wanted >= 128:
            return False, False
        letter = np.uint8(wanted | 0x20)
        if byte != wanted and not (0x61 <= letter <= 0x7A and (byte | 0x20) == letter):
            same = False
    return True, same


@inlined
def _all_ascii(part: Any, at: Any, length: Any) -> Any:
    seen = np.uint8(0)
    for k in range(length):
        seen |= part[np.uint64(at + k)]
    return seen < 128


@inlined
def _held(test: Any, text: Any, word: Any, part: Any, part_word: Any) -> Any:
    """Return the kind of a test's truth value; KIND_ANY leaves it to Python."""
    start, size = word >> 32, word & 0xFFFFFFFF
    at, length = part_word >> 32, part_word & 0xFFFFFFFF
    if test == CONTAINS:
        if length > PIECE_BYTES_MAX:
            return np.uint8(KIND_ANY)
        held = find_piece(text, start, start + size, part, at, length) >= 0
        return np.uint8(KIND_TRUE if held else KIND_FALSE)
    if size < length:
        held = False
        if test >= EQUALS_FOLDED and not _all_ascii(part, at, length):
            return np.uint8(KIND_ANY)
    else:
        i = start + size - length if test in (ENDS, ENDS_FOLDED) else start
        if test < EQUALS_FOLDED:
            held = same_bytes(text, i, part, at, length)
        else:
            known, held = _same_folded(text, i, part, at, length)
            if not known:
                return np.uint8(KIND_ANY)
            held = held and (test != EQUALS_FOLDED or size == length)
    return np.uint8(KIND_TRUE if held else KIND_FALSE)


@compiled
def search_values(test: Any, given: Any, part: Any, kinds: Any) -> None:
    """Write whether strings start with, end with, contain or equal parts; some tests ignore case."""
    given_kinds, given_words, text = borrowed(given.kinds), borrowed(given.words), borrowed(given.text)
    part_kinds, part_words, pieces = borrowed(part.kinds), borrowed(part.words), borrowed(part.text)
    kinds, step, part_step = borrowed(kinds), given.step, part.step
    for row in range(kinds.size):
        fetch_ahead(text, given_words, row, step)
        kind, other = given_kinds[row * step], part_kinds[row * part_step]
        if kind == KIND_STRING and other == KIND_STRING:
            kinds[row] = _held(test, text, given_words[row * step], pieces, part_words[row * part_step])
        else:
            kinds[row] = _no_string(kind, other)


@compiled
def add_sizes(given: Any, kinds: Any, sizes: Any, characters: Any) -> None:
    """Add the bytes and characters of strings to the sizes of concatenations; mark those with non-strings."""
    given_kinds, given_words, text = borrowed(given.kinds), borrowed(given.words), borrowed(given.text)
    kinds, sizes, characters, step = borrowed(kinds), borrowed(sizes), borrowed(characters), given.step
    for row in range(kinds.size):
        fetch_ahead(text, given_words, row, step)
        kind, word = given_kinds[row * step], given_words[row * step]
        if kind != KIND_STRING:
            kinds[row] = _no_string(kind, kinds[row])
        elif kinds[row] == KIND_STRING:
            length = word & 0xFFFFFFFF
            sizes[row] += length
            characters[row] += count_characters(text, word >> 32, length)


@compiled
def place_strings(kinds: Any, sizes: Any, characters: Any, most: Any, most_bytes: Any, words: Any) -> Any:
    """Assign each output string its offset, and replace those with too many characters by null.

    ``most`` has the maximum characters of each. Strings that do not fit into ``most_bytes`` are left to
    Python. Returns the number of bytes.
    """
    kinds, sizes, characters = borrowed(kinds), borrowed(sizes), borrowed(characters)
    most, words = borrowed(most), borrowed(words)
    end = np.int64(0)
    for row in range(kinds.size):
        words[row] = 0
        if kinds[row] != KIND_STRING:
            continue
        if characters[row] > most[row]:
            kinds[row] = KIND_NULL
        elif end + sizes[row] > most_bytes:
            kinds[row] = KIND_ANY
        else:
            words[row] = end << 32 | sizes[row]
            end += sizes[row]
    return end


@inlined
def _copy(text: Any, start: Any, length: Any, out: Any, end: Any) -> Any:
    for k in range(length):
        out[np.uint64(end + k)] = text[np.uint64(start + k)]
    return end + length


@compiled
def append_strings(given: Any, kinds: Any, ends: Any, out: Any) -> None:
    """Append strings to the output strings."""
    given_words, text, step = borrowed(given.words), borrowed(given.text), given.step
    kinds, ends, out = borrowed(kinds), borrowed(ends), borrowed(out)
    for row in range(kinds.size):
        if kinds[row] == KIND_STRING:
            word = given_words[row * step]
            ends[row] = _copy(text, word >> 32, word & 0xFFFFFFFF, out, ends[row])


@compiled
def measure_all(given: Any, lengths: Any) -> None:
    """Write the number of characters of each string; 0 for other values."""
    given_kinds, given_words, text = borrowed(given.kinds), borrowed(given.words), borrowed(given.text)
    lengths, step = borrowed(lengths), given.step
    for row in range(lengths.size):
        fetch_ahead(text, given_words, row, step)
        word = given_words[row * step]
        is_string = given_kinds[row * step] == KIND_STRING
        lengths[row] = count_characters(text, word >> 32, word & 0xFFFFFFFF) if is_string else 0


@compiled
def count_replaced(given: Any, old: Any, new: Any, kinds: Any, sizes: Any, characters: Any) -> None:
    """Write the sizes of strings after replacing a part: in bytes, and the increase in characters."""
    given_kinds, given_words, text = borrowed(given.kinds), borrowed(given.words), borrowed(given.text)
    old_kinds, old_words, old_text = borrowed(old.kinds), borrowed(old.words), borrowed(old.text)
    new_kinds, new_words, new_text = borrowed(new.kinds), borrowed(new.words), borrowed(new.text)
    kinds, sizes, characters = borrowed(kinds), borrowed(sizes), borrowed(characters)
    step, old_step, new_step = given.step, old.step, new.step
    for row in range(kinds.size):
        fetch_ahead(text, given_words, row, step)
        i, j, k = row * step, row * old_step, row * new_step
        kind, part, other = given_kinds[i], old_kinds[j], new_kinds[k]
        sizes[row], characters[row] = 0, 0
        if kind != KIND_STRING or part != KIND_STRING or other != KIND_STRING:
            kinds[row] = _no_string(_no_string(kind, part), other)
            continue
        start, size = given_words[i] >> 32, given_words[i] & 0xFFFFFFFF
        at, length = old_words[j] >> 32, old_words[j] & 0xFFFFFFFF
        put, other_length = new_words[k] >> 32, new_words[k] & 0xFFFFFFFF
        if length > PIECE_BYTES_MAX:
            kinds[row] = KIND_ANY
            continue
        count, place, end = np.int64(0), start, start + size
        while length > 0:
            place = find_piece(text, place, end, old_text, at, length)
            if place < 0:
                break
            count += 1
        longer = count_characters(new_text, put, other_length) - count_characters(old_text, at, length)
        kinds[row] = KIND_STRING
        sizes[row] = size + count * (other_length - length)
        characters[row] = count * longer  # increase compared to the text


@compiled
def write_replaced(given: Any, old: Any, new: Any, kinds: Any, words: Any, out: Any) -> None:
    """Write strings with one part replaced by another."""
    given_words, text = borrowed(given.words), borrowed(given.text)
    old_words, old_text = borrowed(old.words), borrowed(old.text)
    new_words, new_text = borrowed(new.words), borrowed(new.text)
    kinds, words, out = borrowed(kinds), borrowed(words), borrowed(out)
    step, old_step, new_step = given.step, old.step, new.step
    for row in range(kinds.size):
        if kinds[row] != KIND_STRING:
            continue
        word, part, other = (
            given_words[row * step],
            old_words[row * old_step],
            new_words[row * new_step],
        )
        at, length = part >> 32, part & 0xFFFFFFFF
        place, stop = word >> 32, (word >> 32) + (word & 0xFFFFFFFF)
        end = words[row] >> 32
        while length > 0:
            after = find_piece(text, place, stop, old_text, at, length)
            if after < 0:
                break
            end = _copy(text, place, after - length - place, out, end)
            end = _copy(new_text, other >> 32, other & 0xFFFFFFFF, out, end)
            place = after
        _copy(text, place, stop - place, out, end)
