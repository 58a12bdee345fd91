"""Publishers' counters and batching limits as Prometheus metrics; needs the package prometheus-client.

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
    "failed_events": "Events that were refused, or not acknowledged before the deadline.",
    "dropped_events": "Events that were dropped because the queue was full.",
    "requests": "Requests, including retries.",
    "repeated_requests": "Retries of requests.",
}

GAUGES = {
    "queued_events": "Events waiting to be sent.",
    "in_flight_events": "Events in requests in flight.",
    "batch_events": "Current maximum of events per request.",
    "linger_seconds": "Current maximum time that an event waits for others.",
    "requests_at_once": "Current maximum of requests in flight.",
    "throttle": "Factor (0 to 1) by which refusals have reduced the batch size; 1 without refusals.",
    "request_fixed_seconds": "Estimated duration of a request, apart from its events.",
    "request_event_seconds": "Estimated duration that each event adds to a request.",
    "load_events_per_second": "Measured rate of published events.",
    "capacity_events_per_second": "Estimated rate of events that requests of the current size can carry.",
    "in_trouble": "1 if the last attempt failed, else 0.",
    "outbox_waiting_events": "Events in the outbox that are not acknowledged.",
    "outbox_waiting_bytes": "Bytes of these events.",
    "outbox_refused_events": "Events in the outbox that the service has refused.",
}


class PublisherCollector(Collector):
    """A Prometheus collector that reads the counters of publishers at each scrape.

    Parameters
    ----------
    publishers : mapping of str to Publisher or AsyncPublisher
        The publishers; the keys are the values of the label ``publisher``.
    """

    def __init__(self, publishers: Mapping[str, Publisher | AsyncPublisher]) -> None:
        self._publishers = publishers

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics; unknown values have no sample."""
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
