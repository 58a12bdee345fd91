"""Derived columns (``filters.derived``), computed once per batch of events for all users."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.derived import base_paths, expression_of, value_getter
from fieldfare.filters.expression import (
    Arithmetic,
    Attribute,
    Call,
    Comparison,
    Expression,
    Negate,
    parts_of,
)
from fieldfare.filters.functions import FUNCTIONS
from fieldfare.filters.work import FEW_ELEMENTS, looked_into
from fieldfare.matching.evaluation.compiler import expanded, operand_of
from fieldfare.matching.evaluation.kinds import KIND_ASK, KIND_RATIO
from fieldfare.matching.evaluation.operands import spread
from fieldfare.matching.evaluation.view import NO_TEXT, View, readable
from fieldfare.matching.events.columns import KIND_EXACT, KIND_MISSING, KIND_NULL, KIND_STRING, ColumnBatch
from fieldfare.matching.events.event_columns import cells_of_values
from fieldfare.model import Path

PYTHON_NS = 2_000.0
"""Estimated cost of a value computed in Python, in ns."""
_FEW = 0.75
"""If less than this share of the events have the needed attributes, only these events are computed."""
_KEPT = 1_024
_WORD = 1 << 62
FEW_EVENTS = 4
"""Maximum events for which derived columns are computed in Python."""


class Computed(NamedTuple):
    """Values of one or several columns for n events; kinds, words and text as in a ``ColumnBatch``.

    Kinds may also be KIND_RATIO and KIND_NEAR, with a second word (``evaluation.kinds``). Values of
    KIND_EXACT are returned by `DerivedColumn.value` only.
    """

    kinds: NDArray[np.uint8]
    words: NDArray[np.int64]
    seconds: NDArray[np.int64]
    text: NDArray[np.uint8]

    @property
    def has_strings(self) -> bool:
        """Whether some values point into the text."""
        return len(self.text) > 0 and bool((self.kinds == KIND_STRING).any())


class DerivedColumn:
    """A derived column, ready to be computed; made by `derived_column`.

    Attributes
    ----------
    bases
        The attributes that it reads.
    cost_ns
        The estimated cost per event, in ns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        expression = expression_of(path)
        self.bases = tuple(sorted(base_paths(path), key=repr))
        self._operand = operand_of(expanded(expression))
        self._needed = _needed(expression)
        self._beyond_few = [(*path, FEW_ELEMENTS) for path in looked_into(expression)]
        self.cost_ns = PYTHON_NS if self._operand is None else self._operand.cost_ns

    def of(self, columns: ColumnBatch, start: int, end: int) -> Computed:
        """Return the column's values for the events [start, end), with unknown values as null."""
        known = _of_window(columns, start, end)
        found: Computed | None = known.get(self.path)
        if found is None:
            found = known[self.path] = self._compute(columns, start, end, known)
            _forget_what_is_too_much(known, found, columns.text)
        return found

    def value(self, columns: ColumnBatch, event: int) -> Any:
        """Return the column's value for one event, exactly, as Python computes it."""
        return self._by_python(columns, np.array([event]))[0]

    def values(self, columns: ColumnBatch, start: int, end: int) -> list[Any]:
        """Like `value`, for the events [start, end), which should be few."""
        known = _of_window(columns, start, end)
        bases = []
        for path in self.bases:
            if path not in known:
                known[path] = columns.values(path, slice(start, end))
            bases.append(known[path])
        rows = zip(*bases, strict=True)
        many = self._many(columns, start, end)
        return [
            None if is_many else self._value(row) for row, is_many in zip(rows, many.tolist(), strict=True)
        ]

    def _many(self, columns: ColumnBatch, start: int, end: int) -> NDArray[np.bool_]:
        """Return where an array that the column reads has more than FEW_ELEMENTS elements; values there are
        unused.

        No filter with such an array is decided by a column (``counted.decided_by_work``), and the array may
        have a million elements.
        """
        many = np.zeros(end - start, bool)
        for path in self._beyond_few:
            if path in columns.columns:
                many |= columns.columns[path].kinds[start:end] > KIND_MISSING
        return many

    def _compute(self, columns: ColumnBatch, start: int, end: int, known: dict[Any, Any]) -> Computed:
        rows = self._rows(columns, start, end)
        if rows is None:
            view = known.setdefault(View, View(columns, slice(start, end)))  # shares the view's results, too
            return self._computed(columns, view, np.arange(start, end))
        size = end - start
        kinds, words = np.full(size, KIND_NULL, np.uint8), np.zeros(size, np.int64)
        seconds, text = np.zeros(size, np.int64), NO_TEXT
        if len(rows):
            found = self._computed(columns, View(columns, rows), rows)
            places, text = rows - start, found.text
            kinds[places], words[places], seconds[places] = found.kinds, found.words, found.seconds
        return Computed(kinds, words, seconds, text)

    def _rows(self, columns: ColumnBatch, start: int, end: int) -> NDArray[np.int64] | None:
        """Return the events where the column may have a value; None for nearly all."""
        if any(path not in columns.columns for path in self._needed):
            return np.zeros(0, np.int64)
        many = self._many(columns, start, end)
        present = ~many
        for path in self._needed:
            present &= columns.columns[path].kinds[start:end] > KIND_NULL
        if np.count_nonzero(present) >= _FEW * (end - start) and not many.any():
            return None
        return np.flatnonzero(present) + start

    def _computed(self, columns: ColumnBatch, view: View, events: NDArray[np.int64]) -> Computed:
        if self._operand is None:
            return _cells(self._by_python(columns, events))
        values = spread(self._operand.values(view), view.size)
        seconds = values.seconds if len(values.seconds) else np.zeros(view.size, np.int64)
        found = Computed(values.kinds, values.words, seconds, values.text)
        asked = np.flatnonzero(values.kinds >= KIND_ASK)
        if len(asked):
            return _settled(found, asked, _cells(self._by_python(columns, events[asked])))
        return found

    def _by_python(self, columns: ColumnBatch, events: NDArray[np.int64]) -> list[Any]:
        rows = zip(*(columns.values(path, events) for path in self.bases), strict=True)
        return [self._value(row) for row in rows]

    @cached_property
    def _value(self) -> Callable[[Any], Any]:
        return value_getter(self.path, lambda path: itemgetter(self.bases.index(path)))


