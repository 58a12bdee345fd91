"""Prometheus metrics, and the short summary that ``fieldfare top`` shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fieldfare.balancing.load import Load, Resource
from fieldfare.balancing.messages import State
from fieldfare.gateway.request_metrics import LATENCY_BUCKETS, RequestMetrics
from fieldfare.model import SpaceBacklog, Subscription, SubscriptionBacklog, space_name
from fieldfare.storage.match_log import GIVEN_UP, MatchBlock

RATE_WINDOW_S = 5.0
LATENCY_WINDOW_S = 60.0
"""Seconds that a block counts for the percentiles; older blocks are dropped, such as those of a slow
start."""

LATENCY_BLOCKS = 512
"""Maximum blocks in the percentiles; beyond it the oldest are dropped."""


class Metrics(RequestMetrics):
    """The metrics of one gateway, counted from its start. Each gateway has its own collection."""

    def __init__(self) -> None:
        super().__init__()
        registry = self.collection
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.events = counter("fieldfare_events", "Events appended to the log.")
        self.records = counter("fieldfare_records", "Records appended to the log.")
        self.duplicates = counter("fieldfare_duplicate_records", "Repeated records that changed nothing.")
        self.refused = counter("fieldfare_refused_events", "Events refused because they were not valid.")
        self.bytes = counter("fieldfare_event_bytes", "Payload bytes appended.")
        self.matched_events = counter("fieldfare_matched_events", "Events matched.")
        self.matches = counter("fieldfare_matches", "Matches found.")
        self.matching_time = counter("fieldfare_matching_seconds", "CPU time of matching.")
        self.given_up = counter(
            "fieldfare_given_up",
            "Evaluations of a filter that were skipped because they exceeded the work limit.",
        )
        self.given_up_by: dict[int, int] = {}
        self.delivered = counter("fieldfare_deliveries", "Messages delivered.")
        self.acked = counter("fieldfare_acks", "Messages acknowledged.")
        self.given_up_messages = counter("fieldfare_given_up_messages", "Messages that became dead letters.")
        self.over = counter("fieldfare_expired_messages", "Messages of expired events, not delivered.")
        self.expired_subscriptions = counter(
            "fieldfare_expired_subscriptions", "Subscriptions removed as unused."
        )
        self.spans, self.push = SpanMetrics(registry), PushMetrics(registry)
        self.lag = gauge("fieldfare_lag_events", "Events appended and not matched yet.")
        self.subscriptions = gauge("fieldfare_subscriptions", "Subscriptions.")
        self.connected = gauge("fieldfare_connected_streams", "Open streams.")
        self.delayed = gauge("fieldfare_delayed_records", "Delayed records.")
        self.queued_bytes = gauge(
            "fieldfare_append_queue_bytes", "Bytes of events waiting for the log's disk."
        )
        self.set_aside = gauge("fieldfare_set_aside_blocks", "Corrupt blocks of the match log, set aside.")
        self.state = StateMetrics(registry)
        self.backlogs = BacklogMetrics(registry)
        self.balancing = BalancingMetrics(registry)
        notes = "Corruption notes: damaged files and unusable rows."
        self.corruption = gauge("fieldfare_corruption_notes", notes)
        self.match_latency = Histogram(
            "fieldfare_match_latency_seconds",
            "Time from append to match, observed once per block of the match log.",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.events_total = 0
        self.matches_total = 0
        self.delivered_total = 0
        self._samples: deque[tuple[float, int, int]] = deque()
        self._now_s = 0.0
        self._latencies: deque[tuple[float, float, int]] = deque(maxlen=LATENCY_BLOCKS)
        """Time in seconds when a block was seen, its latency in milliseconds, its number of events."""

    def appended(self, events: int, size_bytes: int) -> None:
        """Count an appended record."""
        self.events_total += events
        self.events.inc(events)
        self.records.inc()
        self.bytes.inc(size_bytes)

    def count_delivered(self, messages: int) -> None:
        """Count messages that were delivered to a subscriber."""
        self.delivered_total += messages
        self.delivered.inc(messages)

    def block_seen(self, block: MatchBlock) -> None:
        """Count a new block of the match log."""
        events = int(np.sum(block.counts))
        self.matches_total += block.matches
        self.matches.inc(block.matches)
        self.matched_events.inc(events)
        for name, figure in block.extra.items():
            if name == GIVEN_UP:
                self.given_up.inc(figure)
            elif name.startswith(GIVEN_UP):
                number = int(name.removeprefix(GIVEN_UP))
                self.given_up_by[number] = self.given_up_by.get(number, 0) + int(figure)
        matched_ms, appended_ms = block.extra.get("matched_ms"), block.extra.get("appended_ms")
        if matched_ms is not None and appended_ms is not None:
            latency_ms = max(0.0, float(matched_ms) - float(appended_ms))
            self.match_latency.observe(latency_ms / 1000)
            self._latencies.append((self._now_s, latency_ms, events))

    def sample(self, now_s: float) -> None:
        """Record the counts, for rates, and drop latencies older than `LATENCY_WINDOW_S`."""
        self._now_s = now_s
        while self._latencies and now_s - self._latencies[0][0] > LATENCY_WINDOW_S:
            self._latencies.popleft()
        self._samples.append((now_s, self.events_total, self.matches_total))
        while len(self._samples) > 2 and now_s - self._samples[1][0] >= RATE_WINDOW_S:
            self._samples.popleft()

    def rates(self) -> tuple[float, float]:
        """Return events and matches per second, over about the last `RATE_WINDOW_S` seconds."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        first, last = self._samples[0], self._samples[-1]
        elapsed_s = max(last[0] - first[0], 1e-3)
        return (last[1] - first[1]) / elapsed_s, (last[2] - first[2]) / elapsed_s

    def match_latency_ms(self) -> dict[str, float | None]:
        """Return median and 99th percentile from append to match, over the last minute's blocks, by event."""
        if not self._latencies:
            return {"p50": None, "p99": None}
        latencies, events = map(np.asarray, zip(*sorted(each[1:] for each in self._latencies), strict=True))
        below = np.cumsum(events)
        places = np.searchsorted(below, (0.5 * below[-1], 0.99 * below[-1]))
        p50, p99 = latencies[np.minimum(places, len(latencies) - 1)]
        return {"p50": float(p50), "p99": float(p99)}

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.collection)


