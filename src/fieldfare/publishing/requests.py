"""The tuner of request size and requests in flight, for a publisher that sends batches over HTTP.

It applies the ideas of `windowed` to requests with many events. A request of n events takes about
``fixed + each * n`` seconds; both values are estimated from requests of different sizes.

* While a request is in flight the next batch accumulates, so no event waits for others: a single event is
  sent at once, and batches grow with the load.
* The size matters only with a backlog. Events are sent in order, so smaller requests deliver the first events
  of a backlog sooner. A batch whose fixed time is a twentieth of its duration loses only 5 % of the
  throughput: n = 19 * fixed / each.
* With a bound on latency, an event may have to wait for the previous request, so each request may take half
  the bound. The remaining slack is used for linger, that is for fewer requests. If the load can only be
  carried in larger batches (Little's law), they take precedence over the bound.
* If the service refuses requests (429, 5xx, no connection) or becomes much slower than its average, it gets
  less: batches of half the size, with pauses in between, until requests succeed again. No event is lost.
* Several requests may be in flight. With one at a time, the path, the service and the client are idle in
  turn. Which of them is the bottleneck is not known: a request's duration does not tell. So one request is
  added while events wait and less than one request queues; whether that helps is seen from the durations. One
  is removed when more than two queue (TCP Vegas), or when fewer would carry as much. After the first
  increases, one at each answer, the number changes at most once a round trip: only a request that began after
  a change shows its effect.
* Each request is timed from its own start: without failures, answers arrive one after the other, each a round
  trip after its request. Where large requests have queued behind each other, their durations would hide what
  a request costs, and are left out. If one fails, those behind it wait for it and are as slow: of all
  requests in flight then, only the first counts as a refusal, and no estimate uses them, or one lost packet
  would count five times.
* Requests in flight share a backlog evenly. Otherwise the first takes all that waits and the next the few
  events that arrived since, so that in effect one request is in flight, and its first events wait for its
  last ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fieldfare.publishing.estimators import MovingAverage, RecentExtreme

TIME_GRAIN_S = 1e-6
"""Rounding error, in seconds, by which a request that starts when another ends may seem to start earlier."""

LONG_PATH_S = 0.010
"""Fixed time of a request, in seconds, from which another one is sent as soon as any event waits: it costs
both ends far less. On a shorter path, batching is better."""

FULL_PATH = 0.95
"""Utilisation of the bottleneck by one request fewer, from which that one is surplus."""

QUEUED_SHARE = 0.1
"""Share of a request's duration, from which the work of the other requests in flight may have delayed it."""

CROWD = 4.0
"""Events per round trip and request in flight, above which events linger."""

