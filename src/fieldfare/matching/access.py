"""Which rows are found by a table from the cells of an event, and the tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.constants import CELL_MAX
from fieldfare.matching.layout import Access, starts_of
from fieldfare.matching.tiling import Group, Predicates

ACCESS_POINTS_MAX = 8
"""A predicate that allows more cells than this is not used to find its row by table."""
ACCESS_SHARE_MAX = 0.125
"""Nor one that allows values which more than this share of the attribute's equality predicates ask for."""
TILE_GROUP_ROWS = 256
"""So many rows under the same cell become tiles of their own: their bitsets cost less than scanning them."""


def choose_access(predicates: Predicates, cell_counts: NDArray[np.int64]) -> tuple[Access, list[Group]]:
    """Which rows are found by a table, which are tiled under one cell, and which are tiled openly.

    A predicate that allows a few single cells can find its row. How rarely an event will meet a cell
    is guessed from how rarely filters ask for it: subscribers ask for what happens.
    """
    count = np.diff(predicates.piece_start)
    owner = predicates.piece_owner()
    wide = np.zeros(len(count), bool)
    np.logical_or.at(wide, owner, predicates.low != predicates.high)
    pointed = ~wide & (count <= ACCESS_POINTS_MAX)
    cell_base = starts_of(cell_counts + 1)
    flat_cell = cell_base[predicates.attribute[owner]] + predicates.low
    usable = pointed[owner]
    asked = np.bincount(flat_cell[usable], minlength=int(cell_base[-1]))
    asked_total = np.bincount(predicates.attribute[pointed], minlength=len(cell_counts))
    share = np.zeros(len(count))
    piece_share = asked[flat_cell] / np.maximum(asked_total[predicates.attribute[owner]], 1)
    np.add.at(share, owner[usable], piece_share[usable])
    share[~pointed] = np.inf
    order = np.lexsort((share, predicates.row))
    first = np.ones(len(order), bool)
    first[1:] = predicates.row[order][1:] != predicates.row[order][:-1]
    best = order[first]
    best = best[share[best] <= ACCESS_SHARE_MAX]

    chosen = np.zeros(len(count), bool)
    chosen[best] = True
    piece = np.flatnonzero(chosen[owner])
    piece = piece[np.argsort(flat_cell[piece], kind="stable")]
    _, starts, sizes = np.unique(flat_cell[piece], return_index=True, return_counts=True)
    groups: list[Group] = []
    listed = np.ones(len(piece), bool)
    large = sizes >= TILE_GROUP_ROWS
    for start, size in zip(starts[large].tolist(), sizes[large].tolist(), strict=True):
        mine = piece[start : start + size]
        attribute = int(predicates.attribute[owner[mine[0]]])
        cell = int(predicates.low[mine[0]])
        groups.append(Group(predicates.row[owner[mine]], attribute, cell))
        listed[start : start + size] = False
    found = np.zeros(predicates.row_count, bool)
    found[predicates.row[best]] = True
    access = pack_access(predicates, piece[listed], owner, share, cell_counts)
    groups.append(Group(np.flatnonzero(~found)))
    return access, groups


def pack_access(
    predicates: Predicates,
    piece: NDArray[np.int64],
    owner: NDArray[np.int64],
    share: NDArray[np.float64],
    cell_counts: NDArray[np.int64],
) -> Access:
    """The lists of rows by cell; `piece` has the pieces that find a row, sorted by attribute and cell."""
    attribute = predicates.attribute[owner[piece]]
    used = np.unique(attribute)
    table_start = np.zeros(len(used) + 1, np.int64)
    np.cumsum(cell_counts[used] + 1, out=table_start[1:])
    place = table_start[np.searchsorted(used, attribute)] + predicates.low[piece]
    table = np.zeros(int(table_start[-1]) + 1, np.int32)
    np.cumsum(np.bincount(place, minlength=int(table_start[-1])), out=table[1:])
    entries = np.zeros((len(piece), 4), np.int32)
    entries[:, 0] = predicates.row[owner[piece]]
    entries[:, 1:] = _dismissals(predicates, owner[piece], share)
    return Access(used.astype(np.int32), table_start, table, entries)


def _dismissals(
    predicates: Predicates, finders: NDArray[np.int64], share: NDArray[np.float64]
) -> NDArray[np.int32]:
    """For each predicate that finds a row, one more piece (attribute, low, high) that the row needs.

    It is the most selective of the row's other predicates that are single intervals; where there is
    none, a piece that always holds.
    """
    result = np.zeros((len(finders), 3), np.int32)
    result[:, 0] = predicates.attribute[finders]
    result[:, 2] = CELL_MAX
    first = predicates.piece_start[:-1]
    rank = np.minimum(share, 2.0) + 1e-9 * (predicates.high[first] - predicates.low[first])
    rank[np.diff(predicates.piece_start) != 1] = np.inf
    rank[finders] = np.inf
    order = np.lexsort((rank, predicates.row))
    opens = np.ones(len(order), bool)
    opens[1:] = predicates.row[order][1:] != predicates.row[order][:-1]
    best = order[opens]
    best_of_row = np.full(predicates.row_count, -1, np.int64)
    best_of_row[predicates.row[best]] = np.where(np.isfinite(rank[best]), best, -1)
    second = best_of_row[predicates.row[finders]]
    has = second >= 0
    result[has, 0] = predicates.attribute[second[has]]
    result[has, 1] = predicates.low[first[second[has]]]
    result[has, 2] = predicates.high[first[second[has]]]
    return result
