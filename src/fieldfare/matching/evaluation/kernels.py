"""The compiled loops of the evaluation by columns: values in, truth values (``truth``) out.

Beyond the kinds of ``matching.columns`` there are some for computed values. None of the numbers
was rounded unnoticed: what cannot be kept exactly says how far it may be off, and a comparison that
this leaves open is answered by ASK.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.evaluation.truth import ASK, UNKNOWN
from fieldfare.matching.events.columns import (
    KIND_EXACT,
    KIND_FALSE,
    KIND_FLOAT,
    KIND_INT,
    KIND_NULL,
    KIND_STRING,
    KIND_TRUE,
)
from fieldfare.matching.events.json_bytes import load_part

KIND_RATIO = 9
"""A fraction: the word is its numerator, the second word its denominator, which is positive."""
KIND_NEAR = 10
"""A number near the float64 whose bits are the word, at most the float64 of the second word away."""
KIND_ASK = 11
"""A number, or none: only Python can tell."""
KIND_ANY = 12
"""A value of any type, or none: only Python can tell."""
KINDS = 13

LOOK = 4
"""In a table's truth by kind: it depends on the value."""

_LINEAR = 8
_LEAST = -(2**63)
_WHOLE = 2.0**53
_MOST_MANTISSA = 1e15
"""Two decimals of at most 15 digits are never the same float64, so such a one is what it prints as."""
_POWERS = 10.0 ** np.arange(16)
_WHOLE_POWERS = 10 ** np.arange(16)
_ROUNDING = 2.0**-52
_TINY = 1e-300
"""More than what rounding to a subnormal number can be off."""
_SMALL, _LARGE = 1e-30, 1e30
MOST_LEAVES = 100
"""Arithmetic over more numbers is left to Python: it is unknown where a fraction exceeds 32,768 bits.

No float between ``_SMALL`` and ``_LARGE`` has more than 220 as a fraction, and an operation at most adds up
those of its operands.
"""
_BYTE, _SHORT, _WORD = np.uint64(8), np.uint64(16), np.uint64(32)
_BYTES, _SHORTS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)

ADD, SUBTRACT, MULTIPLY, DIVIDE, REMAINDER = 0, 1, 2, 3, 4


@inlined
def as_float(word: Any) -> Any:
    """The float64 whose bits a word is."""
    return np.int64(word).view(np.float64)


@inlined
def as_word(value: Any) -> Any:
    """The bits of a float64."""
    return np.float64(value).view(np.int64)


@inlined
def _reached(thresholds: Any, value: Any) -> Any:
    """How many of the ascending thresholds are at most the value."""
    if thresholds.size <= _LINEAR:
        count = 0
        for k in range(thresholds.size):
            count += value >= thresholds[k]
        return count
    low, high = 0, thresholds.size
    while low < high:
        middle = (low + high) >> 1
        if value >= thresholds[middle]:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def head_of(text: Any, start: Any, length: Any) -> Any:
    """The first eight bytes of a string as a number, so that the order of two is the strings' if unlike."""
    word = load_part(text, start, min(length, 8))
    word = ((word >> _BYTE) & _BYTES) | ((word & _BYTES) << _BYTE)
    word = ((word >> _SHORT) & _SHORTS) | ((word & _SHORTS) << _SHORT)
    return (word >> _WORD) | (word << _WORD)


@inlined
def _order_of_tails(a: Any, i: Any, length: Any, b: Any, j: Any, other_length: Any) -> Any:
    """The order of two strings whose heads are the same."""
    shared = min(length, other_length)
    for k in range(8, shared):
        x, y = a[np.uint64(i + k)], b[np.uint64(j + k)]
        if x != y:
            return -1 if x < y else 1
    return np.int64(length > other_length) - np.int64(length < other_length)


