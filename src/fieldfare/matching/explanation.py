"""What an index chose: how many rows it finds by keys, by texts, in tiles, and where one filter's went.

`Part.explain`, `Index.explain` and `Index.explain_subscription` give these values; ``str()`` of each is text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fieldfare.filters.sql.paths import format_path
from fieldfare.matching.cell_values import values_of_codes
from fieldfare.matching.layout import Arrays, Needles
from fieldfare.model import Path

if TYPE_CHECKING:
    from fieldfare.filters.values import ValueSet
    from fieldfare.matching.part import Part

KEYS_SHOWN = 8
"""The text names so many keys, those with most rows."""


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A table of rows by an event's cells of some attributes.

    Attributes
    ----------
    paths : the attributes, one to four.
    entries : how many rows it lists; a row that allows several values is listed once for each combination.
    """

    paths: tuple[Path, ...]
    entries: int

    def __str__(self) -> str:
        return " and ".join(map(format_path, self.paths))


@dataclass(frozen=True, slots=True)
class NeedleUse:
    """A search of an attribute's strings for texts.

    Attributes
    ----------
    path : the attribute.
    folded : whether it goes without regard to case.
    needles : how many texts are looked for.
    rows : how many rows have one of them.
    """

    path: Path
    folded: bool
    needles: int
    rows: int


@dataclass(frozen=True, slots=True)
class PartExplanation:
    """What a part chose for its rows; a row is one conjunction of a filter.

    Attributes
    ----------
    subscriptions : subscription versions that it holds.
    attributes : how many attributes its filters constrain.
    constants : how many constants they compare these with.
    keys : the keys that were chosen, in the order in which they are looked up.
    needles : where texts are looked for.
    rows_in_keys, rows_in_needles, rows_in_tiles : how many rows are found in each way.
    tiles : how many tiles there are.
    undecided_rows : rows for whose candidates the filter itself must decide.
    size_bytes : of all arrays, by group: dictionary, rows, access (keys), needles, tiles, subscriptions,
        texts.
    """

    subscriptions: int
    attributes: int
    constants: int
    keys: tuple[KeyUse, ...]
    needles: tuple[NeedleUse, ...]
    rows_in_keys: int
    rows_in_needles: int
    rows_in_tiles: int
    tiles: int
    undecided_rows: int
    size_bytes: dict[str, int]

    @property
    def rows(self) -> int:
        return self.rows_in_keys + self.rows_in_needles + self.rows_in_tiles

    def __str__(self) -> str:
        return "\n".join(_part_lines(self))


@dataclass(frozen=True, slots=True)
class IndexExplanation:
    """What an index chose: for each of its parts, the snapshot first, and how many versions have ended."""

    parts: tuple[PartExplanation, ...]
    closings: int

    def __str__(self) -> str:
        size = sum(sum(part.size_bytes.values()) for part in self.parts)
        versions = sum(part.subscriptions for part in self.parts)
        what = f"{_count(len(self.parts), 'part')}, {_count(versions, 'subscription version')}"
        lines = [f"{what} of which {self.closings:,} ended, {_bytes(size)}"]
        for number, part in enumerate(self.parts):
            first, *rest = _part_lines(part)
            lines += [f"part {number}: {first}", *rest]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class RowPlace:
    """How one row of a filter is found.

    Attributes
    ----------
    part : the number of the part that holds it.
    exact : whether the index decides; if not, the filter is evaluated for the events that it finds.
    key : the attributes of its key, or None if it has none.
    entries : how many times the key lists it.
    needle : the attribute and the text that its string must contain, or None if it is not found by one.
    tile, tile_rows : the number of its tile and how many rows that has; -1 and 0 if it is in none.
    zones : what an event must be to be compared with the tile's rows; all of an attribute's values if there
        is no zone of it.
    """

    part: int
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
            found = f"found by the key {' and '.join(map(format_path, self.key))}"
            times = "" if self.entries == 1 else f", under {self.entries} combinations of values"
            return f"part {self.part}: {found}{times}{decides}"
        if self.needle is not None:
            path, text = self.needle
            return f"part {self.part}: found by the text {text!r} in {format_path(path)}{decides}"
        others = f"with {_count(self.tile_rows - 1, 'other row')}"
        zones = " and ".join(f"{format_path(path)} is {_in_words(values)}" for path, values in self.zones)
        looked = f", looked at where {zones}" if zones else ", looked at for every event"
        return f"part {self.part}: in tile {self.tile} {others}{looked}{decides}"


