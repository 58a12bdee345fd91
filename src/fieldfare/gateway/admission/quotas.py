"""How much each space may publish, so that one that floods is told to wait and the others are not.

A bucket fills at the quota's rate, up to a second's worth. A request is let in while there is something in
it, and takes out what it turns out to hold, also more than there is: then the next ones wait until that is
paid. So nothing of a request need be looked at to refuse it, large batches are not cut, and over time no more
than the rate gets in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fieldfare.gateway.problems import HttpProblem

BURST_S = 1.0


@dataclass(slots=True)
class Bucket:
    """One quota of one space; the time is in seconds of a clock that never goes back.

    Attributes
    ----------
    rate : float
        What comes in a second.
    level : float
        What is there as of ``at_s``; less than nothing is a debt.
    """

    rate: float
    level: float
    at_s: float

    def wait_s(self, now_s: float) -> float:
        """How long until something is in it; 0 when something is."""
        self._fill(now_s)
        return 0.0 if self.level > 0 else (1.0 - self.level) / self.rate

    def take(self, amount: float, now_s: float) -> None:
        """Take out, into debt if need be."""
        self._fill(now_s)
        self.level -= amount

    def _fill(self, now_s: float) -> None:
        self.level = min(self.level + (now_s - self.at_s) * self.rate, self.rate * BURST_S)
        self.at_s = now_s


@dataclass(slots=True)
class Quotas:
    """What the spaces may publish, each the same.

    Parameters
    ----------
    rates : mapping of str to float
        What a space may have in a second, by the quota's name: events_per_s, bytes_per_s. 0 is no quota.
    """

    rates: dict[str, float]
    _buckets: dict[str, dict[str, Bucket]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.rates = {name: rate for name, rate in self.rates.items() if rate > 0}

    def check(self, space: str, now_s: float) -> None:
        """Problem 429, which names the quota, while a space has used one up; the space exists."""
        if not self.rates:
            return
        for name, bucket in self._of(space, now_s).items():
            wait_s = bucket.wait_s(now_s)
            if wait_s > 0:
                raise HttpProblem(
                    429,
                    "quota",
                    f"The space {space!r} has used up what it may publish: {name} is {bucket.rate:g}.",
                    headers={"Retry-After": str(math.ceil(wait_s))},
                    quota=name,
                )

    def spend(self, space: str, now_s: float, *, events: int, size_bytes: int) -> None:
        """Take out what a request that was let in holds."""
        if not self.rates:
            return
        spent = {"events_per_s": events, "bytes_per_s": size_bytes}
        for name, bucket in self._of(space, now_s).items():
            bucket.take(spent[name], now_s)

    def _of(self, space: str, now_s: float) -> dict[str, Bucket]:
        found = self._buckets.get(space)
        if found is None:
            found = {name: Bucket(rate, rate * BURST_S, now_s) for name, rate in self.rates.items()}
            self._buckets[space] = found
        return found
