"""Conversion of cells back to the values they represent, for explanations."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

from fieldfare.filters.values import AFTER, BEFORE, Cut, Ranges, ValueSet
from fieldfare.matching.plain.layout import FIRST_NUMBER_CELL, Arrays


def values_of_codes(arrays: Arrays, attribute: int, first: int, last: int) -> ValueSet:
    """Return the values whose codes are from `first` to `last` (see ``codes``)."""
    shift = int(arrays.dictionary.code_shift[attribute])
    string_cell = int(arrays.dictionary.string_cell[attribute])
    return values_of_cells(
        arrays,
        attribute,
        _cells_of_code(first, shift, string_cell)[0],
        _cells_of_code(last, shift, string_cell)[1],
    )


def values_of_cells(arrays: Arrays, attribute: int, first: int, last: int) -> ValueSet:
    """Return the values whose cells are from `first` to `last` (see ``layout``)."""
    dictionary = arrays.dictionary
    atoms = sum(1 << cell for cell in range(first, min(last + 1, FIRST_NUMBER_CELL)))
    start, end = dictionary.number_start[attribute : attribute + 2].tolist()
    numbers = _ranges(FIRST_NUMBER_CELL, end - start, first, last, lambda i: number_at(arrays, start + i))
    start, end = dictionary.string_start[attribute : attribute + 2].tolist()
    base = int(dictionary.string_cell[attribute])
    strings = _ranges(base, end - start, first, last, lambda i: string_at(arrays, start + i))
    return ValueSet(atoms, numbers, strings)


def number_at(arrays: Arrays, place: int) -> Decimal:
    """Return a numeric constant exactly."""
    dictionary, texts = arrays.dictionary, arrays.texts
    odd = int(np.searchsorted(texts.number_place, place))
    if odd < len(texts.number_place) and texts.number_place[odd] == place:
        text = texts.number_text[texts.number_offset[odd] : texts.number_offset[odd + 1]]
        return Decimal(text.tobytes().decode())
    if dictionary.fraction[place]:
        return Decimal(repr(float(dictionary.near[place])))
    return Decimal(int(dictionary.floor[place]))


def string_at(arrays: Arrays, place: int) -> str:
    """Return a string constant."""
    offsets = arrays.dictionary.string_offset
    raw = arrays.dictionary.string_bytes[offsets[place] : offsets[place + 1]].tobytes()
    return raw.decode("utf-8", "surrogatepass")


def _cells_of_code(code: int, shift: int, string_cell: int) -> tuple[int, int]:
    """Return the first and the last cell of a code."""
    if code < FIRST_NUMBER_CELL:
        return code, code
    string_code = FIRST_NUMBER_CELL + 1 + ((string_cell - 1 - FIRST_NUMBER_CELL) >> shift)
    if code < string_code:
        first = FIRST_NUMBER_CELL + ((code - FIRST_NUMBER_CELL) << shift)
        return first, min(first + (1 << shift), string_cell) - 1
    first = string_cell + ((code - string_code) << shift)
    return first, first + (1 << shift) - 1


def _ranges(base: int, constants: int, first: int, last: int, at: Callable[[int], Any]) -> Ranges:
    """Return the range of a region's cells: the region is a gap, then a point and a gap for each constant."""
    low, high = max(first - base, 0), min(last - base, 2 * constants)
    if low > high:
        return Ranges()
    cuts: list[Cut] = []
    if low > 0:
        cuts.append((at((low - 1) // 2), BEFORE if low & 1 else AFTER))
    if high < 2 * constants:
        cuts.append((at(high // 2), AFTER if high & 1 else BEFORE))
    return Ranges(low == 0, tuple(cuts))