def explain_part(part: Part) -> PartExplanation:
    """What a part chose."""
    from fieldfare.matching.access import keys_of

    arrays = part.arrays
    tiled, needled = len(arrays.tiles.row_kind), len(arrays.needles.row)
    return PartExplanation(
        subscriptions=part.size,
        attributes=len(part.indexed_paths),
        constants=int(arrays.dictionary.number_start[-1] + arrays.dictionary.string_start[-1]),
        keys=tuple(KeyUse(paths, entries) for paths, entries in keys_of(arrays.access, part.indexed_paths)),
        needles=tuple(_needle_uses(arrays.needles, part.indexed_paths)),
        rows_in_keys=len(arrays.rows.subscription) - tiled - needled,
        rows_in_needles=needled,
        rows_in_tiles=tiled,
        tiles=len(arrays.tiles.row_start) - 1,
        undecided_rows=int(np.count_nonzero(arrays.rows.subscription < 0)),
        size_bytes={name: sum(array.nbytes for array in group) for name, group in arrays._asdict().items()},
    )


def explain_version(part: Part, number: int, version: int) -> tuple[RowPlace, ...]:
    """How the rows of a subscription version that a part holds are found.

    Parameters
    ----------
    part : a part that holds it.
    number : what the part is called in the outcome.
    version : the version.
    """
    arrays = part.arrays
    subscription = int(np.searchsorted(arrays.subscriptions.version, version))
    owner = arrays.rows.subscription
    rows = np.flatnonzero((owner == subscription) | (owner == ~subscription)).tolist()
    return tuple(_place(part, number, row, bool(owner[row] >= 0)) for row in rows)


def _place(part: Part, number: int, row: int, exact: bool) -> RowPlace:
    tiles = part.arrays.tiles
    if row >= len(tiles.row_kind):
        needle = _needle(part.arrays.needles, part.indexed_paths, row)
        if needle is not None:
            return RowPlace(number, exact, needle=needle)
        key, entries = _key(part.arrays, part.indexed_paths, row)
        return RowPlace(number, exact, key, entries)
    tile = int(np.searchsorted(tiles.row_start, row, side="right")) - 1
    zones = tiles.zones[tiles.zone_start[tile] : tiles.zone_start[tile + 1]].tolist()
    return RowPlace(
        part=number,
        exact=exact,
        tile=tile,
        tile_rows=int(tiles.row_start[tile + 1] - tiles.row_start[tile]),
        zones=tuple((part.indexed_paths[a], values_of_codes(part.arrays, a, *codes)) for a, *codes in zones),
    )


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


def _part_lines(part: PartExplanation) -> list[str]:
    on = f"{_count(part.attributes, 'attribute')}, {_count(part.constants, 'constant')}"
    size = _bytes(sum(part.size_bytes.values()))
    lines = [
        f"{_count(part.subscriptions, 'subscription version')}, {_count(part.rows, 'row')}, {on}, {size}"
    ]
    if part.keys:
        lines.append(f"  {_count(part.rows_in_keys, 'row')} found by {_count(len(part.keys), 'key')}:")
        ordered = sorted(part.keys, key=lambda key: -key.entries)
        lines += [f"    {key}: {_count(key.entries, 'entry', 'entries')}" for key in ordered[:KEYS_SHOWN]]
        if len(ordered) > KEYS_SHOWN:
            more = sum(key.entries for key in ordered[KEYS_SHOWN:])
            others = _count(len(ordered) - KEYS_SHOWN, "other key")
            lines.append(f"    {others}: {_count(more, 'entry', 'entries')}")
    for use in part.needles:
        how = ", without regard to case" if use.folded else ""
        texts = f"{_count(use.needles, 'text')} in {format_path(use.path)}{how}"
        lines.append(f"  {_count(use.rows, 'row')} found by {texts}")
    if part.tiles:
        lines.append(f"  {_count(part.rows_in_tiles, 'row')} in {_count(part.tiles, 'tile')}")
    if part.undecided_rows:
        rows = _count(part.undecided_rows, "row")
        lines.append(f"  {rows} undecided: for what they find the filters themselves decide")
    sizes = ", ".join(f"{name} {_bytes(size)}" for name, size in part.size_bytes.items() if size)
    return [*lines, f"  bytes: {sizes}"]


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _bytes(size: int) -> str:
    if size < 1_000_000:
        return f"{max(size, 1) / 1000:,.1f} KB"
    return f"{size / 1e6:,.1f} MB"


def _in_words(values: ValueSet) -> str:
    from fieldfare.filters.help.value_words import describe_values

    return describe_values(values)
