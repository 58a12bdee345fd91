"""Kernels that lay out tiles: their zones, edges and sets (see ``layout``)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.compiled import compiled
from fieldfare.matching.plain.codes import code_piece
from fieldfare.matching.plain.layout import (
    ALL_LANES,
    ALTERNATIVES,
    BITSETS_MAX,
    CODES_MAX,
    EXACT,
    FIRST_EDGE,
    NO_LANES,
    SIMPLE,
)

EDGES_MAX = 480
"""Approximate maximum edges per tile: at 64 bytes each they nearly fit in the first-level cache."""
EDGES_MIN = 2
"""Minimum edges per attribute, even beyond `EDGES_MAX`."""

# Data kept per attribute while a tile is laid out.
_ROWS, _LOW, _AFTER, _ALIKE, _BOUNDS, _COLUMN = range(6)
_SETTLED = -1

# Arrays written tile after tile.
_ZONES, _COLUMNS, _EDGES, _SETS, _GATES, _RUNS, _ROW_SETS, _TOTALS = range(8)


class Packed(NamedTuple):
    """The arrays that `pack_tiles` fills: those of `Tiles` with equal names, allocated for the worst case."""

    zones: NDArray[np.int32]
    column: NDArray[np.int32]
    column_edge: NDArray[np.int64]
    edge: NDArray[np.uint16]
    set_gate: NDArray[np.int64]
    set_gates: NDArray[np.uint16]
    runs: NDArray[np.int32]
    row_sets: NDArray[np.uint16]


class TilePredicates(NamedTuple):
    """All rows' predicates as columns: those of row r are [predicate_start[r], predicate_start[r + 1]), and
    predicate i has the pieces from ``piece_start[i]`` on, from cell `low` to cell `high`.

    A row is a conjunction; `subscription` is its subscription s, or ~s if the filter must confirm it.
    """

    subscription: NDArray[np.int32]
    predicate_start: NDArray[np.int64]
    attribute: NDArray[np.int32]
    piece_start: NDArray[np.int64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]

    @property
    def row_count(self) -> int:
        return len(self.subscription)


class CodedPredicates(NamedTuple):
    """The predicates of a tile's rows, with pieces in codes (see ``codes.code_piece``)."""

    attribute: NDArray[np.int32]
    piece_start: NDArray[np.int64]
    low: NDArray[np.int32]
    after: NDArray[np.int32]
    exact: NDArray[np.uint8]


@compiled
def sum_benefits(rows: Any, p: Any, cell_counts: Any) -> Any:
    """For each attribute, return how much of its axis the rows exclude in total."""
    benefit = np.zeros(len(cell_counts))
    for row in rows:
        for i in range(p.predicate_start[row], p.predicate_start[row + 1]):
            a, last = p.attribute[i], p.piece_start[i + 1] - 1
            width = np.int64(p.high[last]) - np.int64(p.low[p.piece_start[i]]) + 1
            benefit[a] += 1.0 - width / max(cell_counts[a], 1)
    return benefit


@compiled
def divide(rows: Any, p: Any, chosen: int) -> Any:
    """Return the rows that constrain an attribute, twice the centre of each one's interval, and the other
    rows."""
    having, without = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    centre = np.empty(len(rows), np.int64)
    having_count, without_count = 0, 0
    for row in rows:
        found = -1
        for i in range(p.predicate_start[row], p.predicate_start[row + 1]):
            if p.attribute[i] == chosen:
                found = i
                break
        if found >= 0:
            having[having_count] = row
            low, high = p.low[p.piece_start[found]], p.high[p.piece_start[found + 1] - 1]
            centre[having_count] = np.int64(low) + np.int64(high)
            having_count += 1
        else:
            without[without_count] = row
            without_count += 1
    return having[:having_count], centre[:having_count], without[:without_count]


@compiled
def _survey(rows: Any, first: Any, p: Any, attributes: Any, touched: Any) -> Any:
    """Record for each attribute how the rows constrain it; return how many attributes they constrain."""
    count = 0
    for row in rows:
        for i in range(first[row], first[row + 1]):
            noted = attributes[p.attribute[i]]
            start, end = p.piece_start[i], p.piece_start[i + 1]
            low, after = p.low[start], p.after[end - 1]
            if noted[_ROWS] == 0:
                touched[count] = p.attribute[i]
                count += 1
                noted[_LOW], noted[_AFTER], noted[_ALIKE], noted[_BOUNDS] = low, after, 1, 0
            noted[_ROWS] += 1
            noted[_ALIKE] &= end - start == 1 and low == noted[_LOW] and after == noted[_AFTER]
            noted[_LOW], noted[_AFTER] = min(noted[_LOW], low), max(noted[_AFTER], after)
            noted[_BOUNDS] += 2 * (end - start)
    touched[:count].sort()
    return count


