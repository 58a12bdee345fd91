"""From gathered filters to flat arrays, with the choice of how each row is found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.plain.building.access import Shares, choose_access, shares_of
from fieldfare.matching.plain.building.constant_kernels import pack_pieces
from fieldfare.matching.plain.building.constants import DictionaryBuilder, offsets_of
from fieldfare.matching.plain.building.gathering import Constants, Gathered, NeedleTexts
from fieldfare.matching.plain.building.needles import NO_NEEDLE, choose_needles, pack_needles
from fieldfare.matching.plain.building.tile_packing import TilePredicates
from fieldfare.matching.plain.building.tiling import build_tiles
from fieldfare.matching.plain.kept import CompileFilter, kept
from fieldfare.matching.plain.layout import Arrays, Rows, Texts
from fieldfare.model import Path


class Material(NamedTuple):
    """The input of an index: predicates, and the filters that must confirm their candidates."""

    paths: tuple[Path, ...]
    gathered: Gathered
    constants: Constants
    filters: Sequence[tuple[int, str, str]]
    """(place, text, dialect), in ascending order of place."""

    def in_order(self, order: NDArray[np.int64]) -> Material:
        """Reorder the filters: the i-th was number ``order[i]``."""
        if bool((np.diff(order) > 0).all()):
            return self
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return self._replace(
            gathered=self.gathered.in_order(order),
            filters=sorted((int(place[i]), text, dialect) for i, text, dialect in self.filters),
        )


class Prepared(NamedTuple):
    """The input of an index, with its predicates in terms of cells."""

    paths: tuple[Path, ...]
    filters: Sequence[tuple[int, str, str]]
    builder: DictionaryBuilder
    predicates: TilePredicates
    needle_start: NDArray[np.int64]
    needle: NDArray[np.int32]
    needles: NeedleTexts


def prepare(material: Material) -> Prepared:
    """Sort the constants and find the cells of the predicates. Consumes `material`."""
    gathered = material.gathered
    builder = DictionaryBuilder(gathered, material.constants, len(material.paths))
    piece_start, low, high = builder.resolve(gathered)
    predicates = TilePredicates(
        subscription=gathered.subscription,
        predicate_start=gathered.predicate_start,
        attribute=gathered.attribute,
        piece_start=piece_start,
        low=low,
        high=high,
    )
    return Prepared(
        paths=material.paths,
        filters=material.filters,
        builder=builder,
        predicates=predicates,
        needle_start=gathered.needle_start,
        needle=gathered.needle,
        needles=material.constants.needles,
    )


def build_arrays(
    prepared: Prepared, compile_filter: CompileFilter
) -> tuple[tuple[Path, ...], tuple[Path, ...], Arrays]:
    """Build an index's arrays; return its indexed paths, the further paths that filters need, and the
    arrays."""
    paths, builder, dictionary = prepared.paths, prepared.builder, prepared.builder.dictionary
    counts = builder.cell_counts()
    shares = shares_of(prepared.predicates, counts)
    sought = _needles_of(prepared, shares)
    predicates = prepared.predicates._replace(subscription=_signed(prepared, sought))
    access, groups, checks = choose_access(predicates, counts, shares, sought != NO_NEEDLE)
    needles, needled = pack_needles(sought, prepared.needles, checks)
    tiles, tiled = build_tiles(predicates, counts, dictionary, groups)
    listed, place = in_order_of_use(access.row)
    rows = np.concatenate([tiled, listed, needled])
    subscriptions = predicates.subscription[rows]
    confirmed = set((~subscriptions[subscriptions < 0]).tolist())
    filters = [filter for filter in prepared.filters if filter[0] in confirmed]
    arrays = Arrays(
        dictionary=dictionary,
        rows=pack_rows(predicates, rows),
        access=access._replace(row=(len(tiled) + place).astype(np.int32)),
        needles=needles._replace(row=np.arange(len(rows) - len(needled), len(rows), dtype=np.int32)),
        tiles=tiles,
        texts=pack_texts(builder, filters),
    )
    further: dict[Path, None] = {}
    for _, text, dialect in filters:
        further |= dict.fromkeys(_paths_of(compile_filter, text, dialect))
    return paths, tuple(path for path in further if path not in paths), arrays


@kept(1 << 13, characters_max=1_000)
def _paths_of(compile_filter: CompileFilter, text: str, dialect: str) -> Iterable[Path]:
    """Return the columns that a filter needs to be confirmed."""
    return tuple(compile_filter(text, dialect).column_paths)


def _needles_of(prepared: Prepared, shares: Shares) -> NDArray[np.int32]:
    """Return the needle by which each row is found, or NO_NEEDLE."""
    predicates = prepared.predicates
    if not len(prepared.needle):
        return np.full(predicates.row_count, NO_NEEDLE, np.int32)
    single = np.flatnonzero(shares.predicate)
    row = np.searchsorted(predicates.predicate_start, single, side="right") - 1
    logs = np.log(shares.predicate[single])
    key_share = np.exp(np.bincount(row, logs, minlength=predicates.row_count))
    return choose_needles(
        needle_start=prepared.needle_start,
        needle=prepared.needle,
        texts=prepared.needles,
        exact=predicates.subscription >= 0,
        key_share=key_share,
    )


def _signed(prepared: Prepared, sought: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return each row's subscription, ~s if its filter must confirm, including rows with unused needles."""
    subscription = prepared.predicates.subscription
    unsought = np.diff(prepared.needle_start) - (sought != NO_NEEDLE) > 0
    return np.where(unsought & (subscription >= 0), ~subscription, subscription)


def in_order_of_use(row: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct rows in order of first occurrence, and the index of each element of `row` among
    them.

    Rows that are candidates together should be adjacent in memory.
    """
    rows, first, place = np.unique(row, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rows[order].astype(np.int64), rank[place]


def pack_rows(predicates: TilePredicates, rows: NDArray[np.int64]) -> Rows:
    """Return the pieces of the given rows, in their order, for the exact check."""
    columns = predicates.attribute, predicates.piece_start, predicates.low, predicates.high
    starts, pieces = pack_pieces(rows, columns, predicates.predicate_start)
    return Rows(starts, pieces, predicates.subscription[rows])


def pack_texts(builder: DictionaryBuilder, filters: Sequence[tuple[int, str, str]]) -> Texts:
    """Pack the rarely read texts."""
    numbers = [str(number).encode() for _, number in builder.odd_numbers]
    encoded = [f"{dialect}\n{text}".encode("utf-8", "surrogatepass") for _, text, dialect in filters]
    return Texts(
        number_place=np.array([place for place, _ in builder.odd_numbers], np.int64),
        number_offset=offsets_of(numbers),
        number_text=np.frombuffer(b"".join(numbers), np.uint8),
        filter_place=np.array([place for place, _, _ in filters], np.int64),
        filter_offset=offsets_of(encoded),
        filter_text=np.frombuffer(b"".join(encoded), np.uint8),
    )
