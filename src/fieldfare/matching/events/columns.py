"""A batch of events as columns, which the matching kernels read.

A column holds one attribute of every event of a batch, without loss and without Python objects::

    kinds  uint8[n]   the type of the value (KIND_...)
    words  int64[n]   the value: an int64; the bits of a float64; `start << 32 | length` of a string's
                      UTF-8 bytes in the batch's `text`; an index into `exact`; otherwise 0, except that
                      for an array or object it may be the place of its JSON in `text`, as for a string
    text   uint8[m]   shared by all columns of the batch (m < 2**31)
    exact  tuple      numbers that fit neither int64 nor float64: int or Decimal
    others            reads arrays and objects whose word is 0; without it they read as NaN

The order of the kinds is the order of the regions in ``filters.values``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.values import ABSENT
from fieldfare.matching.events.odd_json import read_odd_json
from fieldfare.model import Path

KIND_MISSING = 0
KIND_NULL = 1
KIND_OTHER = 2
"""An array, an object, or a NaN: it is unordered and equals nothing."""
KIND_FALSE = 3
KIND_TRUE = 4
KIND_INT = 5
KIND_FLOAT = 6
KIND_EXACT = 7
KIND_STRING = 8

LENGTH_BITS = 0xFFFFFFFF
"""Bits of a string's word that hold its length in bytes."""
TEXT_BYTES_MAX = (1 << 31) - 1
"""Maximum bytes of a batch's `text`; a batch with more is refused, or computed in Python."""

LARGE_BYTES = 1 << 10
REMEMBERED = 4
"""Arrays and objects of at least LARGE_BYTES that are kept parsed, for filters that read them in turn.

At most REMEMBERED are kept at a time; further ones replace the oldest."""
_READ = "read"
"""The entry of a batch's ``kept`` that holds them, by their place in the text."""


