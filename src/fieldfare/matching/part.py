"""A part of an index: an immutable set of subscription versions, matched a batch of events at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching import access_kernels, kernels, tile_kernels
from fieldfare.matching.build import (
    CompileFilter,
    IndexEntry,
    Material,
    build_arrays,
    gather_entries,
    prepare,
)
from fieldfare.matching.codes import encode
from fieldfare.matching.columns import Column, ColumnBatch
from fieldfare.matching.confirm import Confirmer
from fieldfare.matching.files import open_arrays, save_arrays
from fieldfare.matching.giving_up import TooManyPairs
from fieldfare.matching.grouping import Pairs, group_by_event
from fieldfare.matching.lanes import LANES
from fieldfare.matching.layout import (
    FIRST_NUMBER_CELL,
    TILE_ROWS_MAX,
    Access,
    Arrays,
    Dictionary,
    Needles,
    Overlay,
    Rows,
    Subscriptions,
    Texts,
    Tiles,
)
from fieldfare.matching.needles import NO_ROWS, scan_strings
from fieldfare.matching.overlays import NO_OVERLAY, NOTHING_CLOSED, Closed, closed_of
from fieldfare.matching.windows import find_pairs
from fieldfare.model import OPEN_END, Path

if TYPE_CHECKING:
    from fieldfare.matching.explanation import PartExplanation

PAIRS_ROOM = 8192
"""Room for pairs that a chunk of events starts with, if the last one did not find more."""

CONFIRMED_AT_ONCE = 1 << 20
"""Pairs that are looked at together when filters confirm them: bounds what is noted about each."""

TILE_PAIRS_MAX = TILE_ROWS_MAX * LANES
"""Pairs that a tile asks for room for, at most."""

_GROUPS: dict[str, Callable[..., Any]] = {
    "dictionary": Dictionary,
    "rows": Rows,
    "access": Access,
    "needles": Needles,
    "tiles": Tiles,
    "subscriptions": Subscriptions,
    "texts": Texts,
}


@dataclass(frozen=True, slots=True)
class Matches:
    """The matches of n events as CSR: event e has ``subscriptions[indptr[e]:indptr[e + 1]]``.

    indptr is int64[n + 1]; subscriptions uint32[m], ascending within an event, none twice.
    """

    indptr: NDArray[np.int64]
    subscriptions: NDArray[np.uint32]

    @classmethod
    def from_pairs(cls, size: int, collected: Iterable[Pairs]) -> Self:
        """Gather matches of n events found by several parts."""
        return cls(*group_by_event(size, list(collected)))

    def of(self, event: int) -> NDArray[np.uint32]:
        """The numbers of the subscriptions that one event matches."""
        return self.subscriptions[self.indptr[event] : self.indptr[event + 1]]

    def lists(self) -> list[list[int]]:
        """The numbers of each event's subscriptions, as Python lists."""
        return [self.of(event).tolist() for event in range(len(self.indptr) - 1)]


@dataclass(frozen=True, slots=True, eq=False)
class Closings:
    """Versions that were replaced or removed after their part was built, and from which offset on.

    versions is int64[k], ascending; valid_to int64[k].
    """

    versions: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    valid_to: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.versions)

    def save(self, path: str | FilePath) -> int:
        """Write to a file, all or nothing; return its size in bytes."""
        return save_arrays(path, "closings", {"versions": self.versions, "valid_to": self.valid_to}, {})

    @classmethod
    def open(cls, path: str | FilePath, *, verify: bool = True) -> Self:
        """Map a file that `save` wrote; IndexFileError if it is broken."""
        _, arrays = open_arrays(path, "closings", verify=verify)
        return cls(arrays["versions"], arrays["valid_to"])


