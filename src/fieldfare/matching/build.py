"""Building a part: from normal forms to flat arrays, choosing for every row how it will be found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fieldfare.matching.access import choose_access
from fieldfare.matching.constants import (
    Constants,
    DictionaryBuilder,
    bucket_bounds,
    offsets_of,
)
from fieldfare.matching.layout import (
    MORE_ALTERNATIVES,
    Arrays,
    Rows,
    Subscriptions,
    Texts,
)
from fieldfare.matching.tiling import Predicates, build_tiles
from fieldfare.model import Path

if TYPE_CHECKING:
    from fieldfare.filters import NormalForm

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
    owner_attribute = predicates.attribute[predicates.piece_owner()]
    bounds = bucket_bounds(
        builder.cell_counts(),
        builder.cells_before_strings(),
        owner_attribute,
        predicates.low,
        predicates.high,
    )
    access, groups = choose_access(predicates, builder.cell_counts(), bounds)
    arrays = Arrays(
        dictionary=builder.finish(bounds),
        rows=pack_rows(predicates),
        access=access,
        tiles=build_tiles(predicates, builder.cell_counts(), bounds, groups),
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