@compiled
def _write_zones(attributes: Any, touched: Any, row_count: int, group: Any, zones: Any, count: int) -> Any:
    """Append the intervals in which all rows lie, the narrowest first; return the new number of zones.

    An attribute whose zone implies its rows' predicates is settled: it needs no edges.
    """
    if group[0] >= 0:
        zones[count] = group[0], group[1], group[1]
        count += 1
    start = count
    for a in touched:
        noted = attributes[a]
        noted[_COLUMN] = 0
        if a == group[0]:
            noted[_COLUMN] = _SETTLED
        elif noted[_ROWS] == row_count:
            if noted[_ALIKE]:
                noted[_COLUMN] = _SETTLED
            if noted[_LOW] == 0 and noted[_AFTER] == CODES_MAX:
                continue
            place, width = count, noted[_AFTER] - noted[_LOW]
            while place > start and zones[place - 1, 2] - zones[place - 1, 1] + 1 > width:
                zones[place] = zones[place - 1]
                place -= 1
            zones[place] = a, noted[_LOW], noted[_AFTER] - 1
            count += 1
    return count


@compiled
def _collect_bounds(rows: Any, first: Any, p: Any, attributes: Any, place: Any, bounds: Any) -> None:
    """Write the codes at which pieces begin and end to `bounds`, column by column from `place` on."""
    for row in rows:
        for i in range(first[row], first[row + 1]):
            column = attributes[p.attribute[i], _COLUMN]
            if column == _SETTLED:
                continue
            for piece in range(p.piece_start[i], p.piece_start[i + 1]):
                if p.low[piece] > 0:
                    bounds[place[column]] = p.low[piece]
                    place[column] += 1
                if p.after[piece] < CODES_MAX:
                    bounds[place[column]] = p.after[piece]
                    place[column] += 1


@compiled
def _distinct(values: Any) -> Any:
    """Count the distinct values in a sorted array."""
    count = 0
    for i in range(len(values)):
        count += i == 0 or values[i] != values[i - 1]
    return count


