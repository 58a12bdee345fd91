"""The last step of a match: filters whose normal form is a superset are evaluated for their candidates.

Python takes a microsecond or several for a pair of an event and a filter. So pairs are evaluated
together: all those of filters that differ in their constants only (``evaluation.shapes``). One by one
go only those of a filter that is unlike all others and has few candidates. A filter that differs from another
in its numbers only is not parsed (``templates``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.expression import Expression
from fieldfare.filters.work import Work
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.evaluation.shapes import Constant, Shape, shape_of
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.plain.kept import CompileFilter, kept
from fieldfare.matching.plain.search.templates import Known, cut, known_of
from fieldfare.model import Path

Places = NDArray[np.int64]
Truth = NDArray[np.bool_]

PAIRS_MIN = 8
"""Evaluating by columns costs about as much as so many pairs one by one."""
PAIRS_MAX = 1 << 20
"""Pairs looked at together, at most: bounds memory where filters say little to the index."""

_NEW = -1
_TRIES = 4
"""So many filters of a template are asked what it is."""


class _Template(NamedTuple):
    """What is known of a template, and the numbers of its work and its shape."""

    known: Known
    work: int
    shape: int


class Confirmer:
    """Knows the filters of a part, and which of them have one shape; their work was counted before.

    Parameters
    ----------
    size
        How many filters there are.
    text_at
        Gives the text and the dialect of the filter at a place.
    filter_of
        Compiles these.
    """

    def __init__(
        self, size: int, text_at: Callable[[int], tuple[str, str]], filter_of: CompileFilter
    ) -> None:
        self._text_at = text_at
        self._filter_of = filter_of
        self._templates: dict[str, _Template] = {}
        self._tried: dict[str, int] = {}
        """How many filters of a template told nothing of it."""
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
                if not self._is_of_template(place):
                    self._work[place] = self._work_number(getattr(self._filter(place), "work", None))
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
        matches, alone = np.zeros(len(events), bool), [np.zeros(0, np.int64)]
        for number, pairs in _groups(shapes):
            shape = self._shapes[number]
            if shape is None or len(pairs) < PAIRS_MIN:
                alone.append(pairs)
            else:
                matches[pairs], doubtful = self._of_shape(columns, shape, events[pairs], filters[pairs])
                alone.append(pairs[doubtful])
        rest = np.concatenate(alone)
        matches[rest] = self._one_by_one(columns, events[rest], filters[rest])
        return matches

    def _filter(self, place: int) -> Any:
        condition = self._filters[place]
        if condition is None:
            condition = self._filters[place] = _compiled(self._filter_of, *self._text_at(place))
        return condition

    def _is_of_template(self, place: int) -> bool:
        """Whether a filter's template is known. Then its shape, its constants and its work are, too."""
        text, dialect = self._text_at(place)
        found = cut(text) if dialect == "sql" else None
        if found is None:
            return False
        text, numbers = found
        template = self._templates.get(text)
        if template is None and self._tried.get(text, 0) < _TRIES:
            self._tried[text] = self._tried.get(text, 0) + 1
            filter = self._filter(place)
            known = (
                known_of(filter.expression, filter.work, numbers) if hasattr(filter, "expression") else None
            )
            if known is not None:
                template = _Template(known, self._work_number(known.work), self._shape_number(known.form))
                self._templates[text] = template
        if template is None:
            return False
        self._work[place] = template.work
        self._take_in(place, template.shape, template.known.constants_with(numbers))
        return True

    def _work_number(self, work: Work | None) -> int:
        return self._work_numbers.setdefault(work, len(self._work_numbers))

    def _batch_filter(self, place: int) -> BatchFilter:
        found = self._whole.get(place)
        if found is None:
            found = self._whole[place] = BatchFilter(self._filter(place))
        return found

    def _learn(self, place: int) -> None:
        if self._is_of_template(place):
            return
        expression = getattr(self._filter(place), "expression", None)
        if expression is None:
            self._shape[place] = 0
            return
        form, constants = shape_of(expression)
        self._take_in(place, self._shape_number(form), constants)

    def _shape_number(self, form: Expression) -> int:
        number = self._known.setdefault(form, len(self._shapes))
        if number == len(self._shapes):
            self._shapes.append(Shape(form))
        return number

    def _take_in(self, place: int, number: int, constants: tuple[Constant, ...]) -> None:
        shape = self._shapes[number]
        assert shape is not None
        self._shape[place], self._place[place] = number, shape.add(constants)

    def _of_shape(
        self, columns: ColumnBatch, shape: Shape, events: Places, filters: Places
    ) -> tuple[Truth, Truth]:
        """Whether each event matches its filter; and where only the filter itself tells."""
        if (filters == filters[0]).all():
            return self._batch_filter(int(filters[0])).decides(columns, events), np.zeros(len(events), bool)
        return shape.matches(columns, events, self._place[filters].astype(np.int64))

    def _one_by_one(self, columns: ColumnBatch, events: Places, filters: Places) -> Truth:
        """The same in Python. What an event has is read once for all filters: an array can be large."""
        matches = np.zeros(len(events), bool)
        for event, pairs in _groups(events):
            get = cache(partial(_value, columns, event))
            for pair, place in zip(pairs.tolist(), filters[pairs].tolist(), strict=True):
                matches[pair] = self._filter(place).decides(get)
        return matches


@kept(2_048, characters_max=200)
def _compiled(filter_of: CompileFilter, text: str, dialect: str) -> Any:
    """A filter; one may take 500 bytes for each character of its text, once it was evaluated."""
    return filter_of(text, dialect)


def _value(columns: ColumnBatch, event: int, path: Path) -> Any:
    return columns.value(path, event)


def _groups(keys: NDArray[Any]) -> list[tuple[int, Places]]:
    """For each key that occurs, where."""
    if not len(keys):
        return []
    if (keys == keys[0]).all():
        return [(int(keys[0]), np.arange(len(keys)))]
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    starts = [0, *(np.flatnonzero(np.diff(sorted_keys)) + 1).tolist(), len(keys)]
    return [(int(sorted_keys[start]), order[start:end]) for start, end in pairwise(starts)]
