"""Kernels for the choice of keys (``access``): sets of attributes that find rows.

The *points* of a row are its predicates that allow a few single cells, ordered by attribute; a key of the row
is a subset of these, given by the bits of a mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled, inlined

KEY_ATTRIBUTES_MAX = 4
ATTRIBUTE_BITS = 15
NO_KEY = -1


@compiled
def find_pointed(p: Any, most: int, least_cell: int, pointed: Any) -> None:
    """Mark the predicates that can find a row: those with at most `most` single cells, all from `least_cell`
    on."""
    for i in range(len(pointed)):
        start, end = p.piece_start[i], p.piece_start[i + 1]
        if start == end or end - start > most or p.attribute[i] >= (1 << ATTRIBUTE_BITS) - 1:
            continue
        pointed[i] = True
        for k in range(start, end):
            if p.low[k] != p.high[k] or p.low[k] < least_cell:
                pointed[i] = False
                break


@compiled
def guess_shares(p: Any, pointed: Any, cell_start: Any, asked: Any, asked_total: Any, shares: Any) -> None:
    """Write the shares of the marked predicates and of their pieces.

    `asked` has a zero for each cell of every attribute.
    """
    for i in range(len(pointed)):
        if pointed[i]:
            for k in range(p.piece_start[i], p.piece_start[i + 1]):
                asked[cell_start[p.attribute[i]] + p.low[k]] += 1
    for i in range(len(pointed)):
        if pointed[i]:
            a, share = p.attribute[i], 0.0
            for k in range(p.piece_start[i], p.piece_start[i + 1]):
                shares.piece[k] = asked[cell_start[a] + p.low[k]] / asked_total[a]
                share += shares.piece[k]
            shares.predicate[i] = min(share, 1.0)


@compiled
def rank_points(first_predicate: Any, attribute: Any, share: Any, elsewhere: Any, most: int) -> Any:
    """Choose each row's `most` predicates of least nonzero share, ordered by attribute; none for rows in
    `elsewhere`.

    Returns the start of each row's points, and the predicate of each point.
    """
    row_count = len(first_predicate) - 1
    row_start = np.zeros(row_count + 1, np.int64)
    chosen = np.empty(len(attribute), np.int64)
    count = 0
    for row in range(row_count):
        start = count
        for p in range(first_predicate[row], first_predicate[row + 1]):
            if share[p] == 0.0 or elsewhere[row]:
                continue
            if count - start < most:
                chosen[count] = p
                count += 1
                continue
            worst = start
            for i in range(start + 1, count):
                if share[chosen[i]] > share[chosen[worst]]:
                    worst = i
            if share[p] < share[chosen[worst]]:
                chosen[worst] = p
        for i in range(start + 1, count):  # sort by attribute
            p, j = chosen[i], i - 1
            while j >= start and attribute[chosen[j]] > attribute[p]:
                chosen[j + 1] = chosen[j]
                j -= 1
            chosen[j + 1] = p
        row_start[row + 1] = count
    return row_start, chosen[:count]


@inlined
def _key_of(points: Any, start: int, end: int, mask: int, most_entries: int) -> Any:
    """Evaluate a subset of a row's points: return (key, product of shares, least share, hash of the cells).

    The key is 0 if the subset cannot be a key.
    """
    share, least, entries, hashed, size = 1.0, 1.0, 1, 0, 0
    key: Any = np.int64(0)
    for i in range(start, end):
        if mask >> (i - start) & 1:
            key = key << ATTRIBUTE_BITS | np.int64(points.attribute[i]) + 1
            share *= points.share[i]
            least = min(least, points.share[i])
            entries *= points.cell_count[i]
            hashed = (hashed * 0x2545F491 + points.cell[i] * 0x9E3779B1) & 0x3FFFFFFF
            size += 1
    if entries > most_entries or size > KEY_ATTRIBUTES_MAX:
        key = 0
    return key, share, least, hashed


@compiled
def list_keys(points: Any, rows: Any, most_entries: int) -> Any:
    """List every key of the given rows: the row's index in `rows`, and the results of `_key_of`."""
    total = 0
    for row in rows:
        total += (1 << (points.row_start[row + 1] - points.row_start[row])) - 1
    owner, key, hashed = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64)
    share, least = np.empty(total, np.float64), np.empty(total, np.float64)
    count = 0
    for place in range(len(rows)):
        start, end = points.row_start[rows[place]], points.row_start[rows[place] + 1]
        for mask in range(1, 1 << (end - start)):
            owner[count] = place
            key[count], share[count], least[count], hashed[count] = _key_of(
                points, start, end, mask, most_entries
            )
            count += key[count] != 0
    return owner[:count], key[:count], share[:count], least[:count], hashed[:count]


