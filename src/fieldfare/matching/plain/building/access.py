"""The choice of how rows are found: by the cells of certain attributes, or in tiles.

A row can be found by any of its predicates that allow a few single cells, or by several of them together: a
*key* is a set of one to four attributes with a table from their cells to rows. Keys of more attributes yield
fewer false candidates, but more keys must be looked up for every event. Keys are therefore chosen by cost,
from a sample of the rows, one after another while the next saves more than looking it up costs (greedy
facility location; ``key_kernels``). Each row then uses the rarest of the chosen keys that apply to it, or a
tile.

The probability that an event has a cell is estimated from how often filters ask for it: subscribers ask for
what happens. Correlation of attributes is estimated from how often rows agree in all cells of a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.plain.building.key_kernels import (
    ATTRIBUTE_BITS,
    KEY_ATTRIBUTES_MAX,
    NO_KEY,
    assign_keys,
    best_checks,
    choose_keys,
    count_entries,
    fill_key_table,
    find_pointed,
    guess_shares,
    list_entries,
    list_keys,
    rank_points,
)
from fieldfare.matching.plain.building.tile_packing import TilePredicates
from fieldfare.matching.plain.building.tiling import Group
from fieldfare.matching.plain.codes import marks_of
from fieldfare.matching.plain.layout import FIRST_POINT_CELL, MARKS_MAX, TILE_ROWS_MAX, Access, starts_of
from fieldfare.model import Path

KEY_ENTRIES_MAX = 8
"""Maximum entries of a row in a key's table, one per combination of the cells that it allows."""
KEY_PREDICATES_MAX = 5
"""Maximum predicates of a row, the most selective ones, from which keys are formed."""
KEYS_MAX = 2048
"""Maximum keys of a part: even if no event has its attributes, each costs a batch some nanoseconds."""
SAMPLE_ROWS = 1 << 15
"""Maximum sample size for choosing keys, in rows, spread evenly over all."""

KEY_NS = 3.0
"""Cost of one key lookup for one event, in ns."""
ENTRY_NS = 5.0
"""Cost of a candidate for an event that has its cells, in ns."""
OPEN_ROW_NS = 0.6
"""Cost of a row without a key for every event, in ns: equal to a row whose key an eighth of the events
have."""
TILE_NS = 1.0
"""Cost of a tile for an event excluded by its zones, in ns."""
LIVE_TILE_NS = 100.0
"""Cost of a tile for any other event, without its rows, in ns."""
LIVE_ROW_NS = 0.1
TILE_GROUP_ROWS = 64
"""Minimum rows with equal cells for a tile, which costs every event; a list costs only events with the
attribute."""

_MULTIPLIERS = (0x1E3779B1, 0x05EBCA6B, 0x42B2AE35, 0x27D4EB2F)
_HASH_BITS = 32
_SPARE_SLOTS = 1024
_CHECK_ATTRIBUTES_MAX = 1 << 16


class Points(NamedTuple):
    """The predicates that can find a row, for all rows, ordered by attribute.

    Point i allows `cell_count[i]` single cells, the pieces from ``first_piece[i]`` on; `cell` is the first,
    and `share` the estimated probability that an event has one of them.
    """

    row_start: NDArray[np.int64]
    predicate: NDArray[np.int64]
    attribute: NDArray[np.int32]
    share: NDArray[np.float64]
    first_piece: NDArray[np.int64]
    cell_count: NDArray[np.int64]
    cell: NDArray[np.int64]


class Keys(NamedTuple):
    """The chosen keys: the attribute numbers plus one, 15 bits each, and the correlation of the
    attributes."""

    code: NDArray[np.int64]
    lift: NDArray[np.float64]


class Shares(NamedTuple):
    """The probability that an event has a predicate's cells (0 if it cannot find rows), and the same per
    piece.

    Memory that stays 0 is not allocated by the kernel: many filters have no such predicate.
    """

    predicate: NDArray[np.float64]
    piece: NDArray[np.float64]