RECENT_S = 10.0
"""Seconds for which the fastest request and the cheapest event are remembered."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """A finished request.

    Attributes
    ----------
    events : int
        Number of its events.
    took_s : float
        Time from its first attempt to its end, in seconds.
    attempts : int
        Number of attempts; 1 without retries.
    acknowledged : bool
        Whether the service acknowledged it.
    backlog_events : int
        Events that are waiting at its end.
    in_flight_events : int
        Events of the other requests that are in flight at its end.
    """

    events: int
    took_s: float
    attempts: int = 1
    acknowledged: bool = True
    backlog_events: int = 0
    in_flight_events: int = 0


@dataclass(frozen=True, slots=True)
class RequestSetting:
    """Current settings: maximum events per request, linger in seconds, maximum requests in flight."""

    most_events: int
    linger_s: float
    most_requests: int


@dataclass(frozen=True, slots=True)
class RequestEstimates:
    """Estimates from finished requests; None before the first.

    Attributes
    ----------
    fixed_s, each_s : float or None
        A request of n events takes ``fixed_s + n * each_s`` seconds.
    load_per_s : float or None
        Published events per second.
    capacity_per_s : float or None
        Events per second that requests of the current size can carry.
    throttle : float
        Factor (0 to 1) by which refusals have reduced the batch size; 1 without refusals.
    """

    fixed_s: float | None = None
    each_s: float | None = None
    load_per_s: float | None = None
    capacity_per_s: float | None = None
    throttle: float = 1.0


@dataclass(frozen=True, slots=True)
class RequestKnobs:
    """The settings of `RequestTuner`.

    Attributes
    ----------
    latency_bound_s : float or None
        Target for the time from publish to acknowledgement, in seconds; None: as short as possible. Higher:
        fewer requests.
    least_events, most_events : int
        Bounds of a full request's size, without refusals and without a bound on latency. The maximum is the
        service's limit; it applies until estimates exist, and matters only with a backlog, where it is the
        fastest. On a short path, fewer than ``least_events`` waiting events need no second request.
    most_requests : int
        Maximum requests in flight. Higher: more throughput on a long path.
    fixed_share : float
        Share of the fixed time in a request of full size. Higher: smaller requests, less throughput.
    slow_request : float
        A request that takes more than this multiple of the expected time counts as a refusal, if it took at
        least ``least_slow_s``.
    least_slow_s : float
        Seconds below which no request counts as slow: a busy machine may pause for as long.
    most_linger_s : float
        Maximum linger of a batch, in seconds, whatever the bound on latency.
    fit_gain, gain : float
        Weight of earlier samples in the estimates of a request's cost, and of the load.
    """

    latency_bound_s: float | None = None
    least_events: int = 1000
    most_events: int = 10_000
    most_requests: int = 1
    fixed_share: float = 0.05
    slow_request: float = 8.0
    least_slow_s: float = 0.25
    most_linger_s: float = 1.0
    fit_gain: float = 0.9
    gain: float = 0.75

    def __post_init__(self) -> None:
        if self.latency_bound_s is not None and self.latency_bound_s <= 0:
            raise ValueError("latency_bound_s must be over 0")
        if not 1 <= self.least_events <= self.most_events or self.most_requests < 1:
            raise ValueError("1 <= least_events <= most_events and most_requests >= 1 must hold")
        if not 0 < self.fixed_share < 1 or self.slow_request <= 1:
            raise ValueError("0 < fixed_share < 1 and slow_request > 1 must hold")


class RequestCost:
    """A linear fit of (events, seconds), by least squares with exponentially weighted samples.

    While all requests have one size, the slope cannot be estimated and the last one is kept. Times are noisy,
    so the slope is bounded by the minimum time per event among recent requests.
    """

    def __init__(self, gain: float) -> None:
        self._gain = gain
        self._least_each = RecentExtreme(RECENT_S)
        self._events = self._seconds = 0.0
        self._variance = self._covariance = 0.0
        self._count = 0
        self.each_s = 0.0

    def add(self, events: int, seconds: float, now_s: float, *, has_queued: bool = False) -> None:
        """Add the duration of a request with ``events`` events.

        A request that has queued behind others (``has_queued``) only bounds the time per event.
        """
        least_each_s = self._least_each.add(seconds / events, now_s)
        if has_queued and self._count:
            self.each_s = min(self.each_s, least_each_s)
            return
        self._count += 1
        weight = max(1 - self._gain, 1 / self._count)
        off_events, off_seconds = events - self._events, seconds - self._seconds
        self._events += weight * off_events
        self._seconds += weight * off_seconds
        self._variance = (1 - weight) * (self._variance + weight * off_events * off_events)
        self._covariance = (1 - weight) * (self._covariance + weight * off_events * off_seconds)
        if self._variance > (0.1 * self._events) ** 2:
            self.each_s = self._covariance / self._variance
        most_s = min(least_each_s, self._seconds / self._events)
        self.each_s = min(max(self.each_s, 0.0), most_s)

    @property
    def fixed_s(self) -> float:
        """Seconds that a request takes in addition to its events."""
        return max(0.0, self._seconds - self.each_s * self._events)

    def expect(self, events: int) -> float | None:
        """Return the expected duration of a request with ``events`` events; None before the first."""
        return self.fixed_s + self.each_s * events if self._count else None


class RequestTuner:
    """Adapts request size, linger and requests in flight to finished requests; a machine without I/O."""

    LEAST_THROTTLE = 1 / 64
    """Minimum factor by which refusals reduce the batch size."""

    def __init__(self, knobs: RequestKnobs | None = None) -> None:
        self.knobs = knobs if knobs is not None else RequestKnobs()
        self._cost = RequestCost(self.knobs.fit_gain)
        self._least_fixed = RecentExtreme(RECENT_S)
        self._load = MovingAverage(self.knobs.gain)
        self._took = MovingAverage(self.knobs.gain)
        self._throttle = 1.0
        self._requests = 1
        self._is_ramping = True
        self._adjusted_s = float("-inf")
        self._ended_s: float | None = None
        self._troubled_s = float("-inf")
        self._backlog_events = 0
        self._unanswered_events = 0
        self.setting = RequestSetting(self.knobs.most_events, 0.0, 1)

    def observe(self, outcome: RequestOutcome, now_s: float) -> RequestSetting:
        """Update the estimates with a request that ended at ``now_s``; return the new settings."""
        self._measure_load(outcome, now_s)
        if now_s - outcome.took_s + TIME_GRAIN_S >= self._troubled_s:
            self._learn(outcome, now_s)
        self.setting = RequestSetting(self._choose_events(), self._choose_linger_s(), self._requests)
        return self.setting

    def _learn(self, outcome: RequestOutcome, now_s: float) -> None:
        expected_s = self._cost.expect(outcome.events)
        slow_s = max(self.knobs.slow_request * (expected_s or outcome.took_s), self.knobs.least_slow_s)
        self._took.add(outcome.took_s)
        if outcome.attempts > 1 or not outcome.acknowledged or outcome.took_s > slow_s:
            self._throttle = max(self._throttle / 2, self.LEAST_THROTTLE)
            self._troubled_s = now_s
            self._set_requests(self._requests // 2, now_s)
        else:
            self._throttle = min(1.0, self._throttle * 1.5)
        if outcome.attempts == 1 and outcome.acknowledged:
            others_s = self._cost.each_s * outcome.in_flight_events
            has_queued = others_s > QUEUED_SHARE * outcome.took_s
            self._cost.add(outcome.events, outcome.took_s, now_s, has_queued=has_queued)
            self._least_fixed.add(max(0.0, outcome.took_s - self._cost.each_s * outcome.events), now_s)
            self._adjust_requests(outcome, now_s)

    def estimates(self) -> RequestEstimates:
        """Return the current estimates."""
        took_s = self._cost.expect(self.setting.most_events)
        if took_s is None:
            return RequestEstimates(load_per_s=self._load.value, throttle=self._throttle)
        capacity_per_s = self.setting.most_events * self.setting.most_requests / took_s if took_s else None
        fixed_s, each_s = self._cost.fixed_s, self._cost.each_s
        return RequestEstimates(fixed_s, each_s, self._load.value, capacity_per_s, self._throttle)

    def _measure_load(self, outcome: RequestOutcome, now_s: float) -> None:
        """Add a sample of the load: events sent since the last request's end, plus the backlog's growth."""
        if self._ended_s is not None and now_s > self._ended_s:
            arrived = outcome.events + outcome.backlog_events - self._backlog_events
            self._load.add(max(0.0, arrived / (now_s - self._ended_s)))
        self._ended_s = now_s
        self._backlog_events = outcome.backlog_events
        self._unanswered_events = outcome.backlog_events + outcome.in_flight_events

    def _adjust_requests(self, outcome: RequestOutcome, now_s: float) -> None:
        """Adjust the number of requests in flight, as TCP Vegas does, by how many of them queue.

        Queueing shows as time above the least that a request needs. The bottleneck works on one request for
        at most the time of its events, and for at most the interval of the answers (Little's law).
        """
        requests, took_s, backlog = self._requests, outcome.took_s, outcome.backlog_events
        path_s, work_s = self._least_fixed.value or 0.0, self._cost.each_s * outcome.events
        least_s = path_s + work_s
        queueing = requests * (1 - least_s / took_s) if took_s > 0 else 0.0
        bottleneck_s = min(work_s, took_s / requests)
        is_surplus = requests > 1 and (requests - 1) * bottleneck_s >= FULL_PATH * least_s
        is_long = path_s >= LONG_PATH_S
        is_idle = not is_long and backlog + outcome.in_flight_events < self.knobs.least_events
        is_waiting = backlog >= (1 if is_long else self.knobs.least_events)
        is_fresh = now_s - took_s + TIME_GRAIN_S >= self._adjusted_s
        if queueing > 2 or is_surplus or is_idle:
            self._is_ramping = False
            if is_fresh:
                self._set_requests(requests - 1, now_s)
        elif queueing < 1 and is_waiting and (is_fresh or self._is_ramping):
            self._set_requests(requests + 1, now_s)

    def _set_requests(self, wanted: int, now_s: float) -> None:
        requests = min(max(1, wanted), self.knobs.most_requests)
        if requests != self._requests:
            self._requests, self._adjusted_s = requests, now_s

    def _choose_events(self) -> int:
        knobs, cost = self.knobs, self._cost
        if not cost.expect(1) or cost.each_s <= 0:
            wanted = float(knobs.most_events)
        else:
            cheap = (1 / knobs.fixed_share - 1) * cost.fixed_s / cost.each_s
            wanted = max(cheap, knobs.least_events)  # Times are noisy, and smaller requests gain little.
            if knobs.latency_bound_s is not None:
                within_bound = (knobs.latency_bound_s / 2 - cost.fixed_s) / cost.each_s
                wanted = min(wanted, max(within_bound, self._events_to_keep_up()))
        most = int(min(wanted, knobs.most_events) * self._throttle)
        if self._requests > 1:
            share = ceil(self._unanswered_events / self._requests)
            most = min(most, max(share, knobs.least_events))
        return max(1, most)

    def _events_to_keep_up(self) -> float:
        """Return 1.25 times the least n with n / (fixed + each * n) = load; infinity if there is none."""
        load_per_s = (self._load.value or 0.0) / self._requests
        spare = 1 - load_per_s * self._cost.each_s
        return 1.25 * load_per_s * self._cost.fixed_s / spare if spare > 0 else float("inf")

    def _choose_linger_s(self) -> float:
        took_s = self._took.value or 0.0
        linger_s = (1 - self._throttle) * took_s
        path_s = self._least_fixed.value or 0.0
        if self._requests > 1 and (self._load.value or 0.0) * path_s > CROWD * self._requests:
            # Answers that arrive together would start the next requests together: one with all events, the
            # others with one each. Spaced evenly over a round trip, all carry the same number.
            linger_s = max(linger_s, path_s / self._requests)
        if self.knobs.latency_bound_s is not None:
            # An event may wait for the previous request; the rest of the bound is used for linger.
            linger_s = max(linger_s, self.knobs.latency_bound_s - 2 * took_s)
        return min(linger_s, self.knobs.most_linger_s)
