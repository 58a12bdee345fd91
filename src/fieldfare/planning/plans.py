"""Planning by attributes: which attributes to search, where to cut them, and when to cut again.

The paper takes k and the attributes as given, cuts evenly, and leaves the choice to future work (Li et al.
2011, section VI). Here a plan is judged by its *work*: the subscriptions that the busiest matcher searches
for each event of the space, if events are forwarded optimally. (The saturation rate is its inverse.) It is
estimated by forwarding a sample of recent events.

Several cuts are tried for each attribute, since none is best for all:

    events          equal numbers of events in each segment: the paper's even cut, for uniform events. Skewed
                    subscriptions make cold spots, which forwarding exploits.
    subscriptions   equal numbers of subscriptions beginning in each segment: for events as skewed as these
    work            equal products of events and the subscriptions that they meet in each segment

Attributes are added one by one while each lowers the work enough to be worth another copy of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.values import BEFORE
from fieldfare.forwarding import Balanced, LoadReport, LoadTable, forward_batch
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.model import Path
from fieldfare.partitioning.attribute_space import WIDE_SHARE, AttributeSpace
from fieldfare.partitioning.axis import Axis, Place, place_before
from fieldfare.partitioning.extents import AttributeExtents, Extents
from fieldfare.partitioning.strategy import Routes


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """The parameters of planning.

    Parameters
    ----------
    attributes_max
        Maximum k (the paper's experiments: 4). More: more candidates for an event; fewer: fewer copies of
        each subscription.
    segments_per_matcher
        On each attribute (the paper: 1). More: an event searches fewer subscriptions; fewer: fewer copies,
        and fewer slices to hold and to visit.
    least_gain
        The share by which another attribute must lower the work, to be worth its copies. Higher: fewer
        attributes.
    least_saving
        The share of all copies that hash slices must save. They save memory, never work: a wide subscription
        is searched once per event wherever it is, and each hash slice costs every event a visit. Higher: hash
        slices only if most subscriptions are wide; 1: none.
    event_cost
        The cost of receiving and answering an event at a matcher, in subscriptions searched. Higher: wide
        subscriptions go to fewer hash slices.
    wide_share
        See `AttributeSpace`.
    """

    attributes_max: int = 4
    segments_per_matcher: int = 1
    least_gain: float = 0.05
    least_saving: float = 0.2
    event_cost: float = 20.0
    wide_share: float = WIDE_SHARE


@dataclass(frozen=True, slots=True)
class Plan:
    """A partitioning, and its expected costs.

    Attributes
    ----------
    work
        Subscriptions that the busiest matcher searches, for each event of the space.
    copies
        Average number of copies of a subscription.
    """

    partitioning: AttributeSpace
    work: float
    copies: float


def plan(
    extents: Extents, events: ColumnBatch, matcher_count: int, settings: PlanSettings | None = None
) -> Plan | None:
    """Choose attributes, cuts, owners and hash slices for `matcher_count` matchers.

    Parameters
    ----------
    extents
        All subscriptions, or a sample, on the candidate attributes.
    events
        A sample of recent events; a few thousand are enough, time grows with their number.

    Returns
    -------
    Plan or None
        None if no attribute narrows the search: there are no events to learn from, or every subscription is
        wide everywhere. Use `HashPartitioning` then.
    """
    settings = settings or PlanSettings()
    if not events.size or not len(extents):
        return None
    options = [
        option
        for path in extents.attributes
        for option in _options(extents, path, events, matcher_count * settings.segments_per_matcher, settings)
    ]
    chosen: list[_Option] = []
    best = float("inf")
    while len(chosen) < settings.attributes_max:
        taken = {option.axis.path for option in chosen}
        rated = [
            (_expected_work([*chosen, option], matcher_count, settings.event_cost), i)
            for i, option in enumerate(options)
            if option.axis.path not in taken
        ]
        if not rated or min(rated)[0] > best * (1 - settings.least_gain):
            break
        best, place = min(rated)
        chosen.append(options[place])
    if not chosen:
        return None
    return _with_hash_slices(chosen, extents, events, matcher_count, settings)


def work_of(partitioning: AttributeSpace, extents: Extents, events: ColumnBatch, event_cost: float) -> float:
    """Return the work of a partitioning, for these subscriptions and events: what `Plan.work` estimates."""
    holders = np.array([part.matcher for part in partitioning.slices], np.int32)
    costs = np.asarray(partitioning.place(extents).sizes + event_cost, np.float64)
    return _work(costs, holders, partitioning.route(events))


def _work(costs: NDArray[np.float64], holders: NDArray[np.int32], routes: Routes) -> float:
    """Return the work of the busiest matcher for each event.

    Parameters
    ----------
    costs, holders
        [slices], the cost of an event in each slice, and the slice's matcher.
    """
    size = len(routes.candidates)
    loads = LoadTable(len(costs))
    waiting = np.zeros(len(costs))
    waiting[routes.always] = size
    loads.take(LoadReport(i, 0.0, waiting[i], 0.0, 1 / cost, 0) for i, cost in enumerate(costs.tolist()))
    chosen = forward_batch(Balanced(holders), routes, loads, 0.0).chosen
    waiting += np.bincount(chosen, minlength=len(costs))
    return float(np.bincount(holders, waiting * costs).max()) / max(1, size)


# Cuts


@dataclass(frozen=True, slots=True, eq=False)
class _Option:
    """An attribute, one way to cut it, the segments of the sample's events, and the segments' sizes."""

    axis: Axis
    segments: NDArray[np.int32]
    sizes: NDArray[np.int64]


def _options(
    extents: Extents, path: Path, events: ColumnBatch, segment_count: int, settings: PlanSettings
) -> list[_Option]:
    attribute = extents.attributes[path]
    if not len(attribute.owner) or attribute.unconstrained == int(extents.can_match.sum()):
        return []
    found: dict[tuple[Place, ...], _Option] = {}
    for cut in _CUTS:
        axis = Axis(path, cut(attribute, events, segment_count))
        if axis.boundaries in found:
            continue
        subscription, segment = attribute.overlapped(axis)
        if len(subscription) > settings.wide_share * axis.segment_count * extents.can_match.sum():
            continue  # most subscriptions are wide here
        segments = axis.locate(events)
        sizes = np.bincount(segment, minlength=axis.segment_count)
        found[axis.boundaries] = _Option(axis, segments, sizes)
    return list(found.values())


def _places_of(events: ColumnBatch, path: Path) -> list[Place]:
    return sorted(map(place_before, events.values(path)))


def cut_by_events(attribute: AttributeExtents, events: ColumnBatch, count: int) -> tuple[Place, ...]:
    """Return the boundaries of segments with equal numbers of events."""
    places = _places_of(events, attribute.path)
    return tuple(places[i * len(places) // count] for i in range(1, count))


def cut_by_subscriptions(attribute: AttributeExtents, events: ColumnBatch, count: int) -> tuple[Place, ...]:
    """Return the boundaries of segments in which equal numbers of subscriptions' pieces begin."""
    low = np.sort(attribute.low)
    picked = [attribute.places[low[i * len(low) // count]] for i in range(1, count)]
    return tuple((*place[:2], BEFORE) if len(place) == 3 else place for place in picked)


def cut_by_work(attribute: AttributeExtents, events: ColumnBatch, count: int) -> tuple[Place, ...]:
    """Return the boundaries of segments with equal products of events and subscriptions that they meet."""
    axis = Axis(attribute.path, cut_by_events(attribute, events, 8 * count))
    _, segment = attribute.overlapped(axis)
    sizes = np.bincount(segment, minlength=axis.segment_count)
    places = _places_of(events, attribute.path)
    weights = np.cumsum([1.0 + sizes[axis_segment] for axis_segment in _segments(axis, places)])
    picked = np.searchsorted(weights, weights[-1] * np.arange(1, count) / count)
    return tuple(places[i] for i in picked.tolist())


def _segments(axis: Axis, places: Sequence[Place]) -> list[int]:
    """Return the segments of ascending places."""
    found, segment = [], 0
    for place in places:
        while segment < len(axis.boundaries) and axis.boundaries[segment] <= place:
            segment += 1
        found.append(segment)
    return found


_CUTS: tuple[Callable[[AttributeExtents, ColumnBatch, int], tuple[Place, ...]], ...] = (
    cut_by_events,
    cut_by_subscriptions,
    cut_by_work,
)


# Owners and work


def owners_in_turn(matcher_count: int, dimension: int, per_matcher: int = 1) -> tuple[int, ...]:
    """Return the owners of a dimension's segments: all matchers in turn, in another order on each dimension.

    The order steps by another number coprime with the matchers', so that a matcher's neighbours differ
    between dimensions, as far as there are such numbers.
    """
    steps = [step for step in range(1, max(2, matcher_count)) if gcd(step, matcher_count) == 1]
    step = steps[dimension % len(steps)]
    return tuple((step * segment) % matcher_count for segment in range(matcher_count * per_matcher))


def _expected_work(chosen: Sequence[_Option], matcher_count: int, event_cost: float) -> float:
    costs = np.concatenate([option.sizes for option in chosen]) + event_cost
    segment_count = chosen[0].axis.segment_count
    per_matcher = segment_count // matcher_count
    holders = [owners_in_turn(matcher_count, dimension, per_matcher) for dimension in range(len(chosen))]
    candidates = [option.segments + i * segment_count for i, option in enumerate(chosen)]
    routes = Routes(np.stack(candidates, axis=1), np.zeros(0, np.int32))
    return _work(costs, np.concatenate(holders).astype(np.int32), routes)


def _with_hash_slices(
    chosen: Sequence[_Option],
    extents: Extents,
    events: ColumnBatch,
    matcher_count: int,
    settings: PlanSettings,
) -> Plan:
    """Return the plan with the number of hash slices that is least work, if they save enough copies."""
    axes = tuple(option.axis for option in chosen)
    per_matcher = settings.segments_per_matcher
    owners = tuple(owners_in_turn(matcher_count, dimension, per_matcher) for dimension in range(len(axes)))

    def rate(count: int) -> Plan:
        hash_owners = tuple(range(count))
        space = AttributeSpace(axes, owners, hash_owners, settings.wide_share)
        copies = len(space.place(extents).subscriptions) / max(1, int(extents.can_match.sum()))
        return Plan(space, work_of(space, extents, events, settings.event_cost), copies)

    none, full = rate(0), rate(matcher_count)
    if full.copies > none.copies * (1 - settings.least_saving):
        return none
    fewer = [rate(matcher_count >> halvings) for halvings in range(1, matcher_count.bit_length())]
    return min([full, *fewer], key=lambda rated: rated.work)


def better_plan(
    current: AttributeSpace,
    extents: Extents,
    events: ColumnBatch,
    matcher_count: int,
    settings: PlanSettings,
    margin: float = 0.2,
) -> Plan | None:
    """Return the plan for the present subscriptions and events; None if the current cut is nearly as good.

    Parameters
    ----------
    margin
        The share by which the new plan's work must be lower, because moving subscriptions costs. Higher:
        fewer moves, more imbalance.
    """
    found = plan(extents, events, matcher_count, settings)
    if found is None:
        return None
    work = work_of(current, extents, events, settings.event_cost)
    return found if found.work <= work * (1 - margin) else None