@inlined
def _string_cell(text: Any, word: Any, strings: Any, starts: Any, heads: Any) -> Any:
    """Twice the place of a string among ascending ones; plus one if it is that one, not before it."""
    start, length = word >> 32, word & 0xFFFFFFFF
    head = head_of(text, start, length)
    low, high = 0, heads.size
    while low < high:
        middle = (low + high) >> 1
        if head < heads[middle]:
            high = middle
        elif head > heads[middle]:
            low = middle + 1
        else:
            at = starts[middle]
            order = _order_of_tails(text, start, length, strings, at, starts[middle + 1] - at)
            if order == 0:
                return 2 * middle + 1
            if order < 0:
                high = middle
            else:
                low = middle + 1
    return 2 * low


@compiled
def fill_heads(strings: Any, starts: Any, heads: Any) -> None:
    """The heads of strings that lie one after the other."""
    for i in range(heads.size):
        heads[i] = head_of(strings, starts[i], starts[i + 1] - starts[i])


@compiled
def test_values(kinds: Any, words: Any, text: Any, table: Any, truths: Any) -> Any:
    """The truth of a predicate on one value, for each value; and how many are ASK.

    ``table`` (``tables.Table``) says it by kind, by cell between numbers, and by cell between strings.
    """
    kinds, words, text, truths = borrowed(kinds), borrowed(words), borrowed(text), borrowed(truths)
    by_kind, number_truth = borrowed(table.by_kind), borrowed(table.number_truth)
    whole, real, string_truth = borrowed(table.whole), borrowed(table.real), borrowed(table.string_truth)
    strings, starts, heads = borrowed(table.strings), borrowed(table.starts), borrowed(table.heads)
    asked = 0
    for i in range(kinds.size):
        kind = kinds[i]
        truth = by_kind[kind]
        if truth == LOOK:
            if kind == KIND_INT:
                truth = number_truth[_reached(whole, words[i])]
            elif kind == KIND_FLOAT:
                truth = number_truth[_reached(real, as_float(words[i]))]
            else:
                truth = string_truth[_string_cell(text, words[i], strings, starts, heads)]
        asked += truth == ASK
        truths[i] = truth
    return asked


@inlined
def _is_decimal(size: Any, digits: Any) -> Any:
    """Whether a positive float prints as a decimal of so many digits after the point, and few in all."""
    mantissa = np.rint(size * _POWERS[digits])
    return mantissa < _MOST_MANTISSA and mantissa / _POWERS[digits] == size


@inlined
def _decimal_of(value: Any, guess: Any) -> Any:
    """A float as the decimal it prints as: (numerator, digits after the point), or (0, -1) if it is long.

    ``guess`` is how many digits the one before had: with more digits than needed it is the same number.
    """
    size = abs(value)
    if size >= _MOST_MANTISSA:  # a whole number, since there are no others of this size
        return (np.int64(value), np.int64(0)) if size <= _WHOLE else (np.int64(0), np.int64(-1))
    digits = guess
    if not _is_decimal(size, digits):
        most = 15
        while most > 0 and size * _POWERS[most] >= _MOST_MANTISSA - 0.5:
            most -= 1
        if not _is_decimal(size, most):  # with fewer digits neither
            return np.int64(0), np.int64(-1)
        digits = np.int64(0)
        while not _is_decimal(size, digits):
            digits += 1
    numerator = np.int64(np.rint(size * _POWERS[digits]))
    return -numerator if value < 0.0 else numerator, digits


@inlined
def _fraction(kind: Any, word: Any, denominator: Any, guess: Any) -> Any:
    """(numerator, denominator) of a number; the denominator is 0 if it is not known exactly."""
    if kind == KIND_INT and word != _LEAST:
        return word, np.int64(1), guess
    if kind == KIND_RATIO:
        return word, denominator, guess
    if kind == KIND_FLOAT:
        numerator, digits = _decimal_of(as_float(word), guess)
        if digits >= 0:
            return numerator, _WHOLE_POWERS[digits], digits
    return np.int64(0), np.int64(0), guess


