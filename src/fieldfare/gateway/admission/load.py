"""When clients must wait: the pipeline is behind, the disk is full, a queue is long."""

from __future__ import annotations

from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.settings import GatewaySettings


class Load:
    """How busy the service is, as last observed; `Background` keeps the figures.

    Parameters
    ----------
    settings
        From where on clients must wait, and how long.
    metrics
        Counts those who are told so.
    """

    def __init__(self, settings: GatewaySettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self.lag_events = 0
        self.disk_free_bytes = 0

    def check(self) -> None:
        """Problem 429 when publishers must wait for the pipeline or for disk."""
        settings = self._settings
        if self.lag_events > settings.lag_max_events:
            # How many would tell one space of the others.
            raise self.overloaded("lag", f"More than {settings.lag_max_events} events wait to be matched.")
        if self.disk_free_bytes < settings.disk_free_min_bytes:
            raise self.overloaded("disk", "The disk is almost full.")

    def overloaded(self, why: str, detail: str) -> HttpProblem:
        """The problem that asks a client to come back later."""
        self._metrics.overloaded.labels(why).inc()
        headers = {"Retry-After": str(self._settings.retry_after_s)}
        return HttpProblem(429, "overloaded", detail, headers=headers, why=why)
