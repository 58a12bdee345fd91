"""Explanations of a plain index: the rows found by keys, by needles and in tiles, and how one filter is
found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldfare.filters.sql.paths import format_path
from fieldfare.filters.values import ValueSet
from fieldfare.matching.evaluation.derived_columns import derived_column
from fieldfare.matching.explanation import count_of
from fieldfare.matching.plain.building.access import keys_of
from fieldfare.matching.plain.cell_values import values_of_codes
from fieldfare.matching.plain.layout import MORE_ALTERNATIVES, Arrays, Needles, Rows
from fieldfare.model import Path, derived_text

KEYS_SHOWN = 8
"""Maximum keys listed in the text, those with the most rows; the others are summed up."""
COLUMNS_SHOWN = 30
"""Maximum derived columns listed in the text; the others are summed up."""


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A key: a table of rows by an event's cells of a few attributes.

    Attributes
    ----------
    paths
        The attributes, one to four.
    entries
        The number of table entries; a row that allows several values has one for each combination.
    """

    paths: tuple[Path, ...]
    entries: int

    def __str__(self) -> str:
        return " and ".join(_names(self.paths))

    def document(self) -> dict[str, Any]:
        """Return the key as JSON."""
        return {"attributes": _names(self.paths), "entries": self.entries}


@dataclass(frozen=True, slots=True)
class NeedleUse:
    """A search for needles (texts) in the strings of an attribute.

    Attributes
    ----------
    path
        The attribute.
    folded
        Whether the search ignores case.
    needles
        The number of texts searched for.
    rows
        The number of rows found by these texts.
    """

    path: Path
    folded: bool
    needles: int
    rows: int

    def document(self) -> dict[str, Any]:
        """Return the search as JSON."""
        (name,) = _names([self.path])
        return {"attribute": name, "ignores_case": self.folded, "texts": self.needles, "rows": self.rows}


@dataclass(frozen=True, slots=True)
class DerivedUse:
    """A derived column, computed for every event because filters compare it.

    Attributes
    ----------
    path
        The column's path, formatted as its expression.
    rows
        The number of rows that compare it.
    cost_ns
        The estimated cost of computing it, in ns per event.
    """

    path: Path
    rows: int
    cost_ns: float

    def __str__(self) -> str:
        return f"{format_path(self.path)}: {count_of(self.rows, 'row')}, {self.cost_ns:,.0f} ns an event"

    def document(self) -> dict[str, Any]:
        """Return the column as JSON."""
        return {"expression": format_path(self.path), "rows": self.rows, "cost_ns": self.cost_ns}


@dataclass(frozen=True, slots=True)
class PlainExplanation:
    """The structures chosen for an index's rows; a row is one conjunction of a filter. See
    ``library.SearchExplanation``.

    Attributes
    ----------
    attributes
        The number of attributes and derived columns that the filters constrain.
    constants
        The number of constants that they are compared with.
    keys
        The keys, in lookup order.
    needles
        The searches for texts.
    derived
        The computed columns, by descending number of rows.
    rows_in_keys, rows_in_needles, rows_in_tiles
        The number of rows found in each way.
    tiles
        The number of tiles.
    undecided_rows
        The number of rows for whose candidates the filter itself must be evaluated.
    size_bytes
        The size of all arrays, by group: dictionary, rows, access (keys), needles, tiles, texts.
    """

    attributes: int
    constants: int
    keys: tuple[KeyUse, ...]
    needles: tuple[NeedleUse, ...]
    derived: tuple[DerivedUse, ...]
    rows_in_keys: int
    rows_in_needles: int
    rows_in_tiles: int
    tiles: int
    undecided_rows: int
    size_bytes: dict[str, int]

    @property
    def rows(self) -> int:
        return self.rows_in_keys + self.rows_in_needles + self.rows_in_tiles

    def lines(self) -> list[str]:
        """See ``library.SearchExplanation``."""
        on = f"{count_of(self.attributes, 'attribute')}, {count_of(self.constants, 'constant')}"
        lines = [f"{count_of(self.rows, 'row')}, {on}"]
        if self.keys:
            lines.append(
                f"  {count_of(self.rows_in_keys, 'row')} found by {count_of(len(self.keys), 'key')}:"
            )
            ordered = sorted(self.keys, key=lambda key: -key.entries)
            lines += [
                f"    {key}: {count_of(key.entries, 'entry', 'entries')}" for key in ordered[:KEYS_SHOWN]
            ]
            if len(ordered) > KEYS_SHOWN:
                more = sum(key.entries for key in ordered[KEYS_SHOWN:])
                others = count_of(len(ordered) - KEYS_SHOWN, "other key")
                lines.append(f"    {others}: {count_of(more, 'entry', 'entries')}")
        for use in self.needles:
            how = ", ignoring case" if use.folded else ""
            texts = f"{count_of(use.needles, 'text')} in {format_path(use.path)}{how}"
            lines.append(f"  {count_of(use.rows, 'row')} found by {texts}")
        if self.tiles:
            lines.append(f"  {count_of(self.rows_in_tiles, 'row')} in {count_of(self.tiles, 'tile')}")
        if self.derived:
            lines.append(f"  {count_of(len(self.derived), 'derived column')}:")
            lines += [f"    {use}" for use in self.derived[:COLUMNS_SHOWN]]
            if len(self.derived) > COLUMNS_SHOWN:
                rest = self.derived[COLUMNS_SHOWN:]
                cost_ns = sum(use.cost_ns for use in rest)
                lines.append(f"    {count_of(len(rest), 'other')}: {cost_ns:,.0f} ns an event")
        if self.undecided_rows:
            rows = count_of(self.undecided_rows, "row")
            lines.append(f"  {rows} undecided: the filters are evaluated for their candidates")
        return lines

    def document(self) -> dict[str, Any]:
        """See ``library.SearchExplanation``."""
        return {
            "attributes": self.attributes,
            "constants": self.constants,
            "rows": self.rows,
            "keys": [key.document() for key in self.keys],
            "rows_in_keys": self.rows_in_keys,
            "needles": [use.document() for use in self.needles],
            "rows_in_needles": self.rows_in_needles,
            "derived": [use.document() for use in self.derived],
            "tiles": self.tiles,
            "rows_in_tiles": self.rows_in_tiles,
            "undecided_rows": self.undecided_rows,
        }


