"""How large a request should be, and how many may be under way, for a publisher that sends batches over HTTP.

The same thinking as in `windowed`, for requests that carry many events. A request of n events takes about
``fixed + each * n`` seconds; both are learned from requests of different sizes.

* While a request is under way the next batch gathers by itself, so nothing waits for company: a lonely event
  goes at once, and batches grow with the load.
* Only with a backlog does the size matter. Events come in order, so cutting a backlog up brings its first
  events there sooner; a batch so large that its fixed time is a twentieth of it loses 5 % of the throughput
  and no more: n = 19 * fixed / each.
* A bound on latency, where the user gives one: an event may have to wait for the request before its own, so
  each may take half the bound. What then remains is spent on waiting for company, that is on fewer requests.
  When the load needs larger batches to be carried at all (Little's law), they win over the bound.
* A service that refuses (429, 5xx, no connection) or is suddenly much slower than its own average gets less:
  batches of half the size, and pauses in between, until requests pass again. Nothing is lost: events wait.
* Several requests may be under way. One at a time wastes what is fixed: a twentieth while requests are as
  large as is wanted; more where they may not be, on a long path. So there is one more while events wait,
  those under way do not fill the path, and less than one request's worth queues at the service; one less when
  more than two do (TCP Vegas), or when fewer would fill the path as well. What one of them takes is timed
  from its own beginning: while all go well their answers come one behind the other, a round trip after each
  was sent. When one meets trouble, those behind it wait for it and are as slow: of all that were under way
  then only the first counts as a refusal, and none is learned from, or one lost packet would be taken for
  five.
"""

from __future__ import annotations

from dataclasses import dataclass

from fieldfare.publishing.estimators import MovingAverage, RecentExtreme

TIME_GRAIN_S = 1e-6
"""A request that begins when another ends may seem to begin so much earlier."""

LONG_PATH_S = 0.010
"""A request that takes so long however few its events are is worth another one beside it as soon as any event
waits: what it costs both ends is far less. On a shorter path events had better travel together."""

FULL_PATH = 0.75
"""So busy with what is under way that one more would win little."""

CROWD = 4.0
"""With so many events in a round trip for each request under way, one waits for others."""

RECENT_S = 10.0
"""For how long the quickest request, and the cheapest event, are remembered."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """A finished request.

    Attributes
    ----------
    events : int
        Events in it.
    took_s : float
        From its first attempt to its end, seconds.
    attempts : int
        1, unless it had to be repeated.
    acknowledged : bool
        Whether the service took it in the end.
    backlog_events : int
        Events that wait now.
    """

    events: int
    took_s: float
    attempts: int = 1
    acknowledged: bool = True
    backlog_events: int = 0


@dataclass(frozen=True, slots=True)
class RequestSetting:
    """What holds now: the most events of a request, how long a batch may gather, requests under way."""

    most_events: int
    linger_s: float
    most_requests: int


@dataclass(frozen=True, slots=True)
class RequestEstimates:
    """What has been learned; None before the first request.

    Attributes
    ----------
    fixed_s, each_s : float or None
        A request of n events takes ``fixed_s + n * each_s`` seconds.
    load_per_s : float or None
        Events that are published per second.
    capacity_per_s : float or None
        Events per second that requests of the present size can carry.
    throttle : float
        1 in calm; the share of the batch size that is left after refusals.
    """

    fixed_s: float | None = None
    each_s: float | None = None
    load_per_s: float | None = None
    capacity_per_s: float | None = None
    throttle: float = 1.0


@dataclass(frozen=True, slots=True)
class RequestKnobs:
    """What can be set.

    Attributes
    ----------
    latency_bound_s : float or None
        How old an event may become until it is acknowledged, seconds; None: as young as can be. Higher: fewer
        requests.
    least_events, most_events : int
        Bounds of a full request in calm and without a bound on latency. The maximum is what the service
        takes, and holds until something is known: it matters only when there is a backlog, and then it is the
        quickest.
    most_requests : int
        Requests under way at most. Higher: more throughput on a long path.
    fixed_share : float
        Share of the fixed time in a request of full size. Higher: smaller requests, less throughput.
    slow_request : float
        A request so many times slower than expected is taken for a refusal, if it took ``least_slow_s`` at
        least.
    least_slow_s : float
        Seconds below which no request counts as slow: pauses of a busy machine are as long.
    most_linger_s : float
        No batch waits longer than that for company, whatever the bound.
    fit_gain, gain : float
        Weight of the past in the cost of a request, and in the load.
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
    """A straight line through (events, seconds), by least squares with exponentially forgotten samples.

    While all requests are of one size the slope cannot be seen; then the last known one is kept. Times are
    noisy, so no slope is believed that is over the least time for each event of a recent request.
    """

    def __init__(self, gain: float) -> None:
        self._gain = gain
        self._least_each = RecentExtreme(RECENT_S)
        self._events = self._seconds = 0.0
        self._variance = self._covariance = 0.0
        self._count = 0
        self.each_s = 0.0

    def add(self, events: int, seconds: float, now_s: float) -> None:
        """Take in what a request of so many events took."""
        self._count += 1
        weight = max(1 - self._gain, 1 / self._count)
        off_events, off_seconds = events - self._events, seconds - self._seconds
        self._events += weight * off_events
        self._seconds += weight * off_seconds
        self._variance = (1 - weight) * (self._variance + weight * off_events * off_events)
        self._covariance = (1 - weight) * (self._covariance + weight * off_events * off_seconds)
        if self._variance > (0.1 * self._events) ** 2:
            self.each_s = self._covariance / self._variance
        most_s = min(self._least_each.add(seconds / events, now_s), self._seconds / self._events)
        self.each_s = min(max(self.each_s, 0.0), most_s)

    @property
    def fixed_s(self) -> float:
        """Seconds that a request takes however few events it carries."""
        return max(0.0, self._seconds - self.each_s * self._events)

    def expect(self, events: int) -> float | None:
        """Seconds that a request of so many events should take; None before the first."""
        return self.fixed_s + self.each_s * events if self._count else None


