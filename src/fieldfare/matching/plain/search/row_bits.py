"""Transposed tiles for a few events at a time: bitsets of rows instead of bitsets of events.

The edges of a tile's column divide the attribute's codes into intervals. For each interval a bitset contains
the tile's rows that an event with a code in it may match, as far as this column is concerned. One event thus
costs one bitset per column and tile, whereas `tile_kernels` writes tables and reads every row.

Row bits are not stored in files: they are derived from the tiles, and an index that only receives large
batches never needs them. They are derived during the first small batches, a few tiles at a time, so no batch
waits long.
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

TILES_BATCH_SIZE = 8
"""Tiles for which row bits are derived during one small batch."""
ROW_BYTES_MAX = 128
"""Maximum bytes of row bits per row; with more there are none: such tiles have many columns with few rows."""
FREE_BYTES = 1 << 20
"""Bytes of row bits that are always allowed, in addition."""


class RowBits(NamedTuple):
    """The bitsets of T tiles.

    Those of tile t begin at ``words[start[t]]``, each with ``width[t]`` words. A column of k edges has k + 1
    bitsets: the first for the codes before its first edge. A tile without columns has one, of all its rows.
    """

    start: NDArray[np.int64]
    width: NDArray[np.int64]
    edge: NDArray[np.uint16]  # as in `Tiles`, padded for vector loops
    words: NDArray[np.uint64]


def room_for(tiles: Tiles) -> RowBits | None:
    """Allocate the row bits of tiles (unwritten memory takes no space); return None if they would be too
    large."""
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
    """Write for each gate of a tile's sets (first, begin, after): bitsets [begin, after) of its column pass.

    `first` is the column's first bitset. Bitset ``edge + column + 1`` is the first that has reached an edge.
    The gates of a set are ordered; where they overlap, the later one is shortened. `after` is -1 at the
    column's end; all three are -1 if the set lets everything pass.
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
    """Flip the bits of rows in those bitsets of a column in which they differ from the preceding bitset.

    Initially each column's first bitset contains all rows, and the others none.
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
    """Write a tile's bitsets of `width` words."""
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


class LazyRowBits:
    """The row bits of tiles, available once enough small batches have derived them."""

    def __init__(self, tiles: Tiles) -> None:
        self._tiles = tiles
        self._filling: RowBits | None = None
        self._filled: RowBits | None = None
        self._next = [0]  # empty while a thread derives the next tiles; other threads do not wait for it

    def get(self) -> RowBits | None:
        """Return the row bits, or derive a few more of them and return None unless these were the last."""
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
        last = min(first + TILES_BATCH_SIZE, tiles)
        fill_row_bits(self._tiles, first, last, self._filling)
        if last < tiles:
            self._next.append(last)
        else:
            self._filled = self._filling
        return self._filled