@inlined
def _near(kind: Any, word: Any, second: Any) -> Any:
    """(a float, how far at most the number is away from it); (NaN, NaN) where that is not known."""
    if kind == KIND_INT:
        value = float(word)
        return value, abs(value) * _ROUNDING
    if kind == KIND_FLOAT:
        value = as_float(word)
        return value, abs(value) * _ROUNDING + _TINY  # the number is the decimal that it prints as
    if kind == KIND_RATIO:
        value = float(word) / float(second)
        return value, abs(value) * (4.0 * _ROUNDING)
    if kind == KIND_NEAR:
        return as_float(word), as_float(second)
    return np.nan, np.nan


@inlined
def _near_for_arithmetic(kind: Any, word: Any, second: Any) -> Any:
    """The same, for numbers that are short when written as a fraction; see ``MOST_LEAVES``."""
    if kind == KIND_FLOAT:
        size = abs(as_float(word))
        if size != 0.0 and not _SMALL <= size <= _LARGE:
            return np.nan, np.nan
    return _near(kind, word, second)


@inlined
def _product(a: Any, b: Any) -> Any:
    """(a * b, whether it surely is in the range)."""
    return a * b, abs(float(a) * float(b)) < 9.2e18


@inlined
def _upper_half(a: Any, b: Any) -> Any:
    """The upper 64 bits of the product of two uint64."""
    mask = np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> _WORD, b & mask, b >> _WORD
    cross, other = a_low * b_high, a_high * b_low
    middle = ((a_low * b_low) >> _WORD) + (cross & mask) + (other & mask)
    return a_high * b_high + (cross >> _WORD) + (other >> _WORD) + (middle >> _WORD)


@inlined
def _order_of_fractions(a: Any, b: Any, c: Any, d: Any) -> Any:
    """The order of a / b and c / d, for positive b and d, by products of 128 bits."""
    if b == d:
        return np.int64(a > c) - np.int64(a < c)
    if (a < 0) != (c < 0):
        return np.int64(-1) if a < 0 else np.int64(1)
    left_a, right_c = np.uint64(abs(a)), np.uint64(abs(c))
    b, d = np.uint64(b), np.uint64(d)
    left_high, right_high = _upper_half(left_a, d), _upper_half(right_c, b)
    left_low, right_low = left_a * d, right_c * b
    if left_high != right_high:
        order = np.int64(left_high > right_high) - np.int64(left_high < right_high)
    else:
        order = np.int64(left_low > right_low) - np.int64(left_low < right_low)
    return -order if a < 0 else order


_OPEN = 2
"""No order: it takes more than the kernel knows."""


@inlined
def _order_of_numbers(
    kind: Any, word: Any, second: Any, other_kind: Any, other_word: Any, other_second: Any, guess: Any
) -> Any:
    """(-1, 0, 1, or _OPEN; the next guess)."""
    if kind == KIND_INT and other_kind == KIND_INT:
        return np.int64(word > other_word) - np.int64(word < other_word), guess
    value, away = _near(kind, word, second)
    other_value, other_away = _near(other_kind, other_word, other_second)
    if kind == KIND_FLOAT and other_kind == KIND_FLOAT:
        return np.int64(value > other_value) - np.int64(value < other_value), guess
    if value - other_value > away + other_away:
        return np.int64(1), guess
    if other_value - value > away + other_away:
        return np.int64(-1), guess
    numerator, denominator, guess = _fraction(kind, word, second, guess)
    other_numerator, other_denominator, guess = _fraction(other_kind, other_word, other_second, guess)
    if denominator == 0 or other_denominator == 0:
        return np.int64(_OPEN), guess
    return _order_of_fractions(numerator, denominator, other_numerator, other_denominator), guess


@inlined
def _order_of_strings(text: Any, word: Any, other_text: Any, other_word: Any) -> Any:
    start, length = word >> 32, word & 0xFFFFFFFF
    other_start, other_length = other_word >> 32, other_word & 0xFFFFFFFF
    head, other_head = head_of(text, start, length), head_of(other_text, other_start, other_length)
    if head != other_head:
        return np.int64(head > other_head) - np.int64(head < other_head)
    return _order_of_tails(text, start, length, other_text, other_start, other_length)


@inlined
def _is_number(kind: Any) -> Any:
    return KIND_INT <= kind <= KIND_EXACT or KIND_RATIO <= kind <= KIND_ASK


