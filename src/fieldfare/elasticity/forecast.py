"""A predictive enforcer, which is beyond the paper: it decides by what is expected, not by what has been.

    expected(now) = max( the last seconds,
                         most of yesterday from now to `horizon_s` later, times today so far over yesterday
                         so far )

Whoever must be ready for a peak that may come at any moment keeps half of each host free, as the paper's
policy does. Yesterday says when there is none to come: then the same rules hold with less room
(`FORECAST_POLICY`). It knows yesterday and today so far, never what comes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fieldfare.elasticity.enforcer import ClusterLoad, ElasticityPolicy, Enforcer, decide
from fieldfare.elasticity.messages import ClusterProbes, MigrationRequest

FORECAST_POLICY = ElasticityPolicy(
    mean_low=0.6,
    mean_high=0.9,
    host_low=0.3,
    host_high=0.95,
    target=0.75,
    window_s=5.0,
    grace_s=10.0,
    calm_s=20.0,
    kept_mean=0.87,
    move_bytes=20_000_000,
)
"""The paper's rules with less room and less delay."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a day was like.

    Parameters
    ----------
    times_s, cpu
        All slices' CPU together, in hosts, at times from the day's beginning, ascending.
    horizon_s
        How far to look ahead: longer than a host takes to start and its slices to move. More: hosts earlier.
    compared_s
        Over how long today is compared with yesterday. Longer: slower to see that today differs; shorter:
        moments count.
    smooth
        Of how many of yesterday's values a mean is taken: a peak of a second needs no hosts.
    ratio_low, ratio_high
        How much less and more than yesterday today may be taken for.
    """

    times_s: Sequence[float]
    cpu: Sequence[float]
    horizon_s: float = 20.0
    compared_s: float = 120.0
    smooth: int = 60
    ratio_low: float = 0.5
    ratio_high: float = 2.0

    def between(self, from_s: float, to_s: float) -> Sequence[float]:
        """Yesterday's values in a span."""
        return self.cpu[bisect_left(self.times_s, from_s) : bisect_right(self.times_s, to_s)]

    def ratio(self, today: Sequence[float], now: float) -> float:
        """Today over yesterday, by the last `compared_s`."""
        before = self.between(now - self.compared_s, now)
        if not before or not today or sum(before) == 0:
            return 1.0
        ratio = (sum(today) / len(today)) / (sum(before) / len(before))
        return min(self.ratio_high, max(self.ratio_low, ratio))

    def most(self, now: float) -> float:
        """The most that yesterday had from this time to the horizon, each value a mean of a few."""
        values = self.between(now, now + self.horizon_s)
        few = min(self.smooth, len(values))
        return max((sum(values[i : i + few]) / few for i in range(len(values) - few + 1) if few), default=0.0)


class PredictiveEnforcer(Enforcer):
    """Asks by the loads that are expected. Its clock begins with the day, as the forecast's does."""

    def __init__(
        self, forecast: Forecast, policy: ElasticityPolicy = FORECAST_POLICY, manager: str = "manager"
    ) -> None:
        super().__init__(policy, manager)
        self.forecast = forecast
        self._today: list[tuple[float, float]] = []
        self._shares: dict[str, float] = {}

    def decide(self, load: ClusterLoad, recent: ClusterLoad, now: float) -> MigrationRequest | None:
        """By the same rules, with each slice's load as it is expected to become."""
        return decide(self.expected(load, now), self.policy_for(load, now), recent, is_calm=self.is_calm(now))

    def note(self, probes: ClusterProbes, now: float) -> None:
        """Remember today's total, for as long as it is compared."""
        self._today.append((now, sum(probe.cpu for probe in probes.slices.values())))
        while self._today[0][0] < now - self.forecast.compared_s:
            del self._today[0]

    def expected(self, load: ClusterLoad, now: float) -> ClusterLoad:
        """The loads, all slices' in proportion.

        Where there is next to no load, what part each slice has is not known; then it is as it was.
        """
        if load.total > 0.05:
            self._shares = {name: each.cpu / load.total for name, each in load.slices.items()}
        today = [cpu for _, cpu in self._today]
        total = max(load.total, self.forecast.most(now) * self.forecast.ratio(today, now))
        even = 1 / len(load.slices)
        slices = {
            name: replace(each, cpu=total * self._shares.get(name, even))
            for name, each in load.slices.items()
        }
        return ClusterLoad(slices, load.hosts)
