"""The rows of a batch that an evaluation looks at."""

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
    """An array as the kernels are compiled for: read-only, one value after the other."""
    if array.flags.c_contiguous:
        if not array.flags.writeable:
            return array
        view = array.view()
    else:
        view = np.ascontiguousarray(array)  # type: ignore[assignment]
    view.flags.writeable = False
    return view


class Values(NamedTuple):
    """One value a row, as the kernels read them; see ``kernels`` for the kinds.

    Row i's are at ``i * step``, so a constant (step 0) is kept once.
    """

    kinds: NDArray[np.uint8]
    words: NDArray[np.int64]
    seconds: NDArray[np.int64]
    text: NDArray[np.uint8]
    step: int

    def of(self, rows: Rows | slice | None) -> Values:
        """Those of some rows."""
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
        """The memory that they take beside a text, of which theirs may be a view."""
        own_bytes = 0 if np.may_share_memory(self.text, text) else self.text.nbytes
        return self.kinds.nbytes + self.words.nbytes + self.seconds.nbytes + own_bytes


@dataclass(frozen=True, slots=True)
class PieceParameter:
    """In the place of a piece of a pattern: the number of the parameter that it is, in a shape.

    Attributes
    ----------
    has_ones
        Whether it has ONEs.
    """

    number: int
    has_ones: bool


Part = bytes | PieceParameter
"""A piece of a pattern as kernels have it, or what stands for one."""


class Pieces(NamedTuple):
    """Pieces of text to look for: those of row i begin at ``starts[owners[i * step] * count + piece]``."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    owners: NDArray[np.int64]
    step: int


class _Parameter:
    """The first step of a path that names a parameter of a shape; the second is its number."""

    def __repr__(self) -> str:
        return "PARAMETER"


PARAMETER: Any = _Parameter()


def has_parameters(e: Expression) -> bool:
    """Whether an expression is a part of a shape that differs from filter to filter."""
    return any(path and path[0] is PARAMETER for path in attribute_paths(e))


NO_WORDS = frozen(np.zeros(0, np.int64))
NO_TEXT = frozen(np.zeros(0, np.uint8))
MISSING = Values(
    frozen(np.full(1, KIND_MISSING, np.uint8)), frozen(np.zeros(1, np.int64)), NO_WORDS, NO_TEXT, 0
)


class Key:
    """Names what an expression computes: equal for equal expressions, with a hash that is at hand."""

    __slots__ = ("_hash", "expression")

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self._hash = hash(expression)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and (self is other or self.expression == other.expression)


KEPT_BYTES = 1 << 26
"""What is kept of values computed for a batch, at most."""
_BYTES = "bytes"
"""Where a batch's ``kept`` counts them."""


class View:
    """Some rows of a batch, or all: their columns, gathered when first asked for.

    Attributes
    ----------
    size
        How many rows.
    rows
        Their places in the batch: int64[size], or a slice with a start and an end, or None for all.
    memo
        What was computed for these rows, by whoever computed it.

    What several filters compute is kept in the batch's ``kept``, by its Key: once it was computed for as
    many rows as the batch has, it is computed for all of them. Until then the count stands there.
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
        """The column of an attribute; None if no row has it."""
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
        """The rows in which an attribute is an array."""
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
        """Where an attribute of some of the rows is: a batch, its path there, and the events there."""
        return self.batch, path, self._events(rows)

    def knows(self, paths: Iterable[Path]) -> bool:
        """Whether an attribute that has no column is missing, rather than not asked for."""
        batch = self.batch
        return all(path in batch.columns or path in batch.asked for path in paths)

    def operand(self, path: Path) -> Values:
        """The values of an attribute."""
        column = self.column(path)
        return MISSING if column is None else Values(column.kinds, column.words, NO_WORDS, self.text, 1)

    def shared(self, key: Any, compute: Callable[[View], Values]) -> Values:
        """What a key names, for these rows; a Key, for other filters too."""
        known: Values | None = self.memo.get(key)
        if known is None:
            known = self._of_parent(key) or self._of_batch(key, compute)
            self.memo[key] = known
        return known

    def _of_parent(self, key: Any) -> Values | None:
        """What was computed for the rows that these were taken from."""
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
        """The pieces of a pattern for each row: the same for all."""
        return fixed

    def ask(self, asked: RowByRow) -> Truths:
        """What Python says of an expression for each row."""
        if self.doubts(slice(None)):
            return np.full(self.size, UNKNOWN, np.uint8)
        return asked.evaluate(self)

    def doubts(self, _rows: Rows | slice) -> bool:
        """Whether rows that only Python can tell are noted rather than asked about."""
        return False

    def take(self, rows: Rows) -> View:
        """The view of some of this one's rows."""
        view = View(self.batch, self._events(rows))
        view.parent = (self, rows)
        return view

    def _events(self, rows: Rows) -> Rows:
        """Where some of the rows are in the batch."""
        if self.rows is None:
            return rows
        return rows + self.rows.start if isinstance(self.rows, slice) else self.rows[rows]

    def values(self, path: Path) -> list[Any]:
        """The Python values of an attribute, for each row."""
        return self.batch.values(path, self.rows)


class RowByRow:
    """An expression that is evaluated in Python, row by row, where no kernel does it."""

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self.paths = sorted(attribute_paths(expression), key=repr)
        self._condition: Condition | None = None

    def truths(self, view: View) -> Truths:
        """Its truth for each row of a view, as far as the view needs to know."""
        return view.ask(self)

    def evaluate(self, view: View) -> Truths:
        """Its truth for each row of a view."""
        condition = self._condition
        if condition is None:
            condition = self._condition = Compiler(self._getter).condition(self.expression)
        if not self.paths:
            return np.full(view.size, CODES[condition(())], np.uint8)
        columns = [view.values(path) for path in self.paths]
        codes = CODES
        return np.array([codes[condition(row)] for row in zip(*columns, strict=True)], np.uint8)

    def settle(self, view: View, truths: Truths, code: int) -> Truths:
        """Replace a code among truths by what Python says of these rows."""
        rows = np.flatnonzero(truths == code)
        truths[rows] = self.truths(view.take(rows))
        return truths

    def _getter(self, path: Path) -> Callable[[Any], Any]:
        return itemgetter(self.paths.index(path))
