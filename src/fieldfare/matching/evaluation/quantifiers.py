"""ANY and ALL: conditions over the elements of arrays, evaluated as rows of a separate view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from fieldfare.matching.evaluation import element_kernels
from fieldfare.matching.evaluation.conditions import Condition
from fieldfare.matching.evaluation.elements import Elements, shared_elements
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.truth import ASK, TRUE, UNKNOWN
from fieldfare.matching.evaluation.view import (
    MISSING,
    NO_WORDS,
    Part,
    Pieces,
    RowByRow,
    Rows,
    Truths,
    Values,
    View,
    readable,
)
from fieldfare.matching.events.columns import KIND_MISSING, Column, ColumnBatch
from fieldfare.model import Path


class _Element:
    """The first step of a path into an element; the second step is the quantifier's variable."""

    def __repr__(self) -> str:
        return "ELEMENT"


ELEMENT: Any = _Element()


class OverElements:
    """A quantifier over an attribute.

    Parameters
    ----------
    path
        The attribute.
    decisive
        The truth of one element that decides the quantifier.
    of_value
        The condition on the attribute itself, for values that are not arrays.
    value_paths
        The attributes that `of_value` reads.
    of_element
        Makes the condition with ``ELEMENT`` and a name in the place of the element, when an array is met
        first; and this place. None if Python goes through arrays.
    inner
        The paths into an element that the condition reads, and ().
    """

    def __init__(
        self,
        path: Path,
        decisive: int,
        of_value: Condition,
        value_paths: frozenset[Path],
        of_element: tuple[Callable[[], Condition], Path] | None,
        inner: Sequence[Path],
        asked: RowByRow,
    ) -> None:
        self.path = path
        self.decisive = decisive
        self.of_value = of_value
        self.value_paths = value_paths
        self.of_element = None if of_element is None else (cache(of_element[0]), of_element[1])
        self.inner = inner
        self.asked = asked
        self.cost_ns = of_value.cost_ns + 10 + (1_000 if of_element is None else 3 * of_value.cost_ns + 200)

    def truths(self, view: View, exactly: bool) -> Truths:
        arrays = view.arrays(self.path)
        if arrays.all():
            truths = np.full(view.size, ASK, np.uint8)
        elif not view.knows(self.value_paths):
            return self.asked.truths(view)
        else:
            truths = self.of_value.truths(view, exactly)
            missing = view.operand(self.path).kinds == KIND_MISSING
            truths[np.broadcast_to(missing, view.size)] = UNKNOWN
            truths[arrays] = ASK
        rows = np.flatnonzero(arrays)
        if len(rows) and self.of_element is not None:
            self._go_through(view, rows, truths, exactly)
        if (truths == ASK).any():
            self.asked.settle(view, truths, ASK)
        return truths

    def _go_through(self, view: View, rows: Rows, truths: Truths, exactly: bool) -> None:
        assert self.of_element is not None
        make, place = self.of_element
        condition = make()
        for found in shared_elements(view, self.path, rows, self.inner):
            elements = ElementView(found, place, view)
            joined: Any = np.empty(len(found.rows), np.uint8)
            of_elements = condition.truths(elements, exactly)
            element_kernels.join_elements(of_elements, found.counts, int(self.decisive == TRUE), joined)
            truths[found.rows] = joined


class ElementView(View):
    """Rows that are elements of arrays; each also has the attributes of its array's row."""

    __slots__ = ("found", "outer", "owners", "place")

    def __init__(self, found: Elements, place: Path, outer: View) -> None:
        whole = found.batches[()][0]
        super().__init__(whole, None)
        self.found = found
        self.place = place
        self.outer = outer
        self.owners: Any = frozen(np.repeat(found.rows, found.counts))

    def _inner(self, path: Path) -> tuple[ColumnBatch, Path] | None:
        """Return the batch and the path of a path into the element; None for an attribute of the outer
        row."""
        if path[:2] != self.place:
            return None
        return self.found.batches.get(path[2:], (self.found.batches[()][0], path))

    def source(self, path: Path, rows: Rows) -> tuple[ColumnBatch, Path, Rows]:
        inner = self._inner(path)
        if inner is None:
            return self.outer.source(path, self.owners[rows])
        return (*inner, self._events(rows))

    def owner(self, path: Path) -> tuple[View, Rows | None]:
        if path[:2] == self.place:
            return self, None
        view, rows = self.outer.owner(path)
        return view, self.owners if rows is None else rows[self.owners]

    def column(self, path: Path) -> Column | None:
        try:
            return self._columns[path]
        except KeyError:
            values = self.operand(path)
            column = None if values is MISSING else Column(values.kinds, values.words)
            self._columns[path] = column
            return column

    def operand(self, path: Path) -> Values:
        inner = self._inner(path)
        if inner is None:
            outer: Values = self.outer.operand(path)
            return outer.of(self.owners)
        batch, place = inner
        column = batch.columns.get(place)
        if column is None:
            return MISSING
        known = Values(readable(column.kinds), readable(column.words), NO_WORDS, readable(batch.text), 1)
        return known.of(self.rows)

    def knows(self, paths: Iterable[Path]) -> bool:
        outer = []
        for path in paths:
            if path[:2] != self.place:
                outer.append(path)
            elif path[2:] not in self.found.batches:
                return False
        return self.outer.knows(outer)

    def pieces(self, fixed: Pieces, parts: Sequence[Part]) -> Pieces:
        pieces = self.outer.pieces(fixed, parts)
        return (
            pieces if pieces.step == 0 else pieces._replace(owners=readable(pieces.owners.take(self.owners)))
        )

    def _of_batch(self, key: Any, compute: Any) -> Values:
        known: Values = compute(self)
        return known

    def doubts(self, rows: Rows | slice) -> bool:
        return self.outer.doubts(self.owners[rows])

    def take(self, rows: Rows) -> View:
        view = ElementView(self.found, self.place, self.outer)
        view.rows, view.size, view.owners = self._events(rows), len(rows), readable(self.owners[rows])
        view.parent = (self, rows)
        return view

    def values(self, path: Path) -> list[Any]:
        batch, place, events = self.source(path, np.arange(self.size))
        return batch.values(place, events)
