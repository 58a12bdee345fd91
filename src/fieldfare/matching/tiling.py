"""Arranging rows in tiles: similar rows together, so that whole tiles die at their zones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.kernels import pack_bitsets
from fieldfare.matching.layout import TILE_ROWS_MAX, Tiles

SPLIT_DEPTH = 3
"""Rows are divided by about so many attributes before a tile is full."""
DISTINCT_SPLITS_MAX = 32
"""An attribute on which rows take no more places than this is divided at each of them."""
COLUMN_SHARE_MIN = 1 / 128
"""An attribute that fewer of a tile's rows than this constrain gets no bitsets; the row check decides."""


@dataclass(frozen=True, slots=True)
class Predicates:
    """All rows' predicates as columns, in row order: predicate i is the pieces from piece_start[i] on.

    A row is a conjunction; `subscription` says whose, ~s if the filter must confirm it.
    """

    subscription: NDArray[np.int32]
    row: NDArray[np.int64]
    attribute: NDArray[np.int32]
    piece_start: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]

    @property
    def row_count(self) -> int:
        return len(self.subscription)

    def piece_owner(self) -> NDArray[np.int64]:
        """The predicate of each piece."""
        return np.repeat(np.arange(len(self.row)), np.diff(self.piece_start))


@dataclass(frozen=True, slots=True)
class Group:
    """Rows to be tiled together; if an attribute is given, all are looked at only for that one cell."""

    rows: NDArray[np.int64]
    attribute: int = -1
    cell: int = -1


class Arranger:
    """Splits rows recursively by the attributes that exclude most, until a tile holds them."""

    def __init__(self, predicates: Predicates, cell_counts: NDArray[np.int64]) -> None:
        self.predicates = predicates
        self.first_predicate = np.searchsorted(predicates.row, np.arange(predicates.row_count + 1))
        start = predicates.piece_start
        self.low = predicates.low[start[:-1]]
        self.high = predicates.high[start[1:] - 1]
        width = (self.high - self.low + 1) / np.maximum(cell_counts[predicates.attribute], 1)
        self.excluded = 1.0 - width
        self.attribute_count = len(cell_counts)
        self.tiles: list[NDArray[np.int64]] = []

    def predicates_of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All predicates of the rows, and each one's place in `rows`."""
        first, last = self.first_predicate[rows], self.first_predicate[rows + 1]
        counts = last - first
        slots = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(slots)) - np.repeat(np.cumsum(counts) - counts, counts)
        return first[slots] + within, slots

    def split(self, rows: NDArray[np.int64], used: frozenset[int], tile_rows: int) -> None:
        """Append tiles of at most `tile_rows` rows."""
        if len(rows) <= tile_rows:
            if len(rows):
                self.tiles.append(rows)
            return
        mine, slots = self.predicates_of(rows)
        attributes = self.predicates.attribute[mine]
        benefit = np.bincount(attributes, self.excluded[mine], minlength=self.attribute_count)
        benefit[list(used)] = 0.0
        best = int(benefit.argmax()) if len(benefit) else -1
        if best < 0 or benefit[best] <= 0.05 * len(rows):
            for start in range(0, len(rows), tile_rows):
                self.tiles.append(rows[start : start + tile_rows])
            return
        chosen = attributes == best
        having = slots[chosen]
        centre = self.low[mine[chosen]] + self.high[mine[chosen]]
        without = np.ones(len(rows), bool)
        without[having] = False
        order = np.argsort(centre, kind="stable")
        sorted_rows, sorted_centre = rows[having[order]], centre[order]
        for start, end in _strips(sorted_centre, tile_rows):
            self.split(sorted_rows[start:end], used | {best}, tile_rows)
        self.split(rows[without], used, tile_rows)


def _strips(centre: NDArray[np.int64], tile_rows: int) -> list[tuple[int, int]]:
    """Where to divide sorted rows: evenly, but between different centres if there are few."""
    size = len(centre)
    changes = np.flatnonzero(centre[1:] != centre[:-1]) + 1
    if len(changes) < DISTINCT_SPLITS_MAX:
        cuts = changes
    else:
        count = max(2, round((size / tile_rows) ** (1 / SPLIT_DEPTH))) if size > tile_rows else 1
        cuts = (np.arange(1, count) * size) // count
    edges = [0, *cuts.tolist(), size]
    return list(pairwise(edges))


