"""SQL casts by columns (``filters.functions.casts``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.filters.functions.casts import PRECISION_MAX
from fieldfare.filters.functions.table import CHARACTERS_MAX
from fieldfare.matching.evaluation import cast_kernels
from fieldfare.matching.evaluation.kinds import KIND_ASK, KIND_RATIO
from fieldfare.matching.evaluation.numbers import fresh, read, rounded, step_of
from fieldfare.matching.evaluation.operands import Compute, constants, filled, spread
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.values import either
from fieldfare.matching.evaluation.view import NO_WORDS, Values
from fieldfare.matching.events.columns import KIND_FALSE, KIND_INT, KIND_NULL, KIND_STRING, KIND_TRUE

_POWERS = 10 ** np.arange(19)
_WORDS = constants(["false", "true"], 1)


def whole(bits: int) -> Compute:
    """INT(value), BIGINT(value): an integer of `bits` bits."""

    def compute(size: int, given: Values) -> Values:
        kinds, words, _ = fresh(size)
        cast_kernels.cut_values(given, (1 << bits - 1) - 1, kinds, words)
        return filled(kinds, words, step=given.step)

    return compute


def truth(size: int, given: Values) -> Values:
    """BOOLEAN(value)."""
    kinds: Any = np.empty(size, np.uint8)
    cast_kernels.read_truths(given, CHARACTERS_MAX, kinds)
    return filled(kinds, np.zeros(size, np.int64), step=given.step)


def text(size: int, given: Values) -> Values:
    """STRING(value)."""
    kinds, words, _ = fresh(size)
    written: Any = np.empty(size * cast_kernels.BYTES_MAX, np.uint8)
    end = cast_kernels.write_numbers(given, kinds, words, written)
    step, given = given.step, spread(given, size)
    numbers = filled(kinds, words, NO_WORDS, frozen(written[:end].copy()))
    is_truth = (given.kinds == KIND_FALSE) | (given.kinds == KIND_TRUE)
    if is_truth.any():
        numbers = either(is_truth, _WORDS.of((given.kinds == KIND_TRUE).astype(np.int64)), numbers, 1)
    return either(given.kinds == KIND_STRING, given, numbers, step)


def _number(given: Values) -> Values:
    """Convert as NUMBER does, and true to 1, false to 0."""
    found = read(len(given.kinds), given)
    is_truth = (given.kinds == KIND_FALSE) | (given.kinds == KIND_TRUE)
    if not is_truth.any():
        return found
    kinds: Any = np.where(is_truth, np.uint8(KIND_INT), found.kinds)
    words: Any = np.where(is_truth, given.kinds == KIND_TRUE, found.words)
    return filled(kinds, words, found.seconds, found.text, found.step)


def decimal(size: int, given: Values, precision: Values, scale: Values) -> Values:
    """DECIMAL(value, precision, scale)."""
    step, found = step_of(given, precision, scale), rounded(size, _number(given), scale)
    given, precision, scale = (spread(each, size) for each in (given, precision, scale))
    whole_digits = precision.words - scale.words
    is_told = (precision.kinds == KIND_INT) & (scale.kinds == KIND_INT)
    is_told &= (precision.words >= 0) & (precision.words <= PRECISION_MAX) & (whole_digits >= 0)
    bounds = _POWERS[np.clip(whole_digits, 0, 18)]
    seconds = np.where(found.kinds == KIND_RATIO, found.seconds, 1)
    fits = (np.abs(found.words) // seconds < bounds) | (whole_digits > 18)
    kinds: Any = np.where(fits | (found.kinds >= KIND_ASK), found.kinds, np.uint8(KIND_NULL))
    kinds[~is_told & (kinds > KIND_NULL)] = KIND_ASK
    return filled(kinds, found.words, found.seconds, step=step)
