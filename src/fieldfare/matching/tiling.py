"""Arranging rows in tiles: similar rows together, so that whole tiles die at their zones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.layout import TILE_ROWS_MAX, Tiles
from fieldfare.matching.tile_kernels import pack_bitsets

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

    def __init__(
        self, predicates: Predicates, cell_counts: NDArray[np.int64], bounds: NDArray[np.int32]
    ) -> None:
        self.predicates = predicates
        owner = predicates.piece_owner()
        attribute = predicates.attribute[owner]
        self.low_bucket = buckets_of(bounds, attribute, predicates.low)
        self.high_bucket = buckets_of(bounds, attribute, predicates.high)
        inside = (predicates.low > 0) & (buckets_of(bounds, attribute, predicates.low - 1) == self.low_bucket)
        inside |= (predicates.high + 1 < cell_counts[attribute]) & (
            buckets_of(bounds, attribute, predicates.high + 1) == self.high_bucket
        )
        self.aligned = np.bincount(owner[inside], minlength=len(predicates.row)) == 0
        """Predicates none of whose pieces begins or ends within a bucket: their bitsets are exact."""
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
    arranger = Arranger(predicates, cell_counts, bounds)
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
    column_start, column, bucket_bitset, bits_start, bits, exact = _bitsets(
        arranger, row_start, row, np.array([zone for zone, _ in group_zone], np.int64)
    )
    return Tiles(
        row_start=row_start,
        row=np.where(exact, ~row, row).astype(np.int32),
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


class _Columns:
    """Every (tile, attribute) with a predicate: which get bitsets, and what those decide."""

    def __init__(
        self,
        arranger: Arranger,
        row_start: NDArray[np.int64],
        row: NDArray[np.int64],
        tile_attribute: NDArray[np.int64],
    ) -> None:
        width = max(arranger.attribute_count, 1)
        self.sizes = np.diff(row_start)
        self.predicate, self.slot = arranger.predicates_of(row)
        slot_tile = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self.first_slot = row_start[:-1][slot_tile]
        key = slot_tile[self.slot] * width + arranger.predicates.attribute[self.predicate]
        found, self.column = np.unique(key, return_inverse=True)
        self.tile, self.attribute = found // width, found % width
        counts = np.bincount(self.column, minlength=len(found))
        settled = self.attribute == tile_attribute[self.tile]
        settled |= self._uniform(arranger, counts)
        kept = ~settled & (counts >= COLUMN_SHARE_MIN * self.sizes[self.tile])
        benefit = np.bincount(self.column, arranger.excluded[self.predicate], minlength=len(found))
        order = np.lexsort((-benefit, self.tile))
        self.order = order[kept[order]]
        self.rank = np.full(len(found), -1, np.int64)
        self.rank[self.order] = np.arange(len(self.order))
        decided = settled[self.column] | (kept[self.column] & arranger.aligned[self.predicate])
        self.exact = np.bincount(self.slot[~decided], minlength=len(row)) == 0

    def _uniform(self, arranger: Arranger, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Columns in which all rows of a tile have the same interval, which is then the tile's zone."""
        first = np.zeros(len(counts), np.int64)
        first[self.column[::-1]] = self.predicate[::-1]
        same = arranger.low[self.predicate] == arranger.low[first][self.column]
        same &= arranger.high[self.predicate] == arranger.high[first][self.column]
        same &= np.diff(arranger.predicates.piece_start)[self.predicate] == 1
        differing = np.bincount(self.column[~same], minlength=len(counts))
        uniform: NDArray[np.bool_] = (differing == 0) & (counts == self.sizes[self.tile])
        return uniform


def _bitsets(
    arranger: Arranger,
    row_start: NDArray[np.int64],
    row: NDArray[np.int32],
    tile_attribute: NDArray[np.int64],
) -> tuple[
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.bool_],
]:
    """Each tile's columns, most selective first, their bitsets, and which rows these decide exactly."""
    predicates = arranger.predicates
    columns = _Columns(arranger, row_start, row.astype(np.int64), tile_attribute)
    column = columns.rank[columns.column]
    by_column = np.argsort(column, kind="stable")
    by_column = by_column[column[by_column] >= 0]
    mine, column = columns.predicate[by_column], column[by_column]
    slot = (columns.slot - columns.first_slot[columns.slot])[by_column]
    piece_counts = np.diff(predicates.piece_start)[mine]
    predicate_of = np.repeat(np.arange(len(mine)), piece_counts)
    within = np.arange(len(predicate_of)) - np.repeat(np.cumsum(piece_counts) - piece_counts, piece_counts)
    piece = predicates.piece_start[mine][predicate_of] + within
    piece_start = np.searchsorted(column[predicate_of], np.arange(len(columns.order) + 1))
    column_start = np.searchsorted(columns.tile[columns.order], np.arange(len(columns.sizes) + 1))
    bucket_bitset, bits_start, bits = pack_bitsets(
        columns.sizes,
        column_start.astype(np.int64),
        piece_start.astype(np.int64),
        slot[predicate_of],
        arranger.low_bucket[piece],
        arranger.high_bucket[piece],
    )
    attributes = columns.attribute[columns.order].astype(np.int32)
    return column_start.astype(np.int64), attributes, bucket_bitset, bits_start, bits, columns.exact


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
