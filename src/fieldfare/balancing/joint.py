"""Plans that bring all three metrics of two brokers toward the mean of all brokers. Not in the paper.

The paper's algorithms halve the difference of one metric between two brokers. A subscriber that has come to a
broker is often moved on, to a third broker with more room or back for the sake of another metric. Here the
mean over all brokers that PIE messages tell of, weighted by their capacities, is the target of all:

    transfer of a metric = min(what this broker has above the mean, what the other lacks to it), or nothing
    Φ = Σ over metrics and both brokers: weight · ((value − value after the transfer) / threshold)²

A greedy choice moves the subscriber that lowers Φ most, again and again, until none does. So it moves
subscribers with much traffic if outputs differ (as the paper's output algorithm does), silent ones if only
delays differ (match), and ones that match what the other broker does not receive if its input is low (input).
A broker is given no more than its share, so nothing has to be passed on. Input does not move with
a subscriber: it depends on all that a broker receives, so it may fall here, and exceed the mean there by
`INPUT_TOLERANCE`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldfare.balancing.detection import BrokerAction
from fieldfare.balancing.load import Load, Metric, Metrics, Resource, capacity_of, difference
from fieldfare.balancing.plans import Moved, Plan, scalar
from fieldfare.balancing.press import Profile, and_not, exclusive
from fieldfare.balancing.settings import BalancingSettings

INPUT_TOLERANCE = 0.5
"""Share of its threshold by which a plan may raise the other broker's input above the target."""


@dataclass(frozen=True, slots=True)
class _Goal:
    """The ranges of a metric at both brokers that lower Φ no further, and how much a deviation counts."""

    metric: Metric
    mine: tuple[float, float]
    theirs: tuple[float, float]
    my_weight: float
    their_weight: float

    def of(self, mine: Load, theirs: Load) -> Any:
        """Return this metric's part of Φ."""
        here = _beyond(mine.metric(self.metric), *self.mine)
        there = _beyond(theirs.metric(self.metric), *self.theirs)
        return self.my_weight * here * here + self.their_weight * there * there


def _beyond(value: Any, low: float, high: float) -> Any:
    return np.maximum(0.0, np.maximum(low - value, value - high))


def _goals(
    mine: Load, theirs: Load, targets: tuple[Metrics, Metrics], settings: BalancingSettings
) -> list[_Goal]:
    found = []
    for metric in Metric:
        my_target, their_target = (each.metric(metric) for each in targets)
        here, there = float(mine.metric(metric)), float(theirs.metric(metric))
        my_weight, their_weight = capacity_of(mine).of(metric), capacity_of(theirs).of(metric)
        moved = max(0.0, min(my_weight * (here - my_target), their_weight * (their_target - there)))
        my_most, their_least = here - moved / my_weight, there + moved / their_weight
        my_least = -np.inf if metric is Metric.INPUT else min(my_target, my_most)
        their_most = max(their_target, their_least)
        if metric is Metric.INPUT:
            their_most += INPUT_TOLERANCE * settings.local.input
        unit = settings.local.of(metric) * (settings.normalisation_s if metric is Metric.DELAY else 1.0)
        scale = (my_weight + their_weight) * unit * unit
        goal = _Goal(
            metric,
            (my_least, my_most),
            (their_least, their_most),
            my_weight / scale,
            their_weight / scale,
        )
        found.append(goal)
    return found


class _Choices:
    """The subscribers that may move, one at a time, and the loads of both brokers after those chosen."""

    def __init__(
        self,
        mine: Load,
        theirs: Load,
        profile: Profile,
        present: Mapping[Hashable, int],
        movable: Mapping[Hashable, int],
        settings: BalancingSettings,
    ) -> None:
        self.mine, self.theirs, self._settings = mine, theirs, settings
        self._bits = profile.bits
        self._present = np.array([present.get(key, 0) for key in profile.keys], dtype=np.int64)
        self._movable = np.array([movable.get(key, 0) for key in profile.keys], dtype=np.int64)
        self._matched, self._bytes = profile.matched_per_s, profile.bytes_per_s
        self._per_sample = profile.input_per_s / max(1, len(profile.accepted))
        self._accepted = profile.accepted.copy()
        self._matched_by = profile.bits[self._present > 0].sum(axis=0)
        self._added = and_not(profile.bits, self._accepted).sum(axis=1)
        self._reduced = exclusive(profile.bits, self._matched_by).sum(axis=1)

    def open_choices(self) -> Any:
        """Return the rows with a subscriber that may move."""
        return np.flatnonzero(self._movable)

    def after(self, rows: Any) -> tuple[Load, Load]:
        """Return the loads of both brokers after one subscriber of each row has moved."""
        reduced = np.where(self._present[rows] == 1, self._reduced[rows], 0) * self._per_sample
        matched, sent = self._matched[rows], self._bytes[rows]
        mine = self.mine.after(-1, -reduced, -matched, -sent)
        return mine, self.theirs.after(1, self._added[rows] * self._per_sample, matched, sent)

    def fits(self, theirs: Load) -> Any:
        """Return whether no ratio of the other broker exceeds its lower overload threshold."""
        found: Any = True
        for each in Resource:
            found = found & (np.asarray(theirs.ratio(each)) <= self._settings.lower_overload.of(each))
        return found

    def take(self, row: int) -> None:
        """Move one subscriber of a row."""
        mine, theirs = self.after(np.array([row]))
        self.mine, self.theirs = scalar(mine), scalar(theirs)
        bits = self._bits[row]
        added = bits & ~self._accepted
        if added.any():
            self._accepted |= bits
            self._added = self._added - self._bits[:, added].sum(axis=1)
        self._movable[row] -= 1
        self._present[row] -= 1
        if not self._present[row]:
            self._matched_by = self._matched_by - bits
            last = bits & (self._matched_by == 1)
            self._reduced = self._reduced + self._bits[:, last].sum(axis=1)


def plan_jointly(
    action: BrokerAction,
    loads: tuple[Load, Load],
    profile: Profile,
    present: Mapping[Hashable, int],
    movable: Mapping[Hashable, int],
    targets: tuple[Metrics, Metrics],
    settings: BalancingSettings,
) -> Plan:
    """Choose the subscribers to offload.

    Parameters
    ----------
    action
        The reason: unless it is an overload, a plan that lowers its difference by less than `improvement`
        is dropped.
    loads
        Of the offloading and of the load-accepting broker.
    profile
        What PRESS found.
    present, movable
        By key, the number of subscribers at the broker, and of those that may move.
    targets
        The metrics that both brokers are to have.
    """
    goals = _goals(*loads, targets, settings)
    choices = _Choices(*loads, profile, present, movable, settings)
    chosen = Counter[Hashable]()
    left = settings.session_moves_max or sys.maxsize
    value = sum(goal.of(*loads) for goal in goals)
    while chosen.total() < left and value > settings.balance:
        rows = choices.open_choices()
        if not len(rows):
            break
        mine, theirs = choices.after(rows)
        values = np.where(choices.fits(theirs), sum(goal.of(mine, theirs) for goal in goals), np.inf)
        best = int(values.argmin())
        if not values[best] < value:
            break
        value = float(values[best])
        choices.take(int(rows[best]))
        chosen[profile.keys[rows[best]]] += 1
    before = difference(action.metric, *loads, settings.normalisation_s)
    after = difference(action.metric, choices.mine, choices.theirs, settings.normalisation_s)
    if action.overloaded is None and before - abs(after) < settings.improvement:
        return Plan((), *loads)
    moved = tuple([Moved(key, number) for key, number in chosen.items()])
    return Plan(moved, choices.mine, choices.theirs)
