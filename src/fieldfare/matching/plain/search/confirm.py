"""The last step of a match: filters whose normal form is a superset are evaluated for their candidates.

Python takes a microsecond or several for a pair of an event and a filter. So pairs are evaluated
together: all those of filters that differ in their constants only (``evaluation.shapes``). One by one
go only those of a filter that is unlike all others and has few candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.expression import Expression
from fieldfare.filters.work import Work
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.evaluation.shapes import Shape, shape_of
from fieldfare.matching.events.columns import ColumnBatch

Places = NDArray[np.int64]
Truth = NDArray[np.bool_]

PAIRS_MIN = 8
"""Evaluating by columns costs about as much as so many pairs one by one."""
PAIRS_MAX = 1 << 20
"""Pairs looked at together, at most: bounds memory where filters say little to the index."""

_NEW = -1


class Confirmer:
    """Knows the filters of a part, and which of them have one shape; their work was counted before.

    Parameters
    ----------
    size
        How many filters there are.
    filter_at
        Gives the filter at a place.
    """

    def __init__(self, size: int, filter_at: Callable[[int], Any]) -> None:
        self._filter_at = filter_at
        self._filters: list[Any] = [None] * size
        self._shape = np.full(size, _NEW, np.int32)
        """The place in ``_shapes`` of each filter's shape, once it was asked for."""
        self._place = np.zeros(size, np.int32)
        """The place of each filter in its shape."""
        self._whole: dict[int, BatchFilter] = {}
        """Those that were evaluated by columns for themselves."""
        self._shapes: list[Shape | None] = [None]
        self._known: dict[Expression, int] = {}
        self._work = np.full(size, _NEW, np.int32)
        self._work_numbers: dict[Work | None, int] = {None: 0}
        self._works: list[Work | None] = []

    def works(self, filters: Places) -> NDArray[np.int32]:
        """For each filter the number of its work (see `work`), 0 for one that never costs much: int32[n]."""
        numbers = self._work[filters]
        if (numbers == _NEW).any():
            for place in np.unique(filters[numbers == _NEW]).tolist():
                work = getattr(self._filter(place), "work", None)
                self._work[place] = self._work_numbers.setdefault(work, len(self._work_numbers))
            numbers = self._work[filters]
        return numbers

    def work(self, number: int) -> Work:
        """What a number of `works` stands for."""
        if len(self._works) < len(self._work_numbers):
            self._works = list(self._work_numbers)
        work = self._works[number]
        assert work is not None
        return work

    def confirm(self, columns: ColumnBatch, events: Places, filters: Places) -> Truth:
        """Whether each event matches: int64[n] places in the batch, and int64[n] places of filters."""
        matches = np.zeros(len(events), bool)
        for start in range(0, len(events), PAIRS_MAX):
            part = slice(start, start + PAIRS_MAX)
            matches[part] = self._confirm_part(columns, events[part], filters[part])
        return matches

    def _confirm_part(self, columns: ColumnBatch, events: Places, filters: Places) -> Truth:
        if len(events) < PAIRS_MIN:
            return self._one_by_one(columns, events, filters)
        shapes = self._shape[filters]
        if (shapes == _NEW).any():
            for place in np.unique(filters[shapes == _NEW]).tolist():
                self._learn(place)
            shapes = self._shape[filters]
        matches = np.zeros(len(events), bool)
        for shape, pairs in _groups(shapes):
            matches[pairs] = self._of_shape(columns, self._shapes[shape], events[pairs], filters[pairs])
        return matches

    def _filter(self, place: int) -> Any:
        condition = self._filters[place]
        if condition is None:
            condition = self._filters[place] = self._filter_at(place)
        return condition

    def _batch_filter(self, place: int) -> BatchFilter:
        found = self._whole.get(place)
        if found is None:
            found = self._whole[place] = BatchFilter(self._filter(place))
        return found

    def _learn(self, place: int) -> None:
        expression = getattr(self._filter(place), "expression", None)
        if expression is None:
            self._shape[place] = 0
            return
        form, constants = shape_of(expression)
        number = self._known.setdefault(form, len(self._shapes))
        if number == len(self._shapes):
            self._shapes.append(Shape(form))
        shape = self._shapes[number]
        assert shape is not None
        self._shape[place], self._place[place] = number, shape.add(constants)

    def _of_shape(self, columns: ColumnBatch, shape: Shape | None, events: Places, filters: Places) -> Truth:
        if shape is None or len(events) < PAIRS_MIN:
            return self._one_by_one(columns, events, filters)
        if (filters == filters[0]).all():
            return self._batch_filter(int(filters[0])).decides(columns, events)
        places = self._place[filters].astype(np.int64)
        matches, doubtful = shape.matches(columns, events, places)
        if doubtful.any():
            matches[doubtful] = self._one_by_one(columns, events[doubtful], filters[doubtful])
        return matches

    def _one_by_one(self, columns: ColumnBatch, events: Places, filters: Places) -> Truth:
        matches = np.zeros(len(events), bool)
        for pair, (event, place) in enumerate(zip(events.tolist(), filters.tolist(), strict=True)):
            matches[pair] = self._filter(place).decides(lambda path, event=event: columns.value(path, event))
        return matches


def _groups(keys: NDArray[np.int32]) -> list[tuple[int, Places]]:
    """For each key that occurs, where."""
    if not len(keys):
        return []
    if (keys == keys[0]).all():
        return [(int(keys[0]), np.arange(len(keys)))]
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    starts = [0, *(np.flatnonzero(np.diff(sorted_keys)) + 1).tolist(), len(keys)]
    return [(int(sorted_keys[start]), order[start:end]) for start, end in pairwise(starts)]