@inlined
def _second(kind: Any, seconds: Any, i: Any) -> Any:
    """The second word of a number, if its kind has one."""
    return seconds[i] if KIND_RATIO <= kind <= KIND_NEAR else np.int64(0)


@compiled
def compare_values(a: Any, b: Any, accepted: Any, truths: Any) -> Any:
    """The truth of ``a <operator> b`` for each pair of ``Values``; and how many are ASK.

    ``accepted`` is the truth if a is below, equal to, or above b.
    """
    kinds, words, seconds = borrowed(a.kinds), borrowed(a.words), borrowed(a.seconds)
    other_kinds, other_words = borrowed(b.kinds), borrowed(b.words)
    other_seconds, text, other_text = borrowed(b.seconds), borrowed(a.text), borrowed(b.text)
    truths, step, other_step = borrowed(truths), a.step, b.step
    asked = 0
    guess = np.int64(2)
    for i in range(truths.size):
        j, k = i * step, i * other_step
        kind, other = kinds[j], other_kinds[k]
        truth = np.uint8(UNKNOWN)
        if _is_number(kind) and _is_number(other):
            second, other_second = _second(kind, seconds, j), _second(other, other_seconds, k)
            order, guess = _order_of_numbers(
                kind, words[j], second, other, other_words[k], other_second, guess
            )
            truth = np.uint8(ASK) if order == _OPEN else accepted[order + 1]
        elif kind == KIND_STRING and other == KIND_STRING:
            truth = accepted[_order_of_strings(text, words[j], other_text, other_words[k]) + 1]
        elif KIND_FALSE <= kind <= KIND_TRUE and KIND_FALSE <= other <= KIND_TRUE:
            truth = accepted[np.int64(kind > other) - np.int64(kind < other) + 1]
        elif kind == KIND_ANY or other == KIND_ANY:
            truth = np.uint8(ASK)
        asked += truth == ASK
        truths[i] = truth
    return asked


