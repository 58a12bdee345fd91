"""Conversion of events from Python objects to columns."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.evaluator import event_getter
from fieldfare.filters.values import ABSENT, is_array
from fieldfare.matching.events.columns import (
    KIND_EXACT,
    KIND_FALSE,
    KIND_FLOAT,
    KIND_INT,
    KIND_MISSING,
    KIND_NULL,
    KIND_OTHER,
    KIND_STRING,
    KIND_TRUE,
    TEXT_BYTES_MAX,
    Column,
    ColumnBatch,
    Flattened,
)
from fieldfare.model import Path


def columns_of_events(events: Sequence[Mapping[str, Any]], paths: Iterable[Path]) -> ColumnBatch:
    """Convert the attributes named by ``paths`` of parsed JSON objects to columns.

    Raises
    ------
    ValueError
        The strings take 2 GiB or more.
    """
    writer = _Writer()
    columns = {}
    getters = {path: event_getter(path) for path in paths}
    for path, get in getters.items():
        kinds, words = writer.cells([get(event) for event in events])
        if any(kinds):
            column = Column(np.frombuffer(kinds, np.uint8), np.array(words, np.int64))
            column.words.flags.writeable = False
            columns[path] = column
    text = np.frombuffer(bytes(writer.text), np.uint8)
    others = EventOthers(events, event_getter)
    return ColumnBatch(len(events), columns, text, tuple(writer.exact), others, frozenset(getters))


def cells_of_values(
    values: list[Any],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8], tuple[Any, ...]]:
    """Convert values of one column to kinds and words, with the text and the exact numbers that they point
    into."""
    writer = _Writer()
    kinds, words = writer.cells(values)
    text = np.frombuffer(bytes(writer.text), np.uint8)
    return np.array(bytearray(kinds), np.uint8), np.array(words, np.int64), text, tuple(writer.exact)


class EventOthers:
    """Reads arrays and objects from the events themselves.

    Parameters
    ----------
    events
        The events.
    getter
        Returns a function that reads an attribute of an event.
    """

    def __init__(self, events: Sequence[Any], getter: Callable[[Path], Callable[[Any], Any]]) -> None:
        self._events = events
        self._getter = getter
        self._text_sizes: dict[Path, NDArray[np.float64]] = {}

    def __call__(self, path: Path, event: int) -> Any:
        return self._getter(path)(self._events[event])

    def are_arrays(self, path: Path, events: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the values are sequences other than strings and bytes."""
        get = self._getter(path)
        return np.array([is_array(get(self._events[event])) for event in events.tolist()], bool)

    def text_sizes(self, path: Path, events: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return upper bounds of the values' JSON sizes, not counting digits; each event is measured once."""
        sizes = self._text_sizes.setdefault(path, np.full(len(self._events), np.nan))
        get = self._getter(path)
        for event in np.unique(events[np.isnan(sizes[events])]).tolist():
            sizes[event] = _text_size(get(self._events[event]))
        return sizes[events]

    def elements(self, path: Path, events: NDArray[np.int64], inner: Sequence[Path]) -> Flattened:
        """Return the elements of arrays, array by array, as columns."""
        get = self._getter(path)
        arrays = [get(self._events[event]) for event in events.tolist()]
        paths = {each: ("element", *each) for each in inner}
        elements = [{"element": element} for array in arrays for element in array]
        counts = np.array([len(array) for array in arrays], np.int64)
        return Flattened(counts, columns_of_events(elements, paths.values()), paths)


def _text_size(value: Any) -> int:
    """Return an upper bound of the characters of a value's JSON, not counting digits."""
    size, waiting = 0, [value]
    while waiting:
        inner = waiting.pop()
        size += 2
        if isinstance(inner, str):
            size += len(inner)
        elif isinstance(inner, Mapping):
            waiting += inner.values()
        elif is_array(inner):
            waiting += inner
    return size


class _Writer:
    """Collects the data shared by all columns of a batch."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.exact: list[Any] = []

    def cells(self, values: list[Any]) -> tuple[bytes, list[int]]:
        """Convert values to kinds and words."""
        kinds, words = bytearray(len(values)), [0] * len(values)
        for place, value in enumerate(values):
            kind = _KINDS.get(type(value))
            if kind is None or kind == KIND_EXACT:
                kind, value = _classified(value)
            if kind == KIND_INT and not -(1 << 63) <= value < 1 << 63:
                kind = KIND_EXACT
            elif kind == KIND_FLOAT and value != value:
                kind = KIND_OTHER
            elif kind == KIND_FALSE and value:
                kind = KIND_TRUE
            kinds[place] = kind
            if kind == KIND_INT:
                words[place] = value
            elif kind == KIND_FLOAT:
                words[place] = _to_word(_to_bytes(value))[0]
            elif kind == KIND_STRING:
                words[place] = self._add_text(value)
            elif kind == KIND_EXACT:
                self.exact.append(value)
                words[place] = len(self.exact) - 1
        return bytes(kinds), words

    def _add_text(self, value: str) -> int:
        characters = value.encode("utf-8", "surrogatepass")
        start = len(self.text)
        self.text += characters
        if len(self.text) > TEXT_BYTES_MAX:
            raise ValueError(f"the strings of a batch are too large: at most {TEXT_BYTES_MAX} bytes")
        return start << 32 | len(characters)


_KINDS: dict[type, int] = {
    type(ABSENT): KIND_MISSING,
    type(None): KIND_NULL,
    bool: KIND_FALSE,
    int: KIND_INT,
    float: KIND_FLOAT,
    str: KIND_STRING,
    dict: KIND_OTHER,
    list: KIND_OTHER,
    Decimal: KIND_EXACT,
}

_to_bytes = struct.Struct("<d").pack
_to_word = struct.Struct("<q").unpack


def _classified(value: Any) -> tuple[int, Any]:
    """Return kind and value of a value whose type is a subclass of a JSON type, or another type."""
    if isinstance(value, str):
        return KIND_STRING, str(value)
    if isinstance(value, int):
        return KIND_INT, int(value)
    if isinstance(value, float):
        return KIND_FLOAT, float(value)
    if isinstance(value, Decimal | Fraction):
        return (KIND_EXACT if value == value else KIND_OTHER), value
    return KIND_OTHER, value