@dataclass(frozen=True, slots=True)
class RowPlace:
    """How one row of a filter is found.

    Attributes
    ----------
    exact
        Whether the index decides the match; if not, the filter is evaluated for the row's candidates.
    key
        The attributes of its key, or None if it is not found by a key.
    entries
        The number of the key's entries for the row.
    needle
        The attribute and the text that its string must contain, or None if it is not found by a text.
    tile, tile_rows
        The number and the size of its tile; -1 and 0 if it is in no tile.
    zones
        The values for which an event is compared with the tile's rows; attributes without a zone allow all
        values.
    """

    exact: bool
    key: tuple[Path, ...] | None = None
    entries: int = 0
    needle: tuple[Path, str] | None = None
    tile: int = -1
    tile_rows: int = 0
    zones: tuple[tuple[Path, ValueSet], ...] = ()

    def __str__(self) -> str:
        decides = "" if self.exact else "; the filter is evaluated for its candidates"
        if self.key is not None:
            times = "" if self.entries == 1 else f", under {self.entries} combinations of values"
            return f"found by the key {' and '.join(_names(self.key))}{times}{decides}"
        if self.needle is not None:
            path, text = self.needle
            return f"found by the text {text!r} in {format_path(path)}{decides}"
        others = f"with {count_of(self.tile_rows - 1, 'other row')}"
        zones = " and ".join(f"{format_path(path)} is {_in_words(values)}" for path, values in self.zones)
        looked = f", compared where {zones}" if zones else ", compared with every event"
        return f"in tile {self.tile} {others}{looked}{decides}"

    def document(self) -> dict[str, Any]:
        """Return the place as JSON."""
        found: dict[str, Any] = {"exact": self.exact}
        if self.key is not None:
            return {**found, "key": _names(self.key), "entries": self.entries}
        if self.needle is not None:
            path, text = self.needle
            return {**found, "needle": {"attribute": format_path(path), "text": text}}
        zones = [{"attribute": format_path(path), "values": _in_words(values)} for path, values in self.zones]
        return {**found, "tile": self.tile, "tile_rows": self.tile_rows, "zones": zones}


def explain_index(arrays: Arrays, paths: Sequence[Path]) -> PlainExplanation:
    """Explain an index; `paths` are the attributes that it compares."""
    tiled, needled = len(arrays.tiles.row_kind), len(arrays.needles.row)
    return PlainExplanation(
        attributes=len(paths),
        constants=int(arrays.dictionary.number_start[-1] + arrays.dictionary.string_start[-1]),
        keys=tuple(KeyUse(paths, entries) for paths, entries in keys_of(arrays.access, paths)),
        needles=tuple(_needle_uses(arrays.needles, paths)),
        derived=_derived_uses(arrays.rows, paths),
        rows_in_keys=len(arrays.rows.subscription) - tiled - needled,
        rows_in_needles=needled,
        rows_in_tiles=tiled,
        tiles=len(arrays.tiles.row_start) - 1,
        undecided_rows=int(np.count_nonzero(arrays.rows.subscription < 0)),
        size_bytes={name: sum(array.nbytes for array in group) for name, group in arrays._asdict().items()},
    )


