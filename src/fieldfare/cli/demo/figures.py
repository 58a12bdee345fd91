"""The live figures of a replay, with their rates and latencies."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RATE_OVER_S = 2.0


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """The figures of a replay at one moment.

    Latencies are from the call that published an event to its arrival at a subscriber, over the last
    seconds; None before the first arrival.
    """

    events: int
    published: int
    matched: int
    matches: int
    delivered: int
    events_per_s: float
    matches_per_s: float
    latency_p50_ms: float | None
    latency_p99_ms: float | None

    @property
    def lag(self) -> int:
        """Number of events that are acknowledged and not matched yet."""
        return max(0, self.published - self.matched)


class Rate:
    """The growth rate of a count over the last `RATE_OVER_S` seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, now_s: float, count: int) -> float:
        """Add the current count and return its growth per second."""
        samples = self._samples
        samples.append((now_s, count))
        while len(samples) > 2 and now_s - samples[1][0] >= RATE_OVER_S:
            samples.popleft()
        then_s, before = samples[0]
        return (count - before) / (now_s - then_s) if now_s > then_s else 0.0


def latency_ms(latencies_s: NDArray[np.float64], share: float) -> float | None:
    """Return a quantile in milliseconds; None without latencies."""
    return float(np.quantile(latencies_s, share)) * 1000 if len(latencies_s) else None
