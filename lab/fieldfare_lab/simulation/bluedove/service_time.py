"""How long a matcher takes for a message, from the number of subscriptions that it searches.

Two models: `LinearSearch` for the paper's matchers, and `MeasuredSearch` for fieldfare's own engine, read
from what ``experiments/bluedove/calibrate.py`` measured. The engine dismisses whole tiles of subscriptions
at once, so its time grows more slowly than the subscriptions do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol


class ServiceTime(Protocol):
    """A model of matching."""

    def time_s(self, subscriptions: int) -> float:
        """Seconds to match one message against a set of so many subscriptions."""


@dataclass(frozen=True, slots=True)
class LinearSearch:
    """Every subscription is looked at: ``event_s + subscriptions * subscription_s``.

    Parameters
    ----------
    event_s
        What a message costs before any subscription is looked at.
    subscription_s
        What each subscription adds.
    """

    event_s: float
    subscription_s: float

    def time_s(self, subscriptions: int) -> float:
        return self.event_s + subscriptions * self.subscription_s


@dataclass(frozen=True, slots=True)
class MeasuredSearch:
    """Between measured points in a straight line, beyond the last one in proportion.

    Parameters
    ----------
    points
        (subscriptions, seconds for one message), subscriptions ascending, the first one 0.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if len(sizes) < 2 or sizes[0] != 0 or any(a >= b for a, b in pairwise(sizes)):
            raise ValueError("a calibration needs two points or more, ascending from 0 subscriptions")

    def time_s(self, subscriptions: int) -> float:
        for (size_a, time_a), (size_b, time_b) in pairwise(self.points):
            if subscriptions <= size_b:
                return time_a + (time_b - time_a) * (subscriptions - size_a) / (size_b - size_a)
        size, time = self.points[-1]
        return time * subscriptions / size


def measured_search(rows: Sequence[dict[str, float]]) -> MeasuredSearch:
    """The model that a calibration's rows describe: ``subscriptions`` and ``event_us`` of each."""
    return MeasuredSearch(tuple((int(row["subscriptions"]), row["event_us"] / 1e6) for row in rows))
