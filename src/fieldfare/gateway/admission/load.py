"""Overload: clients must wait when the pipeline is behind, the disk is full or a queue is long."""

from __future__ import annotations

from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.request_metrics import RequestMetrics
from fieldfare.gateway.settings import GatewaySettings


class Load:
    """The service's load as last observed; `Background` updates the figures.

    Parameters
    ----------
    settings
        The thresholds, and the time to wait.
    metrics
        Count the refused requests.
    """

    def __init__(self, settings: GatewaySettings, metrics: RequestMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self.lag_events = 0
        self.disk_free_bytes = 0

    def check(self) -> None:
        """Raise Problem 429 if publishers must wait for the pipeline or for disk space."""
        settings = self._settings
        if self.lag_events > settings.lag_max_events:
            # The exact number would tell one space about the others.
            raise self.overloaded("lag", f"More than {settings.lag_max_events} events wait to be matched.")
        if self.disk_free_bytes < settings.disk_free_min_bytes:
            raise self.overloaded(
                "disk",
                f"The disk is almost full: less than {settings.disk_free_min_bytes >> 20} MiB are free "
                "(FIELDFARE_DISK_FREE_MIN_BYTES).",
            )

    def overloaded(self, why: str, detail: str) -> HttpProblem:
        """Create the Problem 429 that asks a client to retry later, and count it."""
        self._metrics.overloaded.labels(why).inc()
        headers = {"Retry-After": str(self._settings.retry_after_s)}
        return HttpProblem(429, "overloaded", detail, headers=headers, why=why)
