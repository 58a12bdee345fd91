"""A predictive enforcer, beyond the paper: it decides by the last seconds and by earlier days.

    minimum of hosts   enough for the load of the last seconds with hosts nearly full, and for the load of the
                       next half minute on earlier days, scaled by the ratio of today's load so far to theirs
    maximum of hosts   the minimum, or enough for the load of the last ten seconds with a quarter of each host
                       free, whichever is more

Between the two nothing changes. A policy that must be ready for a peak at any moment keeps half of each host
free, like the paper's. Here an additional host is ready within seconds, so less is kept free. That is too
slow only for a load that exceeds the hosts' capacity within a second, such as a market's opening. But the
opening comes every day, so hosts are added before it, and kept while it is imminent. A change balances the
load, because a publication waits for the fullest host. Only earlier days and today so far are used, never the
future.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from fieldfare.elasticity.enforcer import (
    CAPACITY_STEP,
    ClusterLoad,
    ElasticityPolicy,
    Enforcer,
    fill,
    loosest_fit,
    request,
)
from fieldfare.elasticity.messages import ClusterProbes, MigrationRequest
from fieldfare.elasticity.rules import least_state

FORECAST_POLICY = ElasticityPolicy(
    mean_high=0.95,
    host_high=0.95,
    target=1.0,
    window_s=10.0,
    grace_s=5.0,
    calm_s=10.0,
    kept_mean=0.75,
    move_bytes=20_000_000,
)
"""Policy of `PredictiveEnforcer`.

`mean_high` applies to the last seconds, `kept_mean` to the window. `target` applies to the forecast: it adds
hosts only if the forecast exceeds the capacity of the existing ones.
"""
UNEVEN = 0.1
"""Excess of the fullest host over the mean, as a share of a host, above which slices are rebalanced."""
COARSEST = 0.3
"""Maximum unevenness of a balanced load, as a share of a host, if slices are coarse."""
LOAD_LEAST = 0.05
"""Minimum total load, in hosts, from which the slices' shares are updated."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The load of a typical day.

    Parameters
    ----------
    times_s, cpu
        CPU of all slices together, in hosts, at ascending times from the day's beginning: yesterday's, or the
        mean of several days.
    horizon_s
        How far to look ahead, which is also the length of the mean: longer than a host takes to start and its
        slices to move. Longer: hosts earlier, and less of the day's short peaks.
    compared_s
        Length of the comparison of today with that day. Longer: differences are noticed later; shorter: short
        peaks have more effect.
    doubt
        Load, in hosts, that is added to both days before they are compared, so that a ratio of two tiny loads
        has no effect. Higher: today counts for less.
    """

    times_s: Sequence[float]
    cpu: Sequence[float]
    horizon_s: float = 30.0
    compared_s: float = 120.0
    doubt: float = 1.0

    def mean(self, from_s: float, to_s: float) -> float:
        """Return that day's mean load in a span; 0 if it has no values there."""
        values = self.cpu[bisect_left(self.times_s, from_s) : bisect_right(self.times_s, to_s)]
        return sum(values) / len(values) if values else 0.0

    def ratio(self, today: Sequence[float], now: float) -> float:
        """Return the ratio of today's load to that day's, over the last `compared_s` seconds."""
        if not today:
            return 1.0
        before = self.mean(now - self.compared_s, now)
        return (sum(today) / len(today) + self.doubt) / (before + self.doubt)

    def coming(self, today: Sequence[float], now: float) -> float:
        """Return the expected load from now to the horizon."""
        return self.mean(now, now + self.horizon_s) * self.ratio(today, now)


def spread(load: ClusterLoad, count: int, policy: ElasticityPolicy, reason: str) -> MigrationRequest | None:
    """Balance the load over `count` hosts with few moves; the least loaded hosts leave if there are more."""
    by_load = sorted(load.hosts, key=load.of)
    leaving = tuple(by_load[: max(0, len(by_load) - count)])
    staying = [host for host in load.hosts if host not in leaving]
    even = load.total / count
    moving = [each for host in leaving for each in load.on(host)]
    for host in staying:
        moving += least_state(load.on(host), load.of(host) - even - CAPACITY_STEP, policy.move_bytes)
    room = load.without(moving, staying)
    new_hosts = max(0, count - len(staying))
    places = loosest_fit(moving, room, replace(policy, target=even), even + COARSEST, new_hosts)
    if places is None or not (moving or leaving):
        return None
    return request(moving, places, leaving, reason)


class PredictiveEnforcer(Enforcer):
    """Keeps the number of hosts between the minimum and the maximum that it expects to need.

    Its clock begins with the day, like the forecast's. With an empty forecast it decides by the last seconds
    alone.
    """

    def __init__(
        self, forecast: Forecast, policy: ElasticityPolicy = FORECAST_POLICY, manager: str = "manager"
    ) -> None:
        super().__init__(policy, manager)
        self.forecast = forecast
        self._today: list[tuple[float, float]] = []
        self._shares: dict[str, float] = {}

    def note(self, probes: ClusterProbes, now: float) -> None:
        """Record today's total load, and forget values older than the comparison needs."""
        self._today.append((now, sum(probe.cpu for probe in probes.slices.values())))
        while self._today[0][0] < now - self.forecast.compared_s:
            del self._today[0]

    def decide(self, load: ClusterLoad, recent: ClusterLoad, now: float) -> MigrationRequest | None:
        """Request more hosts, fewer, or a rebalancing; None if nothing is to change."""
        policy, there = self.policy_for(load, now), len(load.hosts)
        if there < policy.hosts_min:
            return fill(load, policy)
        coming = self.forecast.coming([cpu for _, cpu in self._today], now)
        needed = max(ceil(recent.total / policy.mean_high), ceil(coming / policy.target), policy.hosts_min)
        least = min(needed, policy.hosts_max)
        kept = ceil(load.total / policy.kept_mean)
        most = max(least, min(kept, policy.hosts_max))
        expected = self.expected(load, max(load.total, recent.total, coming))
        words = f"{recent.total:.2f} hosts' load, {coming:.2f} forecast"
        if there < least:
            return spread(expected, least, policy, f"more: {words}")
        if there > most and self.is_calm(now):
            return spread(expected, most, policy, f"fewer: {words}")
        fullest = max(recent.of(host) for host in recent.hosts)
        if fullest > max(policy.host_high, recent.mean + UNEVEN):
            return spread(recent, there, policy, f"even: {words}")
        return None

    def expected(self, load: ClusterLoad, total: float) -> ClusterLoad:
        """Return the slices with another total load, in proportion to their shares.

        If the present load is too small to determine the shares, the last known ones apply.
        """
        if load.total > LOAD_LEAST:
            self._shares = {name: each.cpu / load.total for name, each in load.slices.items()}
        even = 1 / len(load.slices)
        slices = {
            name: replace(each, cpu=total * self._shares.get(name, even))
            for name, each in load.slices.items()
        }
        return ClusterLoad(slices, load.hosts)
