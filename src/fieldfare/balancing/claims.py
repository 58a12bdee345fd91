"""How far a broker believes the loads that others claim to have. Not in the paper.

A broker may claim anything, by mistake or on purpose. Nothing that it says is an error here; it counts as far
as it can be true:

* A capacity counts for at most `CAPACITY_MAX` times this broker's: with any more, the mean of all brokers
  would be what one of them says.
* A broker with a ratio above the lower overload threshold is N/A, whatever state it claims; also one with an
  input or output above 1 where these do not count as overload.
* A broker that is N/A has no weight in the mean. It gives its excess away itself; counted, a very high load
  would be the share of all others, and they would balance nothing any more.
* A broker that was given load shows at least half of it before it is given more, or `rest_s` pass. So one
  that always says it is idle gets the subscriptions of one session in that time.
* A broker that always says it is OK and refuses `REFUSALS_MAX` requests in a row, or does not answer them, is
  N/A for `stale_s`: otherwise all would wait for the one with the most room. One that is asked by many says
  that it is BUSY or STABILIZING in between.
* A broker that is neither OK nor N/A for `hold_s` has no weight: sessions are shorter. With the claim to be
  idle, and to have a high capacity, it would be the one whose share all others keep.
* A broker that accepts a request, and then takes none of the subscriptions, is N/A for `rest_s`. It may have
  no room for them, or not their space.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from fieldfare.balancing.detection import exceeding
from fieldfare.balancing.load import NO_CAPACITY, Load, Metric, capacity_of
from fieldfare.balancing.messages import Pie, State
from fieldfare.balancing.settings import BalancingSettings

CAPACITY_MAX = 16.0
"""Maximum capacity of another broker, as a multiple of this broker's; more counts as this much."""

CAPACITY_MIN = 1e-6
"""Minimum capacity of another broker, as a multiple of this broker's; less counts as this much."""

MATCHING_MIN_S = 1e-9
"""Minimum matching time of a broker that has matched anything, in seconds."""

REFUSALS_MAX = 3
"""Requests in a row after whose refusal a broker is not asked for a while."""

SHOWN_MIN = 0.01
"""Minimum share of this broker's capacity that a session must move for the other broker to have to show."""


def believed(theirs: Load, mine: Load) -> Load:
    """Return the load that another broker claims, with capacities that can be true beside this broker's."""
    most = mine.output_bytes_per_s_max
    matching_s = float(theirs.matching_s)
    if matching_s > 0 and mine.matching_s > 0:
        matching_s = min(max(matching_s, mine.matching_s / CAPACITY_MAX), mine.matching_s / CAPACITY_MIN)
    elif matching_s > 0:
        matching_s = max(matching_s, MATCHING_MIN_S)
    return replace(
        theirs,
        matching_s=matching_s,
        cost=replace(theirs.cost, fixed_s=matching_s),
        output_bytes_per_s_max=min(
            max(theirs.output_bytes_per_s_max, CAPACITY_MIN * most), CAPACITY_MAX * most
        ),
    )


def state_of(theirs: Load, claimed: State, settings: BalancingSettings) -> State:
    """Return the state of a broker that claims a state and a load."""
    is_full = max(float(theirs.input_ratio), float(theirs.output_ratio)) > 1
    return State.NOT_AVAILABLE if is_full or exceeding(theirs, settings, higher=False) else claimed


@dataclass(frozen=True, slots=True)
class _Given:
    metric: Metric
    least: float
    until_s: float


class Claims:
    """Whether other brokers have kept to what they say."""

    def __init__(self, settings: BalancingSettings) -> None:
        self._settings = settings
        self._given: dict[str, _Given] = {}
        self._refusals = Counter[str]()
        self._refused_until_s: dict[str, float] = {}
        self._not_ok_since_s: dict[str, float] = {}

    def accepted(self, broker: str) -> None:
        """Note that a broker has accepted a request."""
        self._refusals.pop(broker, None)

    def refused(self, broker: str, now: float) -> None:
        """Note that a broker has refused a request, or has not answered it."""
        self._refusals[broker] += 1
        if self._refusals[broker] >= REFUSALS_MAX:
            del self._refusals[broker]
            self._refused_until_s[broker] = now + self._settings.stale_s

    def took_nothing(self, broker: str, now: float) -> None:
        """Note that a broker has accepted a request, and then none of the subscriptions."""
        self._refused_until_s[broker] = now + self._settings.rest_s

    def gave(
        self, broker: str, metric: Metric, loads: tuple[Load, Load, Load], share: float, now: float
    ) -> None:
        """Note that a broker was given load.

        Parameters
        ----------
        metric
            The metric that was balanced.
        loads
            This broker's load, that of the other one before, and as it was estimated.
        share
            The share of the subscriptions that have moved.
        """
        mine, before, after = loads
        amount = share * (_amount(metric, after) - _amount(metric, before))
        if amount >= SHOWN_MIN * capacity_of(mine).of(metric):
            least = _amount(metric, before) + amount / 2
            self._given[broker] = _Given(metric, least, now + self._settings.rest_s)

    def view(self, pie: Pie, now: float) -> Pie:
        """Return a PIE message as far as it counts."""
        if pie.state is State.OK:
            self._not_ok_since_s.pop(pie.broker, None)
        else:
            self._refusals.pop(pie.broker, None)
            self._not_ok_since_s.setdefault(pie.broker, now)
        is_doubted = now < self._refused_until_s.get(pie.broker, -math.inf) or not self._has_shown(pie, now)
        is_doubted |= now - self._not_ok_since_s.get(pie.broker, now) > self._settings.hold_s
        if is_doubted or pie.state is State.NOT_AVAILABLE:
            return replace(pie, state=State.NOT_AVAILABLE, capacity=NO_CAPACITY)
        return pie

    def _has_shown(self, pie: Pie, now: float) -> bool:
        given = self._given.get(pie.broker)
        if given is None:
            return True
        shown = pie.metrics.metric(given.metric) * pie.capacity.of(given.metric)
        if shown < given.least and now < given.until_s:
            return False
        del self._given[pie.broker]
        return True


def _amount(metric: Metric, load: Load) -> float:
    """Return what a metric and the capacity of a broker, multiplied, say that it has."""
    return float(load.metric(metric)) * capacity_of(load).of(metric)