@inlined
def _sum(a: Any, b: Any, c: Any, d: Any) -> Any:
    """a / b + c / d: (numerator, denominator), the latter 0 if they do not fit."""
    if b != d:
        if b < d and d % b == 0:
            a, fits = _product(a, d // b)
            b = d
        elif d < b and b % d == 0:
            c, fits = _product(c, b // d)
        else:
            a, fits = _product(a, d)
            c, also = _product(c, b)
            b, too = _product(b, d)
            fits = fits and also and too
        if not fits:
            return np.int64(0), np.int64(0)
    return a + c, b if abs(float(a) + float(c)) < 9.2e18 else np.int64(0)


@inlined
def _remainder(a: Any, b: Any, c: Any, d: Any) -> Any:
    """a / b % (c / d), with the sign of a: (numerator, denominator), the latter 0 if they do not fit."""
    a, fits = _product(a, d)
    c, also = _product(c, b)
    b, too = _product(b, d)
    if not (fits and also and too):
        return np.int64(0), np.int64(0)
    rest = abs(a) % abs(c)
    return -rest if a < 0 else rest, b


@inlined
def _calculate_exactly(operator: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """a / b <operator> c / d: (numerator, denominator), the latter 0 if they do not fit."""
    if operator == ADD:
        return _sum(a, b, c, d)
    if operator == SUBTRACT:
        return _sum(a, b, -c, d)
    if operator == REMAINDER:
        return _remainder(a, b, c, d)
    if operator == DIVIDE:
        c, d = (d, c) if c > 0 else (-d, -c)
    numerator, fits = _product(a, c)
    denominator, also = _product(b, d)
    return numerator, denominator if fits and also else np.int64(0)


@inlined
def _calculate_nearly(operator: Any, a: Any, away: Any, b: Any, other_away: Any) -> Any:
    """(a result, how far at most it is off); infinite or NaN where too little is known."""
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
    return value, (off + abs(value) * _ROUNDING) * (1.0 + 16.0 * _ROUNDING) + _TINY


@inlined
def _has_arithmetic(kind: Any, word: Any) -> Any:
    if kind == KIND_FLOAT:
        return abs(as_float(word)) < np.inf
    return _is_number(kind) or kind == KIND_ANY


@inlined
def _is_zero(kind: Any, word: Any) -> Any:
    if kind == KIND_FLOAT:
        return as_float(word) == 0.0
    return kind in (KIND_INT, KIND_RATIO) and word == 0


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
    """(kind, word, second word) of a result, and the next guess."""
    nothing = np.int64(0)
    if not _has_arithmetic(kind, word) or not _has_arithmetic(other, other_word):
        return KIND_NULL, nothing, nothing, guess
    if operator >= DIVIDE and _is_zero(other, other_word):
        return KIND_NULL, nothing, nothing, guess
    a, b, guess = _fraction(kind, word, second, guess)
    c, d, guess = _fraction(other, other_word, other_second, guess)
    if b != 0 and d != 0:
        numerator, denominator = _calculate_exactly(operator, a, b, c, d)
        if denominator == 1:
            return KIND_INT, numerator, nothing, guess
        if denominator != 0:
            return KIND_RATIO, numerator, denominator, guess
    value, away = _near_for_arithmetic(kind, word, second)
    other_value, other_away = _near_for_arithmetic(other, other_word, other_second)
    value, away = _calculate_nearly(operator, value, away, other_value, other_away)
    if abs(value) < np.inf and away < np.inf:
        return KIND_NEAR, as_word(value), as_word(away), guess
    return KIND_ASK, nothing, nothing, guess


@compiled
def calculate_values(operator: Any, a: Any, b: Any, kinds: Any, words: Any, seconds: Any) -> None:
    """Write ``a <operator> b`` for each pair of ``Values``: kinds, words, second words."""
    left_kinds, left_words, left_seconds = borrowed(a.kinds), borrowed(a.words), borrowed(a.seconds)
    right_kinds, right_words, right_seconds = borrowed(b.kinds), borrowed(b.words), borrowed(b.seconds)
    kinds, words, seconds = borrowed(kinds), borrowed(words), borrowed(seconds)
    step, other_step = a.step, b.step
    guess = np.int64(2)
    for i in range(kinds.size):
        j, k = i * step, i * other_step
        kind, other = left_kinds[j], right_kinds[k]
        second, other_second = _second(kind, left_seconds, j), _second(other, right_seconds, k)
        kinds[i], words[i], seconds[i], guess = _calculated(
            operator, kind, left_words[j], second, other, right_words[k], other_second, guess
        )


@compiled
def absolute_values(kinds: Any, words: Any, out_kinds: Any, out_words: Any) -> None:
    """Write the numbers without their signs; the second words stay."""
    kinds, words = borrowed(kinds), borrowed(words)
    out_kinds, out_words = borrowed(out_kinds), borrowed(out_words)
    for i in range(kinds.size):
        kind, word = kinds[i], words[i]
        if not _has_arithmetic(kind, word):
            kind, word = np.uint8(KIND_NULL), np.int64(0)
        elif kind in (KIND_FLOAT, KIND_NEAR):
            word = as_word(abs(as_float(word)))
        elif kind in (KIND_EXACT, KIND_ANY) or word == _LEAST:
            kind = np.uint8(KIND_ASK)
        else:
            word = abs(word)
        out_kinds[i], out_words[i] = kind, word


@compiled
def cast_values(kinds: Any, words: Any, least: Any, most: Any, reach: Any, out_kinds: Any) -> None:
    """Keep values whose kind is from ``least`` to ``most``; the rest is null or, if there is one, KIND_ANY.

    Whole numbers are kept from ``-reach - 1`` to ``reach``.
    """
    kinds, words, out_kinds = borrowed(kinds), borrowed(words), borrowed(out_kinds)
    for i in range(kinds.size):
        kind = kinds[i]
        if kind <= KIND_NULL:
            out_kinds[i] = KIND_NULL
        elif kind < least or kind > most or (kind == KIND_INT and not -reach - 1 <= words[i] <= reach):
            out_kinds[i] = KIND_ANY
        else:
            out_kinds[i] = kind
