"""Substrings, concatenation and search in strings, by columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.filters.functions.table import CHARACTERS_MAX
from fieldfare.matching.evaluation import string_kernels
from fieldfare.matching.evaluation.numbers import step_of
from fieldfare.matching.evaluation.operands import Compute, filled
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.view import NO_WORDS, Values
from fieldfare.matching.events.columns import KIND_STRING

BYTES_MAX = 1 << 26
"""Maximum bytes of the output strings for a view's rows; the rest is left to Python."""

_NO_COUNT = filled(np.full(1, string_kernels.LEFT_OUT, np.uint8), np.zeros(1, np.int64), step=0)


def _cells(size: int) -> tuple[Any, Any]:
    return np.empty(size, np.uint8), np.empty(size, np.int64)


def trimmed(ends: int) -> Compute:
    """Make TRIM(text, characters), LTRIM or RTRIM."""

    def compute(size: int, given: Values, characters: Values) -> Values:
        kinds, words = _cells(size)
        string_kernels.trim_values(given, characters, ends, kinds, words)
        return filled(kinds, words, NO_WORDS, given.text, step_of(given, characters))

    return compute


def cut(part: int) -> Compute:
    """Make SUBSTRING(text, start, count), LEFT(text, count) or RIGHT(text, count)."""

    def compute(size: int, given: Values, first: Values, second: Values = _NO_COUNT) -> Values:
        kinds, words = _cells(size)
        string_kernels.cut_values(part, given, first, second, kinds, words)
        return filled(kinds, words, NO_WORDS, given.text, step_of(given, first, second))

    return compute


def position(size: int, part: Values, given: Values) -> Values:
    """POSITION(part, text)."""
    kinds, words = _cells(size)
    string_kernels.find_values(part, given, kinds, words)
    return filled(kinds, words, step=step_of(part, given))


def searched(test: int) -> Compute:
    """Make STARTS_WITH(text, part) or another test of ``string_kernels``."""

    def compute(size: int, given: Values, part: Values) -> Values:
        kinds: Any = np.empty(size, np.uint8)
        words: Any = np.zeros(size, np.int64)
        string_kernels.search_values(test, given, part, kinds)
        return filled(kinds, words, step=step_of(given, part))

    return compute


def joined(most_characters: int) -> Compute:
    """Make CONCAT(text, ...)."""

    def compute(size: int, *given: Values) -> Values:
        kinds: Any = np.full(size, KIND_STRING, np.uint8)
        sizes: Any = np.zeros(size, np.int64)
        characters: Any = np.zeros(size, np.int64)
        for each in given:
            string_kernels.add_sizes(each, kinds, sizes, characters)
        most, words = np.full(size, most_characters), np.empty(size, np.int64)
        end = string_kernels.place_strings(kinds, sizes, characters, most, BYTES_MAX, words)
        text: Any = np.empty(end, np.uint8)
        ends: Any = words >> 32
        for each in given:
            string_kernels.append_strings(each, kinds, ends, text)
        return filled(kinds, words, NO_WORDS, frozen(text), step_of(*given))

    return compute


def replaced(size: int, given: Values, old: Values, new: Values) -> Values:
    """REPLACE(text, old, new)."""
    kinds, words = _cells(size)
    sizes: Any = np.empty(size, np.int64)
    more: Any = np.empty(size, np.int64)
    lengths: Any = np.zeros(size, np.int64)
    string_kernels.count_replaced(given, old, new, kinds, sizes, more)
    string_kernels.measure_all(given, lengths)
    most = np.maximum(CHARACTERS_MAX, lengths)
    end = string_kernels.place_strings(kinds, sizes, lengths + more, most, BYTES_MAX, words)
    text: Any = np.empty(end, np.uint8)
    string_kernels.write_replaced(given, old, new, kinds, words, text)
    return filled(kinds, words, NO_WORDS, frozen(text), step_of(given, old, new))