@compiled
def choose_keys(
    owner_start: Any, owner: Any, key: Any, cost: Any, open_cost: float, fee: float, most: int
) -> Any:
    """Choose keys greedily: always the one that saves most, while it saves more than its fee.

    Option i is that row ``owner[i]`` is found by ``key[i]`` (small integers) at ``cost[i]``; options are
    ordered by row, those of row r from ``owner_start[r]`` on. A row without a key costs `open_cost`. Finally,
    keys that others have made dispensable are dropped.
    """
    key_count = 0
    for k in key:
        key_count = max(key_count, k + 1)
    saving = np.zeros(key_count, np.float64)
    for i in range(len(key)):
        saving[key[i]] += max(0.0, open_cost - cost[i])
    by_key = np.argsort(key)
    key_start = np.searchsorted(key[by_key], np.arange(key_count + 1))
    current = np.full(len(owner_start) - 1, open_cost)
    chosen = np.zeros(key_count, np.bool_)
    order = np.empty(most, np.int64)
    count = 0
    while count < most and key_count > 0:
        best = saving.argmax()
        if saving[best] <= fee:
            break
        chosen[best] = True
        order[count] = best
        count += 1
        for i in by_key[key_start[best] : key_start[best + 1]]:
            row, mine = owner[i], cost[i]
            if mine < current[row]:
                for j in range(owner_start[row], owner_start[row + 1]):
                    saving[key[j]] -= max(0.0, current[row] - cost[j]) - max(0.0, mine - cost[j])
                current[row] = mine
        saving[best] = 0.0
    for k in order[:count]:
        options = by_key[key_start[k] : key_start[k + 1]]
        _give_up(k, options, owner_start, owner, key, cost, open_cost, fee, chosen, current)
    return chosen


@compiled
def _give_up(
    candidate: int,
    options: Any,
    owner_start: Any,
    owner: Any,
    key: Any,
    cost: Any,
    open_cost: float,
    fee: float,
    chosen: Any,
    current: Any,
) -> None:
    """Drop a key if that costs less than the fee."""
    dearer = 0.0
    other = np.empty(len(options), np.float64)
    for place in range(len(options)):
        i = options[place]
        row = owner[i]
        other[place] = current[row]
        if cost[i] > current[row]:
            continue
        least = open_cost
        for j in range(owner_start[row], owner_start[row + 1]):
            if key[j] != candidate and chosen[key[j]]:
                least = min(least, cost[j])
        other[place] = least
        dearer += least - current[row]
    if dearer < fee:
        chosen[candidate] = False
        for place in range(len(options)):
            current[owner[options[place]]] = other[place]


@compiled
def assign_keys(points: Any, keys: Any, lift: Any, table: Any, share_max: float, most_entries: int) -> Any:
    """Return the chosen key of each row, and the mask of its points: (number of the key or NO_KEY, mask)."""
    row_count = len(points.row_start) - 1
    taken, masks = np.full(row_count, NO_KEY, np.int32), np.zeros(row_count, np.int32)
    for row in range(row_count):
        start, end = points.row_start[row], points.row_start[row + 1]
        best = share_max
        for mask in range(1, 1 << (end - start)):
            key, share, least, _ = _key_of(points, start, end, mask, most_entries)
            number = find_key(keys, table, key)
            if number == NO_KEY:
                continue
            met = min(share * lift[number], least)
            if met < best:
                best = met
                taken[row], masks[row] = number, mask
    return taken, masks


