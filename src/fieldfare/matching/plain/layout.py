"""The flat arrays of a part, as written to its file, memory-mapped, and read by the kernels.

Every attribute of a part has a dictionary of the constants that its filters compare it with. The constants
divide the axis of all values (see ``filters.values``) into *cells*, small integers::

    missing null other false true | gap c0 gap c1 gap ... gap | gap s0 gap s1 ... gap
       0     1     2     3    4      5   6  7   8  9             numbers, then strings

A predicate on one attribute is therefore a few intervals of cells, and matching only compares integers. A
*row* is one conjunction of a subscription's normal form. A row is found in one of three ways, chosen by cost
when the part is built:

* `Access`: by a table from the cells of one to four attributes to the few rows that require these cells.
* `Needles`: by a text that a string must contain, searched for in the strings of events.
* `Tiles`: together with up to 2,047 other rows in a tile. `zones` are intervals that all rows of the tile
  share, so most events skip the tile. The remaining events are the bits of bitsets: one for each *edge*, a
  place on an attribute's axis, contains the events that lie at it or beyond. A predicate is then a *set*: the
  bitset of its lower edge minus that of its upper edge, or a union of such differences; rows share sets. A
  row is the conjunction of its sets, for 512 events at a time. Edges are placed on *codes*, cells in 16 bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FIRST_POINT_CELL = 2
"""The first cell that a key's table may contain: most events lack most attributes."""
FIRST_NUMBER_CELL = 5
CODES_MAX = 1 << 16
"""Maximum codes per attribute. A code is a cell, or, with more cells, a run of adjacent cells."""
TILE_ROWS_MAX = 2048
MARKS_MAX = 256

ALL_LANES, NO_LANES = 0, 1
"""The first two bitsets of a tile: all its events, and none."""
FIRST_EDGE = 2
"""The index of a tile's first edge among its bitsets; its sets follow its edges."""
BITSETS_MAX = 1 << 16
"""Maximum bitsets per tile; a predicate without a set is checked row by row."""
BITSET_WORDS = 8

EXACT, SIMPLE, ALTERNATIVES = 0, 1, 2
"""How a row is decided: by its sets alone, by checking that all its pieces hold, or by checking pieces of
which some are alternatives."""

MORE_ALTERNATIVES = 1 << 30
"""Added to a piece's attribute if the next piece is another interval of the same predicate."""


class Dictionary(NamedTuple):
    """The constants of A attributes; those of attribute a are [start[a], start[a + 1]) of the flat arrays.

    A numeric constant is stored as its nearest float64, its side (-1, 0, 1) of the decimal that this float
    prints as, its floor, and whether it has a fraction: enough to compare it exactly with any int64 or
    float64. `grid` divides an attribute's range evenly, so that a search starts near its end. Strings are
    found by a hash table, and, where their order matters and a value is not a constant, by binary search.
    """

    number_start: NDArray[np.int64]
    near: NDArray[np.float64]
    side: NDArray[np.int8]
    floor: NDArray[np.int64]
    fraction: NDArray[np.uint8]
    in_range: NDArray[np.int64]  # [A, 2]: the constants whose floor fits int64
    grid_start: NDArray[np.int64]
    grid: NDArray[np.int32]
    grid_origin: NDArray[np.float64]
    grid_scale: NDArray[np.float64]
    string_start: NDArray[np.int64]
    string_offset: NDArray[np.int64]
    string_bytes: NDArray[np.uint8]
    hash_start: NDArray[np.int64]
    hash_slot: NDArray[np.int32]  # a string's index among its attribute's, or -1
    strings_ordered: NDArray[np.uint8]  # whether matching depends on the gap that a string lies in
    string_cell: NDArray[np.int32]  # the first cell of an attribute's strings
    code_shift: NDArray[np.int32]  # the number of a cell's low bits omitted from its code


class Rows(NamedTuple):
    """R conjunctions: each a list of pieces (attribute, first cell, last cell) that must all hold.

    The rows of tiles come first, in the order of tiles.

    `subscription` is the row's subscription s, or ~s if the filter itself must confirm a match.
    """

    piece_start: NDArray[np.int64]
    pieces: NDArray[np.int32]  # [P, 3]
    subscription: NDArray[np.int32]


