"""Cells of computed numbers: fractions, and numbers known only approximately."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled
from fieldfare.matching.evaluation.exact_numbers import OPEN, near_of, order_of_numbers
from fieldfare.matching.evaluation.kinds import KIND_NEAR, KIND_RATIO
from fieldfare.matching.events.columns import KIND_FLOAT, KIND_INT
from fieldfare.matching.plain.dictionary_kernels import grid_step
from fieldfare.matching.plain.layout import FIRST_NUMBER_CELL
from fieldfare.matching.plain.search.kernels import locate_attribute

_SLACK = 2.0**-49
"""Upper bound of a constant's, and a fraction's, relative distance from its float."""
_TINY = 1e-290
_WHOLE = 2.0**53


@compiled
def locate_computed(
    d: Any, attributes: Any, kinds: Any, words: Any, seconds: Any, text: Any, cells: Any
) -> Any:
    """Write the cells of computed values [D, n] of the given attributes into cells [A, n].

    Returns for each attribute the number of values left at -1, which Python must locate.
    """
    left = np.zeros(len(attributes), np.int64)
    for i in range(len(attributes)):
        a = attributes[i]
        locate_attribute(d, a, kinds[i], words[i], text, cells[a])
        odd = 0
        for e in range(kinds.shape[1]):
            odd += cells[a, e] < 0
        if odd:
            _locate_fractions(d, a, kinds[i], words[i], seconds[i], cells[a])
            for e in range(kinds.shape[1]):
                left[i] += cells[a, e] < 0
    return left


@compiled
def _locate_fractions(d: Any, a: Any, kinds: Any, words: Any, seconds: Any, cells: Any) -> None:
    """Write the cells of fractions and approximate numbers, or -1 where Python is needed.

    Constants that are certainly less are skipped; the few that are close are compared exactly.
    """
    first, last = d.number_start[a], d.number_start[a + 1]
    grid = d.grid[d.grid_start[a] : d.grid_start[a + 1]]
    origin, scale, size = d.grid_origin[a], d.grid_scale[a], len(grid) - 1
    for e in range(len(kinds)):
        kind = kinds[e]
        if kind != KIND_RATIO and kind != KIND_NEAR:
            continue
        value, away = near_of(kind, words[e], seconds[e])
        away = away + abs(value) * _SLACK + _TINY
        low: Any = np.int64(0)
        high: Any = last - first
        least = value - away
        if value - value == 0.0 and away - away == 0.0:  # both are finite
            step = grid_step(least, origin, scale, size)
            low, high = np.int64(grid[step]), np.int64(grid[step + 1])
            while low < high:
                middle = (low + high) >> 1
                if d.near[first + middle] < least:
                    low = middle + 1
                else:
                    high = middle
        cell: Any = np.int64(-1)
        while True:
            if low == last - first or d.near[first + low] > value + away:
                cell = FIRST_NUMBER_CELL + 2 * low
                break
            order = _order(d, first + low, kind, words[e], seconds[e])
            if order == OPEN:
                break
            if order <= 0:
                cell = FIRST_NUMBER_CELL + 2 * low + (order == 0)
                break
            low += 1
        cells[e] = cell


@compiled
def _order(d: Any, place: int, kind: Any, word: Any, second: Any) -> Any:
    """Return the order of a number and a constant, or OPEN."""
    if d.side[place] != 0:
        return OPEN
    if d.fraction[place] == 0:
        if abs(d.near[place]) > _WHOLE:
            return OPEN
        return order_of_numbers(kind, word, second, KIND_INT, d.floor[place], np.int64(0), np.int64(2))[0]
    return order_of_numbers(
        kind, word, second, KIND_FLOAT, d.near[place : place + 1].view(np.int64)[0], np.int64(0), np.int64(2)
    )[0]
