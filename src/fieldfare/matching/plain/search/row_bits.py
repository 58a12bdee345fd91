"""Tiles the other way round, for a few events at once: a bit for each row in place of one for each event.

The edges of a tile's column divide the attribute's codes into intervals. For each of these a bitset says
which of the tile's rows an event with a code in there may still match, as far as this column is concerned.
So one event costs a tile one bitset a column, where `tile_kernels` writes tables and looks at every row.

They are in no file: they follow from the tiles, and an index that is only given large batches never needs
them. They are derived from the first small batches on, a few tiles with each, so none waits long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.compiled import compiled
from fieldfare.matching.plain.layout import (
    ALL_LANES,
    BITSET_WORDS,
    FIRST_EDGE,
    NO_LANES,
    Tiles,
    starts_of,
)
from fieldfare.matching.plain.search.vectors import BLOCK, LANES

TILES_AT_ONCE = 8
"""So many tiles are derived with a small batch."""
ROW_BYTES_MAX = 128
"""Where bitsets would take more for each row, there are none: these tiles have many columns of few rows."""
FREE_BYTES = 1 << 20
"""But so many are always allowed."""


class RowBits(NamedTuple):
    """The bitsets of T tiles.

    Those of tile t begin at ``words[start[t]]``, each with ``width[t]`` words. Column by column, a column of
    k edges has k + 1: the first for the codes before its first edge. A tile without columns has one, of all
    its rows.
    """

    start: NDArray[np.int64]
    width: NDArray[np.int64]
    edge: NDArray[np.uint16]  # as in `Tiles`, with room for vector loops behind
    words: NDArray[np.uint64]


def room_for(tiles: Tiles) -> RowBits | None:
    """Row bits of tiles, not yet filled (what is not written takes no memory); None if they are too many."""
    rows = np.diff(tiles.row_start)
    width = -(-rows // LANES) * BITSET_WORDS
    edges = np.diff(tiles.column_edge[tiles.column_start])
    start = starts_of(np.maximum(1, edges + np.diff(tiles.column_start)) * width)
    total = int(start[-1])
    if 8 * total > FREE_BYTES + ROW_BYTES_MAX * int(rows.sum()):
        return None
    words = np.empty(total + BITSET_WORDS, np.uint64)
    aligned = -(words.ctypes.data >> 3) % BITSET_WORDS
    edge = np.concatenate([tiles.edge, np.zeros(BLOCK, np.uint16)])
    return RowBits(start, width, edge, words[aligned : aligned + total])


@compiled
def _columns_of_edges(tiles: Any, t: int, columns: Any) -> None:
    """Write the column of each edge of a tile."""
    first_column, end_column = tiles.column_start[t], tiles.column_start[t + 1]
    first_edge = tiles.column_edge[first_column]
    for c in range(first_column, end_column):
        columns[tiles.column_edge[c] - first_edge : tiles.column_edge[c + 1] - first_edge] = c - first_column


@compiled
def _write_spans(tiles: Any, t: int, spans: Any) -> None:
    """Write for each gate of a tile's sets (first, begin, after): bitsets [begin, after) of a column pass.

    `first` is the column's first bitset. Bitset ``edge + column + 1`` is the first that has reached an edge.
    Gates of a set come in order; where they overlap, the later one is cut. `after` is -1 at the column's end,
    all three are if the set lets everything pass.
    """
    first_column, first_gate = tiles.column_start[t], tiles.set_gate[tiles.set_start[t]]
    first_edge = tiles.column_edge[first_column]
    columns = np.empty(tiles.column_edge[tiles.column_start[t + 1]] - first_edge, np.int64)
    _columns_of_edges(tiles, t, columns)
    for s in range(tiles.set_start[t], tiles.set_start[t + 1]):
        gates, end_gate = tiles.set_gate[s], tiles.set_gate[s + 1]
        column: Any = np.int64(-1)
        whole = False
        for g in range(gates, end_gate):
            opens, shuts = np.int64(tiles.set_gates[g, 0]), np.int64(tiles.set_gates[g, 1])
            whole |= opens == ALL_LANES and shuts == NO_LANES
            if not whole:
                column = columns[(shuts if opens == ALL_LANES else opens) - FIRST_EDGE]
        if whole:
            spans[gates - first_gate : end_gate - first_gate] = -1
            continue
        first = tiles.column_edge[first_column + column] - first_edge + column
        end = tiles.column_edge[first_column + column + 1] - first_edge + column + 1
        passed: Any = first
        for g in range(gates, end_gate):
            opens, shuts = np.int64(tiles.set_gates[g, 0]), np.int64(tiles.set_gates[g, 1])
            begin = max(passed, first if opens == ALL_LANES else opens - FIRST_EDGE + column + 1)
            passed = max(begin, end if shuts == NO_LANES else shuts - FIRST_EDGE + column + 1)
            span = spans[g - first_gate]
            span[0], span[1], span[2] = first, begin, passed if passed < end else -1


@compiled
def _flip_rows(tiles: Any, t: int, spans: Any, width: int, words: Any) -> None:
    """Flip the bits of rows in those bitsets of a column that differ in them from the bitset before.

    Before, each column's first has all rows, and the others none.
    """
    first_gate, first_set = tiles.set_gate[tiles.set_start[t]], tiles.set_start[t]
    first_edge = tiles.column_edge[tiles.column_start[t]]
    edges = tiles.column_edge[tiles.column_start[t + 1]] - first_edge
    row, place = np.int64(0), tiles.row_set_start[t]
    for run in range(tiles.run_start[t], tiles.run_start[t + 1]):
        sets, rows = np.int64(tiles.runs[run, 0]), np.int64(tiles.runs[run, 1])
        for k in range(rows * sets):
            number = np.int64(tiles.row_sets[place + k]) - FIRST_EDGE - edges
            if number < 0:  # ALL_LANES
                continue
            mine = row + k // sets
            word, bit = mine >> 6, np.uint64(1) << np.uint64(mine & 63)
            gates, end_gate = tiles.set_gate[first_set + number], tiles.set_gate[first_set + number + 1]
            if spans[gates - first_gate, 0] < 0:
                continue
            words[spans[gates - first_gate, 0] * width + word] ^= bit
            for g in range(gates - first_gate, end_gate - first_gate):
                words[spans[g, 1] * width + word] ^= bit
                if spans[g, 2] >= 0:
                    words[spans[g, 2] * width + word] ^= bit
        row += rows
        place += rows * sets


@compiled
def _fill_tile(tiles: Any, t: int, width: int, words: Any) -> None:
    """Write a tile's bitsets, of so many words."""
    rows = tiles.row_start[t + 1] - tiles.row_start[t]
    first_column, end_column = tiles.column_start[t], tiles.column_start[t + 1]
    first_edge = tiles.column_edge[first_column]
    words[:] = 0
    for c in range(first_column, max(end_column, first_column + 1)):
        first = (tiles.column_edge[c] - first_edge + c - first_column) * width
        for w in range((rows + 63) >> 6):
            words[first + w] = ~np.uint64(0) >> np.uint64(max(0, 64 * (w + 1) - rows))
    first_gate, end_gate = tiles.set_gate[tiles.set_start[t]], tiles.set_gate[tiles.set_start[t + 1]]
    spans = np.empty((end_gate - first_gate, 3), np.int64)
    _write_spans(tiles, t, spans)
    _flip_rows(tiles, t, spans, width, words)
    for c in range(first_column, end_column):
        first = (tiles.column_edge[c] - first_edge + c - first_column) * width
        end = first + (tiles.column_edge[c + 1] - tiles.column_edge[c] + 1) * width
        for place in range(first + width, end):
            words[place] ^= words[place - width]


@compiled
def fill_row_bits(tiles: Any, first: int, last: int, bits: Any) -> None:
    """Derive the bitsets of tiles [first, last)."""
    for t in range(first, last):
        _fill_tile(tiles, t, bits.width[t], bits.words[bits.start[t] : bits.start[t + 1]])


class RowBitsToCome:
    """The row bits of tiles, once there were enough small batches to derive them."""

    def __init__(self, tiles: Tiles) -> None:
        self._tiles = tiles
        self._filling: RowBits | None = None
        self._filled: RowBits | None = None
        self._next = [0]  # taken out by the thread that derives the next tiles; others do not wait for it

    def get(self) -> RowBits | None:
        """The row bits; or None, but then some more of them are derived."""
        if self._filled is not None:
            return self._filled
        try:
            first = self._next.pop()
        except IndexError:
            return None
        if first == 0:
            self._filling = room_for(self._tiles)
        if self._filling is None:
            return None
        tiles = len(self._filling.width)
        last = min(first + TILES_AT_ONCE, tiles)
        fill_row_bits(self._tiles, first, last, self._filling)
        if last < tiles:
            self._next.append(last)
        else:
            self._filled = self._filling
        return self._filled
