"""What an index chose: how many rows it finds by keys, by texts, in tiles, and where one filter's went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldfare.filters.sql.paths import format_path
from fieldfare.filters.values import ValueSet
from fieldfare.matching.evaluation.derived_columns import derived_column
from fieldfare.matching.explanation import count_of
from fieldfare.matching.plain.build.access import keys_of
from fieldfare.matching.plain.cell_values import values_of_codes
from fieldfare.matching.plain.layout import MORE_ALTERNATIVES, Arrays, Needles, Rows
from fieldfare.model import Path, derived_text

KEYS_SHOWN = 8
"""The text names so many keys, those with most rows."""
COLUMNS_SHOWN = 30
"""The text names so many derived columns."""


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A table of rows by an event's cells of some attributes.

    Attributes
    ----------
    paths
        The attributes, one to four.
    entries
        How many rows it lists; a row that allows several values is listed once for each combination.
    """

    paths: tuple[Path, ...]
    entries: int

    def __str__(self) -> str:
        return " and ".join(_names(self.paths))

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"attributes": _names(self.paths), "entries": self.entries}


@dataclass(frozen=True, slots=True)
class NeedleUse:
    """A search of an attribute's strings for texts.

    Attributes
    ----------
    path
        The attribute.
    folded
        Whether it goes without regard to case.
    needles
        How many texts are looked for.
    rows
        How many rows have one of them.
    """

    path: Path
    folded: bool
    needles: int
    rows: int

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        (name,) = _names([self.path])
        return {"attribute": name, "ignores_case": self.folded, "texts": self.needles, "rows": self.rows}


@dataclass(frozen=True, slots=True)
class DerivedUse:
    """A column that is computed for every event, because filters compare it.

    Attributes
    ----------
    path
        Its path; as text its expression.
    rows
        How many rows compare it.
    cost_ns
        What computing it costs an event, roughly.
    """

    path: Path
    rows: int
    cost_ns: float

    def __str__(self) -> str:
        return f"{format_path(self.path)}: {count_of(self.rows, 'row')}, {self.cost_ns:,.0f} ns an event"

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"expression": format_path(self.path), "rows": self.rows, "cost_ns": self.cost_ns}


@dataclass(frozen=True, slots=True)
class PlainExplanation:
    """What an index chose for its rows; a row is one conjunction of a filter. See ``library.Explanation``.

    Attributes
    ----------
    attributes
        How many attributes its filters constrain, and derived columns.
    constants
        How many constants they compare these with.
    keys
        The keys that were chosen, in the order in which they are looked up.
    needles
        Where texts are looked for.
    derived
        Which columns are computed, those that most rows compare first.
    rows_in_keys, rows_in_needles, rows_in_tiles
        How many rows are found in each way.
    tiles
        How many tiles there are.
    undecided_rows
        Rows for whose candidates the filter itself must decide.
    size_bytes
        Of all arrays, by group: dictionary, rows, access (keys), needles, tiles, texts.
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
        """See ``library.Explanation``."""
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
            how = ", without regard to case" if use.folded else ""
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
            lines.append(f"  {rows} undecided: for what they find the filters themselves decide")
        return lines

    def document(self) -> dict[str, Any]:
        """See ``library.Explanation``."""
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
        Whether the index decides; if not, the filter is evaluated for the events that it finds.
    key
        The attributes of its key, or None if it has none.
    entries
        How many times the key lists it.
    needle
        The attribute and the text that its string must contain, or None if it is not found by one.
    tile, tile_rows
        The number of its tile and how many rows that has; -1 and 0 if it is in none.
    zones
        What an event must be to be compared with the tile's rows; all of an attribute's values if there is no
        zone of it.
    """

    exact: bool
    key: tuple[Path, ...] | None = None
    entries: int = 0
    needle: tuple[Path, str] | None = None
    tile: int = -1
    tile_rows: int = 0
    zones: tuple[tuple[Path, ValueSet], ...] = ()

    def __str__(self) -> str:
        decides = "" if self.exact else "; for what it finds the filter itself decides"
        if self.key is not None:
            times = "" if self.entries == 1 else f", under {self.entries} combinations of values"
            return f"found by the key {' and '.join(_names(self.key))}{times}{decides}"
        if self.needle is not None:
            path, text = self.needle
            return f"found by the text {text!r} in {format_path(path)}{decides}"
        others = f"with {count_of(self.tile_rows - 1, 'other row')}"
        zones = " and ".join(f"{format_path(path)} is {_in_words(values)}" for path, values in self.zones)
        looked = f", looked at where {zones}" if zones else ", looked at for every event"
        return f"in tile {self.tile} {others}{looked}{decides}"

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        found: dict[str, Any] = {"exact": self.exact}
        if self.key is not None:
            return {**found, "key": _names(self.key), "entries": self.entries}
        if self.needle is not None:
            path, text = self.needle
            return {**found, "needle": {"attribute": format_path(path), "text": text}}
        zones = [{"attribute": format_path(path), "values": _in_words(values)} for path, values in self.zones]
        return {**found, "tile": self.tile, "tile_rows": self.tile_rows, "zones": zones}


def explain_index(arrays: Arrays, paths: Sequence[Path]) -> PlainExplanation:
    """What an index chose; `paths` are those that it compares."""
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
    """How the rows of the filter at a place are found."""
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
    """The needles of a group: from the first up to the second."""
    start, end = needles.slot_start[group : group + 2].tolist()
    return int(needles.slot[start]), int(needles.slot[end - 1])


def _needle(needles: Needles, paths: Sequence[Path], row: int) -> tuple[Path, str] | None:
    """The attribute in which a row's text is looked for, and the text; None if it is found otherwise."""
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
    """The attributes of the key that lists a row, and how many times it does."""
    access = arrays.access
    entries = np.flatnonzero(access.row == row)
    slot = np.searchsorted(access.table, entries[0], side="right") - 1
    key = int(np.searchsorted(access.table_start, slot, side="right")) - 1
    start, end = access.key_start[key : key + 2].tolist()
    return tuple(paths[a] for a in access.attribute[start:end].tolist()), len(entries)


def _names(paths: Sequence[Path]) -> list[str]:
    return list(map(format_path, paths))


def _in_words(values: ValueSet) -> str:
    from fieldfare.filters.help.value_words import describe_values  # what only matches needs none of it

    return describe_values(values)
