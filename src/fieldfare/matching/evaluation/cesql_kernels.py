"""Kernels for CESQL's operators, for operands of the expected types."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK
from fieldfare.matching.events.columns import (
    KIND_FALSE,
    KIND_INT,
    KIND_NULL,
    KIND_OTHER,
    KIND_STRING,
    KIND_TRUE,
)
from fieldfare.matching.events.json_bytes import same_bytes

ADD, SUBTRACT, MULTIPLY, DIVIDE, REMAINDER, MINUS, ABSOLUTE = range(7)
_LEAST, _MOST = -(2**31), 2**31 - 1


@inlined
def _fits(word: Any) -> Any:
    return _LEAST <= word <= _MOST


@inlined
def _result(operator: Any, a: Any, b: Any) -> Any:
    """Compute (whether there is a result, the result), before the range check."""
    if operator == ADD:
        return True, a + b
    if operator == SUBTRACT:
        return True, a - b
    if operator == MULTIPLY:
        return True, a * b
    if operator == MINUS:
        return True, -a
    if operator == ABSOLUTE:
        return True, abs(a)
    if b == 0:
        return False, np.int64(0)
    quotient = abs(a) // abs(b)
    if operator == DIVIDE:
        return True, quotient if (a < 0) == (b < 0) else -quotient
    rest = abs(a) - quotient * abs(b)
    return True, -rest if a < 0 else rest


@compiled
def calculate_integers(operator: Any, left: Any, right: Any, kinds: Any, words: Any) -> None:
    """Write an operator's results for 32-bit integers; null for errors."""
    left_kinds, left_words = borrowed(left.kinds), borrowed(left.words)
    right_kinds, right_words = borrowed(right.kinds), borrowed(right.words)
    kinds, words = borrowed(kinds), borrowed(words)
    step, other_step = left.step, right.step
    for row in range(kinds.size):
        j, k = row * step, row * other_step
        kind, other, a, b = left_kinds[j], right_kinds[k], left_words[j], right_words[k]
        kinds[row], words[row] = KIND_NULL, 0
        if kind <= KIND_OTHER or other <= KIND_OTHER:
            continue
        if kind != KIND_INT or other != KIND_INT or not _fits(a) or not _fits(b):
            kinds[row] = KIND_ASK
            continue
        known, result = _result(operator, a, b)
        if known and _fits(result):
            kinds[row], words[row] = KIND_INT, result


@compiled
def equal_values(left: Any, right: Any, kinds: Any) -> None:
    """Write whether values of equal type are equal."""
    left_kinds, left_words, text = borrowed(left.kinds), borrowed(left.words), borrowed(left.text)
    right_kinds, right_words, other_text = borrowed(right.kinds), borrowed(right.words), borrowed(right.text)
    kinds = borrowed(kinds)
    step, other_step = left.step, right.step
    for row in range(kinds.size):
        j, k = row * step, row * other_step
        kind, other, a, b = left_kinds[j], right_kinds[k], left_words[j], right_words[k]
        if kind <= KIND_OTHER or other <= KIND_OTHER:
            kinds[row] = KIND_NULL
        elif kind == KIND_STRING and other == KIND_STRING:
            length = a & 0xFFFFFFFF
            same = length == b & 0xFFFFFFFF and same_bytes(text, a >> 32, other_text, b >> 32, length)
            kinds[row] = KIND_TRUE if same else KIND_FALSE
        elif kind == KIND_INT and other == KIND_INT and _fits(a) and _fits(b):
            kinds[row] = KIND_TRUE if a == b else KIND_FALSE
        elif kind <= KIND_TRUE and other <= KIND_TRUE:
            kinds[row] = KIND_TRUE if kind == other else KIND_FALSE
        else:
            kinds[row] = KIND_ANY


@compiled
def negate_values(given: Any, kinds: Any) -> None:
    """Write the negations of booleans; null for numbers."""
    given_kinds, kinds, step = borrowed(given.kinds), borrowed(kinds), given.step
    for row in range(kinds.size):
        kind = given_kinds[row * step]
        if KIND_FALSE <= kind <= KIND_TRUE:
            kinds[row] = KIND_TRUE if kind == KIND_FALSE else KIND_FALSE
        else:
            kinds[row] = KIND_ANY if kind in (KIND_STRING, KIND_ANY) else KIND_NULL
