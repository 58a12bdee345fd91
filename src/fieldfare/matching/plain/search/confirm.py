"""The last step of matching: evaluation of the filters whose normal form is a superset, for their candidates.

Python takes one or several microseconds per pair of an event and a filter. Pairs are therefore evaluated
together for all filters that differ in their constants only (``evaluation.shapes``). Only a filter that is
unlike all others and has few candidates is evaluated pair by pair. A filter that differs from another in its
numbers only is not parsed (``templates``).

Preparing a filter for evaluation by columns takes as long as a few hundred evaluations in Python: up to a
second for a filter of thousands of parts, during which the events of all spaces wait. A large filter is
therefore prepared only after that many of its pairs were evaluated one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.expression import Expression, walk
from fieldfare.filters.work import Work
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.evaluation.shapes import Constant, Shape, shape_of
from fieldfare.matching.evaluation.steps import measured, most_steps
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.plain.kept import CompileFilter, kept
from fieldfare.matching.plain.search.templates import Known, cut, known_of
from fieldfare.model import Path

Places = NDArray[np.int64]
Truth = NDArray[np.bool_]

PAIRS_MIN = 8
"""Minimum pairs for evaluation by columns, which costs about as much as this number of single evaluations."""
STEPS_MIN = 2_000
"""Minimum steps (``filters.work``) of a pair at which it is evaluated by columns even alone: a step in Python
takes up to 40 times as long."""
LARGE_PARTS = 128
"""Maximum parts of an expression; a filter with more is large, and is prepared for columns late and by
itself."""
LARGE_PAIRS_MIN = 256
LARGE_STEPS_MIN = 500_000
"""Pairs of a large filter that are evaluated one by one before it is prepared for columns; and the steps for
one event from which on it is prepared at once."""
PAIRS_MAX = 1 << 20
"""Maximum pairs evaluated together; bounds memory where the index is not selective."""

_NEW = -1
_TRIES = 4
"""Maximum filters of a template that are parsed to learn it; after that it counts as unknown."""


class _Template(NamedTuple):
    """The shared properties of a template's filters, and the numbers of its work and its shape."""

    known: Known
    work: int
    shape: int