class Access(NamedTuple):
    """Rows by an event's cells of a few attributes: X *keys*, each with a table of rows.

    Key x has the attributes ``attribute[key_start[x] : key_start[x + 1]]``, one to four. An event's cells c
    select the slot ``(sum(multiplier * (c >> 1)) & mask[x]) >> shift[x]`` of its table, and so the entries
    from ``table[s]`` to ``table[s + 1]`` with s = ``table_start[x] + slot``. A point and an adjacent gap
    share a slot (of two adjacent cells, one is not a single value), and so do other cells if there are more
    than slots; entry i is therefore only a candidate, the row ``row[i]``. ``check[i]`` is one condition of
    the row, used to reject it without reading it: an attribute (16 bits), its first and its last *mark* (8
    bits each). Marks are cells in one byte, in the same order, without the lowest `mark_shift` bits.
    """

    key_start: NDArray[np.int64]
    attribute: NDArray[np.int32]
    multiplier: NDArray[np.int64]
    mask: NDArray[np.int64]
    shift: NDArray[np.int64]
    table_start: NDArray[np.int64]
    table: NDArray[np.int32]
    mark_shift: NDArray[np.int32]
    check: NDArray[np.uint32]
    row: NDArray[np.int32]


class Needles(NamedTuple):
    """Rows by a text that a string must contain: G *groups*, each with the needles of an attribute, N in all.

    Group g searches for its needles in the string as it is, or casefolded (`folded`). Each needle is stored
    under one of its *grams*: bytes at some offset, as many as one of the group's `size`s. The gram's hash has
    a bit in the group's `bits` (2 to the power `bits_width[g]`, from ``bits_start[g]``) and a slot: the
    entries from ``slot[s]`` to ``slot[s + 1]`` with s = ``slot_start[g]`` + its upper `slot_width[g]` bits.
    An entry is a needle::

        offset in text (32 bits) | bytes (8) | offset of the gram (8) | ends, begins (1, 1) | hash (14)

    and has the rows from ``row_start[entry]`` to ``row_start[entry + 1]``; ``check[i]`` is one condition of
    ``row[i]``, as in `Access`.
    """

    attribute: NDArray[np.int32]
    folded: NDArray[np.uint8]
    size_start: NDArray[np.int64]
    size: NDArray[np.uint8]
    bits_start: NDArray[np.int64]
    bits_width: NDArray[np.uint8]
    bits: NDArray[np.uint8]
    slot_start: NDArray[np.int64]
    slot_width: NDArray[np.uint8]
    slot: NDArray[np.int32]
    entry: NDArray[np.int64]
    text: NDArray[np.uint8]
    row_start: NDArray[np.int32]
    row: NDArray[np.int32]
    check: NDArray[np.uint32]


class Tiles(NamedTuple):
    """T tiles; tile t has rows [row_start[t], row_start[t + 1]) of `Rows`.

    Its bitsets are: all of its events, none, one for each of its edges, and one for each of its *sets*
    [set_start[t], set_start[t + 1]): the events that pass one of the set's gates. A gate (open, shut) names
    two bitsets: an event passes if it is in the first and not in the second. Edges are grouped by attribute:
    those of column c are [column_edge[c], column_edge[c + 1]).

    Its rows are grouped in runs (sets per row, rows); the numbers of their sets are in the same order.
    """

    row_start: NDArray[np.int64]
    row_kind: NDArray[np.uint8]  # EXACT, SIMPLE or ALTERNATIVES
    zone_start: NDArray[np.int64]
    zones: NDArray[np.int32]  # [Z, 3]: attribute, first code, last code
    column_start: NDArray[np.int64]
    column: NDArray[np.int32]  # the attributes that have edges in the tile
    column_edge: NDArray[np.int64]
    edge: NDArray[np.uint16]  # a code
    set_start: NDArray[np.int64]
    set_gate: NDArray[np.int64]  # the first gate of each set
    set_gates: NDArray[np.uint16]  # [., 2]
    run_start: NDArray[np.int64]
    runs: NDArray[np.int32]  # [., 2]
    row_set_start: NDArray[np.int64]
    row_sets: NDArray[np.uint16]


class Texts(NamedTuple):
    """Texts that are rarely read, from Python: concatenated, each with its place in another array.

    They are the numeric constants that no float64 up to 2^53 represents (`number_place`), and the filters of
    subscriptions whose normal form is not exact (`filter_place`; the dialect, a line break, the filter).
    """

    number_place: NDArray[np.int64]
    number_offset: NDArray[np.int64]
    number_text: NDArray[np.uint8]
    filter_place: NDArray[np.int64]
    filter_offset: NDArray[np.int64]
    filter_text: NDArray[np.uint8]


class Arrays(NamedTuple):
    """All data of a part except its paths."""

    dictionary: Dictionary
    rows: Rows
    access: Access
    needles: Needles
    tiles: Tiles
    texts: Texts


def starts_of(counts: Any) -> NDArray[np.int64]:
    """Return the start of each run of the given lengths, and the end of the last."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
