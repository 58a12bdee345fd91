"""Building a part: from normal forms to flat arrays, choosing for every row how it will be found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.constants import (
    CELL_MAX,
    Constants,
    DictionaryBuilder,
    offsets_of,
)
from fieldfare.matching.layout import (
    MORE_ALTERNATIVES,
    Access,
    Arrays,
    Rows,
    Subscriptions,
    Texts,
    starts_of,
)
from fieldfare.matching.tiling import Group, Predicates, build_tiles
from fieldfare.model import Path

if TYPE_CHECKING:
    from fieldfare.filters import NormalForm

ACCESS_POINTS_MAX = 8
"""A predicate that allows more cells than this is not used to find its row by table."""
ACCESS_SHARE_MAX = 0.125
"""Nor one that allows values which more than this share of the attribute's equality predicates ask for."""
TILE_GROUP_ROWS = 256
"""So many rows under the same cell become tiles of their own: their bitsets cost less than scanning them."""

CompileFilter = Callable[[str, str], Any]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version of a subscription, valid for offsets in [valid_from, valid_to)."""

    version: int
    number: int
    valid_from: int
    valid_to: int
    normal_form: NormalForm
    text: str
    dialect: str


class Gatherer:
    """The one pass over Python objects: after it everything is arrays."""

    def __init__(self) -> None:
        self.places: dict[Path, int] = {}
        self.constants: list[Constants] = []
        self.subscription: list[int] = []
        self.row: list[int] = []
        self.attribute: list[int] = []
        self.piece_count: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, subscription: int, normal_form: NormalForm) -> bool:
        """Add a subscription's rows; whether its filter must confirm some of them."""
        confirms = False
        for conjunction in normal_form.conjunctions:
            if any(values.is_empty for _, values in conjunction.constraints):
                continue
            row = len(self.subscription)
            self.subscription.append(subscription if conjunction.exact else ~subscription)
            confirms |= not conjunction.exact
            for path, values in conjunction.constraints:
                place = self.places.get(path)
                if place is None:
                    place = self.places[path] = len(self.constants)
                    self.constants.append(Constants())
                self.row.append(row)
                self.attribute.append(place)
                self.piece_count.append(self.constants[place].add(values, self.starts, self.ends))
        return confirms

    def resolve(self, builder: DictionaryBuilder) -> Predicates:
        """Turn provisional places into cells, and join intervals that touch."""
        attribute = np.array(self.attribute, np.int32)
        count = np.array(self.piece_count, np.int64)
        owner = np.repeat(np.arange(len(count)), count)
        start = builder.resolve(np.array(self.starts, np.int64), attribute[owner])
        end = builder.resolve(np.array(self.ends, np.int64), attribute[owner])
        opens = np.ones(len(start), bool)
        opens[1:] = (owner[1:] != owner[:-1]) | (start[1:] != end[:-1])
        last = np.concatenate([np.flatnonzero(opens)[1:] - 1, [len(start) - 1]]) if len(start) else opens[:0]
        piece_start = np.zeros(len(count) + 1, np.int64)
        np.cumsum(np.bincount(owner[opens], minlength=len(count)), out=piece_start[1:])
        return Predicates(
            subscription=np.array(self.subscription, np.int32),
            row=np.array(self.row, np.int64),
            attribute=attribute,
            piece_start=piece_start,
            low=start[opens],
            high=end[last.astype(np.int64)] - 1,
        )


def build_arrays(
    entries: Iterable[IndexEntry], compile_filter: CompileFilter
) -> tuple[tuple[Path, ...], tuple[Path, ...], Arrays]:
    """The paths with predicates, the further paths that filters need, and the arrays of a part."""
    ordered = sorted(entries, key=lambda entry: entry.version)
    gatherer = Gatherer()
    confirmed = [i for i, entry in enumerate(ordered) if gatherer.add(i, entry.normal_form)]
    builder = DictionaryBuilder(gatherer.constants)
    predicates = gatherer.resolve(builder)
    counts, dictionary = builder.cell_counts(), builder.finish()
    access, groups = choose_access(predicates, counts)
    tiles, tiled = build_tiles(predicates, counts, dictionary, groups)
    listed, place = np.unique(access.entries[:, 0], return_inverse=True)
    access.entries[:, 0] = len(tiled) + place
    arrays = Arrays(
        dictionary=dictionary,
        rows=pack_rows(predicates.reordered(np.concatenate([tiled, listed]))),
        access=access,
        tiles=tiles,
        subscriptions=pack_subscriptions(ordered),
        texts=pack_texts(builder, ordered, confirmed),
    )
    paths = tuple(gatherer.places)
    further: dict[Path, None] = {}
    for i in confirmed:
        for path in compile_filter(ordered[i].text, ordered[i].dialect).column_paths:
            if path not in gatherer.places:
                further[path] = None
    return paths, tuple(further), arrays


def pack_rows(predicates: Predicates) -> Rows:
    """The pieces of every row, in row order, for the exact check."""
    owner = predicates.piece_owner()
    pieces = np.empty((len(owner), 3), np.int32)
    pieces[:, 0] = predicates.attribute[owner]
    if len(owner):
        pieces[:-1, 0] += np.where(owner[1:] == owner[:-1], MORE_ALTERNATIVES, 0).astype(np.int32)
    pieces[:, 1] = predicates.low
    pieces[:, 2] = predicates.high
    starts = np.zeros(predicates.row_count + 1, np.int64)
    np.cumsum(np.bincount(predicates.row[owner], minlength=predicates.row_count), out=starts[1:])
    return Rows(starts, pieces, predicates.subscription)


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


def pack_subscriptions(entries: Sequence[IndexEntry]) -> Subscriptions:
    """The versions' columns; entries are sorted by version."""
    number = np.array([entry.number for entry in entries], np.uint32)
    by_number = np.argsort(number, kind="stable").astype(np.int32)
    return Subscriptions(
        version=np.array([entry.version for entry in entries], np.int64),
        number=number,
        valid_from=np.array([entry.valid_from for entry in entries], np.int64),
        valid_to=np.array([entry.valid_to for entry in entries], np.int64),
        by_number=by_number,
        sorted_number=number[by_number],
    )


def pack_texts(builder: DictionaryBuilder, entries: Sequence[IndexEntry], confirmed: Sequence[int]) -> Texts:
    """The texts that are read now and then."""
    numbers = [str(number).encode() for _, number in builder.odd_numbers]
    filters = [f"{entries[i].dialect}\n{entries[i].text}".encode("utf-8", "surrogatepass") for i in confirmed]
    return Texts(
        number_place=np.array([place for place, _ in builder.odd_numbers], np.int64),
        number_offset=offsets_of(numbers),
        number_text=np.frombuffer(b"".join(numbers), np.uint8),
        filter_place=np.array(confirmed, np.int64),
        filter_offset=offsets_of(filters),
        filter_text=np.frombuffer(b"".join(filters), np.uint8),
    )