class RequestTuner:
    """Learns from finished requests; a machine without I/O."""

    LEAST_THROTTLE = 1 / 64
    """Batches do not become smaller than this share."""

    def __init__(self, knobs: RequestKnobs | None = None) -> None:
        self.knobs = knobs if knobs is not None else RequestKnobs()
        self._cost = RequestCost(self.knobs.fit_gain)
        self._least_fixed = RecentExtreme(RECENT_S)
        self._load = MovingAverage(self.knobs.gain)
        self._took = MovingAverage(self.knobs.gain)
        self._throttle = 1.0
        self._requests = 1
        self._ended_s: float | None = None
        self._troubled_s = float("-inf")
        self._backlog_events = 0
        self.setting = RequestSetting(self.knobs.most_events, 0.0, 1)

    def observe(self, outcome: RequestOutcome, now_s: float) -> RequestSetting:
        """Learn from a request that ended at ``now_s``; the setting from now on."""
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
            self._requests = max(1, self._requests // 2)
        else:
            self._throttle = min(1.0, self._throttle * 1.5)
        if outcome.attempts == 1 and outcome.acknowledged:
            self._cost.add(outcome.events, outcome.took_s, now_s)
            self._least_fixed.add(max(0.0, outcome.took_s - self._cost.each_s * outcome.events), now_s)
            self._adjust_requests(outcome)

    def estimates(self) -> RequestEstimates:
        """What has been learned so far."""
        took_s = self._cost.expect(self.setting.most_events)
        if took_s is None:
            return RequestEstimates(load_per_s=self._load.value, throttle=self._throttle)
        capacity_per_s = self.setting.most_events * self.setting.most_requests / took_s if took_s else None
        fixed_s, each_s = self._cost.fixed_s, self._cost.each_s
        return RequestEstimates(fixed_s, each_s, self._load.value, capacity_per_s, self._throttle)

    def _measure_load(self, outcome: RequestOutcome, now_s: float) -> None:
        """Events that came since the last request ended: those sent, and what the backlog grew by."""
        if self._ended_s is not None and now_s > self._ended_s:
            arrived = outcome.events + outcome.backlog_events - self._backlog_events
            self._load.add(max(0.0, arrived / (now_s - self._ended_s)))
        self._ended_s = now_s
        self._backlog_events = outcome.backlog_events

    def _adjust_requests(self, outcome: RequestOutcome) -> None:
        """TCP Vegas: how many of the requests under way are queueing at the service? And are they enough?

        Of a request's time its events keep somebody busy, the rest is the path's, in which others may be
        under way: as many as keep somebody busy all the time.
        """
        least_s = (self._least_fixed.value or 0.0) + self._cost.each_s * outcome.events
        queueing = self._requests * (1 - least_s / outcome.took_s) if outcome.took_s > 0 else 0.0
        path_s = self._least_fixed.value or 0.0
        busy = (least_s - path_s) / least_s if least_s > 0 else 0.0
        is_long = path_s >= LONG_PATH_S
        waiting = outcome.backlog_events >= (1 if is_long else self.setting.most_events)
        is_too_much = queueing > 2 or (self._requests - 1) * busy >= FULL_PATH
        if is_too_much or not (is_long or waiting):
            self._requests = max(1, self._requests - 1)
        elif queueing < 1 and self._requests * busy < FULL_PATH and waiting:
            self._requests = min(self.knobs.most_requests, self._requests + 1)

    def _choose_events(self) -> int:
        knobs, cost = self.knobs, self._cost
        if not cost.expect(1) or cost.each_s <= 0:
            wanted = float(knobs.most_events)
        else:
            cheap = (1 / knobs.fixed_share - 1) * cost.fixed_s / cost.each_s
            wanted = max(cheap, knobs.least_events)  # Times are noisy, and below that there is little to win.
            if knobs.latency_bound_s is not None:
                within_bound = (knobs.latency_bound_s / 2 - cost.fixed_s) / cost.each_s
                wanted = min(wanted, max(within_bound, self._events_to_keep_up()))
        return max(1, int(min(wanted, knobs.most_events) * self._throttle))

    def _events_to_keep_up(self) -> float:
        """A quarter more than the least n with n / (fixed + each n) = load; without limit when
        there is none."""
        load_per_s = (self._load.value or 0.0) / self._requests
        spare = 1 - load_per_s * self._cost.each_s
        return 1.25 * load_per_s * self._cost.fixed_s / spare if spare > 0 else float("inf")

    def _choose_linger_s(self) -> float:
        took_s = self._took.value or 0.0
        linger_s = (1 - self._throttle) * took_s
        path_s = self._least_fixed.value or 0.0
        if self._requests > 1 and (self._load.value or 0.0) * path_s > CROWD * self._requests:
            # Their answers come together, and the next ones would leave together: one with all, some with one
            # event. Spaced evenly over a round trip they carry as many each.
            linger_s = max(linger_s, path_s / self._requests)
        if self.knobs.latency_bound_s is not None:
            # An event may wait for the request before it; the rest of the bound is for company.
            linger_s = max(linger_s, self.knobs.latency_bound_s - 2 * took_s)
        return min(linger_s, self.knobs.most_linger_s)
