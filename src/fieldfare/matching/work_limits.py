"""Work limits: the subscriptions that an event is not matched with because they exceed them
(``filters.work``).

All parts of an index are processed together, because the filters of a space share the steps of an event. The
result depends only on the subscriptions, the event and the size of its record: on the candidates, which the
filters' normal forms determine, and on the subscriptions' numbers; not on parts, windows or earlier matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters import work as limits
from fieldfare.filters.work import Work
from fieldfare.matching.evaluation.steps import measured, most_steps
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.grouping import without_slots
from fieldfare.matching.library import TooManyPairs
from fieldfare.matching.pairs import Pairs
from fieldfare.matching.part import Part


class _Candidates(NamedTuple):
    """Pairs of an event and a filter that may be expensive, of all parts."""

    part: NDArray[np.int64]
    place: NDArray[np.int64]
    """Index among the part's pairs."""
    event: NDArray[np.int64]
    number: NDArray[np.int64]
    work: NDArray[np.int64]
    """Index in a list of works."""
    most: NDArray[np.float64]
    """Upper bound of the steps."""


def without_given_up(
    parts: Sequence[Part], found: list[Pairs], columns: ColumnBatch, most: int
) -> list[Pairs]:
    """Return the candidates that parts found in some events, without the pairs that exceed the work limit.

    The first part receives the numbers of the dropped subscriptions (`given_up`). Raises TooManyPairs if more
    than `most` pairs have a filter that may be expensive.
    """
    if not any(part.confirms for part in parts):
        return found
    works: list[Work] = []
    gathered = [
        _candidates(number, part, pairs, columns, works)
        for number, (part, pairs) in enumerate(zip(parts, found, strict=True))
        if part.confirms
    ]
    all_of = _Candidates(*(np.concatenate(column) for column in zip(*gathered, strict=True)))
    if len(all_of.event) > most:
        raise TooManyPairs
    refused = _refused(all_of, works, columns)
    if not len(refused):
        return found
    for number, pairs in enumerate(found):
        mine = all_of.place[refused[all_of.part[refused] == number]]
        found[number] = without_slots(pairs, np.sort(mine))
    once = np.unique(np.stack([all_of.event[refused], all_of.number[refused]]), axis=1)
    found[0] = found[0]._replace(given_up=once[1].astype(np.uint32))
    return found


def _candidates(
    number: int, part: Part, found: Pairs, columns: ColumnBatch, works: list[Work]
) -> _Candidates:
    places, mine = part.undecided(found)
    events = found.pairs[places, 0].astype(np.int64) + found.first_event
    most, work = np.zeros(len(places)), np.zeros(len(places), np.int64)
    for each in np.unique(mine).tolist():
        chosen = np.flatnonzero(mine == each)
        work[chosen] = len(works)
        works.append(part.work(each))
        most[chosen] = most_steps(columns, works[-1], events[chosen])
    numbers = found.number[~found.pairs[places, 1]].astype(np.int64)
    return _Candidates(np.full(len(places), number), places, events, numbers, work, most)


def _shares(columns: ColumnBatch, events: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the steps available to the filters that iterate over arrays, for each of the events."""
    if columns.record_sizes is None:
        return np.full(len(events), limits.EVENT_STEPS_MAX)
    even = limits.RECORD_STEPS_MAX // columns.record_sizes[events]
    return np.minimum(np.maximum(even, limits.EVENT_STEPS_MIN), limits.EVENT_STEPS_MAX)


def _refused(all_of: _Candidates, works: list[Work], columns: ColumnBatch) -> NDArray[np.int64]:
    """Return the indices of the candidates that exceed the work limit."""
    events, event = np.unique(all_of.event, return_inverse=True)
    shares = _shares(columns, events)
    total = np.bincount(event, all_of.most, len(events))
    large = np.bincount(event, all_of.most > limits.STEPS_MAX, len(events))
    doubtful = np.flatnonzero(((total > shares) | (large > 0))[event] & (all_of.most > 0))
    order = doubtful[np.lexsort((all_of.number[doubtful], all_of.event[doubtful]))]
    starts = np.flatnonzero(np.diff(all_of.event[order], prepend=-1)).tolist()
    refused = [np.zeros(0, np.int64)]
    for first, end in pairwise([*starts, len(order)]):
        share = int(shares[event[order[first]]])
        refused.append(_refused_of_event(all_of, order[first:end], works, columns, share))
    return np.concatenate(refused)


def _refused_of_event(
    all_of: _Candidates,
    candidates: NDArray[np.int64],
    works: list[Work],
    columns: ColumnBatch,
    share: int,
) -> NDArray[np.int64]:
    """Return the candidates of one event, by ascending number, that exceed the work limit."""
    event = int(all_of.event[candidates[0]])
    numbers, places = (getattr(all_of, name)[candidates] for name in ("number", "work"))

    value = measured(columns, event)

    @cache
    def shares(place: int) -> bool:
        return works[place].goes_through_arrays(value)

    @cache
    def steps(place: int) -> int:
        return works[place].steps(value, min(limits.STEPS_MAX, share) if shares(place) else limits.STEPS_MAX)

    refused: list[int] = []
    before, spent = -1, 0
    for at, (number, place) in enumerate(zip(numbers.tolist(), places.tolist(), strict=True)):
        if number != before and shares(place):  # a filter may be a candidate more than once
            spent += min(steps(place), limits.STEPS_MAX)
            if spent > share:
                break
        before = number
        if steps(place) > limits.STEPS_MAX:
            refused.append(at)
    else:
        return candidates[refused]
    # The remaining filters get no steps: check each kind of work once, not each filter.
    kinds, kind = np.unique(places[at:], return_inverse=True)
    is_refused = np.array([shares(each) or steps(each) > limits.STEPS_MAX for each in kinds.tolist()])
    return np.concatenate([candidates[refused], candidates[at:][is_refused[kind]]])
