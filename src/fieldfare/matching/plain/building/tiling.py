"""Arrangement of rows in tiles: similar rows together, so that zones exclude complete tiles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.plain.building.tile_packing import (
    EDGES_MAX,
    EDGES_MIN,
    Packed,
    TilePredicates,
    divide,
    pack_tiles,
    sum_benefits,
)
from fieldfare.matching.plain.codes import piece_codes
from fieldfare.matching.plain.layout import TILE_ROWS_MAX, Dictionary, Tiles, starts_of

SPLIT_DEPTH = 3
"""Approximate number of attributes by which rows are divided before a tile is full."""
DISTINCT_SPLITS_MAX = 32
"""Maximum number of distinct places on an attribute at which rows are divided at each place."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows to be tiled together; with an attribute, they are searched only for events with that one cell."""

    rows: NDArray[np.int64]
    attribute: int = -1
    cell: int = -1


class Arranger:
    """Splits rows recursively by the most selective attributes, until they fit a tile."""

    def __init__(self, predicates: TilePredicates, cell_counts: NDArray[np.int64]) -> None:
        self.predicates = predicates
        self.cell_counts = cell_counts
        self.tiles: list[NDArray[np.int64]] = []

    def split(self, rows: NDArray[np.int64], used: frozenset[int], tile_rows: int) -> None:
        """Append tiles of at most `tile_rows` rows."""
        if len(rows) <= tile_rows:
            if len(rows):
                self.tiles.append(rows)
            return
        benefit = sum_benefits(rows, self.predicates, self.cell_counts)
        benefit[list(used)] = 0.0
        best = int(benefit.argmax()) if len(benefit) else -1
        if best < 0 or benefit[best] <= 0.05 * len(rows):
            for start in range(0, len(rows), tile_rows):
                self.tiles.append(rows[start : start + tile_rows])
            return
        having, centre, without = divide(rows, self.predicates, best)
        order = np.argsort(centre, kind="stable")
        sorted_rows, sorted_centre = having[order], centre[order]
        for start, end in _strips(sorted_centre, tile_rows):
            self.split(sorted_rows[start:end], used | {best}, tile_rows)
        self.split(without, used, tile_rows)


def _strips(centre: NDArray[np.int64], tile_rows: int) -> list[tuple[int, int]]:
    """Choose where to divide sorted rows: evenly, or between distinct centres if there are few."""
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
    predicates: TilePredicates,
    cell_counts: NDArray[np.int64],
    dictionary: Dictionary,
    groups: list[Group],
    tile_rows: int = TILE_ROWS_MAX,
) -> tuple[Tiles, NDArray[np.int64]]:
    """Arrange the groups' rows in tiles, and lay these out; return the tiles, and the order of the rows."""
    arranger = Arranger(predicates, cell_counts)
    tile_group: list[Group] = []
    for group in groups:
        before = len(arranger.tiles)
        arranger.split(group.rows, frozenset([group.attribute] if group.attribute >= 0 else []), tile_rows)
        tile_group += [group] * (len(arranger.tiles) - before)
    row_start = starts_of([len(rows) for rows in arranger.tiles])
    rows = np.concatenate([*arranger.tiles, np.zeros(0, np.int64)])
    zone = np.array([(group.attribute, group.cell) for group in tile_group], np.int64).reshape(-1, 2)
    confined = np.full((len(zone), 3), -1, np.int64)
    mine = zone[:, 0] >= 0
    code, _, exact = piece_codes(dictionary, cell_counts, zone[mine, 0], zone[mine, 1], zone[mine, 1])
    confined[mine] = np.stack([zone[mine, 0], code, exact], axis=1)
    kinds = np.zeros(len(rows), np.uint8)
    out = _room(predicates, rows, row_start, len(cell_counts))
    ends = pack_tiles(row_start, rows, confined, predicates, dictionary, cell_counts, kinds, out)
    zones, columns, edges, sets, gates, runs, row_sets = ends[-1].tolist()
    return Tiles(
        row_start=row_start,
        row_kind=kinds,
        zone_start=ends[:, 0],
        zones=out.zones[:zones],
        column_start=ends[:, 1],
        column=out.column[:columns],
        column_edge=out.column_edge[: columns + 1],
        edge=out.edge[:edges],
        set_start=ends[:, 3],
        set_gate=out.set_gate[: sets + 1],
        set_gates=out.set_gates[:gates],
        run_start=ends[:, 5],
        runs=out.runs[:runs],
        row_set_start=ends[:, 6],
        row_sets=out.row_sets[:row_sets],
    ), rows


def _room(
    predicates: TilePredicates,
    rows: NDArray[np.int64],
    row_start: NDArray[np.int64],
    attribute_count: int,
) -> Packed:
    """Allocate arrays for the worst case of tiles of these rows."""
    first = predicates.predicate_start
    width = first[rows + 1] - first[rows]
    pieces = predicates.piece_start[first]
    columns = sum(
        min(attribute_count, int(width[start:end].sum())) for start, end in pairwise(row_start.tolist())
    )
    tiles, sets = len(row_start) - 1, int(width.sum())
    gates = int((pieces[rows + 1] - pieces[rows]).sum())
    edges = tiles * EDGES_MAX + EDGES_MIN * columns
    return Packed(
        zones=np.empty((tiles + int(width[row_start[:-1]].sum()), 3), np.int32),
        column=np.empty(columns, np.int32),
        column_edge=np.zeros(columns + 1, np.int64),
        edge=np.empty(edges, np.uint16),
        set_gate=np.zeros(sets + 1, np.int64),
        set_gates=np.empty((gates + 1, 2), np.uint16),
        runs=np.empty((len(rows), 2), np.int32),
        row_sets=np.empty(sets, np.uint16),
    )
