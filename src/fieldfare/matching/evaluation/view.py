"""The rows of a batch over which an expression is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.evaluator import Compiler, Condition
from fieldfare.filters.expression import Expression, attribute_paths
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.truth import CODES, UNKNOWN
from fieldfare.matching.events.columns import KIND_MISSING, KIND_OTHER, Column, ColumnBatch
from fieldfare.model import Path

Rows = NDArray[np.int64]
Truths = NDArray[np.uint8]
A = TypeVar("A", bound=NDArray[Any])


def readable(array: A) -> A:
    """Return an array as the kernels are compiled for: read-only and contiguous."""
    if array.flags.c_contiguous:
        if not array.flags.writeable:
            return array
        view = array.view()
    else:
        view = np.ascontiguousarray(array)  # type: ignore[assignment]
    view.flags.writeable = False
    return view


class Values(NamedTuple):
    """One value per row, as the kernels read them; see ``kinds`` for the kinds.

    Row i's value is at ``i * step``, so a constant (step 0) is stored once.
    """

    kinds: NDArray[np.uint8]
    words: NDArray[np.int64]
    seconds: NDArray[np.int64]
    text: NDArray[np.uint8]
    step: int

    def of(self, rows: Rows | slice | None) -> Values:
        """Return the values of some rows."""
        if rows is None or self.step == 0:
            return self
        taken: list[NDArray[Any]] = [self.kinds, self.words, self.seconds]
        if isinstance(rows, slice):
            taken = [array[rows] if array.size else array for array in taken]
        else:
            taken = [array.take(rows) if array.size else array for array in taken]
        kinds, words, seconds = map(readable, taken)
        return Values(kinds, words, seconds, self.text, 1)

    def size_bytes(self, text: NDArray[np.uint8]) -> int:
        """The memory taken in addition to a text, of which the values' text may be a view."""
        own_bytes = 0 if np.may_share_memory(self.text, text) else self.text.nbytes
        return self.kinds.nbytes + self.words.nbytes + self.seconds.nbytes + own_bytes


@dataclass(frozen=True, slots=True)
class PieceParameter:
    """A placeholder for a piece of a pattern in a shape: the number of the parameter.

    Attributes
    ----------
    has_ones
        Whether the pieces have ONEs.
    """

    number: int
    has_ones: bool


Part = bytes | PieceParameter
"""A piece of a pattern, or a placeholder for one."""


class Pieces(NamedTuple):
    """Pieces of text to search for: row i's begin at ``starts[owners[i * step] * count + piece]``."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    owners: NDArray[np.int64]
    step: int


class _Parameter:
    """The first step of a path to a parameter of a shape; the second step is its number."""

    def __repr__(self) -> str:
        return "PARAMETER"


PARAMETER: Any = _Parameter()


def has_parameters(e: Expression) -> bool:
    """Whether an expression contains parameters, which differ from filter to filter."""
    return any(path and path[0] is PARAMETER for path in attribute_paths(e))


NO_WORDS = frozen(np.zeros(0, np.int64))
NO_TEXT = frozen(np.zeros(0, np.uint8))
MISSING = Values(
    frozen(np.full(1, KIND_MISSING, np.uint8)), frozen(np.zeros(1, np.int64)), NO_WORDS, NO_TEXT, 0
)


class Key:
    """Identifies a computed expression: equal for equal expressions, with a cached hash."""

    __slots__ = ("_hash", "expression")

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self._hash = hash(expression)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and (self is other or self.expression == other.expression)


KEPT_BYTES = 1 << 26
"""Maximum bytes of computed values kept for a batch; after that no more are kept."""
_BYTES = "bytes"
"""The key in a batch's ``kept`` of these bytes."""


