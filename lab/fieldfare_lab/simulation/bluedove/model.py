"""The parameters of the simulated service, and the trace of every message.

Scale: one simulated message represents ``bundle_messages`` of the paper's, and takes as long to match as all
of them. So rates, seconds of work, seconds of queueing, and all periods (reports, gossip, pulls) are the
paper's, while the simulation has fewer events by that factor. Randomness becomes coarser: a queue fluctuates
as if messages came in bundles, and no response time is shorter than a bundle's matching.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fieldfare_lab.simulation.bluedove.service_time import ServiceTime

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """The parameters of the simulated service.

    Parameters
    ----------
    service_time
        Time for one message in a set, by the set's size.
    bundle_messages
        Number of messages that a simulated one represents; see the module's text. Higher: a faster
        simulation; lower: a finer one.
    dispatchers
        Number of dispatchers (the paper: 2).
    dispatch_s
        Interval at which a dispatcher forwards arrived messages. Shorter: closer to one at a time.
    network_s
        The delay of every message is between this and twice this.
    report_s
        Interval at which matchers report their load (the paper: 1).
    window_s
        w, over which rates are averaged.
    least_change
        See `LoadMeter` (the paper: 0.1).
    competition_counts
        Whether μ is per second in which the set had something to match, or per second of matching it alone.
        The first includes the time of the matcher's other sets, as the paper says that the adaptive policy
        should; `Balanced` needs the second.
    """

    service_time: ServiceTime
    bundle_messages: float = 1.0
    dispatchers: int = 2
    dispatch_s: float = 0.005
    network_s: float = 0.0005
    report_s: float = 1.0
    window_s: float = 5.0
    least_change: float = 0.1
    competition_counts: bool = True


@dataclass(slots=True)
class Trace:
    """The times of every message, float64[n] in seconds, NaN for steps not reached; and its matcher.

    Attributes
    ----------
    arrived_s
        Arrival at the dispatcher.
    sent_s
        Last departure from the dispatcher.
    queued_s
        Arrival at the matcher.
    started_s, delivered_s
        Begin and end of its matching.
    dispatcher : int16[n]
    matcher, key : int32[n]
        The matcher and the key of its set, NOWHERE while it has none.
    matches
        For each message that was searched for, the numbers of its subscriptions.
    crashed_s
        The time of each matcher's crash.
    backlog
        (time, seconds of waiting work at each matcher), once per report period.
    """

    values: NDArray[np.int64]
    arrived_s: NDArray[np.float64]
    dispatcher: NDArray[np.int16]
    sent_s: NDArray[np.float64] = field(init=False)
    queued_s: NDArray[np.float64] = field(init=False)
    started_s: NDArray[np.float64] = field(init=False)
    delivered_s: NDArray[np.float64] = field(init=False)
    matcher: NDArray[np.int32] = field(init=False)
    key: NDArray[np.int32] = field(init=False)
    matches: dict[int, list[int]] = field(default_factory=dict)
    crashed_s: dict[int, float] = field(default_factory=dict)
    backlog: list[tuple[float, list[float]]] = field(default_factory=list)
    busy_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.arrived_s)
        self.sent_s, self.queued_s, self.started_s, self.delivered_s = (
            np.full(size, np.nan) for _ in range(4)
        )
        self.matcher, self.key = (np.full(size, NOWHERE, np.int32) for _ in range(2))

    @property
    def response_s(self) -> NDArray[np.float64]:
        """Time from the dispatcher to the subscriber: NaN for a message that is lost or in flight."""
        return self.delivered_s - self.arrived_s


def arrivals(
    profile: list[tuple[float, float]], model: ServiceModel, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the arrival times of messages: a Poisson process whose rate changes in steps.

    Parameters
    ----------
    profile
        (duration in seconds, messages per second), in order.
    """
    start_s, found = 0.0, []
    for duration_s, rate_per_s in profile:
        count = rng.poisson(duration_s * rate_per_s / model.bundle_messages)
        found.append(np.sort(rng.uniform(start_s, start_s + duration_s, count)))
        start_s += duration_s
    return np.concatenate(found)
