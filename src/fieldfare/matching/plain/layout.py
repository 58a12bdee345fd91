"""The flat arrays of a part: what is written to its file, mapped, and read by the kernels.

Every attribute of a part has a dictionary of the constants that its filters compare it with. The
constants divide the axis of all values (see ``filters.values``) into *cells*, small integers::

    missing null other false true | gap c0 gap c1 gap ... gap | gap s0 gap s1 ... gap
       0     1     2     3    4      5   6  7   8  9             numbers, then strings

so a predicate on one attribute, whatever it says, is a few intervals of cells, and a match is decided
by comparing integers only. A *row* is one conjunction of a subscription's normal form. A row is found
in one of three ways, chosen by cost when the part is built:

* `Access`: by a table from the cells of one to four attributes to the few rows that ask for these cells.
* `Needles`: by a text that a string must contain, looked for in the strings of events.
* `Tiles`: with up to 2,048 others in a tile. `zones` are intervals that all rows of the tile share, so
  most events pass a tile by. The events that are left are the bits of bitsets: one for each *edge*, a
  place on an attribute's axis, says which events lie at it or beyond. A predicate is then a *set*: the
  bitset of the edge where it begins without that of the edge where it ends, or a union of such; rows
  share sets. A row is the conjunction of its sets, for 512 events at a time. Edges are placed on
  *codes*, cells in 16 bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FIRST_POINT_CELL = 2
"""The first cell that a table may be asked for: most events lack most attributes."""
FIRST_NUMBER_CELL = 5
CODES_MAX = 1 << 16
"""A code is a cell, or where there are too many of them a run of neighbouring cells."""
TILE_ROWS_MAX = 2048
MARKS_MAX = 256

ALL_LANES, NO_LANES = 0, 1
"""The first two bitsets of a tile: all its events, and none."""
FIRST_EDGE = 2
"""The number of a tile's first edge among its bitsets; its sets come after its edges."""
BITSETS_MAX = 1 << 16
"""More a tile cannot have; a predicate for which there is no set is left to the row's check."""
BITSET_WORDS = 8

EXACT, SIMPLE, ALTERNATIVES = 0, 1, 2
"""Whether a row's sets decide; if not, whether its pieces must all hold, or some have alternatives."""

MORE_ALTERNATIVES = 1 << 30
"""Added to a piece's attribute when the next piece is another interval of the same predicate."""


class Dictionary(NamedTuple):
    """The constants of A attributes; those of attribute a are [start[a], start[a + 1]) of the flat arrays.

    A numeric constant is kept as the float64 nearest to it, the side (-1, 0, 1) on which it lies of the
    decimal that this float prints as, its floor, and whether it has a fraction: enough to compare it
    exactly with any int64 or float64. `grid` divides an attribute's range evenly, to start the search
    near its end. Strings are found by a hash table; where their order matters and a value is no
    constant, by binary search.
    """

    number_start: NDArray[np.int64]
    near: NDArray[np.float64]
    side: NDArray[np.int8]
    floor: NDArray[np.int64]
    fraction: NDArray[np.uint8]
    in_range: NDArray[np.int64]  # [A, 2]: the constants whose floor an int64 holds
    grid_start: NDArray[np.int64]
    grid: NDArray[np.int32]
    grid_origin: NDArray[np.float64]
    grid_scale: NDArray[np.float64]
    string_start: NDArray[np.int64]
    string_offset: NDArray[np.int64]
    string_bytes: NDArray[np.uint8]
    hash_start: NDArray[np.int64]
    hash_slot: NDArray[np.int32]  # a string's place among its attribute's, or -1
    strings_ordered: NDArray[np.uint8]  # whether it matters in which gap a string lies
    string_cell: NDArray[np.int32]  # the first cell of an attribute's strings
    code_shift: NDArray[np.int32]  # so many bits of a cell are left out of its code


class Rows(NamedTuple):
    """R conjunctions: each a list of pieces (attribute, first cell, last cell) that must hold.

    Those of tiles come first, in the order of tiles.

    `subscription` is the row's subscription s, or ~s when the filter itself must confirm a match.
    """

    piece_start: NDArray[np.int64]
    pieces: NDArray[np.int32]  # [P, 3]
    subscription: NDArray[np.int32]


class Access(NamedTuple):
    """Rows by an event's cells of a few attributes: X *keys*, each with a table of rows.

    Key x is of the attributes ``attribute[key_start[x] : key_start[x + 1]]``, one to four. An event's cells
    c have the slot ``(sum(multiplier * (c >> 1)) & mask[x]) >> shift[x]`` of its table, and so the entries
    from ``table[s]`` to ``table[s + 1]`` with s = ``table_start[x] + slot``. A single cell and a gap beside
    it share a slot (of two neighbours, one is no single value), and others do where the cells are too many
    to have a slot each: so entry i is only a candidate, the row ``row[i]``. ``check[i]`` is one thing that
    the row needs, to dismiss it without looking at it: an attribute (16 bits), its first and its last *mark*
    (8 bits each). Marks are cells in a byte, in the same order; `mark_shift` bits of a cell are left out.
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
    """Rows by a text that a string must contain: G *groups*, each an attribute's needles, N in all.

    Group g looks for its needles in the string as it is, or casefolded (`folded`). Each needle stands under
    one of its *grams*, its bytes at some place, as many as one of the group's `size`s. Its hash has a bit in
    the group's `bits`, 2 to `bits_width[g]` of them from ``bits_start[g]`` on, and a slot: the entries from
    ``slot[s]`` to ``slot[s + 1]`` with s = ``slot_start[g]`` + its upper `slot_width[g]` bits. An entry is a
    needle::

        offset in text (32 bits) | bytes (8) | where the gram is (8) | ends, begins (1, 1) | hash (14)

    and has the rows from ``row_start[entry]`` to ``row_start[entry + 1]``; ``check[i]`` is one thing that
    ``row[i]`` needs, as in `Access`.
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

    Its bitsets are all of its events, none, one for each of its edges, and one for each of its *sets*
    [set_start[t], set_start[t + 1]): the events that pass one of the set's gates. A gate (open, shut)
    names two bitsets: an event passes if it is in the first and not in the second. Edges stand
    attribute by attribute: those of column c are [column_edge[c], column_edge[c + 1]).

    Its rows stand in runs (sets of each row, rows), and the numbers of their sets in the same order.
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
    set_gate: NDArray[np.int64]  # where a set's gates start
    set_gates: NDArray[np.uint16]  # [., 2]
    run_start: NDArray[np.int64]
    runs: NDArray[np.int32]  # [., 2]
    row_set_start: NDArray[np.int64]
    row_sets: NDArray[np.uint16]


class Texts(NamedTuple):
    """What Python reads now and then: texts in one pool, keyed by a place in another array.

    The numeric constants that no float64 up to 2^53 stands for (`number_place`), and the filters of
    subscriptions whose normal form is not exact (`filter_place`; the dialect, a line break, the filter).
    """

    number_place: NDArray[np.int64]
    number_offset: NDArray[np.int64]
    number_text: NDArray[np.uint8]
    filter_place: NDArray[np.int64]
    filter_offset: NDArray[np.int64]
    filter_text: NDArray[np.uint8]


class Arrays(NamedTuple):
    """Everything a part holds besides its paths."""

    dictionary: Dictionary
    rows: Rows
    access: Access
    needles: Needles
    tiles: Tiles
    texts: Texts


def starts_of(counts: Any) -> NDArray[np.int64]:
    """Where each of several runs starts, and where the last one ends."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
