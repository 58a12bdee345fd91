"""Values of any type by columns: choice among values, and equality."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.evaluation import kernels, text_kernels
from fieldfare.matching.evaluation.conditions import accepted
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK
from fieldfare.matching.evaluation.numbers import step_of
from fieldfare.matching.evaluation.operands import Compute, filled, spread
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.truth import ASK, TRUE, UNKNOWN
from fieldfare.matching.evaluation.view import Truths, Values
from fieldfare.matching.events.columns import (
    KIND_FALSE,
    KIND_NULL,
    KIND_OTHER,
    KIND_STRING,
    KIND_TRUE,
    LENGTH_BITS,
    TEXT_BYTES_MAX,
)

_EQUAL = accepted(False, True, False)


def first_value(size: int, first: Values, second: Values) -> Values:
    """COALESCE(first, second)."""
    step, first = step_of(first, second), spread(first, size)
    chosen = either(first.kinds > KIND_NULL, first, spread(second, size), step)
    return _but(chosen, step, {KIND_NULL: chosen.kinds < KIND_NULL, KIND_ANY: _may_be_none(first)})


def case_value(size: int, *operands: Values) -> Values:
    """CASE(condition, value, ..., otherwise)."""
    step = step_of(*operands)
    chosen = spread(operands[-1], size)
    for place in range(len(operands) - 3, -1, -2):
        condition, value = spread(operands[place], size).kinds, spread(operands[place + 1], size)
        chosen = either(condition == KIND_TRUE, value, chosen, step)
        chosen = _but(chosen, step, {KIND_ANY: condition == KIND_ANY})
    return _but(chosen, step, {KIND_NULL: chosen.kinds < KIND_NULL})


def unless_equal(size: int, value: Values, other: Values) -> Values:
    """NULLIF(value, other)."""
    step, equal = step_of(value, other), _compared(size, value, other, _EQUAL)
    value = spread(value, size)
    odd = {KIND_NULL: (equal == TRUE) | (value.kinds < KIND_NULL), KIND_ANY: equal == ASK}
    return _but(value, step, odd)


def same(size: int, left: Values, right: Values) -> Values:
    """EQUAL_NULL(left, right)."""
    step, equal = step_of(left, right), _compared(size, left, right, _EQUAL)
    left, right = spread(left, size), spread(right, size)
    neither = np.maximum(left.kinds, right.kinds) <= KIND_NULL
    kinds: Any = np.where((equal == TRUE) | neither, np.uint8(KIND_TRUE), np.uint8(KIND_FALSE))
    kinds[(equal == ASK) | _may_be_none(left) | _may_be_none(right)] = KIND_ANY
    return filled(kinds, np.zeros(size, np.int64), step=step)


def most(greatest: bool) -> Compute:
    """GREATEST(value, ...), LEAST(value, ...)."""
    beyond = accepted(not greatest, False, greatest)

    def compute(size: int, *given: Values) -> Values:
        step = step_of(*given)
        found = spread(given[0], size)
        unlike, unsure = found.kinds == KIND_OTHER, _may_be_none(found)
        for each in given[1:]:
            value = spread(each, size)
            order = _compared(size, value, found, beyond)
            is_value, has_found = value.kinds > KIND_NULL, found.kinds > KIND_NULL
            compared = is_value & has_found
            unlike = unlike | (value.kinds == KIND_OTHER) | (compared & (order == UNKNOWN))
            unsure = unsure | _may_be_none(value) | (compared & (order == ASK))
            found = either(is_value & (~has_found | (order == TRUE)), value, found, step)
        return _but(found, step, {KIND_NULL: unlike | (found.kinds < KIND_NULL), KIND_ANY: unsure})

    return compute


def _compared(size: int, left: Values, right: Values, wanted: NDArray[np.uint8]) -> Truths:
    truths = np.empty(size, np.uint8)
    kernels.compare_values(left, right, wanted, truths)
    return truths


def _may_be_none(values: Values) -> NDArray[np.bool_]:
    """Return where only Python can tell whether there is a value."""
    doubtful: NDArray[np.bool_] = values.kinds >= KIND_ASK
    return doubtful


def _but(values: Values, step: int, kinds: dict[int, NDArray[np.bool_]]) -> Values:
    """Replace the kinds in some rows; later entries take precedence."""
    changed: Any = values.kinds
    for kind, rows in kinds.items():
        if rows.any():
            changed = np.where(rows, np.uint8(kind), changed)
    return values._replace(kinds=frozen(changed), step=step)


def either(chooses_first: NDArray[np.bool_], first: Values, second: Values, step: int) -> Values:
    """Choose the first value where `chooses_first` is true, else the second."""
    if chooses_first.all():
        return first._replace(step=step)
    kinds: Any = np.where(chooses_first, first.kinds, second.kinds)
    words: Any = np.where(chooses_first, first.words, second.words)
    seconds: Any = np.zeros(0, np.int64)
    if first.seconds.size or second.seconds.size:
        nothing = np.zeros(len(kinds), np.int64)
        sides = [each.seconds if each.seconds.size else nothing for each in (first, second)]
        seconds = np.where(chooses_first, *sides)
    text = first.text
    if second.text is not text:
        strings = kinds == KIND_STRING
        from_second = strings & ~chooses_first
        if not (strings & chooses_first).any():
            text = second.text
        elif from_second.any():
            text = _joined(first.text, second.text, kinds, words, from_second)
    return filled(kinds, words, seconds, text, step)


def _joined(
    text: NDArray[np.uint8], other: NDArray[np.uint8], kinds: Any, words: Any, from_other: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Merge the strings of two texts into one, updating the words; strings that do not fit become
    KIND_ANY."""
    total = int((words[kinds == KIND_STRING] & LENGTH_BITS).sum())
    if total <= text.size + other.size:
        packed: Any = np.empty(total, np.uint8)
        text_kernels.pack_strings(kinds, words, from_other, text, other, packed)
        return frozen(packed)
    if text.size + other.size > TEXT_BYTES_MAX:
        kinds[from_other] = KIND_ANY
        return text
    words[from_other] += text.size << 32
    return frozen(np.concatenate([text, other]))