@compiled
def _share_out(weights: Any, wanted: Any, total: int) -> Any:
    """Divide a total in proportion to weights, but at most `wanted` and at least EDGES_MIN each."""
    shares = np.minimum(wanted, min(EDGES_MIN, BITSETS_MAX // 4 // max(1, len(wanted))))
    for _ in range(4):
        left = total - shares.sum()
        open_weight = weights[shares < wanted].sum()
        if left <= 0 or open_weight <= 0:
            break
        for i in range(len(shares)):
            if shares[i] < wanted[i]:
                shares[i] = min(wanted[i], shares[i] + int(left * weights[i] / open_weight))
    return shares


@compiled
def _write_edges(bounds: Any, starts: Any, ends: Any, edge: Any, edge_count: int, column_edge: Any) -> Any:
    """Append each column's edges: all bounds if there is room, otherwise quantiles; return the new number of
    edges."""
    columns = len(starts)
    wanted, weights = np.zeros(columns, np.int64), np.zeros(columns)
    for c in range(columns):
        mine = bounds[starts[c] : ends[c]]
        mine.sort()
        wanted[c] = _distinct(mine)
        weights[c] = np.sqrt(float(wanted[c]) * len(mine))
    shares = _share_out(weights, wanted, max(EDGES_MAX, EDGES_MIN * columns))
    for c in range(columns):
        column_edge[c] = edge_count
        size = ends[c] - starts[c]
        before = -1
        steps = size if shares[c] == wanted[c] else shares[c]
        for i in range(steps):
            bound = bounds[starts[c] + ((2 * i + 1) * size) // (2 * steps)]
            if bound != before:
                edge[edge_count] = bound
                edge_count += 1
                before = bound
    column_edge[columns] = edge_count
    return edge_count


@compiled
def _find_gate(
    edge: Any, start: int, end: int, base: int, low: int, after: int, exact: int, gate: Any
) -> Any:
    """Write the narrowest gate that passes a piece; return whether it passes nothing else."""
    opens = start + np.searchsorted(edge[start:end], low, side="right") - 1
    decides = True
    if opens < start:
        gate[0] = ALL_LANES
        decides = low == 0
    else:
        gate[0] = FIRST_EDGE + opens - base
        decides = edge[opens] == low and exact & 1 != 0
    shuts = start + np.searchsorted(edge[start:end], after)
    if shuts == end:
        gate[1] = NO_LANES
        return decides and after == CODES_MAX
    gate[1] = FIRST_EDGE + shuts - base
    return decides and edge[shuts] == after and exact & 2 != 0


@compiled
def _find_set(begun: Any, at: Any, gates: int, known: Any, known_set: Any, out: Any) -> Any:
    """Return the number of the set with the last `gates` gates, which are kept if new and dropped otherwise.

    `known` is a table from single gates to their sets. Returns ALL_LANES if there is no room for a set.
    """
    slot: Any = 0
    mask = len(known) - 1
    if gates == 1:
        gate = out.set_gates[at[_GATES] - 1]
        key = (np.int64(gate[0]) << 16) + np.int64(gate[1]) + 1
        slot = (key * 40503 >> 8) & mask
        while known[slot] != 0:
            if known[slot] == key:
                at[_GATES] -= 1
                return known_set[slot]
            slot = (slot + 1) & mask
    number = FIRST_EDGE + at[_EDGES] - begun[_EDGES] + at[_SETS] - begun[_SETS]
    if number >= BITSETS_MAX:
        at[_GATES] -= gates
        return ALL_LANES
    if gates == 1:
        known[slot], known_set[slot] = key, number
    at[_SETS] += 1
    out.set_gate[at[_SETS]] = at[_GATES]
    return number


@compiled
def _write_row(
    row: int, first: Any, p: Any, attributes: Any, group: Any, begun: Any, at: Any, known: Any, out: Any
) -> Any:
    """Append the sets of a row; return the row's kind.

    `begun` are the sizes of all arrays before the tile, `at` the current sizes.
    """
    kind, decided = SIMPLE, True
    base, first_column = begun[_EDGES], begun[_COLUMNS]
    for i in range(first[row], first[row + 1]):
        start, end = p.piece_start[i], p.piece_start[i + 1]
        if end - start > 1:
            kind = ALTERNATIVES
        column = attributes[p.attribute[i], _COLUMN]
        if column == _SETTLED:
            decided &= (group[2] if p.attribute[i] == group[0] else p.exact[start]) == 3
            continue
        edges, edges_end = out.column_edge[first_column + column], out.column_edge[first_column + column + 1]
        for k in range(start, end):
            gate = out.set_gates[at[_GATES]]
            decided &= _find_gate(out.edge, edges, edges_end, base, p.low[k], p.after[k], p.exact[k], gate)
            at[_GATES] += 1
        number = _find_set(begun, at, end - start, known[0], known[1], out)
        decided &= number != ALL_LANES
        out.row_sets[at[_ROW_SETS]] = number
        at[_ROW_SETS] += 1
    return EXACT if decided else kind


@compiled
def _table_size(count: int) -> Any:
    """Return a power of two, at least twice as large as `count`."""
    size: Any = 16
    while size < 2 * count:
        size *= 2
    return size


@compiled
def _write_rows(
    rows: Any, first: Any, p: Any, attributes: Any, group: Any, begun: Any, at: Any, kinds: Any, out: Any
) -> None:
    """Order a tile's rows by their number of sets, and append the sets and the runs of equal width."""
    widths = np.zeros(len(rows), np.int32)
    for r in range(len(rows)):
        for i in range(first[rows[r]], first[rows[r] + 1]):
            widths[r] += attributes[p.attribute[i], _COLUMN] != _SETTLED
    order = np.argsort(widths, kind="mergesort")
    known = np.zeros((2, _table_size(widths.sum())), np.int64)
    ordered, width = rows[order], -1
    for r in range(len(rows)):
        rows[r] = ordered[r]
        if widths[order[r]] != width:
            width = widths[order[r]]
            out.runs[at[_RUNS], 0], out.runs[at[_RUNS], 1] = width, 0
            at[_RUNS] += 1
        out.runs[at[_RUNS] - 1, 1] += 1
        kinds[r] = _write_row(rows[r], first, p, attributes, group, begun, at, known, out)


@compiled
def _write_columns(
    rows: Any, first: Any, p: Any, attributes: Any, touched: Any, bounds: Any, at: Any, out: Any
) -> None:
    """Append the columns of a tile, one for each attribute that its zones do not settle, and their edges."""
    columns, total = 0, 0
    starts = np.empty(len(touched), np.int64)
    for a in touched:
        noted = attributes[a]
        if noted[_COLUMN] != _SETTLED:
            noted[_COLUMN] = columns
            out.column[at[_COLUMNS] + columns] = a
            starts[columns] = total
            total += noted[_BOUNDS]
            columns += 1
    ends = starts[:columns].copy()
    _collect_bounds(rows, first, p, attributes, ends, bounds)
    place = out.column_edge[at[_COLUMNS] : at[_COLUMNS] + columns + 1]
    at[_EDGES] = _write_edges(bounds, starts[:columns], ends, out.edge, at[_EDGES], place)
    at[_COLUMNS] += columns


@compiled
def _code_rows(rows: Any, p: Any, dictionary: Any, cell_counts: Any) -> Any:
    """Return the starts of the predicates of some rows, and these predicates in codes: row r is
    ``rows[r]``."""
    first = np.zeros(len(rows) + 1, np.int64)
    pieces: Any = np.int64(0)
    for r in range(len(rows)):
        begin, stop = p.predicate_start[rows[r]], p.predicate_start[rows[r] + 1]
        first[r + 1] = first[r] + stop - begin
        pieces += p.piece_start[stop] - p.piece_start[begin]
    attribute, piece_start = np.empty(first[-1], np.int32), np.zeros(first[-1] + 1, np.int64)
    low, after = np.empty(pieces, np.int32), np.empty(pieces, np.int32)
    exact = np.empty(pieces, np.uint8)
    i, piece = 0, 0
    for row in rows:
        for k in range(p.predicate_start[row], p.predicate_start[row + 1]):
            a = p.attribute[k]
            shift, string_cell = dictionary.code_shift[a], dictionary.string_cell[a]
            for j in range(p.piece_start[k], p.piece_start[k + 1]):
                low[piece], after[piece], exact[piece] = code_piece(
                    np.int64(p.low[j]), np.int64(p.high[j]), shift, string_cell, cell_counts[a]
                )
                piece += 1
            attribute[i] = a
            i += 1
            piece_start[i] = piece
    return first, CodedPredicates(attribute, piece_start, low, after, exact)


@compiled
def pack_tiles(
    row_start: Any, rows: Any, groups: Any, p: Any, dictionary: Any, cell_counts: Any, kinds: Any, out: Any
) -> Any:
    """Lay out tiles, and order the rows of each. Returns the used size of every array of `out` after each
    tile.

    `groups` [T, 3] has an attribute, the code to which all the tile's rows are confined (or -1), and 3 if
    this code is exact. `p` has all rows' predicates; those of one tile at a time are converted to codes.
    """
    attribute_count = len(cell_counts)
    at = np.zeros(_TOTALS, np.int64)
    tile_count = len(row_start) - 1
    tile_at = np.zeros((tile_count + 1, _TOTALS), np.int64)
    attributes = np.zeros((max(attribute_count, 1), _COLUMN + 1), np.int64)
    for t in range(tile_count):
        tile_rows, group = rows[row_start[t] : row_start[t + 1]], groups[t]
        first, coded = _code_rows(tile_rows, p, dictionary, cell_counts)
        mine = np.arange(len(tile_rows))
        touched = np.empty(min(len(coded.attribute), attribute_count), np.int64)
        touched = touched[: _survey(mine, first, coded, attributes, touched)]
        at[_ZONES] = _write_zones(attributes, touched, len(mine), group, out.zones, at[_ZONES])
        _write_columns(
            mine, first, coded, attributes, touched, np.empty(2 * len(coded.low), np.int32), at, out
        )
        row_kinds = kinds[row_start[t] : row_start[t + 1]]
        _write_rows(mine, first, coded, attributes, group, tile_at[t], at, row_kinds, out)
        tile_rows[:] = tile_rows[mine]
        attributes[touched] = 0
        tile_at[t + 1] = at
    return tile_at