class View:
    """Some rows of a batch, or all: their columns, gathered on first use.

    Attributes
    ----------
    size
        The number of rows.
    rows
        Their indices in the batch: int64[size], or a slice with a start and an end, or None for all.
    memo
        Values computed for these rows, shared by all expressions.

    Values that several filters compute are kept in the batch's ``kept``, by Key: once a value has been
    computed for as many rows as the batch has, it is computed for all of them. Until then the number of rows
    is stored there.
    """

    __slots__ = ("_arrays", "_columns", "batch", "memo", "parent", "rows", "size", "text")

    def __init__(self, batch: ColumnBatch, rows: Rows | slice | None = None) -> None:
        self.batch = batch
        self.rows = rows
        self.parent: tuple[View, Rows] | None = None
        if rows is None:
            self.size = batch.size
        else:
            self.size = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        self.text = readable(batch.text)
        self.memo: dict[Any, Any] = {}
        self._columns: dict[Path, Column | None] = {}
        self._arrays: dict[Path, NDArray[np.bool_]] = {}

    def column(self, path: Path) -> Column | None:
        """Return the column of an attribute; None if no row has it."""
        try:
            return self._columns[path]
        except KeyError:
            column = self.batch.columns.get(path)
            if column is not None:
                kinds, words = column.kinds, column.words
                if isinstance(self.rows, slice):
                    kinds, words = kinds[self.rows], words[self.rows]
                elif self.rows is not None:
                    kinds, words = kinds.take(self.rows), words.take(self.rows)
                column = Column(readable(kinds), readable(words))
            self._columns[path] = column
            return column

    def arrays(self, path: Path) -> NDArray[np.bool_]:
        """Return the rows in which an attribute is an array."""
        known = self._arrays.get(path)
        if known is None:
            known = self._arrays[path] = self._where_arrays(path)
        return known

    def _where_arrays(self, path: Path) -> NDArray[np.bool_]:
        column = self.column(path)
        if column is None:
            return frozen(np.zeros(self.size, bool))
        arrays: NDArray[np.bool_] = column.kinds == KIND_OTHER
        rows = np.flatnonzero(arrays)
        if len(rows):
            batch, place, events = self.source(path, rows)
            arrays[rows] = batch.are_arrays(place, events)
        return frozen(arrays)

    def source(self, path: Path, rows: Rows) -> tuple[ColumnBatch, Path, Rows]:
        """Locate an attribute of some rows: return a batch, the path in it, and the events in it."""
        return self.batch, path, self._events(rows)

    def owner(self, _path: Path) -> tuple[View, Rows | None]:
        """The view whose rows have an attribute, and the row there of each row here (None: the same)."""
        return self, None

    def knows(self, paths: Iterable[Path]) -> bool:
        """Whether attributes without a column are missing, rather than not decoded."""
        batch = self.batch
        return all(path in batch.columns or path in batch.asked for path in paths)

    def operand(self, path: Path) -> Values:
        """Return the values of an attribute."""
        column = self.column(path)
        return MISSING if column is None else Values(column.kinds, column.words, NO_WORDS, self.text, 1)

    def shared(self, key: Any, compute: Callable[[View], Values]) -> Values:
        """Return the values identified by a key, computing them if needed; those of a Key are shared among
        filters."""
        known: Values | None = self.memo.get(key)
        if known is None:
            known = self._of_parent(key) or self._of_batch(key, compute)
            self.memo[key] = known
        return known

    def _of_parent(self, key: Any) -> Values | None:
        """Return the values from the view that these rows were taken from, if computed there."""
        if self.parent is None:
            return None
        whole, rows = self.parent
        known: Values | None = whole.memo.get(key) or whole._of_parent(key)
        return None if known is None else known.of(rows)

    def _of_batch(self, key: Any, compute: Callable[[View], Values]) -> Values:
        if not isinstance(key, Key):
            return compute(self)
        kept = self.batch.kept
        found = kept.get(key, 0)
        if isinstance(found, Values):
            return found.of(self.rows)
        seen = found + self.size
        if seen <= self.batch.size or kept.get(_BYTES, 0) > KEPT_BYTES:
            kept[key] = seen
            return compute(self)
        whole = compute(View(self.batch))
        kept[key] = whole
        kept[_BYTES] = kept.get(_BYTES, 0) + whole.size_bytes(self.batch.text)
        return whole.of(self.rows)

    def pieces(self, fixed: Pieces, _parts: Sequence[Part]) -> Pieces:
        """Return the pieces of a pattern for each row, which are equal for all rows."""
        return fixed

    def ask(self, asked: RowByRow) -> Truths:
        """Evaluate an expression in Python for each row."""
        if self.doubts(slice(None)):
            return np.full(self.size, UNKNOWN, np.uint8)
        return asked.evaluate(self)

    def doubts(self, _rows: Rows | slice) -> bool:
        """Whether rows that only Python can decide are marked as doubtful instead of evaluated."""
        return False

    def take(self, rows: Rows) -> View:
        """Return the view of some of this view's rows."""
        view = View(self.batch, self._events(rows))
        view.parent = (self, rows)
        return view

    def _events(self, rows: Rows) -> Rows:
        """Return the indices of some rows in the batch."""
        if self.rows is None:
            return rows
        return rows + self.rows.start if isinstance(self.rows, slice) else self.rows[rows]

    def values(self, path: Path) -> list[Any]:
        """Return the Python values of an attribute, for each row."""
        return self.batch.values(path, self.rows)


class RowByRow:
    """An expression that is evaluated in Python, row by row, where there is no kernel."""

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self.paths = sorted(attribute_paths(expression), key=repr)
        self._condition: Condition | None = None

    def truths(self, view: View) -> Truths:
        """Return the truth for each row of a view; UNKNOWN where the view marks the rows as doubtful
        instead."""
        return view.ask(self)

    def evaluate(self, view: View) -> Truths:
        """Return the truth for each row of a view."""
        condition = self._condition
        if condition is None:
            condition = self._condition = Compiler(self._getter).condition(self.expression)
        if not self.paths:
            return np.full(view.size, CODES[condition(())], np.uint8)
        columns = [view.values(path) for path in self.paths]
        codes = CODES
        return np.array([codes[condition(row)] for row in zip(*columns, strict=True)], np.uint8)

    def settle(self, view: View, truths: Truths, code: int) -> Truths:
        """Replace a code among the truths by the truth that Python computes for these rows."""
        rows = np.flatnonzero(truths == code)
        truths[rows] = self.truths(view.take(rows))
        return truths

    def _getter(self, path: Path) -> Callable[[Any], Any]:
        return itemgetter(self.paths.index(path))