def build_tiles(
    predicates: Predicates,
    cell_counts: NDArray[np.int64],
    bounds: NDArray[np.int32],
    groups: list[Group],
    tile_rows: int = TILE_ROWS_MAX,
) -> Tiles:
    """Arrange the groups' rows in tiles and pack their zones and bitsets."""
    arranger = Arranger(predicates, cell_counts)
    group_zone: list[tuple[int, int]] = []
    for group in groups:
        before = len(arranger.tiles)
        used = frozenset([group.attribute] if group.attribute >= 0 else [])
        arranger.split(group.rows, used, tile_rows)
        group_zone += [(group.attribute, group.cell)] * (len(arranger.tiles) - before)
    zone_start, zones = [0], []
    for rows, (attribute, cell) in zip(arranger.tiles, group_zone, strict=True):
        zones += _zones(arranger, rows, attribute, cell, cell_counts)
        zone_start.append(len(zones))
    row_start = np.zeros(len(arranger.tiles) + 1, np.int64)
    np.cumsum([len(rows) for rows in arranger.tiles], out=row_start[1:])
    row = np.concatenate([*arranger.tiles, np.zeros(0, np.int64)]).astype(np.int32)
    column_start, column, bucket_bitset, bits_start, bits = _bitsets(arranger, bounds, row_start, row)
    return Tiles(
        row_start=row_start,
        row=row,
        zone_start=np.array(zone_start, np.int64),
        zones=np.array(zones, np.int32).reshape(-1, 3),
        column_start=column_start,
        column=column,
        bucket_bitset=bucket_bitset,
        bits_start=bits_start,
        bits=bits,
    )


def _zones(
    arranger: Arranger, rows: NDArray[np.int64], attribute: int, cell: int, cell_counts: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """The intervals that every row of a tile lies in, the narrowest first."""
    mine, _ = arranger.predicates_of(rows)
    attributes = arranger.predicates.attribute[mine]
    zones = []
    for a in np.flatnonzero(np.bincount(attributes, minlength=1) == len(rows)).tolist():
        chosen = mine[attributes == a]
        low, high = int(arranger.low[chosen].min()), int(arranger.high[chosen].max())
        if a != attribute and high - low + 1 < cell_counts[a]:
            zones.append(((high - low + 1) / int(cell_counts[a]), (a, low, high)))
    own = [(attribute, cell, cell)] if attribute >= 0 else []
    return own + [zone for _, zone in sorted(zones)]


def _bitsets(
    arranger: Arranger, bounds: NDArray[np.int32], row_start: NDArray[np.int64], row: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Each tile's columns, most selective first, and their bitsets."""
    predicates = arranger.predicates
    tile_count = len(row_start) - 1
    mine, slot = arranger.predicates_of(row.astype(np.int64))
    sizes = np.diff(row_start)
    tile = np.repeat(np.arange(tile_count), sizes)[slot]
    key = tile * max(arranger.attribute_count, 1) + predicates.attribute[mine]
    columns, column_of, counts = np.unique(key, return_inverse=True, return_counts=True)
    benefit = np.bincount(column_of, arranger.excluded[mine], minlength=len(columns))
    column_tile = columns // max(arranger.attribute_count, 1)
    column_attribute = columns % max(arranger.attribute_count, 1)
    worthwhile = counts >= COLUMN_SHARE_MIN * sizes[column_tile]
    order = np.lexsort((-benefit, column_tile))
    order = order[worthwhile[order]]
    rank = np.full(len(columns), -1, np.int64)
    rank[order] = np.arange(len(order))
    kept = rank[column_of] >= 0
    mine, slot, column_of = mine[kept], slot[kept], rank[column_of[kept]]
    by_column = np.argsort(column_of, kind="stable")
    mine, slot, column_of = mine[by_column], slot[by_column], column_of[by_column]
    piece_counts = np.diff(predicates.piece_start)[mine]
    predicate_of = np.repeat(np.arange(len(mine)), piece_counts)
    within = np.arange(len(predicate_of)) - np.repeat(np.cumsum(piece_counts) - piece_counts, piece_counts)
    piece = predicates.piece_start[mine][predicate_of] + within
    attribute = predicates.attribute[mine][predicate_of]
    piece_slot = (slot - row_start[tile_of_slot(row_start, slot)])[predicate_of]
    piece_start = np.searchsorted(column_of[predicate_of], np.arange(len(order) + 1))
    column_start = np.searchsorted(column_tile[order], np.arange(tile_count + 1)).astype(np.int64)
    bucket_bitset, bits_start, bits = pack_bitsets(
        sizes,
        column_start,
        piece_start.astype(np.int64),
        piece_slot.astype(np.int64),
        buckets_of(bounds, attribute, predicates.low[piece]),
        buckets_of(bounds, attribute, predicates.high[piece]),
    )
    return column_start, column_attribute[order].astype(np.int32), bucket_bitset, bits_start, bits


def tile_of_slot(row_start: NDArray[np.int64], slot: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which tile a place in ``Tiles.row`` belongs to."""
    return np.searchsorted(row_start, slot, side="right") - 1


def buckets_of(
    bounds: NDArray[np.int32], attribute: NDArray[np.int32], cell: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The bucket of each (attribute, cell)."""
    result = np.zeros(len(cell), np.int64)
    order = np.argsort(attribute, kind="stable")
    starts = np.searchsorted(attribute[order], np.arange(len(bounds) + 1))
    for a in range(len(bounds)):
        mine = order[starts[a] : starts[a + 1]]
        if len(mine):
            result[mine] = np.searchsorted(bounds[a], cell[mine], side="right")
    return result
