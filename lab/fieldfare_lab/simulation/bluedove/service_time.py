"""A matcher's time for a message, by the number of subscriptions that it searches.

Two models: `LinearSearch` for the paper's matchers, and `MeasuredSearch` for fieldfare's own engine, from the
measurements of ``experiments/bluedove/calibrate.py``. The engine dismisses whole tiles of subscriptions at
once, so its time grows more slowly than the number of subscriptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol


class ServiceTime(Protocol):
    """A model of the matching time."""

    def time_s(self, subscriptions: int) -> float:
        """Return the seconds to match one message against a set of `subscriptions` subscriptions."""


@dataclass(frozen=True, slots=True)
class LinearSearch:
    """A scan of every subscription: ``event_s + subscriptions * subscription_s``.

    Parameters
    ----------
    event_s
        Seconds per message, independent of subscriptions.
    subscription_s
        Additional seconds per subscription.
    """

    event_s: float
    subscription_s: float

    def time_s(self, subscriptions: int) -> float:
        return self.event_s + subscriptions * self.subscription_s


@dataclass(frozen=True, slots=True)
class MeasuredSearch:
    """Linear interpolation between measured points; beyond the last one in proportion.

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
    """Return the model for a calibration's rows: ``subscriptions`` and ``event_us`` of each."""
    return MeasuredSearch(tuple((int(row["subscriptions"]), row["event_us"] / 1e6) for row in rows))
