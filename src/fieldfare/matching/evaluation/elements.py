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
from fieldfare.matching.events.columns import KIND_MISSING, KIND_OTHER, LENGTH_BITS, Column, ColumnBatch
from fieldfare.matching.events.json_decoder import DecodeError, decode_json_lines, unescaped
from fieldfare.model import Path

GROUP_BYTES = 1 << 22
"""Maximum text of the arrays that are read together, in bytes, unless it is a single array."""
_UNESCAPED_MAX = 8 * GROUP_BYTES
"""Maximum text size, in bytes, for arrays with escapes, as unescaping copies the complete text; those in
larger texts are read in Python."""
_GROUP_ROWS = 1 << 12
_GROUP_ELEMENTS = 1 << 20
"""Maximum elements per group of arrays that several rows share, unless it is a single array."""
_SHARED_GROUPS = 4
"""Maximum groups that a view remembers; more are read again each time, to bound memory."""


class Elements(NamedTuple):
    """The elements of some arrays, array by array."""

    rows: Rows
    """The row of each array."""
    counts: NDArray[np.int64]
    """The number of elements of each array."""
    batches: dict[Path, tuple[ColumnBatch, Path]]
    """For each requested path into an element: a batch of all elements, and the path in this batch."""


class _Groups(list[Elements]):
    """Elements that a view remembers."""

    def size_bytes(self, text: NDArray[np.uint8]) -> int:
        """The memory taken in addition to a text, of which the elements' text may be a view."""
        size = 0
        for found in self:
            for batch, _ in found.batches.values():
                size += sum(column.kinds.nbytes + column.words.nbytes for column in batch.columns.values())
                size += 0 if np.may_share_memory(batch.text, text) else batch.text.nbytes
        return size


def shared_elements(view: View, path: Path, rows: Rows, inner: Sequence[Path]) -> Iterable[Elements]:
    """Return `elements_of` an attribute in all rows of a view where it is an array; cached in the view."""
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
    """Yield the elements of an attribute that is an array in some events, in groups; each event is read once.

    Parameters
    ----------
    rows, events : int64[n]
        The numbers of the rows, and their indices in the batch.
    inner
        Paths into the elements; () is the element itself.

    Yields
    ------
    Elements
        The elements of all rows except those with a malformed array.
    """
    unlike, which = np.unique(events, return_inverse=True)
    if len(unlike) == len(events):
        yield from _read(batch, path, rows, events, inner)
        return
    for found in _read(batch, path, np.arange(len(unlike)), unlike, inner):
        yield from _repeated(found, which, rows)


def _repeated(found: Elements, which: NDArray[np.int64], rows: Rows) -> Iterator[Elements]:
    """Yield the elements for rows that share arrays; row i has the array of row ``which[i]``."""
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
    """Like `elements_of`, for distinct events."""
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
    """Yield the places of arrays, in groups limited by the size of their text."""
    if len(places):
        ends = np.cumsum(words[places] & LENGTH_BITS)
        cuts = np.flatnonzero(np.diff(ends // GROUP_BYTES)) + 1
        yield from np.split(places, cuts)


def _from_text(
    batch: ColumnBatch, rows: Rows, places: NDArray[np.int64], inner: Sequence[Path]
) -> Elements | None:
    text = readable(batch.text)
    most = int((places & LENGTH_BITS).sum()) // 2 + 1
    kinds: Any = np.empty(most, np.uint8)
    words: Any = np.empty(most, np.int64)
    counts: Any = np.empty(len(places), np.int64)
    size, escaped = element_kernels.read_elements(frozen(places), text, counts, kinds, words)
    kinds, words = kinds[:size], words[:size]
    if escaped and text.size > _UNESCAPED_MAX:
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
        batches |= {each: (parts, ("", *each)) for each in members}
    return Elements(rows, counts, batches)


def _members(whole: ColumnBatch, paths: Sequence[Path]) -> ColumnBatch | None:
    """Decode what is in elements that are objects or arrays; None if only Python can read it."""
    column = whole.columns[()]
    compound = np.flatnonzero(column.kinds == KIND_OTHER)
    places = column.words[compound]
    size_bytes = int((places & LENGTH_BITS).sum()) + element_kernels.LINE_BYTES * len(places)
    lines: Any = np.empty(size_bytes, np.uint8)
    element_kernels.gather_lines(frozen(places), whole.text, lines)
    try:
        found = decode_json_lines(lines, len(compound), [("", *path) for path in paths])
    except DecodeError:
        return None
    columns = {}
    for path, part in found.columns.items():
        kinds = np.full(whole.size, KIND_MISSING, np.uint8)
        words = np.zeros(whole.size, np.int64)
        kinds[compound], words[compound] = part.kinds, part.words
        columns[path] = Column(frozen(kinds), frozen(words))
    return ColumnBatch(
        whole.size, columns, found.text, found.exact, None, frozenset(("", *path) for path in paths)
    )
