"""What publishers do and decide, as metrics for Prometheus; needs the package prometheus-client.

from prometheus_client import REGISTRY
from fieldfare.client.metrics import PublisherCollector

REGISTRY.register(PublisherCollector({"orders": publisher}))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from fieldfare.client.asynchronous.publisher import AsyncPublisher
from fieldfare.client.dispatch import PublisherStats
from fieldfare.client.synchronous.publisher import Publisher

PREFIX = "fieldfare_publisher"

COUNTERS = {
    "acknowledged_events": "Events that are durable in the service's log.",
    "failed_events": "Events that were refused or given up.",
    "dropped_events": "Events that found the queue full, and were to be dropped then.",
    "requests": "Requests, repeated ones with them.",
    "repeated_requests": "Requests that were repeated.",
}

GAUGES = {
    "queued_events": "Events that wait for a request.",
    "in_flight_events": "Events in requests under way.",
    "batch_events": "The most events of a request, as decided now.",
    "linger_seconds": "How long an event may wait for company, as decided now.",
    "requests_at_once": "Requests that may be under way, as decided now.",
    "throttle": "The share of the batch size that refusals have left; 1 in calm.",
    "request_fixed_seconds": "What a request takes however few events it carries, as learned.",
    "request_event_seconds": "What each event adds to that, as learned.",
    "load_events_per_second": "Events that are published per second, as measured.",
    "capacity_events_per_second": "Events per second that requests of the present size carry, as estimated.",
    "in_trouble": "1 while the last attempt failed.",
    "outbox_waiting_events": "Events on disk.",
    "outbox_waiting_bytes": "Bytes of events on disk.",
    "outbox_refused_events": "Events on disk that the service will not take.",
}


class PublisherCollector(Collector):
    """Reads the figures of publishers at each scrape.

    Parameters
    ----------
    publishers : mapping of str to Publisher or AsyncPublisher
        Each with the value of its label ``publisher``.
    """

    def __init__(self, publishers: Mapping[str, Publisher | AsyncPublisher]) -> None:
        self._publishers = publishers

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now; a figure that is not known has no sample."""
        figures = {name: _read(publisher.stats()) for name, publisher in self._publishers.items()}
        families: list[Metric] = []
        for what, help in COUNTERS.items():
            counter = CounterMetricFamily(f"{PREFIX}_{what}", help, labels=["publisher"])
            _fill(counter, what, figures)
            families.append(counter)
        for what, help in GAUGES.items():
            gauge = GaugeMetricFamily(f"{PREFIX}_{what}", help, labels=["publisher"])
            _fill(gauge, what, figures)
            families.append(gauge)
        return families


def _fill(
    family: CounterMetricFamily | GaugeMetricFamily,
    what: str,
    figures: Mapping[str, Mapping[str, float | None]],
) -> None:
    for name, values in figures.items():
        value = values[what]
        if value is not None:
            family.add_metric([name], value)


def _read(stats: PublisherStats) -> dict[str, float | None]:
    found, outbox = stats.estimates, stats.outbox
    return {
        "acknowledged_events": stats.acknowledged_events,
        "failed_events": stats.failed_events,
        "dropped_events": stats.dropped_events,
        "requests": stats.requests,
        "repeated_requests": stats.repeated_requests,
        "queued_events": stats.queued_events,
        "in_flight_events": stats.in_flight_events,
        "batch_events": stats.limits.max_events,
        "linger_seconds": stats.limits.linger_ms / 1000,
        "requests_at_once": stats.limits.max_in_flight,
        "throttle": found.throttle if found else None,
        "request_fixed_seconds": found.fixed_s if found else None,
        "request_event_seconds": found.each_s if found else None,
        "load_events_per_second": found.load_per_s if found else None,
        "capacity_events_per_second": found.capacity_per_s if found else None,
        "in_trouble": float(stats.trouble is not None),
        "outbox_waiting_events": outbox.waiting_events if outbox else None,
        "outbox_waiting_bytes": outbox.waiting_bytes if outbox else None,
        "outbox_refused_events": outbox.refused_events if outbox else None,
    }
