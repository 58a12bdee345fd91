"""The index of the library `plain`: filters in flat arrays (see ``layout``), searched by batches of
events."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.work import Work
from fieldfare.matching.evaluation.derived_columns import computed_together, derived_column
from fieldfare.matching.events.columns import Column, ColumnBatch
from fieldfare.matching.grouping import drop_slots, repeated_slots
from fieldfare.matching.library import Candidates, TooManyPairs
from fieldfare.matching.plain.building.needles import NO_ROWS
from fieldfare.matching.plain.codes import encode
from fieldfare.matching.plain.explanation import PlainExplanation, RowPlace, explain_index, explain_rows
from fieldfare.matching.plain.layout import (
    FIRST_NUMBER_CELL,
    TILE_ROWS_MAX,
    Access,
    Arrays,
    Dictionary,
    Needles,
    Rows,
    Texts,
    Tiles,
)
from fieldfare.matching.plain.search import (
    access_kernels,
    computed_kernels,
    few_kernels,
    kernels,
    tile_kernels,
)
from fieldfare.matching.plain.search.confirm import Confirmer
from fieldfare.matching.plain.search.row_bits import LazyRowBits
from fieldfare.matching.plain.search.strings import scan_strings
from fieldfare.matching.plain.search.vectors import LANES
from fieldfare.model import Path, derived_text

PAIRS_ROOM = 8192
"""Initial capacity for pairs of a chunk of events, unless the last chunk found more."""

REPEATS_LOOKED_FOR_MAX = 1 << 20
"""Slots per batch when searching for repeated candidates; repetitions farther apart are evaluated twice."""

TILE_PAIRS_MAX = TILE_ROWS_MAX * LANES
"""Maximum number of pairs for which a tile requests room."""

CompileFilter = Callable[[str, str], Any]

_GROUPS: dict[str, Callable[..., Any]] = {
    "dictionary": Dictionary,
    "rows": Rows,
    "access": Access,
    "needles": Needles,
    "tiles": Tiles,
    "texts": Texts,
}


class PlainIndex:
    """Indexed filters of the library `plain`; see ``library.FilterIndex``.

    Attributes
    ----------
    indexed_paths
        The attributes and derived columns that the index itself compares.
    paths
        The attributes among these, those that derived columns read, and those that filters need to confirm a
        match.
    """

    def __init__(
        self,
        indexed_paths: tuple[Path, ...],
        further_paths: tuple[Path, ...],
        groups: Arrays,
        compile_filter: CompileFilter,
    ) -> None:
        self.indexed_paths = indexed_paths
        self._further_paths = further_paths
        self._derived = [
            (a, derived_column(path))
            for a, path in enumerate(indexed_paths)
            if derived_text(path) is not None
        ]
        read = [path for path in indexed_paths if derived_text(path) is None]
        for _, column in self._derived:
            read += column.bases
        self.paths: tuple[Path, ...] = tuple(dict.fromkeys((*read, *further_paths)))
        self.groups = groups
        self._compile_filter = compile_filter
        self._boundaries: dict[int, list[Decimal]] = {}
        self._pairs_room = PAIRS_ROOM
        self._row_bits = LazyRowBits(groups.tiles)

    @classmethod
    def open(
        cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], compile_filter: CompileFilter
    ) -> Self:
        """Open an index from its `meta` and `arrays`; files written before needles existed have none."""
        groups = {
            name: group(**{field_name: arrays[f"{name}.{field_name}"] for field_name in group._fields})  # type: ignore[attr-defined]
            for name, group in _GROUPS.items()
            if f"{name}.{group._fields[0]}" in arrays  # type: ignore[attr-defined]
        }
        return cls(
            tuple(tuple(steps) for steps in meta["indexed_paths"]),
            tuple(tuple(steps) for steps in meta["further_paths"]),
            Arrays(**{"needles": NO_ROWS, **groups}),
            compile_filter,
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """See ``library.FilterIndex``."""
        return {
            f"{name}.{field_name}": array
            for name, group in self.groups._asdict().items()
            for field_name, array in group._asdict().items()
        }

    def meta(self) -> dict[str, Any]:
        """See ``library.FilterIndex``."""
        return {
            "indexed_paths": self.indexed_paths,
            "further_paths": self._further_paths,
        }

    @property
    def width(self) -> int:
        """See ``library.FilterIndex``."""
        return len(self.indexed_paths)

    def find(self, columns: ColumnBatch, start: int, end: int, most: int) -> Candidates:
        """See ``library.FilterIndex``."""
        cells = self.locate(columns, start, end)
        by_event = cells.reshape(1, -1)
        if end - start > 1:
            by_event = np.empty(cells.shape[::-1], np.int32)
            kernels.by_events(cells, by_event)
        access, tiles, rows = self.groups.access, self.groups.tiles, self.groups.rows
        tile_ends = np.zeros(max(1, len(tiles.row_start)) - 1, np.int64)
        pairs, count = np.empty((self._pairs_room, 2), np.int32), 0
        if len(access.row) or len(self.groups.needles.row):
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
        return self._without_repeats(Candidates(pairs[:count], tile_ends))

    def _without_repeats(self, found: Candidates) -> Candidates:
        """Remove repeated candidates: a filter is found by each of its conjunctions that holds."""
        several = self._has_several_rows
        if several is None:
            return found
        repeated = repeated_slots(found.pairs, several, REPEATS_LOOKED_FOR_MAX)
        if not len(repeated):
            return found
        drop_slots(found.pairs, repeated)
        ends = found.tile_ends - np.searchsorted(repeated, found.tile_ends)
        return Candidates(found.pairs[: len(found.pairs) - len(repeated)], ends)

    @cached_property
    def _has_several_rows(self) -> NDArray[np.bool_] | None:
        """For each filter, whether several of its conjunctions are inexact; None if that is true of no
        filter."""
        if not self.confirms:
            return None
        subscription = self.groups.rows.subscription
        several = np.bincount(~subscription[subscription < 0], minlength=0) > 1
        return several if several.any() else None

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
        """Append the pairs found by needles."""
        needles, end = self.groups.needles, start + len(by_event)
        for group, attribute in enumerate(needles.attribute.tolist()):
            column = columns.columns.get(self.indexed_paths[attribute])
            if column is not None:
                mine = Column(column.kinds[start:end], column.words[start:end])
                pairs, count = scan_strings(
                    needles, group, self.groups.rows, mine, columns.text, by_event, marks, pairs, count, most
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
        """Append the pairs found by tiles. `pairs` grows here, because numpy requests huge pages."""
        dictionary, tiles = self.groups.dictionary, self.groups.tiles
        codes = np.zeros((len(cells) + 1, tile_kernels.coded_width(len(by_event))), np.uint16)
        encode(dictionary.code_shift, dictionary.string_cell, cells, codes)
        bits = self._row_bits.get() if len(by_event) <= few_kernels.FEW_EVENTS else None
        tile, needed = 0, 0
        while tile < len(tiles.row_start) - 1:
            if max(count, needed) > most:
                raise TooManyPairs
            if needed > len(pairs):
                larger = np.empty((2 * needed, 2), np.int32)
                larger[:count] = pairs[:count]
                pairs = larger
            batch = self.groups.rows, by_event, codes, pairs, count, tile, tile_ends
            if bits is None:
                tile, count, needed = tile_kernels.scan_tiles(tiles, *batch)
            else:
                tile, count, needed = few_kernels.scan_few(tiles, bits, *batch)
        # The last tiles need room for all their possible matches; unwritten memory costs nothing.
        spare = TILE_PAIRS_MAX if needed > PAIRS_ROOM else 0
        self._pairs_room = max(PAIRS_ROOM, min(len(pairs) + spare, count + (count >> 2) + spare))
        return pairs, count

    def locate(self, columns: ColumnBatch, start: int, end: int) -> NDArray[np.int32]:
        """Return the cell of every indexed attribute of the events [start, end): int32[A, n]."""
        shape = (len(self.indexed_paths), end - start)
        kinds, words = np.zeros(shape, np.uint8), np.zeros(shape, np.int64)
        for a, path in enumerate(self.indexed_paths):
            column = columns.columns.get(path)
            if column is not None and end - start == 1:
                kinds[a, 0], words[a, 0] = column.kinds[start], column.words[start]
            elif column is not None:
                kinds[a] = column.kinds[start:end]
                words[a] = column.words[start:end]
        cells = np.empty(shape, np.int32)
        kernels.locate(self.groups.dictionary, kinds, words, columns.text, cells)
        if columns.exact:
            for a, e in zip(*(place.tolist() for place in np.nonzero(cells < 0)), strict=True):
                cells[a, e] = self._exact_cell(a, columns.exact[int(words[a, e])])
        if self._derived:
            self._locate_derived(columns, start, end, cells)
        return cells

    def _locate_derived(self, columns: ColumnBatch, start: int, end: int, cells: NDArray[np.int32]) -> None:
        """Write the cells of the derived columns."""
        wanted = [column for _, column in self._derived]
        for group, found in computed_together(wanted, columns, start, end):
            attributes = np.array([self._derived[place][0] for place in group])
            left = computed_kernels.locate_computed(
                self.groups.dictionary, attributes, found.kinds, found.words, found.seconds, found.text, cells
            )
            for place in np.flatnonzero(left).tolist():
                a, column = self._derived[group[place]]
                for event in np.flatnonzero(cells[a] < 0).tolist():
                    cells[a, event] = self._exact_cell(a, column.value(columns, start + event))

    def _exact_cell(self, attribute: int, value: int | Decimal | Fraction) -> int:
        """Return the cell of a number that fits neither int64 nor float64."""
        boundaries = self._boundaries.get(attribute)
        if boundaries is None:
            boundaries = self._boundaries[attribute] = self._read_boundaries(attribute)
        if isinstance(value, Fraction):
            place = bisect_left(boundaries, value, key=Fraction)
            is_point = place < len(boundaries) and Fraction(boundaries[place]) == value
        else:
            place = bisect_left(boundaries, value)
            is_point = place < len(boundaries) and boundaries[place] == value
        return FIRST_NUMBER_CELL + 2 * place + is_point

    def _read_boundaries(self, attribute: int) -> list[Decimal]:
        dictionary, texts = self.groups.dictionary, self.groups.texts
        first, last = dictionary.number_start[attribute : attribute + 2].tolist()
        boundaries = list(map(Decimal, dictionary.floor[first:last].tolist()))
        for i in np.flatnonzero(dictionary.fraction[first:last]).tolist():
            boundaries[i] = Decimal(repr(float(dictionary.near[first + i])))
        odd = np.searchsorted(texts.number_place, [first, last]).tolist()
        for i in range(*odd):
            text = texts.number_text[texts.number_offset[i] : texts.number_offset[i + 1]]
            boundaries[int(texts.number_place[i]) - first] = Decimal(text.tobytes().decode())
        return boundaries

    @property
    def confirms(self) -> bool:
        """See ``library.FilterIndex``."""
        return len(self.groups.texts.filter_place) > 0

    def works(self, places: NDArray[np.int32]) -> NDArray[np.int32]:
        """See ``library.FilterIndex``."""
        return self._confirmer.works(self._filter_of[places])

    def work(self, number: int) -> Work:
        """See ``library.FilterIndex``."""
        return self._confirmer.work(number)

    def confirm(
        self, columns: ColumnBatch, events: NDArray[np.int64], places: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """See ``library.FilterIndex``."""
        return self._confirmer.confirm(columns, events, self._filter_of[places])

    @cached_property
    def _filter_of(self) -> NDArray[np.int64]:
        """For each filter that must confirm, its index among all such filters."""
        filter_place = self.groups.texts.filter_place
        places = np.zeros(filter_place[-1] + 1, np.int64)
        places[filter_place] = np.arange(len(filter_place))
        return places

    @cached_property
    def _confirmer(self) -> Confirmer:
        """The evaluator of the filters. It does not refer to this index: a reference cycle would keep the
        file mapped."""
        texts, compile_filter = self.groups.texts, self._compile_filter
        return Confirmer(len(texts.filter_place), lambda place: _text_at(texts, place), compile_filter)

    def explain(self) -> PlainExplanation:
        """See ``library.FilterIndex``."""
        return explain_index(self.groups, self.indexed_paths)

    def explain_filter(self, place: int) -> tuple[RowPlace, ...]:
        """See ``library.FilterIndex``."""
        return explain_rows(self.groups, self.indexed_paths, place)


def _text_at(texts: Texts, place: int) -> tuple[str, str]:
    """Return the text and the dialect of a filter whose normal form is not exact."""
    raw = texts.filter_text[texts.filter_offset[place] : texts.filter_offset[place + 1]].tobytes()
    dialect, _, text = raw.decode("utf-8", "surrogatepass").partition("\n")
    return text, dialect