@dataclass(frozen=True, slots=True)
class Column:
    """One attribute of n events: kinds uint8[n] and words int64[n]; see the module."""

    kinds: NDArray[np.uint8]
    words: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """n events as columns, for the attributes that some filter names.

    A path that is not in ``columns`` is missing from every event of the batch. ``value`` and ``values``
    return Python objects, including arrays and objects, which are parsed only then.
    """

    size: int
    columns: Mapping[Path, Column]
    text: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    exact: tuple[int | Decimal, ...] = ()
    others: Others | None = None
    asked: frozenset[Path] = frozenset()
    """The decoded paths, including those that no event has, as far as known."""
    record_sizes: NDArray[np.int64] | None = None
    """The number of events in each event's record: int64[n]; None if the events belong to no records."""
    kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """A cache of values computed from these events; see ``evaluation.view``."""

    def value(self, path: Path, event: int) -> Any:
        """Return the Python value of one attribute of one event; ``ABSENT`` if it is missing."""
        column = self.columns.get(path)
        if column is None:
            return ABSENT
        kind, word = int(column.kinds[event]), int(column.words[event])
        if kind == KIND_INT:
            return word
        if kind == KIND_FLOAT:
            return float(column.words[event : event + 1].view(np.float64)[0])
        if kind == KIND_STRING:
            return self._string(word)
        if kind == KIND_EXACT:
            return self.exact[word]
        if kind == KIND_OTHER:
            return self._other(path, event, word)
        return _ATOMS[kind]

    def values(self, path: Path, events: NDArray[np.int64] | slice | None = None) -> list[Any]:
        """Return the Python values of one attribute of some or all events; ``ABSENT`` where it is missing."""
        chosen = slice(0, self.size) if events is None else events
        column = self.columns.get(path)
        if column is None:
            return [ABSENT] * (chosen.stop - chosen.start if isinstance(chosen, slice) else len(chosen))
        kinds, words = column.kinds[chosen], column.words[chosen]
        if not len(kinds):
            return []
        least, most = int(kinds.min()), int(kinds.max())
        values: list[Any] = words.view(np.float64).tolist() if least == most == KIND_FLOAT else words.tolist()
        if least == most and least in (KIND_INT, KIND_FLOAT):
            return values
        if least == most == KIND_STRING:
            return list(map(self._string, values))
        for place, kind in enumerate(kinds.tolist()):
            if kind == KIND_STRING:
                values[place] = self._string(values[place])
            elif kind == KIND_EXACT:
                values[place] = self.exact[values[place]]
            elif kind < KIND_INT and kind != KIND_OTHER:
                values[place] = _ATOMS[kind]
        for place in np.flatnonzero(kinds == KIND_FLOAT).tolist():
            values[place] = float(words[place : place + 1].view(np.float64)[0])
        known: dict[tuple[int, int], Any] = {}  # of an array around, elements are given its value for each
        for place in np.flatnonzero(kinds == KIND_OTHER).tolist():
            event = chosen.start + place if isinstance(chosen, slice) else int(chosen[place])
            key = (0 if values[place] else event, values[place])
            if key not in known:
                known[key] = self._other(path, event, values[place])
            values[place] = known[key]
        return values

    def are_arrays(self, path: Path, events: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether an attribute, of KIND_OTHER in all these events, is an array."""
        from fieldfare.matching.events.first_bytes import first_bytes  # Only if needed: it loads numba.

        words = self.columns[path].words[events]
        arrays = np.zeros(len(events), bool)
        in_text = words != 0
        starts = np.empty(np.count_nonzero(in_text), np.uint8)
        first_bytes(self.text, words[in_text], starts)
        arrays[in_text] = starts == ord("[")
        if self.others is not None and not in_text.all():
            arrays[~in_text] = self.others.are_arrays(path, events[~in_text])
        return arrays

    def take(self, events: NDArray[np.int64]) -> ColumnBatch:
        """Return a batch of some of the events, in this order; it shares the texts of this one."""
        columns = {
            path: Column(column.kinds[events], column.words[events]) for path, column in self.columns.items()
        }
        others = None if self.others is None else _TakenOthers(self.others, events)
        sizes = None if self.record_sizes is None else self.record_sizes[events]
        return ColumnBatch(len(events), columns, self.text, self.exact, others, self.asked, sizes)

    def _string(self, word: int) -> str:
        start = word >> 32
        return self.text[start : start + (word & 0xFFFFFFFF)].tobytes().decode("utf-8", "surrogatepass")

    def _other(self, path: Path, event: int, word: int) -> Any:
        """An array, an object, or a NaN; the last large ones are remembered for other filters."""
        if not word:
            return _NAN if self.others is None else self.others(path, event)
        known: dict[int, Any] = self.kept.setdefault(_READ, {})
        if word in known:
            return known[word]
        start, size_bytes = word >> 32, word & 0xFFFFFFFF
        text = self.text[start : start + size_bytes].tobytes()
        try:
            value = _read_json(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            value = read_odd_json(text)
        if size_bytes >= LARGE_BYTES:
            if len(known) == REMEMBERED:
                known.pop(next(iter(known)))
            known[word] = value
        return value


UNKNOWN_BYTES = 1e18


class Others(Protocol):
    """A reader of attributes that are neither number, string, boolean nor null."""

    def __call__(self, path: Path, event: int) -> Any:
        """Return the array, the object, or a NaN."""

    def are_arrays(self, path: Path, events: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the values are arrays."""

    def text_sizes(self, path: Path, events: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return upper bounds of the values' JSON sizes in bytes, not counting digits; UNKNOWN_BYTES if
        unknown."""

    def elements(self, path: Path, events: NDArray[np.int64], inner: Sequence[Path]) -> Flattened | None:
        """Return the elements of arrays, array by array; None if only Python can read them.

        ``inner`` are paths into an element.
        """


class Flattened(NamedTuple):
    """Elements of arrays as columns."""

    counts: NDArray[np.int64]
    """The number of elements of each array."""
    batch: ColumnBatch
    """All elements."""
    paths: dict[Path, Path]
    """For each path into an element, the path in the batch."""


@dataclass(frozen=True, slots=True)
class _TakenOthers:
    """The `Others` of events taken from a batch."""

    whole: Others
    events: NDArray[np.int64]

    def __call__(self, path: Path, event: int) -> Any:
        return self.whole(path, int(self.events[event]))

    def are_arrays(self, path: Path, events: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.whole.are_arrays(path, self.events[events])

    def text_sizes(self, path: Path, events: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.whole.text_sizes(path, self.events[events])

    def elements(self, path: Path, events: NDArray[np.int64], inner: Sequence[Path]) -> Flattened | None:
        return self.whole.elements(path, self.events[events], inner)


_NAN = float("nan")
_read_json = msgspec.json.Decoder().decode
_ATOMS = {KIND_MISSING: ABSENT, KIND_NULL: None, KIND_FALSE: False, KIND_TRUE: True}