def choose_access(
    predicates: TilePredicates,
    cell_counts: NDArray[np.int64],
    shares: Shares,
    elsewhere: NDArray[np.bool_],
) -> tuple[Access, list[Group], NDArray[np.uint32]]:
    """Choose which rows are found by a key, which are tiled under one cell, and which are tiled without one.

    Rows in `elsewhere` are found otherwise and left out. The third result is one condition of each row, as in
    `Access`.
    """
    share, piece_share = shares
    points = _points(predicates, share, elsewhere)
    keys = _choose(points, predicates.row_count)
    table = np.full(4 << len(keys.code).bit_length(), NO_KEY, np.int32)
    fill_key_table(keys.code, table)
    taken, masks = assign_keys(points, keys.code, keys.lift, table, OPEN_ROW_NS / ENTRY_NS, KEY_ENTRIES_MAX)
    access, places, counts = _tables(points, keys, taken, masks, cell_counts)
    row, slot, met, rarest = list_entries(
        points, predicates.low, piece_share, taken, masks, places, int(counts.sum())
    )
    key_of_entry = taken[row]
    order = np.argsort(slot, kind="stable")
    tiled, groups = _tile_groups(row, slot, np.minimum(met * keys.lift[key_of_entry], 1.0), rarest, order)
    order = order[~tiled]
    checks = _checks(predicates, points, masks, share, access.mark_shift)
    listed = np.bincount(slot[order], minlength=len(access.table) - 1)
    np.cumsum(listed, out=access.table[1:])
    groups.append(Group(np.flatnonzero((taken == NO_KEY) & ~elsewhere)))
    return access._replace(check=checks[row[order]], row=row[order].astype(np.int32)), groups, checks


def shares_of(predicates: TilePredicates, cell_counts: NDArray[np.int64]) -> Shares:
    """Estimate the shares of all predicates from how often filters ask for their cells."""
    pointed = np.zeros(len(predicates.attribute), bool)
    find_pointed(predicates, KEY_ENTRIES_MAX, FIRST_POINT_CELL, pointed)
    cell_start = starts_of(cell_counts + 1)
    asked = np.zeros(int(cell_start[-1]), np.int32)
    asked_total = np.bincount(predicates.attribute[pointed], minlength=len(cell_counts))
    shares = Shares(np.zeros(len(pointed)), np.zeros(len(predicates.low)))
    guess_shares(predicates, pointed, cell_start, asked, asked_total, shares)
    return shares


def _points(predicates: TilePredicates, share: NDArray[np.float64], elsewhere: NDArray[np.bool_]) -> Points:
    row_start, chosen = rank_points(
        predicates.predicate_start, predicates.attribute, share, elsewhere, KEY_PREDICATES_MAX
    )
    first_piece = predicates.piece_start[chosen]
    return Points(
        row_start=row_start,
        predicate=chosen,
        attribute=predicates.attribute[chosen],
        share=share[chosen],
        first_piece=first_piece,
        cell_count=predicates.piece_start[chosen + 1] - first_piece,
        cell=predicates.low[first_piece].astype(np.int64),
    )


def _choose(points: Points, row_count: int) -> Keys:
    """Choose the keys that are worth their cost."""
    having = np.flatnonzero(np.diff(points.row_start))
    step = max(1, len(having) / SAMPLE_ROWS)
    sample = having[np.arange(0, len(having), step).astype(np.int64)]
    owner, code, share, least, hashed = list_keys(points, sample, KEY_ENTRIES_MAX)
    codes, key = np.unique(code, return_inverse=True)
    if not len(codes):
        return Keys(codes, np.zeros(0))
    rows_of_key = np.bincount(key)
    _, same_cells, met_by = np.unique(key << 30 | hashed, return_inverse=True, return_counts=True)
    others = met_by[same_cells] - 1
    seen = np.bincount(key, others / np.maximum(rows_of_key[key] - 1, 1))
    prior = 1 / rows_of_key
    lift = np.maximum(1.0, (seen + prior) / (np.bincount(key, share) + prior))
    met = np.minimum(share * lift[key], least)
    cost = np.minimum(met * ENTRY_NS, _tile_cost(met, 1 + others * step) / (1 + others * step))
    owner_start = np.searchsorted(owner, np.arange(len(sample) + 1))
    chosen = choose_keys(owner_start, owner, key, cost, OPEN_ROW_NS, KEY_NS / step, KEYS_MAX)
    return Keys(codes[chosen], lift[chosen])


