"""A predictive enforcer, which is beyond the paper: it decides by moments and by earlier days.

    hosts, at least    what the last seconds need with hosts nearly full, and what the next half minute had on
                       earlier days, times today so far over those days so far
    hosts, at most     that, or what the last ten seconds need with a quarter of each host free

Between the two nothing changes. Whoever must be ready for a peak that may come at any moment keeps half of
each host free, as the paper's policy does. Here a host more comes within seconds of being needed, so less is
kept free. Too fast for that is only what takes more than there is from one second to the next, as a market's
opening; and it comes every day: then hosts are there before it, and stay as long as it is about to come. A
change spreads the load evenly, since a publication waits for the fullest host. Earlier days and today so far
are all that it knows, never what comes.
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
"""`mean_high` is of the last seconds, `kept_mean` of the window. The `target` is of the forecast: it
brings hosts only where it is more than those there can do."""
UNEVEN = 0.1
"""By how much of a host the fullest has more than the mean before that alone moves slices."""
COARSEST = 0.3
"""By how much of a host a spread may be uneven where slices are coarse."""
LOAD_LEAST = 0.05
"""Below that, in hosts, what part each slice has is not known."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a day is like.

    Parameters
    ----------
    times_s, cpu
        All slices' CPU together, in hosts, at times from the day's beginning, ascending: yesterday's, or the
        mean of several days.
    horizon_s
        How far to look ahead, and of how much a mean is taken: longer than a host takes to start and its
        slices to move. More: hosts earlier, and less of the day's short peaks.
    compared_s
        Over how long today is compared with that day. Longer: slower to see that today differs; shorter:
        moments count.
    doubt
        So many hosts' load is added to both days before they are compared, so that next to nothing beside
        next to nothing says nothing. More: today counts for less.
    """

    times_s: Sequence[float]
    cpu: Sequence[float]
    horizon_s: float = 30.0
    compared_s: float = 120.0
    doubt: float = 1.0

    def mean(self, from_s: float, to_s: float) -> float:
        """That day's load in a span; none where it has no values."""
        values = self.cpu[bisect_left(self.times_s, from_s) : bisect_right(self.times_s, to_s)]
        return sum(values) / len(values) if values else 0.0

    def ratio(self, today: Sequence[float], now: float) -> float:
        """Today over that day, by the last `compared_s`."""
        if not today:
            return 1.0
        before = self.mean(now - self.compared_s, now)
        return (sum(today) / len(today) + self.doubt) / (before + self.doubt)

    def coming(self, today: Sequence[float], now: float) -> float:
        """The load from now to the horizon."""
        return self.mean(now, now + self.horizon_s) * self.ratio(today, now)


def spread(load: ClusterLoad, count: int, policy: ElasticityPolicy, reason: str) -> MigrationRequest | None:
    """As evenly over so many hosts as few moves can; the least loaded leave where there are to be fewer."""
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
    """Keeps the hosts between the least and the most that it expects to need.

    Its clock begins with the day, as the forecast's does. With a forecast that is empty it goes by moments
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
        """Remember today's total, for as long as it is compared."""
        self._today.append((now, sum(probe.cpu for probe in probes.slices.values())))
        while self._today[0][0] < now - self.forecast.compared_s:
            del self._today[0]

    def decide(self, load: ClusterLoad, recent: ClusterLoad, now: float) -> MigrationRequest | None:
        """More hosts, fewer, or the same and evenly used."""
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
        """The slices with another load in all, each in proportion.

        Where there is next to no load, what part each slice has is not known; then it is as it was.
        """
        if load.total > LOAD_LEAST:
            self._shares = {name: each.cpu / load.total for name, each in load.slices.items()}
        even = 1 / len(load.slices)
        slices = {
            name: replace(each, cpu=total * self._shares.get(name, even))
            for name, each in load.slices.items()
        }
        return ClusterLoad(slices, load.hosts)