class Part:
    """Subscription versions in flat arrays (``layout`` draws them); made by `build_part` or `Part.open`.

    Attributes
    ----------
    size : how many subscription versions it holds
    paths : the attributes that a batch of events must have as columns, as far as the events have them
    """

    def __init__(
        self,
        indexed_paths: tuple[Path, ...],
        further_paths: tuple[Path, ...],
        arrays: Arrays,
        valid_within: tuple[int, int],
        compile_filter: CompileFilter | None = None,
    ) -> None:
        self.indexed_paths = indexed_paths
        self.paths = indexed_paths + further_paths
        self.arrays = arrays
        self.size = len(arrays.subscriptions.version)
        self.valid_within = valid_within
        """All versions are valid for offsets in [first, second): no need to look at each."""
        self._compile_filter = compile_filter or _default_compile
        self._closed: tuple[Closings | None, Closed] = (None, NOTHING_CLOSED)
        self._boundaries: dict[int, list[Decimal]] = {}
        self._pairs_room = PAIRS_ROOM

    @property
    def size_bytes(self) -> int:
        """The bytes of all arrays: the size of the file but for its header."""
        return sum(array.nbytes for group in self.arrays for array in group)

    def save(self, path: str | FilePath) -> int:
        """Write to a file, all or nothing; return its size in bytes."""
        arrays = {
            f"{name}.{field_name}": array
            for name, group in self.arrays._asdict().items()
            for field_name, array in group._asdict().items()
        }
        meta = {
            "indexed_paths": self.indexed_paths,
            "further_paths": self.paths[len(self.indexed_paths) :],
            "valid_within": self.valid_within,
        }
        return save_arrays(path, "part", arrays, meta)

    @classmethod
    def open(
        cls,
        path: str | FilePath,
        *,
        verify: bool = False,
        compile_filter: CompileFilter | None = None,
    ) -> Self:
        """Map a file that `save` wrote, in the same time whatever its size.

        Raises IndexFileError if it is truncated, of another format, or its header is broken; with
        `verify`, also if any byte of its arrays is not what was written.
        """
        meta, arrays = open_arrays(path, "part", verify=verify)
        groups = {
            name: group(**{field_name: arrays[f"{name}.{field_name}"] for field_name in group._fields})  # type: ignore[attr-defined]
            for name, group in _GROUPS.items()
            if f"{name}.{group._fields[0]}" in arrays  # type: ignore[attr-defined]
        }
        return cls(
            tuple(tuple(steps) for steps in meta["indexed_paths"]),
            tuple(tuple(steps) for steps in meta["further_paths"]),
            Arrays(**{"needles": NO_ROWS, **groups}),
            (meta["valid_within"][0], meta["valid_within"][1]),
            compile_filter,
        )

    def match(
        self, columns: ColumnBatch, offsets: NDArray[np.int64], closings: Closings | None = None
    ) -> Matches:
        """Which subscriptions each event matches.

        Parameters
        ----------
        columns : n events, with a column for every one of `paths` that some event has
        offsets : int64[n], the log offset of each event's record; a version counts for an event if
            valid_from <= offset < valid_to
        closings : versions that ended after the part was built
        """
        return Matches.from_pairs(columns.size, self.collect(columns, offsets, closings))

    def collect(
        self, columns: ColumnBatch, offsets: NDArray[np.int64], closings: Closings | None = None
    ) -> list[Pairs]:
        """The matches as pairs, a window of events at a time."""
        return list(find_pairs([self], columns, offsets, closings))

    def find(
        self,
        columns: ColumnBatch,
        offsets: NDArray[np.int64],
        start: int,
        end: int,
        overlay: Overlay,
        most: int,
    ) -> Pairs:
        """The events [start, end) and what they match, ~s where its filter must still `confirm` that.

        TooManyPairs if there are more than `most`.
        """
        cells = self.locate(columns, start, end)
        by_event = np.empty(cells.shape[::-1], np.int32)
        kernels.by_events(cells, by_event)
        mine = np.ascontiguousarray(offsets[start:end])
        always_valid = (
            len(overlay.closed) == 0
            and int(mine.min()) >= self.valid_within[0]
            and int(mine.max()) < self.valid_within[1]
        )
        access, tiles, rows = self.arrays.access, self.arrays.tiles, self.arrays.rows
        tile_ends = np.zeros(max(1, len(tiles.row_start)) - 1, np.int64)
        pairs, count = np.empty((self._pairs_room, 2), np.int32), 0
        if len(access.row) or len(self.arrays.needles.row):
            marks = np.empty(cells.shape[::-1], np.uint8)
            access_kernels.mark_events(cells, access.mark_shift, marks)
            pairs, count = access_kernels.scan_access(
                access, rows, cells, by_event, marks, pairs, count, most
            )
            pairs, count = self._scan_needles(columns, start, by_event, marks, pairs, count, most)
        if len(tiles.row_kind):
            pairs, count = self._scan_tiles(cells, by_event, pairs, count, most, tile_ends)
        if count > most:
            raise TooManyPairs
        if not always_valid:
            count = kernels.keep_valid(self.arrays.subscriptions, overlay, mine, pairs, count)
        number = self.arrays.subscriptions.number
        return _with_tiles(Pairs(pairs[:count], start, number, *self._number_bounds), tile_ends)

    @property
    def confirms(self) -> bool:
        """Whether some filters must be evaluated."""
        return len(self.arrays.texts.filter_place) > 0

    def undecided(self, found: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Which pairs have a filter that could be much work (int64[k]), and what work (int32[k])."""
        chosen, works = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        for start in range(0, len(found.pairs), CONFIRMED_AT_ONCE):
            signed = found.pairs[start : start + CONFIRMED_AT_ONCE, 1]
            places = np.flatnonzero(signed < 0)
            mine = self.confirmer.works(self._filter_of[~signed[places]])
            chosen.append(places[mine > 0] + start)
            works.append(mine[mine > 0])
        return np.concatenate(chosen), np.concatenate(works)

    def confirm(self, columns: ColumnBatch, found: Pairs) -> Pairs:
        """What `find` found, and filters confirm."""
        if not self.confirms:
            return found
        count = self._confirm(columns, found.first_event, found.pairs, len(found.pairs))
        return _with_tiles(found._replace(pairs=found.pairs[:count]), found.tile_ends)

    @cached_property
    def _number_bounds(self) -> tuple[int, int]:
        number = self.arrays.subscriptions.number
        return int(number.min()), int(number.max())

    def _scan_needles(
        self,
        columns: ColumnBatch,
        start: int,
        by_event: NDArray[np.int32],
        marks: NDArray[np.uint8],
        pairs: NDArray[np.int32],
        count: int,
        most: int,
    ) -> tuple[NDArray[np.int32], int]:
        """Append what is found by texts in strings."""
        needles, end = self.arrays.needles, start + len(by_event)
        for group, attribute in enumerate(needles.attribute.tolist()):
            column = columns.columns.get(self.indexed_paths[attribute])
            if column is not None:
                mine = Column(column.kinds[start:end], column.words[start:end])
                pairs, count = scan_strings(
                    needles, group, self.arrays.rows, mine, columns.text, by_event, marks, pairs, count, most
                )
        return pairs, count

    def _scan_tiles(
        self,
        cells: NDArray[np.int32],
        by_event: NDArray[np.int32],
        pairs: NDArray[np.int32],
        count: int,
        most: int,
        tile_ends: NDArray[np.int64],
    ) -> tuple[NDArray[np.int32], int]:
        """Append what tiles find. Room for more is made here, where numpy asks for large pages."""
        dictionary, tiles = self.arrays.dictionary, self.arrays.tiles
        codes = np.zeros((len(cells) + 1, tile_kernels.coded_width(len(by_event))), np.uint16)
        encode(dictionary.code_shift, dictionary.string_cell, cells, codes)
        tile, needed = 0, 0
        while tile < len(tiles.row_start) - 1:
            if max(count, needed) > most:
                raise TooManyPairs
            if needed > len(pairs):
                larger = np.empty((2 * needed, 2), np.int32)
                larger[:count] = pairs[:count]
                pairs = larger
            tile, count, needed = tile_kernels.scan_tiles(
                tiles, self.arrays.rows, by_event, codes, pairs, count, tile, tile_ends
            )
        # The last tiles need room for all that they might find; memory that is not written costs nothing.
        spare = TILE_PAIRS_MAX if needed > PAIRS_ROOM else 0
        self._pairs_room = max(PAIRS_ROOM, min(len(pairs) + spare, count + (count >> 2) + spare))
        return pairs, count

    def locate(self, columns: ColumnBatch, start: int, end: int) -> NDArray[np.int32]:
        """The cell of every indexed attribute of events [start, end): int32[A, n]."""
        shape = (len(self.indexed_paths), end - start)
        kinds, words = np.zeros(shape, np.uint8), np.zeros(shape, np.int64)
        for a, path in enumerate(self.indexed_paths):
            column = columns.columns.get(path)
            if column is not None:
                kinds[a] = column.kinds[start:end]
                words[a] = column.words[start:end]
        cells = np.empty(shape, np.int32)
        kernels.locate(self.arrays.dictionary, kinds, words, columns.text, cells)
        if columns.exact:
            for a, e in zip(*(place.tolist() for place in np.nonzero(cells < 0)), strict=True):
                cells[a, e] = self._exact_cell(a, columns.exact[int(words[a, e])])
        return cells

    def _exact_cell(self, attribute: int, value: int | Decimal) -> int:
        """The cell of a number that neither an int64 nor a float64 holds."""
        boundaries = self._boundaries.get(attribute)
        if boundaries is None:
            boundaries = self._boundaries[attribute] = self._read_boundaries(attribute)
        place = bisect_left(boundaries, value)
        is_point = place < len(boundaries) and boundaries[place] == value
        return FIRST_NUMBER_CELL + 2 * place + is_point

    def _read_boundaries(self, attribute: int) -> list[Decimal]:
        dictionary, texts = self.arrays.dictionary, self.arrays.texts
        first, last = dictionary.number_start[attribute : attribute + 2].tolist()
        boundaries = list(map(Decimal, dictionary.floor[first:last].tolist()))
        for i in np.flatnonzero(dictionary.fraction[first:last]).tolist():
            boundaries[i] = Decimal(repr(float(dictionary.near[first + i])))
        odd = np.searchsorted(texts.number_place, [first, last]).tolist()
        for i in range(*odd):
            text = texts.number_text[texts.number_offset[i] : texts.number_offset[i + 1]]
            boundaries[int(texts.number_place[i]) - first] = Decimal(text.tobytes().decode())
        return boundaries

    def _confirm(self, columns: ColumnBatch, first: int, pairs: NDArray[np.int32], count: int) -> int:
        """Ask the filters of candidates (~s) whether they match; keep the rest as they are."""
        kept = 0
        for start in range(0, count, CONFIRMED_AT_ONCE):
            some = pairs[start : min(start + CONFIRMED_AT_ONCE, count)]
            places = np.flatnonzero(some[:, 1] < 0)
            if len(places):
                some[places, 1] = ~some[places, 1]
                filters = self._filter_of[some[places, 1]]
                events = some[places, 0].astype(np.int64) + first
                keep = np.ones(len(some), bool)
                keep[places] = self.confirmer.confirm(columns, events, filters)
                some = some[keep]
            if len(places) or kept < start:
                pairs[kept : kept + len(some)] = some
            kept += len(some)
        return kept

    @cached_property
    def _filter_of(self) -> NDArray[np.int64]:
        """The place of each subscription's filter among those that confirm."""
        places = np.zeros(self.size, np.int64)
        places[self.arrays.texts.filter_place] = np.arange(len(self.arrays.texts.filter_place))
        return places

    @cached_property
    def confirmer(self) -> Confirmer:
        """What evaluates the filters."""
        return Confirmer(len(self.arrays.texts.filter_place), self._filter)

    def _filter(self, place: int) -> Any:
        """The filter of a subscription whose normal form is not exact."""
        texts = self.arrays.texts
        raw = texts.filter_text[texts.filter_offset[place] : texts.filter_offset[place + 1]].tobytes()
        dialect, _, text = raw.decode("utf-8", "surrogatepass").partition("\n")
        return self._compile_filter(text, dialect)

    def overlay(self, closings: Closings | None) -> Overlay:
        """Which of this part's versions the closings end."""
        if closings is None or not len(closings):
            return NO_OVERLAY
        known, closed = self._closed
        if known is not closings:
            version = self.arrays.subscriptions.version
            closed = closed_of(version, closings.versions, closings.valid_to, closed)
            self._closed = (closings, closed)
        return closed.overlay

    def open_versions(self, numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
        """For each subscription the version that nothing had ended when the part was built; -1 for none."""
        subscriptions = self.arrays.subscriptions
        if not self.size:
            return np.full(len(numbers), -1, np.int64)
        # Of several versions of a subscription only the last can be open.
        last = np.maximum(np.searchsorted(subscriptions.sorted_number, numbers, side="right") - 1, 0)
        place = subscriptions.by_number[last]
        is_open = subscriptions.number[place] == numbers
        is_open &= subscriptions.valid_to[place] == OPEN_END
        return np.where(is_open, subscriptions.version[place], -1)

    def explain(self) -> PartExplanation:
        """What the part chose for its rows: keys or tiles, and what they take."""
        from fieldfare.matching.explanation import explain_part

        return explain_part(self)

    @cached_property
    def versions(self) -> NDArray[np.int64]:
        """The versions the part holds, ascending."""
        return self.arrays.subscriptions.version


def _with_tiles(found: Pairs, tile_ends: NDArray[np.int64]) -> Pairs:
    """The pairs with the ends of their tiles; without if some were dropped, who knows where."""
    if len(tile_ends) and tile_ends[-1] != len(found.pairs):
        tile_ends = tile_ends[:0]
    return found._replace(tile_ends=tile_ends)


def build_part(entries: Iterable[IndexEntry], compile_filter: CompileFilter | None = None) -> Part:
    """Build a part from subscription versions, in any order; no version may come twice."""
    return part_of(gather_entries(entries), compile_filter)


def part_of(material: Material, compile_filter: CompileFilter | None = None) -> Part:
    """Build a part of what was gathered."""
    prepared = prepare(material)
    del material  # a large part needs the room
    indexed, further, arrays = build_arrays(prepared, compile_filter or _default_compile)
    groups: dict[str, Any] = arrays._asdict()
    frozen = Arrays(**{name: type(group)(*map(_read_only, group)) for name, group in groups.items()})
    subscriptions = frozen.subscriptions
    within = (0, 0)
    if len(subscriptions.version):
        within = (int(subscriptions.valid_from.max()), int(subscriptions.valid_to.min()))
    return Part(indexed, further, frozen, within, compile_filter)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A built array with the same type for the kernels as a mapped one, so that they compile once."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


def _default_compile(text: str, dialect: str) -> Any:
    from fieldfare.filters import compile_filter

    return compile_filter(text, dialect)