class Confirmer:
    """The evaluator of a part's filters, grouped by shape; their work has been counted before.

    Parameters
    ----------
    size
        The number of filters.
    text_at
        Returns the text and the dialect of the filter at a place.
    filter_of
        Compiles a filter from these.
    """

    def __init__(
        self, size: int, text_at: Callable[[int], tuple[str, str]], filter_of: CompileFilter
    ) -> None:
        self._text_at = text_at
        self._filter_of = filter_of
        self._templates: dict[str, _Template] = {}
        self._tried: dict[str, int] = {}
        """The number of filters that were parsed for a template without result."""
        self._filters: list[Any] = [None] * size
        self._shape = np.full(size, _NEW, np.int32)
        """The index in ``_shapes`` of each filter's shape, once known."""
        self._place = np.zeros(size, np.int32)
        """The index of each filter within its shape."""
        self._whole: dict[int, BatchFilter] = {}
        """The filters that are evaluated by columns by themselves."""
        self._evaluated: dict[int, int] = {}
        """For each large filter the number of pairs evaluated."""
        self._shapes: list[Shape | None] = [None]
        self._known: dict[Expression, int] = {}
        self._work = np.full(size, _NEW, np.int32)
        self._work_numbers: dict[Work | None, int] = {None: 0}
        self._works: list[Work | None] = []

    def works(self, filters: Places) -> NDArray[np.int32]:
        """Return the number of each filter's work (see `work`), 0 for a filter that is always cheap:
        int32[n]."""
        numbers = self._work[filters]
        if (numbers == _NEW).any():
            for place in np.unique(filters[numbers == _NEW]).tolist():
                if not self._is_of_template(place):
                    self._work[place] = self._work_number(getattr(self._filter(place), "work", None))
            numbers = self._work[filters]
        return numbers

    def work(self, number: int) -> Work:
        """Return the work that a number from `works` identifies."""
        if len(self._works) < len(self._work_numbers):
            self._works = list(self._work_numbers)
        work = self._works[number]
        assert work is not None
        return work

    def confirm(self, columns: ColumnBatch, events: Places, filters: Places) -> Truth:
        """Return whether each event (int64[n], indices into the batch) matches its filter (int64[n],
        places)."""
        matches = np.zeros(len(events), bool)
        for start in range(0, len(events), PAIRS_MAX):
            part = slice(start, start + PAIRS_MAX)
            matches[part] = self._confirm_part(columns, events[part], filters[part])
        return matches

    def _confirm_part(self, columns: ColumnBatch, events: Places, filters: Places) -> Truth:
        if not self._by_columns(columns, events, filters):
            return self._one_by_one(columns, events, filters)
        shapes = self._shape[filters]
        if (shapes == _NEW).any():
            for place in np.unique(filters[shapes == _NEW]).tolist():
                self._learn(place)
            shapes = self._shape[filters]
        matches, alone = np.zeros(len(events), bool), [np.zeros(0, np.int64)]
        for number, pairs in _groups(shapes):
            shape = self._shapes[number]
            if shape is None:
                for place, chosen in _groups(filters[pairs]):
                    mine = pairs[chosen]
                    if self._is_prepared(place, columns, events[mine]):
                        matches[mine] = self._batch_filter(place).decides(columns, events[mine])
                    else:
                        alone.append(mine)
            elif not self._by_columns(columns, events[pairs], filters[pairs]):
                alone.append(pairs)
            else:
                matches[pairs], doubtful = self._of_shape(columns, shape, events[pairs], filters[pairs])
                alone.append(pairs[doubtful])
        rest = np.concatenate(alone)
        matches[rest] = self._one_by_one(columns, events[rest], filters[rest])
        return matches

    def _by_columns(self, columns: ColumnBatch, events: Places, filters: Places) -> bool:
        """Whether evaluation by columns pays off: for many pairs, or for a few that take many steps."""
        if len(events) >= PAIRS_MIN:
            return True
        works = self.works(filters)
        for number in np.unique(works[works > 0]).tolist():
            if self._takes_steps(columns, number, events[works == number], STEPS_MIN):
                return True
        return False

    def _takes_steps(self, columns: ColumnBatch, number: int, events: Places, least: int) -> bool:
        """Whether a filter takes at least `least` steps for the event that is the most work."""
        work = self.work(number)
        most = most_steps(columns, work, events)
        event = int(events[most.argmax()])
        return bool(most.max() >= least) and work.steps(measured(columns, event), least) >= least

    def _is_prepared(self, place: int, columns: ColumnBatch, events: Places) -> bool:
        """Whether a filter without a shared shape is to be evaluated by columns for these events."""
        if not hasattr(self._filter(place), "expression"):
            return False
        filters = np.full(len(events), place)
        if place in self._whole:
            return self._by_columns(columns, events, filters)
        evaluated = self._evaluated[place] = self._evaluated.get(place, 0) + len(events)
        number = int(self.works(filters[:1])[0])
        return evaluated > LARGE_PAIRS_MIN or (
            number > 0 and self._takes_steps(columns, number, events, LARGE_STEPS_MIN)
        )

    def _filter(self, place: int) -> Any:
        condition = self._filters[place]
        if condition is None:
            condition = self._filters[place] = _compiled(self._filter_of, *self._text_at(place))
        return condition

    def _is_of_template(self, place: int) -> bool:
        """Whether a filter's template is known, and with it the filter's shape, constants and work."""
        text, dialect = self._text_at(place)
        found = cut(text) if dialect == "sql" else None
        if found is None:
            return False
        text, numbers = found
        template = self._templates.get(text)
        if template is None and self._tried.get(text, 0) < _TRIES:
            self._tried[text] = self._tried.get(text, 0) + 1
            filter = self._filter(place)
            expression = getattr(filter, "expression", None)
            known = None
            if expression is not None and not _is_large(expression):
                known = known_of(expression, filter.work, numbers)
            if known is not None:
                template = _Template(known, self._work_number(known.work), self._shape_number(known.form))
                self._templates[text] = template
        if template is None:
            return False
        work = template.known.work
        if work is not None and not work.is_of_numbers(numbers):
            return False
        self._work[place] = template.work
        self._absorb(place, template.shape, template.known.constants_with(numbers))
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
        if expression is None or _is_large(expression):
            self._shape[place] = 0
            return
        form, constants = shape_of(expression)
        self._absorb(place, self._shape_number(form), constants)

    def _shape_number(self, form: Expression) -> int:
        number = self._known.setdefault(form, len(self._shapes))
        if number == len(self._shapes):
            self._shapes.append(Shape(form))
        return number

    def _absorb(self, place: int, number: int, constants: tuple[Constant, ...]) -> None:
        shape = self._shapes[number]
        assert shape is not None
        self._shape[place], self._place[place] = number, shape.add(constants)

    def _of_shape(
        self, columns: ColumnBatch, shape: Shape, events: Places, filters: Places
    ) -> tuple[Truth, Truth]:
        """Return whether each event matches its filter, and the pairs that must be evaluated one by one."""
        if (filters == filters[0]).all():
            return self._batch_filter(int(filters[0])).decides(columns, events), np.zeros(len(events), bool)
        return shape.matches(columns, events, self._place[filters].astype(np.int64))

    def _one_by_one(self, columns: ColumnBatch, events: Places, filters: Places) -> Truth:
        """Evaluate pairs in Python. An event's values are read once for all filters, as an array may be
        large."""
        matches = np.zeros(len(events), bool)
        for event, pairs in _groups(events):
            get = cache(partial(_value, columns, event))
            for pair, place in zip(pairs.tolist(), filters[pairs].tolist(), strict=True):
                matches[pair] = self._filter(place).decides(get)
        return matches


def _is_large(expression: Expression) -> bool:
    return next(islice(walk(expression), LARGE_PARTS, None), None) is not None


@kept(2_048, characters_max=200)
def _compiled(filter_of: CompileFilter, text: str, dialect: str) -> Any:
    """Compile a filter, cached: an evaluated filter may take 500 bytes per character of its text."""
    return filter_of(text, dialect)


def _value(columns: ColumnBatch, event: int, path: Path) -> Any:
    return columns.value(path, event)


def _groups(keys: NDArray[Any]) -> list[tuple[int, Places]]:
    """Return each distinct key with the indices at which it occurs."""
    if not len(keys):
        return []
    if (keys == keys[0]).all():
        return [(int(keys[0]), np.arange(len(keys)))]
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    starts = [0, *(np.flatnonzero(np.diff(sorted_keys)) + 1).tolist(), len(keys)]
    return [(int(sorted_keys[start]), order[start:end]) for start, end in pairwise(starts)]
