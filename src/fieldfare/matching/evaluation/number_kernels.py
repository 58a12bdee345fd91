"""Kernels for numbers: arithmetic, and functions of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.evaluation.exact_numbers import (
    IS_WHOLE,
    LEAST,
    NOT_WHOLE,
    ROUNDING,
    TINY,
    WHOLE,
    WHOLE_POWERS,
    as_float,
    as_word,
    floor_of,
    fraction_of,
    has_arithmetic,
    is_zero,
    near_for_arithmetic,
    near_of,
    product_of,
    second_of,
    whole_of,
)
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK, KIND_NEAR, KIND_RATIO
from fieldfare.matching.evaluation.text_kernels import fetch_ahead
from fieldfare.matching.events.columns import KIND_EXACT, KIND_FLOAT, KIND_INT, KIND_NULL, KIND_STRING

ADD, SUBTRACT, MULTIPLY, DIVIDE, REMAINDER = 0, 1, 2, 3, 4


@inlined
def _sum(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return a / b + c / d as (numerator, denominator); denominator 0 on overflow."""
    if b != d:
        if b == 1:
            a, fits = product_of(a, d)
            b = d
        elif d == 1:
            c, fits = product_of(c, b)
        elif b < d and d % b == 0:
            a, fits = product_of(a, d // b)
            b = d
        elif d < b and b % d == 0:
            c, fits = product_of(c, b // d)
        else:
            a, fits = product_of(a, d)
            c, also = product_of(c, b)
            b, too = product_of(b, d)
            fits = fits and also and too
        if not fits:
            return np.int64(0), np.int64(0)
    return a + c, b if abs(float(a) + float(c)) < 9.2e18 else np.int64(0)


@inlined
def _remainder(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return a / b % (c / d), with the sign of a, as (numerator, denominator); denominator 0 on overflow."""
    a, fits = product_of(a, d)
    c, also = product_of(c, b)
    b, too = product_of(b, d)
    if not (fits and also and too):
        return np.int64(0), np.int64(0)
    rest = abs(a) % abs(c)
    return -rest if a < 0 else rest, b


@inlined
def _calculate_exactly(operator: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return a / b <operator> c / d as (numerator, denominator); denominator 0 on overflow."""
    if operator == ADD:
        return _sum(a, b, c, d)
    if operator == SUBTRACT:
        return _sum(a, b, -c, d)
    if operator == REMAINDER:
        return _remainder(a, b, c, d)
    if operator == DIVIDE:
        c, d = (d, c) if c > 0 else (-d, -c)
    numerator, fits = product_of(a, c)
    denominator, also = product_of(b, d)
    return numerator, denominator if fits and also else np.int64(0)


@inlined
def _calculate_nearly(operator: Any, a: Any, away: Any, b: Any, other_away: Any) -> Any:
    """Return (a result, its maximum error); infinite or NaN if too little is known."""
    if operator == ADD:
        value, off = a + b, away + other_away
    elif operator == SUBTRACT:
        value, off = a - b, away + other_away
    elif operator == MULTIPLY:
        value, off = a * b, abs(a) * other_away + abs(b) * away + away * other_away
    elif operator == DIVIDE and abs(b) > 2.0 * other_away:
        value = a / b
        off = (away + abs(value) * other_away) / (abs(b) - other_away)
    else:
        return np.nan, np.nan
    return value, (off + abs(value) * ROUNDING) * (1.0 + 16.0 * ROUNDING) + TINY


@inlined
def _calculated(
    operator: Any,
    kind: Any,
    word: Any,
    second: Any,
    other: Any,
    other_word: Any,
    other_second: Any,
    guess: Any,
) -> Any:
    """Return (kind, word, second word) of a result, and the next guess."""
    nothing = np.int64(0)
    if not has_arithmetic(kind, word) or not has_arithmetic(other, other_word):
        return KIND_NULL, nothing, nothing, guess
    if operator >= DIVIDE and is_zero(other, other_word):
        return KIND_NULL, nothing, nothing, guess
    a, b, guess = fraction_of(kind, word, second, guess)
    c, d, guess = fraction_of(other, other_word, other_second, guess)
    if b != 0 and d != 0:
        numerator, denominator = _calculate_exactly(operator, a, b, c, d)
        if denominator == 1:
            return KIND_INT, numerator, nothing, guess
        if denominator != 0:
            return KIND_RATIO, numerator, denominator, guess
    value, away = near_for_arithmetic(kind, word, second)
    other_value, other_away = near_for_arithmetic(other, other_word, other_second)
    value, away = _calculate_nearly(operator, value, away, other_value, other_away)
    if abs(value) < np.inf and away < np.inf:
        return KIND_NEAR, as_word(value), as_word(away), guess
    return KIND_ASK, nothing, nothing, guess


@compiled
def calculate_values(
    operator: Any, nearly: Any, a: Any, b: Any, kinds: Any, words: Any, seconds: Any
) -> None:
    """Write ``a <operator> b`` for each pair of ``Values``: kinds, words, second words.

    Without ``nearly``, inexact results are unknown (KIND_ASK).
    """
    left_kinds, left_words, left_seconds = borrowed(a.kinds), borrowed(a.words), borrowed(a.seconds)
    right_kinds, right_words, right_seconds = borrowed(b.kinds), borrowed(b.words), borrowed(b.seconds)
    kinds, words, seconds = borrowed(kinds), borrowed(words), borrowed(seconds)
    step, other_step = a.step, b.step
    guess = np.int64(2)
    for i in range(kinds.size):
        j, k = i * step, i * other_step
        kind, other = left_kinds[j], right_kinds[k]
        second, other_second = second_of(kind, left_seconds, j), second_of(other, right_seconds, k)
        kinds[i], words[i], seconds[i], guess = _calculated(
            operator, kind, left_words[j], second, other, right_words[k], other_second, guess
        )
        if kinds[i] == KIND_NEAR and not nearly:
            kinds[i] = KIND_ASK


@compiled
def absolute_values(given: Any, kinds: Any, words: Any, seconds: Any) -> None:
    """Write the absolute values of numbers."""
    given_kinds, given_words = borrowed(given.kinds), borrowed(given.words)
    given_seconds, step = borrowed(given.seconds), given.step
    kinds, words, seconds = borrowed(kinds), borrowed(words), borrowed(seconds)
    for i in range(kinds.size):
        kind, word = given_kinds[i * step], given_words[i * step]
        seconds[i] = second_of(kind, given_seconds, i * step)
        if not has_arithmetic(kind, word):
            kind, word = np.uint8(KIND_NULL), np.int64(0)
        elif kind in (KIND_FLOAT, KIND_NEAR):
            word = as_word(abs(as_float(word)))
        elif kind in (KIND_EXACT, KIND_ANY) or word == LEAST:
            kind = np.uint8(KIND_ASK)
        else:
            word = abs(word)
        kinds[i], words[i] = kind, word


@compiled
def keep_numbers(given: Any, kinds: Any) -> None:
    """Write the kinds of numbers; null for other values."""
    given_kinds, given_words = borrowed(given.kinds), borrowed(given.words)
    kinds, step = borrowed(kinds), given.step
    for i in range(kinds.size):
        kind = given_kinds[i * step]
        if not has_arithmetic(kind, given_words[i * step]):
            kind = np.uint8(KIND_NULL)
        kinds[i] = KIND_ASK if kind == KIND_ANY else kind


@compiled
def cast_values(given: Any, least: Any, most: Any, reach: Any, kinds: Any) -> None:
    """Keep values of the kinds ``least`` to ``most``; other values become KIND_ANY, missing ones null.

    Integers outside [-reach - 1, reach] become KIND_ANY, too.
    """
    given_kinds, given_words, step = borrowed(given.kinds), borrowed(given.words), given.step
    kinds = borrowed(kinds)
    for i in range(kinds.size):
        kind = given_kinds[i * step]
        too_large = kind == KIND_INT and not -reach - 1 <= given_words[i * step] <= reach
        if kind <= KIND_NULL:
            kinds[i] = KIND_NULL
        elif kind < least or kind > most or too_large:
            kinds[i] = KIND_ANY
        else:
            kinds[i] = kind


@compiled
def floor_values(given: Any, up: Any, kinds: Any, words: Any) -> None:
    """Write the floors of numbers; with ``up``, their ceilings."""
    given_kinds, given_words = borrowed(given.kinds), borrowed(given.words)
    given_seconds, step = borrowed(given.seconds), given.step
    kinds, words = borrowed(kinds), borrowed(words)
    for i in range(kinds.size):
        kind, word = given_kinds[i * step], given_words[i * step]
        second = second_of(kind, given_seconds, i * step)
        kinds[i], words[i] = KIND_NULL, 0
        if not has_arithmetic(kind, word):
            continue
        known, whole = floor_of(kind, word, second)
        if known and up and kind != KIND_INT:
            if kind in (KIND_FLOAT, KIND_NEAR):
                word = as_word(-as_float(word))
            else:
                word = -word
            known, whole = floor_of(kind, word, second)
            whole = -whole
        kinds[i], words[i] = (KIND_INT, whole) if known else (KIND_ASK, np.int64(0))


@inlined
def _rounded_units(top: Any, bottom: Any, digits: Any) -> Any:
    """Round a positive fraction to `digits` digits: return (whether it is known, number of units in the last
    digit)."""
    power = WHOLE_POWERS[abs(digits)]
    if digits >= 0:
        top, fits = product_of(top, power)
    else:
        bottom, fits = product_of(bottom, power)
    if not fits or float(top) + float(bottom) > 4e18:
        return False, np.int64(0)
    return True, (2 * top + bottom) // (2 * bottom)


@inlined
def _rounded_nearly(value: Any, away: Any, digits: Any) -> Any:
    """Like `_rounded_units`, for a positive number known approximately."""
    power = float(WHOLE_POWERS[abs(digits)])
    units = value * power if digits >= 0 else value / power
    off = (away * power if digits >= 0 else away / power) + units * (8.0 * ROUNDING) + TINY
    low, high = np.floor(units - off + 0.5), np.floor(units + off + 0.5)
    if low == high and high < WHOLE and off < 0.5:
        return True, np.int64(low)
    return False, np.int64(0)


_ROUNDED_DIGITS_MAX = 15


@compiled
def round_values(given: Any, digits: Any, kinds: Any, words: Any, seconds: Any) -> None:
    """Write numbers rounded to a number of digits after the point, half away from zero."""
    given_kinds, given_words = borrowed(given.kinds), borrowed(given.words)
    given_seconds, step = borrowed(given.seconds), given.step
    digit_kinds, digit_words = borrowed(digits.kinds), borrowed(digits.words)
    digit_seconds, digit_step = borrowed(digits.seconds), digits.step
    kinds, words, seconds = borrowed(kinds), borrowed(words), borrowed(seconds)
    guess = np.int64(2)
    for i in range(kinds.size):
        j, k = i * step, i * digit_step
        kind, word = given_kinds[j], given_words[j]
        second = second_of(kind, given_seconds, j)
        digit_second = second_of(digit_kinds[k], digit_seconds, k)
        whole, places = whole_of(digit_kinds[k], digit_words[k], digit_second)
        kinds[i], words[i], seconds[i] = KIND_NULL, 0, 0
        if not has_arithmetic(kind, word) or whole == NOT_WHOLE:
            continue
        kinds[i] = KIND_ASK
        if whole != IS_WHOLE or abs(places) > _ROUNDED_DIGITS_MAX:
            continue
        top, bottom, guess = fraction_of(kind, word, second, guess)
        known, units, is_negative = False, np.int64(0), top < 0
        if bottom != 0:
            known, units = _rounded_units(abs(top), bottom, places)
        if not known:
            value, away = near_of(kind, word, second)
            is_negative = value < 0.0
            known, units = _rounded_nearly(abs(value), away, places)
        if not known:
            continue
        units = -units if is_negative else units
        if places > 0:
            kinds[i], words[i], seconds[i] = KIND_RATIO, units, WHOLE_POWERS[places]
        else:
            word, fits = product_of(units, WHOLE_POWERS[-places])
            if fits:
                kinds[i], words[i] = KIND_INT, word


NUMERAL_BYTES_MAX = 1_000
_SIGNIFICANT_MAX = 10**17


@inlined
def _is_space(byte: Any) -> Any:
    return byte == 0x20 or 9 <= byte <= 13


@inlined
def without_space(text: Any, start: Any, end: Any) -> Any:
    """Return (start, end) of a text without surrounding white space."""
    while start < end and _is_space(text[np.uint64(start)]):
        start += 1
    while start < end and _is_space(text[np.uint64(end - 1)]):
        end -= 1
    return start, end


@inlined
def digits_of(text: Any, i: Any, end: Any, mantissa: Any) -> Any:
    """Return (end of the digits, the mantissa continued by them; -1 if it is too long)."""
    while i < end:
        digit = np.int64(text[np.uint64(i)]) ^ 0x30
        if digit >= 10:
            break
        if mantissa >= _SIGNIFICANT_MAX:
            mantissa = np.int64(-1)
        if mantissa >= 0:
            mantissa = 10 * mantissa + digit
        i += 1
    return i, mantissa


@inlined
def _scaled(mantissa: Any, exponent: Any) -> Any:
    """Return (kind, word, second word) of a positive decimal."""
    if mantissa == 0:
        return KIND_INT, np.int64(0), np.int64(0)
    while exponent < 0 and mantissa % 10 == 0:
        mantissa //= 10
        exponent += 1
    if mantissa > 0 and -18 <= exponent <= 18:
        if exponent < 0:
            return KIND_RATIO, mantissa, WHOLE_POWERS[-exponent]
        word, fits = product_of(mantissa, WHOLE_POWERS[exponent])
        if fits:
            return KIND_INT, word, np.int64(0)
    return KIND_ASK, np.int64(0), np.int64(0)


@inlined
def _numeral(text: Any, start: Any, end: Any) -> Any:
    """Parse a number; return (kind, word, second word), null if the text is not a number."""
    null = (KIND_NULL, np.int64(0), np.int64(0))
    start, end = without_space(text, start, end)
    if start == end:
        return null
    first = text[np.uint64(start)]
    i = start + (first == 0x2B or first == 0x2D)
    point, mantissa = digits_of(text, i, end, np.int64(0))
    count, exponent, i = point - i, np.int64(0), point
    if point < end and text[np.uint64(point)] == 0x2E:
        i, mantissa = digits_of(text, point + 1, end, mantissa)
        exponent = point + 1 - i
        count -= exponent
    if count == 0:
        return null
    if i < end:
        if (text[np.uint64(i)] | 0x20) != 0x65:
            return null
        i += 1
        sign = text[np.uint64(i)] if i < end else np.uint8(0)
        i += sign == 0x2B or sign == 0x2D
        last, power = digits_of(text, i, end, np.int64(0))
        if last != end or not 1 <= last - i <= 4:
            return null
        exponent += -power if sign == 0x2D else power
    kind, word, second = _scaled(mantissa, exponent)
    return kind, -word if first == 0x2D else word, second


@compiled
def read_numbers(given: Any, kinds: Any, words: Any, seconds: Any) -> None:
    """Write numbers unchanged, and texts parsed as numbers."""
    given_kinds, given_words, text = borrowed(given.kinds), borrowed(given.words), borrowed(given.text)
    given_seconds, step = borrowed(given.seconds), given.step
    kinds, words, seconds = borrowed(kinds), borrowed(words), borrowed(seconds)
    for i in range(kinds.size):
        fetch_ahead(text, given_words, i, step)
        kind, word = given_kinds[i * step], given_words[i * step]
        if kind == KIND_STRING:
            start, length = word >> 32, word & 0xFFFFFFFF
            if length <= NUMERAL_BYTES_MAX:
                kinds[i], words[i], seconds[i] = _numeral(text, start, start + length)
            else:
                kinds[i], words[i], seconds[i] = KIND_ASK, 0, 0
            continue
        words[i], seconds[i] = word, second_of(kind, given_seconds, i * step)
        if not has_arithmetic(kind, word):
            kind = np.uint8(KIND_NULL)
        kinds[i] = KIND_ASK if kind == KIND_ANY else kind
