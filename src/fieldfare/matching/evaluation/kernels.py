"""Kernels of evaluation by columns that compute truth values (``truth``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.evaluation.exact_numbers import (
    OPEN,
    ROUNDING,
    TINY,
    as_float,
    is_number,
    near_of,
    order_of_fractions,
    order_of_numbers,
    second_of,
)
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_RATIO
from fieldfare.matching.evaluation.text_kernels import fetch_ahead
from fieldfare.matching.evaluation.truth import ASK, UNKNOWN
from fieldfare.matching.events.columns import KIND_FALSE, KIND_FLOAT, KIND_INT, KIND_STRING, KIND_TRUE
from fieldfare.matching.events.json_bytes import load_part

LOOK = 4
"""Marks a kind in a table's truth by kind: the truth depends on the value."""

_LINEAR = 8
_BYTE, _SHORT, _WORD = np.uint64(8), np.uint64(16), np.uint64(32)
_BYTES, _SHORTS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)


@inlined
def _reached(thresholds: Any, value: Any) -> Any:
    """Return how many of the ascending thresholds are at most the value."""
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
    """Return a string's first eight bytes as a number; if two numbers differ, their order is that of the
    strings."""
    word = load_part(text, start, min(length, 8))
    word = ((word >> _BYTE) & _BYTES) | ((word & _BYTES) << _BYTE)
    word = ((word >> _SHORT) & _SHORTS) | ((word & _SHORTS) << _SHORT)
    return (word >> _WORD) | (word << _WORD)


@inlined
def _order_of_tails(a: Any, i: Any, length: Any, b: Any, j: Any, other_length: Any) -> Any:
    """Return the order of two strings with equal heads."""
    shared = min(length, other_length)
    for k in range(8, shared):
        x, y = a[np.uint64(i + k)], b[np.uint64(j + k)]
        if x != y:
            return -1 if x < y else 1
    return np.int64(length > other_length) - np.int64(length < other_length)


@inlined
def _string_cell(text: Any, word: Any, strings: Any, starts: Any, heads: Any) -> Any:
    """Return twice a string's insertion index among ascending ones, plus one if it is equal to the one
    there."""
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
    """Write the heads of concatenated strings."""
    for i in range(heads.size):
        heads[i] = head_of(strings, starts[i], starts[i + 1] - starts[i])


@inlined
def _cell_of_fraction(
    kind: Any, word: Any, second: Any, real: Any, tops: Any, bottoms: Any, after: Any
) -> Any:
    """Return the cell of a number that is neither int64 nor float64; -1 if the kernel cannot determine it."""
    value, away = near_of(kind, word, second)
    away += abs(value) * (4.0 * ROUNDING) + TINY  # a float's threshold stands for the decimal it prints as
    cell, last = _reached(real, value - away), _reached(real, value + away)
    while cell < last:
        if kind != KIND_RATIO or bottoms[cell] == 0:
            return np.int64(-1)
        if order_of_fractions(word, second, tops[cell], bottoms[cell]) < after[cell]:
            break
        cell += 1
    return np.int64(cell)


@compiled
def test_values(values: Any, table: Any, truths: Any) -> Any:
    """Write the truth of a predicate on one value, for each of ``Values``; return how many are ASK.

    ``table`` (``tables.Table``) gives it by kind, by cell between numbers, and by cell between strings.
    """
    kinds, words, seconds = borrowed(values.kinds), borrowed(values.words), borrowed(values.seconds)
    text, truths = borrowed(values.text), borrowed(truths)
    by_kind, number_truth = borrowed(table.by_kind), borrowed(table.number_truth)
    whole, real, string_truth = borrowed(table.whole), borrowed(table.real), borrowed(table.string_truth)
    tops, bottoms, after = borrowed(table.tops), borrowed(table.bottoms), borrowed(table.after)
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
            elif kind == KIND_STRING:
                truth = string_truth[_string_cell(text, words[i], strings, starts, heads)]
            else:
                cell = _cell_of_fraction(kind, words[i], seconds[i], real, tops, bottoms, after)
                truth = np.uint8(ASK) if cell < 0 else number_truth[cell]
        asked += truth == ASK
        truths[i] = truth
    return asked


@inlined
def _order_of_strings(text: Any, word: Any, other_text: Any, other_word: Any) -> Any:
    start, length = word >> 32, word & 0xFFFFFFFF
    other_start, other_length = other_word >> 32, other_word & 0xFFFFFFFF
    head, other_head = head_of(text, start, length), head_of(other_text, other_start, other_length)
    if head != other_head:
        return np.int64(head > other_head) - np.int64(head < other_head)
    return _order_of_tails(text, start, length, other_text, other_start, other_length)


@compiled
def compare_values(a: Any, b: Any, accepted: Any, truths: Any) -> Any:
    """Write the truth of ``a <operator> b`` for each pair of ``Values``; return how many are ASK.

    ``accepted`` has the truth if a is less than, equal to, or greater than b.
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
        if is_number(kind) and is_number(other):
            second, other_second = second_of(kind, seconds, j), second_of(other, other_seconds, k)
            order, guess = order_of_numbers(
                kind, words[j], second, other, other_words[k], other_second, guess
            )
            truth = np.uint8(ASK) if order == OPEN else accepted[order + 1]
        elif kind == KIND_STRING and other == KIND_STRING:
            fetch_ahead(text, words, i, step)
            fetch_ahead(other_text, other_words, i, other_step)
            truth = accepted[_order_of_strings(text, words[j], other_text, other_words[k]) + 1]
        elif KIND_FALSE <= kind <= KIND_TRUE and KIND_FALSE <= other <= KIND_TRUE:
            truth = accepted[np.int64(kind > other) - np.int64(kind < other) + 1]
        elif kind == KIND_ANY or other == KIND_ANY:
            truth = np.uint8(ASK)
        asked += truth == ASK
        truths[i] = truth
    return asked
