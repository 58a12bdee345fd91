"""Kernels for SQL casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.evaluation.exact_numbers import (
    ROUNDING,
    WHOLE,
    WHOLE_POWERS,
    as_float,
    fraction_of,
    has_arithmetic,
    is_zero,
    near_of,
    product_of,
    second_of,
)
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK, KIND_NEAR, KIND_RATIO
from fieldfare.matching.evaluation.number_kernels import NUMERAL_BYTES_MAX, digits_of, without_space
from fieldfare.matching.evaluation.text_kernels import fetch_ahead
from fieldfare.matching.events.columns import (
    KIND_EXACT,
    KIND_FALSE,
    KIND_FLOAT,
    KIND_INT,
    KIND_NULL,
    KIND_STRING,
    KIND_TRUE,
)


@inlined
def _cut(kind: Any, word: Any, second: Any) -> Any:
    """Truncate a number towards zero; return (whether the result is known, result)."""
    if kind == KIND_INT:
        return True, word
    if kind == KIND_RATIO:
        whole = word // second
        return True, whole + (whole < 0 and whole * second != word)
    value, away = near_of(kind, word, second)
    away += abs(value) * (4.0 * ROUNDING)
    if kind == KIND_FLOAT:  # below WHOLE a float truncates like the decimal that it prints as
        away = 0.0
    low, high = np.trunc(value - away), np.trunc(value + away)
    if low == high and abs(low) < WHOLE:
        return True, np.int64(low)
    return False, np.int64(0)


@inlined
def _whole_numeral(text: Any, start: Any, end: Any) -> Any:
    """Parse a text of digits only; return (kind, word) of the integer, null if it is not one."""
    start, end = without_space(text, start, end)
    if start == end:
        return KIND_NULL, np.int64(0)
    first = text[np.uint64(start)]
    i = start + (first == 0x2B or first == 0x2D)
    last, whole = digits_of(text, i, end, np.int64(0))
    if last != end or last == i:
        return KIND_NULL, np.int64(0)
    if whole < 0:
        return KIND_ASK, np.int64(0)
    return KIND_INT, -whole if first == 0x2D else whole


@compiled
def cut_values(given: Any, reach: Any, kinds: Any, words: Any) -> None:
    """Write numbers truncated towards zero, and parsed texts; results outside [-reach - 1, reach] are
    null."""
    given_kinds, given_words, text = borrowed(given.kinds), borrowed(given.words), borrowed(given.text)
    given_seconds, step = borrowed(given.seconds), given.step
    kinds, words = borrowed(kinds), borrowed(words)
    for i in range(kinds.size):
        fetch_ahead(text, given_words, i, step)
        kind, word = given_kinds[i * step], given_words[i * step]
        kinds[i], words[i] = KIND_NULL, 0
        if kind == KIND_STRING:
            start, length = word >> 32, word & 0xFFFFFFFF
            kinds[i] = KIND_ASK
            if length <= NUMERAL_BYTES_MAX:
                kinds[i], words[i] = _whole_numeral(text, start, start + length)
        elif KIND_FALSE <= kind <= KIND_TRUE:
            kinds[i], words[i] = KIND_INT, kind == KIND_TRUE
        elif has_arithmetic(kind, word):
            known, whole = _cut(kind, word, second_of(kind, given_seconds, i * step))
            kinds[i], words[i] = (KIND_INT, whole) if known else (KIND_ASK, np.int64(0))
        if kinds[i] == KIND_INT and not -reach - 1 <= words[i] <= reach:
            kinds[i] = KIND_NULL


def _word_of(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(text.encode(), "little"))


_TRUE, _T, _YES, _Y, _ONE = (_word_of(text) for text in ("true", "t", "yes", "y", "1"))
_FALSE, _F, _NO, _N, _ZERO = (_word_of(text) for text in ("false", "f", "no", "n", "0"))
_LONGEST = 5


@inlined
def _truth_of_text(text: Any, start: Any, end: Any) -> Any:
    """Parse a text as a truth value; return its kind, or null."""
    start, end = without_space(text, start, end)
    if end - start > _LONGEST:
        return KIND_NULL
    word = np.uint64(0)
    for i in range(end - 1, start - 1, -1):
        byte = np.uint64(text[np.uint64(i)])
        if byte == 0:
            return KIND_NULL
        if 0x41 <= byte <= 0x5A:  # no character beyond ASCII has one of these as its lowercase letter
            byte |= np.uint64(0x20)
        word = word << np.uint64(8) | byte
    if word in (_TRUE, _T, _YES, _Y, _ONE):
        return KIND_TRUE
    return KIND_FALSE if word in (_FALSE, _F, _NO, _N, _ZERO) else KIND_NULL


@inlined
def _truth_of_number(kind: Any, word: Any, second: Any) -> Any:
    """Return the kind of the truth value "the number is not 0"."""
    if kind in (KIND_EXACT, KIND_ASK, KIND_ANY):
        return KIND_ANY
    if kind == KIND_NEAR:
        return KIND_TRUE if abs(as_float(word)) > as_float(second) else KIND_ANY
    return KIND_FALSE if is_zero(kind, word) else KIND_TRUE


@compiled
def read_truths(given: Any, most_bytes: Any, kinds: Any) -> None:
    """Write truth values unchanged, texts parsed, and for numbers whether they are not 0."""
    given_kinds, given_words, text = borrowed(given.kinds), borrowed(given.words), borrowed(given.text)
    given_seconds, kinds, step = borrowed(given.seconds), borrowed(kinds), given.step
    for i in range(kinds.size):
        fetch_ahead(text, given_words, i, step)
        kind, word = given_kinds[i * step], given_words[i * step]
        kinds[i] = KIND_NULL
        if kind == KIND_STRING:
            start, length = word >> 32, word & 0xFFFFFFFF
            kinds[i] = _truth_of_text(text, start, start + length) if length <= most_bytes else KIND_ANY
        elif KIND_FALSE <= kind <= KIND_TRUE:
            kinds[i] = kind
        elif has_arithmetic(kind, word):
            kinds[i] = _truth_of_number(kind, word, second_of(kind, given_seconds, i * step))


BYTES_MAX = 22
"""Maximum bytes of a number of 19 digits with its sign, a point, and a leading zero."""
_PLACES_MAX = 18


@inlined
def _decimal_of(top: Any, bottom: Any) -> Any:
    """Convert a fraction to a decimal: return (whether it is known, digits, number of digits after the
    point)."""
    places = np.int64(0)
    while places < _PLACES_MAX and WHOLE_POWERS[places] % bottom != 0:
        places += 1
    digits, fits = product_of(top, WHOLE_POWERS[places] // bottom)
    if not fits or WHOLE_POWERS[places] % bottom != 0:
        return False, np.int64(0), np.int64(0)
    while places > 0 and digits % 10 == 0:
        digits //= 10
        places -= 1
    return True, digits, places


@inlined
def _write_decimal(digits: Any, places: Any, out: Any, start: Any) -> Any:
    """Write a number with `places` digits after the point; return the end of the output."""
    rest, ten = np.uint64(-digits if digits < 0 else digits), np.uint64(10)
    count, left = np.int64(1), rest
    while left >= ten:
        left //= ten
        count += 1
    end = start + (digits < 0) + max(count, places + 1) + (places > 0)
    at = end - 1
    for place in range(max(count, places + 1)):
        if place == places and place > 0:
            out[np.uint64(at)] = 0x2E
            at -= 1
        out[np.uint64(at)] = np.uint64(0x30) + rest % ten
        rest //= ten
        at -= 1
    if digits < 0:
        out[np.uint64(start)] = 0x2D
    return end


@compiled
def write_numbers(given: Any, kinds: Any, words: Any, out: Any) -> Any:
    """Write numbers that are short decimals to one text; return its end.

    Other numbers become KIND_ANY, all other values null.
    """
    given_kinds, given_words = borrowed(given.kinds), borrowed(given.words)
    given_seconds, step = borrowed(given.seconds), given.step
    kinds, words, out = borrowed(kinds), borrowed(words), borrowed(out)
    end, guess = np.int64(0), np.int64(2)
    for i in range(kinds.size):
        kind, word = given_kinds[i * step], given_words[i * step]
        kinds[i], words[i] = KIND_NULL, 0
        if not has_arithmetic(kind, word):
            continue
        known, digits, places = kind == KIND_INT, word, np.int64(0)
        if not known:
            second = second_of(kind, given_seconds, i * step)
            top, bottom, guess = fraction_of(kind, word, second, guess)
            if bottom != 0:
                known, digits, places = _decimal_of(top, bottom)
        kinds[i] = KIND_ANY
        if known:
            start, end = end, _write_decimal(digits, places, out, end)
            kinds[i], words[i] = KIND_STRING, start << 32 | end - start
    return end
