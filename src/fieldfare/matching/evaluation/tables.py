"""A predicate on one value as a table: its truth by kind, by cell between numbers and between strings.

The constants of a predicate divide the numbers, and the strings, into cells with one truth each. A cell of
numbers begins at a threshold, one for int64 and one for float64 (which stand for their decimals), so a
value's cell is the number of thresholds that it reaches. Each string constant has two cells: the strings
before it, and itself.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters import values as sets
from fieldfare.filters.exact import float_bounds, whole_bounds
from fieldfare.filters.values import AFTER, BEFORE, Cut, Ranges, ValueSet
from fieldfare.matching.evaluation import kernels
from fieldfare.matching.evaluation.kinds import KIND_NEAR, KIND_RATIO, KINDS
from fieldfare.matching.evaluation.truth import ASK, FALSE, TRUE, UNKNOWN
from fieldfare.matching.events.columns import (
    KIND_EXACT,
    KIND_FALSE,
    KIND_FLOAT,
    KIND_INT,
    KIND_MISSING,
    KIND_NULL,
    KIND_OTHER,
    KIND_STRING,
    KIND_TRUE,
)

A = TypeVar("A", bound=NDArray[Any])

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_ATOMS = {
    KIND_MISSING: sets.MISSING,
    KIND_NULL: sets.NULL,
    KIND_OTHER: sets.OTHER,
    KIND_FALSE: sets.FALSE,
    KIND_TRUE: sets.TRUE,
}


class Table(NamedTuple):
    """The truth of a predicate on one value; see the module."""

    by_kind: NDArray[np.uint8]  # [KINDS]: a truth, or LOOK
    whole: NDArray[np.int64]  # [k]: ascending thresholds of int64; unreachable ones are left out
    real: NDArray[np.float64]  # [k]
    tops: NDArray[np.int64]  # [k]: the constants as fractions, for numbers that are neither int64 nor float64
    bottoms: NDArray[np.int64]  # [k]: 0 for a fraction that does not fit
    after: NDArray[np.int64]  # [k]: 1 if the constant itself lies below the threshold, else 0
    number_truth: NDArray[np.uint8]  # [k + 1]
    strings: NDArray[np.uint8]  # ascending, concatenated
    starts: NDArray[np.int64]  # [s + 1]
    heads: NDArray[np.uint64]  # [s]
    string_truth: NDArray[np.uint8]  # [2 s + 1]


def frozen(array: A) -> A:
    """Make an array read-only, as the kernels are compiled for, and return it."""
    array.flags.writeable = False
    return array


def table_of(true: ValueSet, false: ValueSet) -> Table:
    """Make the table of a predicate that is true and false for the given values, and unknown for others."""
    by_kind = np.full(KINDS, ASK, np.uint8)
    for kind, atom in _ATOMS.items():
        by_kind[kind] = TRUE if true.atoms & atom else FALSE if false.atoms & atom else UNKNOWN
    whole, real, number_truth = _number_cells(true.numbers, false.numbers)
    tops, bottoms, after = _fractions(sorted({*true.numbers.cuts, *false.numbers.cuts}))
    strings, string_truth = _string_cells(true.strings, false.strings)
    numbers_differ, strings_differ = len(number_truth) > 1, len(string_truth) > 1
    for kind in KIND_INT, KIND_FLOAT, KIND_RATIO, KIND_NEAR:
        by_kind[kind] = kernels.LOOK if numbers_differ else number_truth[0]
    if not numbers_differ:
        by_kind[KIND_EXACT] = number_truth[0]
    by_kind[KIND_STRING] = kernels.LOOK if strings_differ else string_truth[0]
    encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
    starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    text = frozen(np.frombuffer(b"".join(encoded), np.uint8))
    heads = np.zeros(len(strings), np.uint64)
    if len(strings):
        kernels.fill_heads(text, frozen(starts), heads)
    for array in (by_kind, whole, real, tops, bottoms, after, number_truth, starts, heads, string_truth):
        array.flags.writeable = False
    numbers = (whole, real, tops, bottoms, after, number_truth)
    return Table(by_kind, *numbers, text, starts, heads, string_truth)


def _truth(in_true: bool, in_false: bool) -> int:
    return TRUE if in_true else FALSE if in_false else UNKNOWN


def _number_cells(
    true: Ranges, false: Ranges
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.uint8]]:
    cuts = sorted({*true.cuts, *false.cuts})
    in_true, in_false = true.starts_inside, false.starts_inside
    true_cuts, false_cuts = set(true.cuts), set(false.cuts)
    whole, real, truths = list[int](), list[float](), [_truth(in_true, in_false)]
    for cut in cuts:
        in_true ^= cut in true_cuts
        in_false ^= cut in false_cuts
        least_whole, least_real = _thresholds(cut)
        whole.append(least_whole)
        real.append(least_real)
        truths.append(_truth(in_true, in_false))
    reachable = [max(threshold, _LEAST) for threshold in whole if threshold <= _MOST]
    return np.array(reachable, np.int64), np.array(real, np.float64), np.array(truths, np.uint8)


def _fractions(cuts: list[Cut]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return ``tops``, ``bottoms`` and ``after`` of a table."""
    fractions = [_fraction(constant) for constant, _ in cuts]
    tops, bottoms = ([each[part] for each in fractions] for part in (0, 1))
    after = [int(side != BEFORE) for _, side in cuts]
    return np.array(tops, np.int64), np.array(bottoms, np.int64), np.array(after, np.int64)


def _fraction(constant: Decimal) -> tuple[int, int]:
    if constant and not -30 <= constant.adjusted() <= 30:
        return 0, 0
    top, bottom = constant.as_integer_ratio()
    return (top, bottom) if abs(top) <= _MOST and bottom <= _MOST else (0, 0)


def _thresholds(cut: Cut) -> tuple[int, float]:
    """Return the least integer and the least float after a cut."""
    constant: Decimal = cut[0]
    whole_floor, whole_ceiling = whole_bounds(constant)
    real_floor, real_ceiling = float_bounds(constant)
    if cut[1] == BEFORE:
        return whole_ceiling, real_ceiling
    return whole_floor + 1, math.nextafter(real_floor, math.inf)


def _string_cells(true: Ranges, false: Ranges) -> tuple[list[str], NDArray[np.uint8]]:
    strings = sorted({string for string, _ in (*true.cuts, *false.cuts)})
    truths = []
    in_true, in_false = true.starts_inside, false.starts_inside
    true_cuts, false_cuts = set(true.cuts), set(false.cuts)
    truths.append(_truth(in_true, in_false))
    for string in strings:
        for side in (BEFORE, AFTER):
            in_true ^= (string, side) in true_cuts
            in_false ^= (string, side) in false_cuts
            truths.append(_truth(in_true, in_false))
    return strings, np.array(truths, np.uint8)
