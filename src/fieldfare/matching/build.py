"""Building a part: from subscription versions to flat arrays, choosing for every row how it will be found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.access import Shares, choose_access, shares_of
from fieldfare.matching.constant_kernels import pack_pieces
from fieldfare.matching.constants import DictionaryBuilder, offsets_of
from fieldfare.matching.gathering import Constants, Gathered, Gatherer, NeedleTexts
from fieldfare.matching.layout import Arrays, Rows, Subscriptions, Texts
from fieldfare.matching.needles import NO_NEEDLE, choose_needles, pack_needles
from fieldfare.matching.tiling import Predicates, build_tiles
from fieldfare.model import Path

if TYPE_CHECKING:
    from fieldfare.filters import NormalForm

ENTRIES_AT_ONCE = 4096
"""So many entries are held as Python objects at once."""

CompileFilter = Callable[[str, str], Any]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version of a subscription, valid for offsets in [valid_from, valid_to).

    Its normal form may be given as the bytes that encode it, which is faster.
    """

    version: int
    number: int
    valid_from: int
    valid_to: int
    normal_form: NormalForm | bytes
    text: str
    dialect: str


class Versions(NamedTuple):
    """Subscription versions as columns, by version."""

    version: NDArray[np.int64]
    number: NDArray[np.uint32]
    valid_from: NDArray[np.int64]
    valid_to: NDArray[np.int64]


class Material(NamedTuple):
    """What a part is built of: versions, their predicates, and the filters that must confirm theirs."""

    versions: Versions
    paths: tuple[Path, ...]
    gathered: Gathered
    constants: Constants
    filters: Sequence[tuple[int, str, str]]
    """(place of the version, text, dialect), ascending"""


class VersionGatherer:
    """Takes in subscription versions, some at a time; what it keeps of them is arrays."""

    def __init__(self) -> None:
        self._gatherer = Gatherer()
        self._filters: list[tuple[int, str, str]] = []
        self._columns: list[Versions] = [_NO_VERSIONS]

    def add(self, entries: Sequence[IndexEntry]) -> None:
        """Take in versions, in any order; ValueError if bytes are no encoded normal form."""
        from fieldfare.filters.encoding import encode_normal_form

        forms = [
            form if isinstance(form, bytes) else encode_normal_form(form)
            for form in [entry.normal_form for entry in entries]
        ]
        base = self._gatherer.size
        for i in self._gatherer.add(forms).tolist():
            self._filters.append((base + i, entries[i].text, entries[i].dialect))
        self._columns.append(
            Versions(
                np.array([entry.version for entry in entries], np.int64),
                np.array([entry.number for entry in entries], np.uint32),
                np.array([entry.valid_from for entry in entries], np.int64),
                np.array([entry.valid_to for entry in entries], np.int64),
            )
        )

    def finish(self) -> Material:
        """All that was taken in, by version; to be called once."""
        versions = Versions(*map(np.concatenate, zip(*self._columns, strict=True)))
        return in_order(Material(versions, *self._gatherer.finish(), self._filters))


def gather_entries(entries: Iterable[IndexEntry]) -> Material:
    """Read entries, in any order, as a stream."""
    gatherer = VersionGatherer()
    remaining = iter(entries)
    while chunk := list(islice(remaining, ENTRIES_AT_ONCE)):
        gatherer.add(chunk)
    return gatherer.finish()


_NO_VERSIONS = Versions(np.zeros(0, np.int64), np.zeros(0, np.uint32), *np.zeros((2, 0), np.int64))


def in_order(material: Material) -> Material:
    """The same with its versions ascending; ValueError if one comes twice."""
    version = material.versions.version
    if bool((version[1:] > version[:-1]).all()):
        return material
    order = np.argsort(version, kind="stable")
    if not (np.diff(version[order]) > 0).all():
        raise ValueError("a version comes twice in versions")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return material._replace(
        versions=Versions(*(column[order] for column in material.versions)),  # type: ignore[arg-type]
        gathered=material.gathered.in_order(order),
        filters=sorted((int(place[i]), text, dialect) for i, text, dialect in material.filters),
    )