class StateMetrics:
    """The state of the service and its disk, updated when the metrics are read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self.ready = gauge(
            "fieldfare_ready",
            "Whether a component is ready (1) or not (0), as /readyz reports it.",
            ["component"],
        )
        self.lag_seconds = gauge("fieldfare_lag_seconds", "Age of the oldest event that is not matched yet.")
        self.log_bytes = gauge("fieldfare_log_bytes", "Bytes of the event log.")
        self.disk_free_bytes = gauge("fieldfare_disk_free_bytes", "Free bytes of the data directory's disk.")
        self.quarantined = gauge(
            "fieldfare_quarantined_records", "Records set aside because matching them failed."
        )
        self.processes = ProcessMetrics(registry)


class ProcessMetrics(Collector):
    """The restarts of the service's processes, as their supervisor counts them; none where it is unknown."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deaths: Mapping[Any, int] = {}
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily(
            "fieldfare_process_restarts",
            "Restarts of a process that died or hung, since the service's start.",
            labels=["process"],
        )
        for process, deaths in self.deaths.items():
            restarts.add_metric([process], deaths)
        yield restarts


class BacklogMetrics(Collector):
    """The greatest backlogs, by space and by subscription, as the last reader of the metrics found them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._spaces: Sequence[SpaceBacklog] = ()
        self._subscriptions: Sequence[tuple[Subscription, SubscriptionBacklog]] = ()
        registry.register(self)

    def replace(
        self,
        spaces: Sequence[SpaceBacklog],
        subscriptions: Sequence[tuple[Subscription, SubscriptionBacklog]],
    ) -> None:
        """Replace the figures; those of spaces and subscriptions that are not named end."""
        self._spaces, self._subscriptions = spaces, subscriptions

    def collect(self) -> Iterator[Metric]:
        for name, help, value in _OF_SPACES:
            gauge = GaugeMetricFamily(f"fieldfare_{name}", help, labels=["space"])
            for each in self._spaces:
                gauge.add_metric([each.space], value(each))
            yield gauge
        of_each = GaugeMetricFamily(
            "fieldfare_subscription_backlog_messages",
            "Pending messages of the subscriptions with the most.",
            labels=["space", "subscription"],
        )
        for subscription, backlog in self._subscriptions:
            of_each.add_metric([space_name(subscription.space), subscription.id], backlog.pending)
        yield of_each


_OF_SPACES: Sequence[tuple[str, str, Callable[[SpaceBacklog], float]]] = (
    ("backlog_messages", "Pending messages of the spaces with the most.", lambda each: each.pending),
    ("backlog_subscriptions", "Subscriptions with pending messages.", lambda each: each.behind),
    ("backlog_in_flight_messages", "Messages delivered and not acked.", lambda each: each.in_flight),
    ("backlog_oldest_seconds", "Age of the oldest pending message.", lambda each: each.oldest_s or 0.0),
    ("dead_letters", "Dead letters.", lambda each: each.dead_letters),
    (
        "stored_bytes",
        "Bytes of events and matches on disk.",
        lambda each: each.stored_event_bytes + each.stored_match_bytes,
    ),
)


class BalancingMetrics:
    """The metrics of balancing load between brokers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._state = gauge(
            "fieldfare_balancing_state",
            "Whether a broker is in a load balancing state (1) or not (0).",
            ["state"],
        )
        self._load = gauge("fieldfare_broker_load", "Utilisation ratios of a broker.", ["ratio"])
        self.sessions = counter(
            "fieldfare_balancing_sessions",
            "Sessions of balancing that have ended, by the role of this broker.",
            ["role"],
        )
        self._moved = counter(
            "fieldfare_moved_subscriptions",
            "Subscriptions that began to come from another broker (in) or to leave for one (out).",
            ["direction"],
        )

    def show_state(self, state: State) -> None:
        """Set the load balancing state."""
        for each in State:
            self._state.labels(each.value).set(each is state)

    def show_load(self, load: Load) -> None:
        """Set the load."""
        for each in Resource:
            self._load.labels(each.value).set(float(load.ratio(each)))

    def count_moved(self, direction: str) -> None:
        """Count a subscription that comes (in) or leaves (out)."""
        self._moved.labels(direction).inc()


class PushMetrics:
    """The metrics of requests to push addresses."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.requests = counter(
            "fieldfare_push_requests", "Requests to push addresses, by outcome.", ["outcome"]
        )
        self.subscriptions = gauge("fieldfare_pushed_subscriptions", "Subscriptions with a push address.")
        self.under_way = gauge("fieldfare_push_requests_under_way", "Open requests to push addresses.")
        self.broken = gauge(
            "fieldfare_broken_push_addresses", "Push addresses whose circuit breaker is open."
        )


class SpanMetrics:
    """The metrics of the export of spans."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.exported = counter(
            "fieldfare_exported_spans", "Spans that the receiver of OpenTelemetry accepted."
        )
        self.dropped = counter(
            "fieldfare_dropped_spans",
            "Spans that were not exported, because too many waited (queue) or the receiver failed (export).",
            ["why"],
        )
        self.untraced = counter(
            "fieldfare_untraced_events",
            "Sampled events without spans, because too many were published in a second.",
        )
