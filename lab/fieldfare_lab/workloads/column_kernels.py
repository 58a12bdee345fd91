"""From predicates in columns to `Gathered`: counted and sorted by row, then written to their places.

A row's predicates are sorted by attribute, so that a predicate finds its place by row and attribute in
every pass, and no permutation is stored: no memory is needed beyond that of the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled
from fieldfare.matching.plain.building.gathering_kernels import CELL, NUMBER, NUMBERS_END, ODD, STRING, intern
from fieldfare.matching.plain.layout import FIRST_NUMBER_CELL

_WHOLE_MAX = 1 << 53


@compiled
def count_predicates(subscription: Any, counts: Any) -> None:
    """Add to the counts of each row's predicates."""
    for i in range(len(subscription)):
        counts[subscription[i]] += 1


@compiled
def place_attributes(subscription: Any, path: Any, rank: Any, cursor: Any, attribute: Any) -> None:
    """Write each predicate's attribute at its row's next place."""
    for i in range(len(subscription)):
        row = subscription[i]
        attribute[cursor[row]] = rank[path[i]]
        cursor[row] += 1


@compiled
def sort_rows(predicate_start: Any, attribute: Any) -> Any:
    """Sort each row's attributes; return the first row with a duplicate attribute, or -1."""
    for row in range(len(predicate_start) - 1):
        start = predicate_start[row]
        for i in range(start + 1, predicate_start[row + 1]):
            moved, j = attribute[i], i
            while j > start and attribute[j - 1] > moved:
                attribute[j] = attribute[j - 1]
                j -= 1
            attribute[j] = moved
            if j > start and attribute[j - 1] == moved:
                return row
    return -1


@compiled
def _place(predicate_start: Any, attribute: Any, row: int, wanted: int) -> Any:
    low, high = predicate_start[row], predicate_start[row + 1]
    while low < high:
        middle = (low + high) >> 1
        if attribute[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def count_pieces(
    subscription: Any,
    path: Any,
    value_start: Any,
    rank: Any,
    predicate_start: Any,
    attribute: Any,
    counts: Any,
) -> None:
    """Write the number of values of each predicate."""
    for i in range(len(subscription)):
        p = _place(predicate_start, attribute, subscription[i], rank[path[i]])
        counts[p] = value_start[i + 1] - value_start[i]


@compiled
def _is_whole_and_large(number: Any) -> Any:
    return number < -_WHOLE_MAX or number > _WHOLE_MAX


@compiled
def write_ranges(
    block: Any,
    rank: Any,
    predicate_start: Any,
    attribute: Any,
    piece_start: Any,
    ends: Any,
    odd: Any,
    dead: Any,
) -> Any:
    """Write the ends of ranges of numbers; return the count of numbers that no float64 represents.

    `block` is (subscription, path, low, high, low_closed, high_closed). For each number that Python must
    read, the end's place, its predicate and which bound it is are written to `odd`, if there is space.
    """
    subscription, path, low, high, low_closed, high_closed = block
    kind, value = ends
    found = 0
    for i in range(len(subscription)):
        row = subscription[i]
        p = _place(predicate_start, attribute, row, rank[path[i]])
        below, above = low[i], high[i]
        closed = low_closed[i % len(low_closed)], high_closed[i % len(high_closed)]
        one_number = below == above and -np.inf < below < np.inf
        dead[row] |= below >= above and not (one_number and closed[0] and closed[1])
        end = 2 * piece_start[p]
        for bound in range(2):
            number = above if bound else below
            side = int(closed[1]) if bound else int(not closed[0])
            if number == -np.inf:
                kind[end], value[end] = CELL, FIRST_NUMBER_CELL
            elif number == np.inf:
                kind[end], value[end] = NUMBERS_END, 0.0
            elif _is_whole_and_large(number):
                kind[end] = ODD + side
                if found < len(odd):
                    odd[found, 0], odd[found, 1], odd[found, 2] = end, i, bound
                found += 1
            else:
                kind[end], value[end] = NUMBER + side, float(number) + 0.0
            end += 1
    return found


@compiled
def write_numbers(
    block: Any,
    rank: Any,
    predicate_start: Any,
    attribute: Any,
    piece_start: Any,
    ends: Any,
    odd: Any,
    dead: Any,
) -> Any:
    """Write the ends of listed numbers; `block` is (subscription, path, value_start, values)."""
    subscription, path, value_start, values = block
    kind, value = ends
    found = 0
    for i in range(len(subscription)):
        p = _place(predicate_start, attribute, subscription[i], rank[path[i]])
        dead[subscription[i]] |= value_start[i + 1] == value_start[i]
        end = 2 * piece_start[p]
        for k in range(value_start[i], value_start[i + 1]):
            for side in range(2):
                if _is_whole_and_large(values[k]):
                    kind[end] = ODD + side
                    if found < len(odd):
                        odd[found, 0], odd[found, 1], odd[found, 2] = end, k, 0
                    found += 1
                else:
                    kind[end], value[end] = NUMBER + side, float(values[k]) + 0.0
                end += 1
    return found


@compiled
def write_strings(
    block: Any,
    rank: Any,
    predicate_start: Any,
    attribute: Any,
    piece_start: Any,
    ends: Any,
    known: Any,
    dead: Any,
) -> None:
    """Write the ends of listed strings; `block` is (subscription, path, value_start, offset, text)."""
    subscription, path, value_start, offset, text = block
    kind, value = ends
    for i in range(len(subscription)):
        wanted = rank[path[i]]
        p = _place(predicate_start, attribute, subscription[i], wanted)
        dead[subscription[i]] |= value_start[i + 1] == value_start[i]
        end = 2 * piece_start[p]
        for k in range(value_start[i], value_start[i + 1]):
            place = intern(known, wanted, text, offset[k], offset[k + 1] - offset[k])
            for side in range(2):
                kind[end], value[end] = STRING + side, float(place)
                end += 1


@compiled
def first_met(attribute: Any, new: Any) -> Any:
    """Number attributes in order of appearance, in place, by `new` (-1: not yet); return the count."""
    count = 0
    for i in range(len(attribute)):
        if new[attribute[i]] < 0:
            new[attribute[i]] = count
            count += 1
        attribute[i] = new[attribute[i]]
    return count
