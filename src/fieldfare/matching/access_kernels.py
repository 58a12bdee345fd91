"""The compiled loops over tables of rows by cell: from an event's cells to the rows that match."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled
from fieldfare.matching.kernels import grown, row_matches


@compiled
def _undismissed(entries: Any, cells: Any, found: Any) -> Any:
    """Write the rows whose further piece an event satisfies; return how many."""
    count = 0
    for i in range(len(entries)):  # the hot loop, without a branch
        cell = cells[entries[i, 1]]
        found[count] = entries[i, 0]
        count += (entries[i, 2] <= cell) & (cell <= entries[i, 3])
    return count


@compiled
def scan_access(access: Any, rows: Any, cells: Any, pairs: Any, count: int) -> Any:
    """Append (event, subscription) for rows found by the cell of one attribute; cells is [n, A]."""
    entries, attributes = access.entries, access.attribute
    table, table_start = access.table, access.table_start
    piece_start, pieces, subscription = rows.piece_start, rows.pieces, rows.subscription
    found = np.empty(len(entries) + 1, np.int32)
    for x in range(len(attributes)):  # outermost, so that one attribute's lists stay in the cache
        for e in range(cells.shape[0]):
            slot = table_start[x] + cells[e, attributes[x]]
            start, end = table[slot], table[slot + 1]
            found_count = _undismissed(entries[start:end], cells[e], found)
            if count + found_count > len(pairs):
                pairs = grown(pairs, count + found_count)
            for i in range(found_count):
                if row_matches(piece_start, pieces, found[i], cells, e):
                    pairs[count, 0] = e
                    pairs[count, 1] = subscription[found[i]]
                    count += 1
    return pairs, count
