"""Metrics of the requests to a gateway or a relay."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RequestMetrics:
    """The metrics of requests, in a collection that others are added to."""

    def __init__(self) -> None:
        self.collection = registry = CollectorRegistry()
        self.overloaded = Counter(
            "fieldfare_overload_answers", "Requests answered with 429.", ["why"], registry=registry
        )
        self.request_time = Histogram(
            "fieldfare_request_seconds",
            "Duration of HTTP requests, without streams and waiting pulls.",
            ["route", "status"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )


class RequestTimer:
    """A timer of one request, for `RequestMetrics.request_time`."""

    def __init__(self, metrics: RequestMetrics) -> None:
        self._metrics = metrics
        self._start_s = time.perf_counter()

    def stop(self, route: str, status: Any) -> None:
        self._metrics.request_time.labels(route, status).observe(time.perf_counter() - self._start_s)
