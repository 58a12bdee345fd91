"""The elements of arrays as columns, for the rows of a view that have arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.evaluation import element_kernels
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.view import Rows, View, readable
from fieldfare.matching.events.columns import KIND_MISSING, KIND_OTHER, Column, ColumnBatch
from fieldfare.matching.events.json_decoder import DecodeError, decode_json_lines, unescaped
from fieldfare.model import Path

GROUP_BYTES = 1 << 22
"""The text of the arrays that are read together, at most, unless it is one array."""
_MOST_UNESCAPED = 8 * GROUP_BYTES
"""Unescaping copies the whole text: of a larger one, arrays with escapes are left to Python."""
_GROUP_ROWS = 1 << 12
_GROUP_ELEMENTS = 1 << 20
"""Elements of arrays that several rows share, at most, unless it is one array."""
_SHARED_GROUPS = 4
"""So many groups are remembered, and more not: the text that is held at once is bounded."""
_LENGTH_BITS = 0xFFFFFFFF


class Elements(NamedTuple):
    """The elements of some arrays, one array after the other."""

    rows: Rows
    """Whose arrays they are."""
    counts: NDArray[np.int64]
    """How many each has."""
    batches: dict[Path, tuple[ColumnBatch, Path]]
    """For each path into an element that was asked for: a batch of all elements, and the path there."""


class _Groups(list[Elements]):
    """Elements that a view remembers."""

    def size_bytes(self, text: NDArray[np.uint8]) -> int:
        """The memory that they take beside a text, of which theirs may be a view."""
        size = 0
        for found in self:
            for batch, _ in found.batches.values():
                size += sum(column.kinds.nbytes + column.words.nbytes for column in batch.columns.values())
                size += 0 if np.may_share_memory(batch.text, text) else batch.text.nbytes
        return size


def shared_elements(view: View, path: Path, rows: Rows, inner: Sequence[Path]) -> Iterable[Elements]:
    """`elements_of` an attribute in all rows of a view where it is an array, for whoever asks."""
    key = path, *inner
    known: _Groups | None = view.memo.get(key)
    if known is None:
        batch, place, events = view.source(path, rows)
        groups = elements_of(batch, place, rows, events, inner)
        known = _Groups(islice(groups, _SHARED_GROUPS + 1))
        if len(known) > _SHARED_GROUPS:
            return chain(known, groups)
        view.memo[key] = known
    return known


def elements_of(
    batch: ColumnBatch, path: Path, rows: Rows, events: Rows, inner: Sequence[Path]
) -> Iterator[Elements]:
    """The elements of an attribute that is an array in some events, in groups; an event is read once.

    Parameters
    ----------
    rows, events : int64[n]
        What the rows are called, and where they are in the batch.
    inner
        Paths into the elements; () is the element itself.

    Yields
    ------
    Elements
        Not of all rows: an array that is odd is left out.
    """
    unlike, which = np.unique(events, return_inverse=True)
    if len(unlike) == len(events):
        yield from _read(batch, path, rows, events, inner)
        return
    for found in _read(batch, path, np.arange(len(unlike)), unlike, inner):
        yield from _repeated(found, which, rows)


def _repeated(found: Elements, which: NDArray[np.int64], rows: Rows) -> Iterator[Elements]:
    """The elements of arrays for rows that share them; row i has the array whose row ``which[i]`` is."""
    place = np.full(int(which.max()) + 1, -1)
    place[found.rows] = np.arange(len(found.rows))
    mine = np.flatnonzero(place[which] >= 0)
    arrays = place[which[mine]]
    starts = np.cumsum(found.counts) - found.counts
    cuts = np.flatnonzero(np.diff(np.cumsum(found.counts[arrays]) // _GROUP_ELEMENTS)) + 1
    for part in np.split(np.arange(len(mine)), cuts) if len(mine) else ():
        counts = found.counts[arrays[part]]
        ends = np.cumsum(counts)
        chosen = np.repeat(starts[arrays[part]] - (ends - counts), counts) + np.arange(ends[-1])
        taken = {id(batch): batch.take(chosen) for batch, _ in found.batches.values()}
        batches = {inner: (taken[id(batch)], path) for inner, (batch, path) in found.batches.items()}
        yield Elements(rows[mine[part]], counts, batches)


def _read(
    batch: ColumnBatch, path: Path, rows: Rows, events: Rows, inner: Sequence[Path]
) -> Iterator[Elements]:
    """`elements_of` events none of which comes twice."""
    words = batch.columns[path].words[events]
    in_text = words != 0
    for part in _groups(np.flatnonzero(in_text), words):
        found = _from_text(batch, rows[part], words[part], inner)
        if found is not None:
            yield found
    others = np.flatnonzero(~in_text)
    for first in range(0, len(others) if batch.others is not None else 0, _GROUP_ROWS):
        part = others[first : first + _GROUP_ROWS]
        flat = batch.others.elements(path, events[part], inner)  # type: ignore[union-attr]
        if flat is not None:
            yield Elements(rows[part], flat.counts, {each: (flat.batch, flat.paths[each]) for each in inner})


def _groups(places: Rows, words: NDArray[np.int64]) -> Iterator[Rows]:
    """The places of arrays, so many together as their text allows."""
    if len(places):
        ends = np.cumsum(words[places] & _LENGTH_BITS)
        cuts = np.flatnonzero(np.diff(ends // GROUP_BYTES)) + 1
        yield from np.split(places, cuts)


def _from_text(
    batch: ColumnBatch, rows: Rows, places: NDArray[np.int64], inner: Sequence[Path]
) -> Elements | None:
    text = readable(batch.text)
    most = int((places & _LENGTH_BITS).sum()) // 2 + 1
    kinds: Any = np.empty(most, np.uint8)
    words: Any = np.empty(most, np.int64)
    counts: Any = np.empty(len(places), np.int64)
    size, escaped = element_kernels.read_elements(frozen(places), text, counts, kinds, words)
    kinds, words = kinds[:size], words[:size]
    if escaped and text.size > _MOST_UNESCAPED:
        return None
    if escaped:
        text = unescaped(text, int(escaped), kinds, words)
    if (counts < 0).any():
        rows, counts = rows[counts >= 0], counts[counts >= 0]
    whole = ColumnBatch(size, {(): Column(frozen(kinds), frozen(words))}, text)
    batches: dict[Path, tuple[ColumnBatch, Path]] = {(): (whole, ())}
    members = [each for each in inner if each]
    if members:
        parts = _members(whole, members)
        if parts is None:
            return None
        batches |= {each: (parts, each) for each in members}
    return Elements(rows, counts, batches)


def _members(whole: ColumnBatch, paths: Sequence[Path]) -> ColumnBatch | None:
    """What is in elements that are objects; None if only Python reads them."""
    column = whole.columns[()]
    objects = np.flatnonzero(column.kinds == KIND_OTHER)
    objects = objects[whole.text[column.words[objects] >> 32] == ord("{")]
    places = column.words[objects]
    lines: Any = np.empty(int((places & _LENGTH_BITS).sum()) + len(places), np.uint8)
    element_kernels.gather_lines(frozen(places), whole.text, lines)
    try:
        found = decode_json_lines(lines, len(objects), list(paths))
    except DecodeError:
        return None
    columns = {}
    for path, part in found.columns.items():
        kinds = np.full(whole.size, KIND_MISSING, np.uint8)
        words = np.zeros(whole.size, np.int64)
        kinds[objects], words[objects] = part.kinds, part.words
        columns[path] = Column(frozen(kinds), frozen(words))
    return ColumnBatch(whole.size, columns, found.text, found.exact, None, frozenset(paths))


def are_readable(paths: Iterable[Path]) -> bool:
    """Whether paths into elements lead through objects first: elements of elements are read by Python."""
    return all(not path or isinstance(path[0], str) for path in paths)
