"""The flat arrays of a part: what is written to its file, mapped, and read by the kernels.

Every attribute of a part has a dictionary of the constants that its filters compare it with. The
constants divide the axis of all values (see ``filters.values``) into *cells*, small integers::

    missing null other false true | gap c0 gap c1 gap ... gap | gap s0 gap s1 ... gap
       0     1     2     3    4      5   6  7   8  9             numbers, then strings

so a predicate on one attribute, whatever it says, is a few intervals of cells, and a match is decided
by comparing integers only. A *row* is one conjunction of a subscription's normal form. A row is found
in one of two ways, chosen by cost when the part is built:

* `Access`: by a table from the cell of one attribute to the short list of rows that ask for that cell.
* `Tiles`: with up to 2,048 others in a tile. `zones` are intervals that all rows of the tile share, so
  most tiles are dead for an event at once. In a live one, one bitset for each attribute says which
  rows the event's *bucket* (a range of cells, at most 64 an attribute) does not exclude; their
  conjunction leaves few rows to check cell by cell.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FIRST_NUMBER_CELL = 5
BUCKETS_MAX = 64
TILE_ROWS_MAX = 2048
BLOCK_WORDS = 8
BLOCK_ROWS = 64 * BLOCK_WORDS
"""A tile's bitsets are padded to whole blocks: a cache line, one bit for each of so many rows."""

ALL_ROWS = 0
"""The bitset of a tile that has all its rows: always its first."""
NO_ROWS = -1
"""In ``Tiles.bucket_bitset``: this bucket excludes every row of the tile."""

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
    bucket_bound: NDArray[np.int32]  # [A, 63]: the first cell of each bucket but the first, padded


class Rows(NamedTuple):
    """R conjunctions: each a list of pieces (attribute, first cell, last cell) that must hold.

    `subscription` is the row's subscription s, or ~s when the filter itself must confirm a match.
    """

    piece_start: NDArray[np.int64]
    pieces: NDArray[np.int32]  # [P, 3]
    subscription: NDArray[np.int32]


class Access(NamedTuple):
    """Rows by the cell of one of X attributes.

    The entries of attribute ``attribute[x]`` and cell c are
    ``entries[table[table_start[x] + c] : table[table_start[x] + c + 1]]``; an entry is a row and one
    of its further pieces (attribute, first cell, last cell) to dismiss it without looking at the row.
    """

    attribute: NDArray[np.int32]
    table_start: NDArray[np.int64]
    table: NDArray[np.int32]
    entries: NDArray[np.int32]  # [E, 4]


class Tiles(NamedTuple):
    """T tiles of rows with their zones and bitsets.

    `row` has ~r for a row r whose bitsets decide exactly: no piece of it begins or ends within a bucket.
    Bitset b of a tile is the `words` words of `bits` from ``bits_start[t] + b * words`` on.
    """

    row_start: NDArray[np.int64]
    row: NDArray[np.int32]
    zone_start: NDArray[np.int64]
    zones: NDArray[np.int32]  # [Z, 3]: attribute, first cell, last cell
    column_start: NDArray[np.int64]
    column: NDArray[np.int32]  # the attributes that have bitsets in the tile
    bucket_bitset: NDArray[np.int32]  # [columns, 64]: which bitset a bucket has
    bits_start: NDArray[np.int64]
    bits: NDArray[np.int64]


class Subscriptions(NamedTuple):
    """S subscription versions, ordered by version; `by_number` lists them by number."""

    version: NDArray[np.int64]
    number: NDArray[np.uint32]
    valid_from: NDArray[np.int64]
    valid_to: NDArray[np.int64]
    by_number: NDArray[np.int32]
    sorted_number: NDArray[np.uint32]


class Overlay(NamedTuple):
    """Subscriptions of a part that were closed after it was built."""

    closed: NDArray[np.uint8]  # a bit a subscription; empty when none is closed
    subscription: NDArray[np.int32]  # sorted
    valid_to: NDArray[np.int64]


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
    tiles: Tiles
    subscriptions: Subscriptions
    texts: Texts