class Prepared(NamedTuple):
    """What a part is built of, its predicates in terms of cells."""

    versions: Versions
    paths: tuple[Path, ...]
    filters: Sequence[tuple[int, str, str]]
    builder: DictionaryBuilder
    predicates: Predicates
    predicate_start: NDArray[np.int64]
    needle_start: NDArray[np.int64]
    needle: NDArray[np.int32]
    needles: NeedleTexts


def prepare(material: Material) -> Prepared:
    """Sort the constants, and find the cells of the predicates. What was gathered is not needed any more."""
    gathered = material.gathered
    builder = DictionaryBuilder(gathered, material.constants, len(material.paths))
    piece_start, low, high = builder.resolve(gathered)
    counts = np.diff(gathered.predicate_start)
    predicates = Predicates(
        subscription=gathered.subscription,
        row=np.repeat(np.arange(len(counts)), counts),
        attribute=gathered.attribute,
        piece_start=piece_start,
        low=low,
        high=high,
    )
    return Prepared(
        *(material.versions, material.paths, material.filters, builder, predicates),
        *(gathered.predicate_start, gathered.needle_start, gathered.needle, material.constants.needles),
    )


def build_arrays(
    prepared: Prepared, compile_filter: CompileFilter
) -> tuple[tuple[Path, ...], tuple[Path, ...], Arrays]:
    """The paths with predicates, the further paths that filters need, and the arrays of a part."""
    paths, builder, dictionary = prepared.paths, prepared.builder, prepared.builder.dictionary
    counts = builder.cell_counts()
    shares = shares_of(prepared.predicates, counts)
    sought = _needles_of(prepared, shares)
    predicates = replace(prepared.predicates, subscription=_signed(prepared, sought))
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
        rows=pack_rows(predicates, prepared.predicate_start, rows),
        access=access._replace(row=(len(tiled) + place).astype(np.int32)),
        needles=needles._replace(row=np.arange(len(rows) - len(needled), len(rows), dtype=np.int32)),
        tiles=tiles,
        subscriptions=pack_subscriptions(prepared.versions),
        texts=pack_texts(builder, filters),
    )
    further: dict[Path, None] = {}
    for _, text, dialect in filters:
        further |= dict.fromkeys(compile_filter(text, dialect).column_paths)
    return paths, tuple(path for path in further if path not in paths), arrays


def _needles_of(prepared: Prepared, shares: Shares) -> NDArray[np.int32]:
    """The needle by which each row is found, or NO_NEEDLE."""
    predicates = prepared.predicates
    if not len(prepared.needle):
        return np.full(predicates.row_count, NO_NEEDLE, np.int32)
    single = shares.predicate < np.inf
    logs = np.log(shares.predicate[single])
    key_share = np.exp(np.bincount(predicates.row[single], logs, minlength=predicates.row_count))
    return choose_needles(
        *(prepared.needle_start, prepared.needle, prepared.needles),
        *(predicates.subscription >= 0, key_share),
    )


def _signed(prepared: Prepared, sought: NDArray[np.int32]) -> NDArray[np.int32]:
    """The subscription of each row, ~s if its filter must confirm: also where a needle was not looked for."""
    subscription = prepared.predicates.subscription
    unsought = np.diff(prepared.needle_start) - (sought != NO_NEEDLE) > 0
    return np.where(unsought & (subscription >= 0), ~subscription, subscription)


def in_order_of_use(row: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different rows as they first come, and the place of each one of `row` among these.

    Rows that are candidates together shall lie together.
    """
    rows, first, place = np.unique(row, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rows[order].astype(np.int64), rank[place]


def pack_rows(predicates: Predicates, predicate_start: NDArray[np.int64], rows: NDArray[np.int64]) -> Rows:
    """The pieces of every row, in an order of the rows, for the exact check."""
    columns = predicates.attribute, predicates.piece_start, predicates.low, predicates.high
    starts, pieces = pack_pieces(rows, columns, predicate_start)
    return Rows(starts, pieces, predicates.subscription[rows])


def pack_subscriptions(versions: Versions) -> Subscriptions:
    """The versions' columns, and their order by number."""
    by_number = np.argsort(versions.number, kind="stable").astype(np.int32)
    return Subscriptions(*versions, by_number=by_number, sorted_number=versions.number[by_number])


def pack_texts(builder: DictionaryBuilder, filters: Sequence[tuple[int, str, str]]) -> Texts:
    """The texts that are read now and then."""
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