def _tile_cost(met: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return an event's average cost if `rows` rows, with probability `met` each, are in tiles of their
    own."""
    tiles = np.ceil(rows / TILE_ROWS_MAX)
    cost: NDArray[np.float64] = tiles * (TILE_NS + met * LIVE_TILE_NS) + met * rows * LIVE_ROW_NS
    return np.where(rows >= TILE_GROUP_ROWS, cost, np.inf)


def _tables(
    points: Points,
    keys: Keys,
    taken: NDArray[np.int32],
    masks: NDArray[np.int32],
    cell_counts: NDArray[np.int64],
) -> tuple[Access, NDArray[np.int64], NDArray[np.int64]]:
    """Make empty tables for the keys: one slot per combination of cells, or hashed if there are too many.

    Also returns the slot computation as rows of numbers for `list_entries`, and the number of entries of each
    key.
    """
    counts = count_entries(points, taken, masks, len(keys.code))
    halves = (cell_counts >> 1) + 1
    places = np.zeros((len(keys.code), KEY_ATTRIBUTES_MAX + 3), np.int64)
    key_start, attributes = [0], []
    table_size = 0
    for x, (code, count) in enumerate(zip(keys.code.tolist(), counts.tolist(), strict=True)):
        mine = []
        while code:
            mine.append((code & (1 << ATTRIBUTE_BITS) - 1) - 1)
            code >>= ATTRIBUTE_BITS
        mine.reverse()
        sizes = halves[mine].tolist()
        size, strides = 1, []
        for each in sizes:
            strides.append(size)
            size *= each
        if size <= 4 * count + _SPARE_SLOTS:
            places[x, : len(mine)] = strides
            mask, shift = -1, 0
        else:
            bits = max(4, (2 * count).bit_length())
            size = 1 << bits
            places[x, : len(mine)] = _MULTIPLIERS[: len(mine)]
            mask, shift = (1 << _HASH_BITS) - 1, _HASH_BITS - bits
        places[x, KEY_ATTRIBUTES_MAX:] = mask, shift, table_size
        table_size += size
        attributes += mine
        key_start.append(len(attributes))
    starts = np.array(key_start, np.int64)
    of_key = np.repeat(np.arange(len(counts)), np.diff(starts))
    access = Access(
        key_start=starts,
        attribute=np.array(attributes, np.int32),
        multiplier=places[of_key, np.arange(len(of_key)) - starts[of_key]],
        mask=places[:, KEY_ATTRIBUTES_MAX],
        shift=places[:, KEY_ATTRIBUTES_MAX + 1],
        table_start=np.append(places[:, KEY_ATTRIBUTES_MAX + 2], table_size),
        table=np.zeros(table_size + 1, np.int32),
        mark_shift=_mark_shifts(cell_counts),
        check=np.zeros(0, np.uint32),
        row=np.zeros(0, np.int32),
    )
    return access, places, counts


def _mark_shifts(cell_counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the number of low bits to omit from each attribute's cells so that its marks fit in a byte."""
    shifts = np.zeros(len(cell_counts), np.int32)
    while (over := marks_of(cell_counts - 1, shifts) >= MARKS_MAX).any():
        shifts[over] += 1
    return shifts


def _tile_groups(
    row: NDArray[np.int64],
    slot: NDArray[np.int64],
    met: NDArray[np.float64],
    rarest: NDArray[np.int64],
    order: NDArray[np.int64],
) -> tuple[NDArray[np.bool_], list[Group]]:
    """Find entries in slots so full that tiles cost less than a list; return their mask and groups."""
    tiled = np.zeros(len(order), bool)
    groups: list[Group] = []
    if not len(order):
        return tiled, groups
    starts = np.flatnonzero(np.diff(slot[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    often = met[order[starts]]
    large = sizes * often * ENTRY_NS > _tile_cost(often, sizes)
    for start, size in zip(starts[large].tolist(), sizes[large].tolist(), strict=True):
        mine = order[start : start + size]
        cells = rarest[mine]
        if (cells == cells[0]).all():  # else different cells share the slot
            groups.append(Group(row[mine], int(cells[0, 0]), int(cells[0, 1])))
            tiled[start : start + size] = True
    return tiled, groups


def _checks(
    predicates: TilePredicates,
    points: Points,
    masks: NDArray[np.int32],
    share: NDArray[np.float64],
    mark_shift: NDArray[np.int32],
) -> NDArray[np.uint32]:
    """Return for each row the most selective of its predicates not covered by its key, in marks.

    It must be a single interval. If there is none, one of the key is used, as cells may share a slot.
    """
    counts = np.diff(points.row_start)
    within = np.arange(len(points.predicate)) - np.repeat(points.row_start[:-1], counts)
    in_key = np.zeros(len(share), bool)
    in_key[points.predicate[np.repeat(masks, counts) >> within & 1 != 0]] = True
    best = best_checks(predicates, share, in_key)
    result = np.full(predicates.row_count, MARKS_MAX - 1, np.int64)
    has = best >= 0
    has[has] = predicates.attribute[best[has]] < _CHECK_ATTRIBUTES_MAX
    attribute, piece = predicates.attribute[best[has]], predicates.piece_start[best[has]]
    low = marks_of(predicates.low[piece], mark_shift[attribute])
    high = marks_of(predicates.high[piece], mark_shift[attribute])
    result[has] = attribute.astype(np.int64) << 16 | low << 8 | high
    return result.astype(np.uint32)


def keys_of(access: Access, paths: Sequence[Path]) -> list[tuple[tuple[Path, ...], int]]:
    """Return the attributes of each key, and its number of entries."""
    sizes = np.diff(access.table[access.table_start])
    bounds = pairwise(access.key_start.tolist())
    return [
        (tuple(paths[a] for a in access.attribute[start:end].tolist()), size)
        for (start, end), size in zip(bounds, sizes.tolist(), strict=True)
    ]