@compiled
def find_key(keys: Any, table: Any, key: int) -> Any:
    """Return the number of a key, or NO_KEY, by open addressing in a table whose size is a power of two."""
    slot = key_hash(key) & (len(table) - 1)
    while table[slot] != NO_KEY:
        if keys[table[slot]] == key:
            return np.int64(table[slot])
        slot = (slot + 1) & (len(table) - 1)
    return np.int64(NO_KEY)


@compiled
def key_hash(key: int) -> Any:
    """Return the hash at which the search for a key starts."""
    mixed = (np.int64(key) & 0x3FFFFFFF) * 0x1E3779B1 ^ (np.int64(key) >> 30) * 0x05EBCA6B
    return mixed >> 13 ^ mixed


@compiled
def fill_key_table(keys: Any, table: Any) -> None:
    """Insert distinct keys into a table of NO_KEY."""
    for number in range(len(keys)):
        slot = key_hash(keys[number]) & (len(table) - 1)
        while table[slot] != NO_KEY:
            slot = (slot + 1) & (len(table) - 1)
        table[slot] = number


@compiled
def count_entries(points: Any, taken: Any, masks: Any, key_count: int) -> Any:
    """Count the entries of each key: one per combination of the cells that a row allows."""
    counts = np.zeros(key_count, np.int64)
    for row in range(len(taken)):
        if taken[row] != NO_KEY:
            counts[taken[row]] += _combinations(points, row, masks[row])
    return counts


@inlined
def _combinations(points: Any, row: int, mask: int) -> Any:
    entries = 1
    for i in range(points.row_start[row], points.row_start[row + 1]):
        if mask >> (i - points.row_start[row]) & 1:
            entries *= points.cell_count[i]
    return entries


@compiled
def list_entries(
    points: Any, low: Any, piece_share: Any, taken: Any, masks: Any, places: Any, total: int
) -> Any:
    """List all entries: (row, slot, probability, rarest attribute and its cell).

    `places` has for each key the attributes' multipliers, the mask, the shift and the start of its table.
    """
    row_of, slot = np.empty(total, np.int64), np.empty(total, np.int64)
    met, rarest = np.empty(total, np.float64), np.empty((total, 2), np.int64)
    count = 0
    for row in range(len(taken)):
        x = taken[row]
        if x == NO_KEY:
            continue
        start, end = points.row_start[row], points.row_start[row + 1]
        for combination in range(_combinations(points, row, masks[row])):
            left, hashed, share, least, k = combination, 0, 1.0, 2.0, 0
            for i in range(start, end):
                if not masks[row] >> (i - start) & 1:
                    continue
                piece = points.first_piece[i] + left % points.cell_count[i]
                left //= points.cell_count[i]
                hashed += (low[piece] >> 1) * places[x, k]
                k += 1
                share *= piece_share[piece]
                if piece_share[piece] < least:
                    least = piece_share[piece]
                    rarest[count, 0], rarest[count, 1] = points.attribute[i], low[piece]
            row_of[count], met[count] = row, share
            slot[count] = places[x, KEY_ATTRIBUTES_MAX + 2] + (
                (hashed & places[x, KEY_ATTRIBUTES_MAX]) >> places[x, KEY_ATTRIBUTES_MAX + 1]
            )
            count += 1
    return row_of, slot, met, rarest


@compiled
def best_checks(p: Any, share: Any, in_key: Any) -> Any:
    """Return each row's most selective predicate that is a single interval, preferably not of its key; or
    -1."""
    best = np.full(len(p.predicate_start) - 1, -1, np.int64)
    for row in range(len(best)):
        least = np.inf
        for i in range(p.predicate_start[row], p.predicate_start[row + 1]):
            piece = p.piece_start[i]
            if p.piece_start[i + 1] - piece != 1:
                continue
            rank = share[i] if share[i] > 0.0 else 2.0
            rank += 1e-9 * (np.int64(p.high[piece]) - np.int64(p.low[piece]))
            if in_key[i]:
                rank += 4.0
            if rank < least:
                least = rank
                best[row] = i
    return best