_WINDOW = "window"
"""The key in a batch's ``kept`` of the values computed for its last window."""
WINDOW_BYTES = 1 << 28
"""Approximate maximum memory for the remembered values of a window; with more, all are forgotten."""
_BYTES = "bytes"
"""The key in the window of (number of the view's values counted, total bytes)."""


def _of_window(columns: ColumnBatch, start: int, end: int) -> dict[Any, Any]:
    """Return the cache for values of the events [start, end); only the last window's is kept."""
    window, known = columns.kept.get(_WINDOW, (None, None))
    if window != (start, end):
        columns.kept[_WINDOW] = (start, end), (known := dict[Any, Any]())
    found: dict[Any, Any] = known
    return found


def _forget_what_is_too_much(known: dict[Any, Any], found: Computed, text: NDArray[np.uint8]) -> None:
    """Clear a window's cache if it takes too much memory: short texts can become long ones."""
    memo = known[View].memo if View in known else {}
    counted, size_bytes = known.get(_BYTES, (0, 0))
    for values in islice(reversed(memo.values()), len(memo) - counted):
        size_bytes += values.size_bytes(text)
    if not np.may_share_memory(found.text, text):
        size_bytes += found.text.nbytes
    known[_BYTES] = len(memo), size_bytes
    if size_bytes > WINDOW_BYTES:
        known.clear()


def _cells(values: list[Any]) -> Computed:
    """Convert values computed in Python to columns."""
    kinds, words, text, exact = cells_of_values(values)
    seconds = np.zeros(len(kinds), np.int64)
    for place in np.flatnonzero(kinds == KIND_EXACT).tolist():
        number = exact[words[place]]
        if isinstance(number, Fraction) and abs(number.numerator) < _WORD and number.denominator < _WORD:
            kinds[place], words[place], seconds[place] = KIND_RATIO, number.numerator, number.denominator
    return Computed(kinds, words, seconds, text)


def _settled(found: Computed, rows: NDArray[np.int64], asked: Computed) -> Computed:
    """Replace the values in some rows by those computed in Python."""
    kinds, words, seconds = found.kinds.copy(), found.words.copy(), found.seconds.copy()
    kinds[rows], seconds[rows] = asked.kinds, asked.seconds
    words[rows] = asked.words + np.where(asked.kinds == KIND_STRING, len(found.text) << 32, 0)
    return Computed(kinds, words, seconds, np.concatenate([found.text, asked.text]))


def computed_together(
    wanted: Sequence[DerivedColumn], columns: ColumnBatch, start: int, end: int
) -> Iterator[tuple[list[int], Computed]]:
    """Yield columns for the events [start, end): the indices of columns with one text, and their values [D,
    n].

    Columns with strings are yielded one by one, as soon as they are computed: all their texts may be too
    large.
    """
    if end - start <= FEW_EVENTS:  # for a few events, a kernel's call takes longer than Python
        cells = _cells([value for column in wanted for value in column.values(columns, start, end)])
        shape = len(wanted), end - start
        kinds, words = cells.kinds.reshape(shape), cells.words.reshape(shape)
        together = Computed(kinds, words, cells.seconds.reshape(shape), readable(cells.text))
        yield list(range(len(wanted))), together
        return
    others: dict[int, Computed] = {}
    for place, column in enumerate(wanted):
        found = column.of(columns, start, end)
        if found.has_strings:
            yield [place], _stacked([found])
        else:
            others[place] = found
    if others:
        yield list(others), _stacked(list(others.values()))


def _stacked(columns: Sequence[Computed]) -> Computed:
    """Stack columns that share one text, or have no strings."""
    return Computed(
        np.stack([each.kinds for each in columns]),
        np.stack([each.words for each in columns]),
        np.stack([each.seconds for each in columns]),
        readable(columns[0].text),
    )


@lru_cache(_KEPT)
def derived_column(path: Path) -> DerivedColumn:
    """Return the derived column with this path; cached."""
    return DerivedColumn(path)


def _needed(e: Expression) -> frozenset[Path]:
    """Return the attributes without which the value is unknown."""
    if isinstance(e, Attribute):
        return frozenset((e.path,))
    if isinstance(e, Call):
        function = FUNCTIONS[e.function]
        if function.takes_null or function.true_for is not None or function.expand is not None:
            return frozenset()
    elif not isinstance(e, Arithmetic | Negate | Comparison):
        return frozenset()
    return frozenset[Path]().union(*map(_needed, parts_of(e)))
