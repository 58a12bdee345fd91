"""Codes: cells in 16 bits, in the same order, for the vector loops over tiles.

If an attribute has few cells, a code is a cell. Otherwise it is a run of 2**shift adjacent cells; codes never
mix numbers, strings, and other values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.compiled import compiled, inlined
from fieldfare.matching.plain.layout import CODES_MAX, FIRST_NUMBER_CELL


def code_shifts(cell_counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the number of low bits that each attribute's codes omit from its cells."""
    shifts = np.zeros(len(cell_counts), np.int32)
    while (over := (cell_counts >> shifts) + FIRST_NUMBER_CELL + 2 >= CODES_MAX).any():
        shifts[over] += 1
    return shifts


@inlined
def code_of(cell: Any, shift: Any, string_cell: Any) -> Any:
    """Return the code of a cell: a nondecreasing function of the cell."""
    if cell < FIRST_NUMBER_CELL:
        return cell
    if cell < string_cell:
        return FIRST_NUMBER_CELL + ((cell - FIRST_NUMBER_CELL) >> shift)
    return (
        FIRST_NUMBER_CELL
        + 1
        + ((string_cell - 1 - FIRST_NUMBER_CELL) >> shift)
        + ((cell - string_cell) >> shift)
    )


@compiled
def encode(shifts: Any, string_cells: Any, cells: Any, codes: Any) -> None:
    """Write the codes of cells [A, n] to the rows of codes [A + 1, n or more], and the event numbers last."""
    attributes, count = cells.shape
    for a in range(attributes):
        shift, string_cell = shifts[a], string_cells[a]
        for e in range(count):
            codes[a, e] = code_of(cells[a, e], shift, string_cell)
    for e in range(count):
        codes[attributes, e] = e


@inlined
def code_piece(low: Any, high: Any, shift: Any, string_cell: Any, cell_count: Any) -> Any:
    """Return a piece's first code, the code after its last, and whether these are exact.

    They are exact if no other cell has the same code: bit 0 for the first, bit 1 for the last. A piece
    without an upper end has CODES_MAX as the code after its last.
    """
    first = np.int64(code_of(low, shift, string_cell))
    begins = low == 0 or code_of(low - 1, shift, string_cell) != first
    after, ends = np.int64(CODES_MAX), True
    if high + 1 < cell_count:
        after = np.int64(code_of(high, shift, string_cell)) + 1
        ends = code_of(high + 1, shift, string_cell) == after
    return first, after, begins + 2 * ends


@compiled
def piece_codes(dictionary: Any, cell_counts: Any, attributes: Any, lows: Any, highs: Any) -> Any:
    """Return the results of `code_piece` for pieces of attributes, as three arrays."""
    first, after = np.empty(len(lows), np.int32), np.empty(len(lows), np.int32)
    exact = np.empty(len(lows), np.uint8)
    for i in range(len(lows)):
        shift, string_cell = dictionary.code_shift[attributes[i]], dictionary.string_cell[attributes[i]]
        count = cell_counts[attributes[i]]
        first[i], after[i], exact[i] = code_piece(lows[i], highs[i], shift, string_cell, count)
    return first, after, exact


@inlined
def mark_of(cell: Any, shift: Any) -> Any:
    """Return a cell as one byte: a nondecreasing function of the cell, 0 only for a missing value."""
    return (cell + (1 << shift) - 1) >> shift


@compiled
def marks_of(cells: Any, shifts: Any) -> Any:
    """Return the mark of each cell, given each one's shift."""
    marks = np.empty(len(cells), np.int64)
    for i in range(len(cells)):
        marks[i] = mark_of(np.int64(cells[i]), np.int64(shifts[i]))
    return marks