def explain_rows(arrays: Arrays, paths: Sequence[Path], place: int) -> tuple[RowPlace, ...]:
    """Explain how the rows of the filter at a place are found."""
    owner = arrays.rows.subscription
    rows = np.flatnonzero((owner == place) | (owner == ~place)).tolist()
    return tuple(_place(arrays, paths, row, bool(owner[row] >= 0)) for row in rows)


def _place(arrays: Arrays, paths: Sequence[Path], row: int, exact: bool) -> RowPlace:
    tiles = arrays.tiles
    if row >= len(tiles.row_kind):
        needle = _needle(arrays.needles, paths, row)
        if needle is not None:
            return RowPlace(exact, needle=needle)
        key, entries = _key(arrays, paths, row)
        return RowPlace(exact, key, entries)
    tile = int(np.searchsorted(tiles.row_start, row, side="right")) - 1
    zones = tiles.zones[tiles.zone_start[tile] : tiles.zone_start[tile + 1]].tolist()
    return RowPlace(
        exact=exact,
        tile=tile,
        tile_rows=int(tiles.row_start[tile + 1] - tiles.row_start[tile]),
        zones=tuple((paths[a], values_of_codes(arrays, a, *codes)) for a, *codes in zones),
    )


def _derived_uses(rows: Rows, paths: Sequence[Path]) -> tuple[DerivedUse, ...]:
    derived = [(a, path) for a, path in enumerate(paths) if derived_text(path) is not None]
    if not derived:
        return ()
    row = np.repeat(np.arange(len(rows.subscription)), np.diff(rows.piece_start))
    attribute = rows.pieces[:, 0] & (MORE_ALTERNATIVES - 1)
    uses = [
        DerivedUse(path, len(np.unique(row[attribute == a])), derived_column(path).cost_ns)
        for a, path in derived
    ]
    return tuple(sorted(uses, key=lambda use: -use.rows))


def _needle_uses(needles: Needles, paths: Sequence[Path]) -> Iterator[NeedleUse]:
    for group, attribute in enumerate(needles.attribute.tolist()):
        first, last = _entries_of(needles, group)
        rows = int(needles.row_start[last] - needles.row_start[first])
        yield NeedleUse(paths[attribute], bool(needles.folded[group]), last - first, rows)


def _entries_of(needles: Needles, group: int) -> tuple[int, int]:
    """Return the range [first, end) of a group's needles."""
    start, end = needles.slot_start[group : group + 2].tolist()
    return int(needles.slot[start]), int(needles.slot[end - 1])


def _needle(needles: Needles, paths: Sequence[Path], row: int) -> tuple[Path, str] | None:
    """Return the attribute and the text by which a row is found; None if it is not found by a text."""
    places = np.flatnonzero(needles.row == row)
    if not len(places):
        return None
    entry = int(np.searchsorted(needles.row_start, places[0], side="right")) - 1
    group = next(g for g in range(len(needles.attribute)) if entry < _entries_of(needles, g)[1])
    packed = int(needles.entry[entry])
    start, size = packed >> 32, (packed >> 24) & 0xFF
    text = needles.text[start : start + size].tobytes().decode("utf-8", "surrogatepass")
    return paths[int(needles.attribute[group])], text


def _key(arrays: Arrays, paths: Sequence[Path], row: int) -> tuple[tuple[Path, ...], int]:
    """Return the attributes of the key that contains a row, and the number of its entries."""
    access = arrays.access
    entries = np.flatnonzero(access.row == row)
    slot = np.searchsorted(access.table, entries[0], side="right") - 1
    key = int(np.searchsorted(access.table_start, slot, side="right")) - 1
    start, end = access.key_start[key : key + 2].tolist()
    return tuple(paths[a] for a in access.attribute[start:end].tolist()), len(entries)


def _names(paths: Sequence[Path]) -> list[str]:
    return list(map(format_path, paths))


def _in_words(values: ValueSet) -> str:
    from fieldfare.filters.help.value_words import describe_values  # not needed for matching

    return describe_values(values)
