"""The policy behind ``batch="auto"``: adapt batching to the measured durations of requests.

`RequestTuner` decides; this module passes it the reports of finished requests, and shows its decisions in
`PublisherStats` and in the log at debug level.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from fieldfare.client.batching import BatchReport, BatchSettings
from fieldfare.publishing.requests import (
    RequestEstimates,
    RequestKnobs,
    RequestOutcome,
    RequestSetting,
    RequestTuner,
)

logger = logging.getLogger("fieldfare.client")

BATCH_BYTES_MAX = 4 << 20
"""Maximum bytes of events in one request: half of the service's default limit. Large requests matter where
the round trip is long, and one may carry 10,000 events."""

IN_FLIGHT_MAX = 5
"""Default maximum of requests in flight."""

TOLD_CHANGE = 1.25
"""The factor by which the batch size must change before the log mentions it again."""


class AutoBatching:
    """Adapts batch size, linger and requests in flight to the load, the service and the network.

    Each publisher needs its own instance.

    Parameters
    ----------
    latency_bound_ms : float, optional
        Target for the time from publish to durable, in milliseconds. Without it latency is as low as
        possible; with it the slack is used for fewer, larger requests. It is a goal and not a guarantee: a
        network or a service may be slower than that, and a load that can only be carried in larger batches
        gets them.
    max_in_flight : int, optional
        Maximum requests in flight, by default 5. More than one is used only while it helps: with a backlog,
        and while requests do not queue at the service. Order is kept (see `BatchSettings.max_in_flight`).
    knobs : RequestKnobs, optional
        All settings of the tuner; the two parameters above, if given, replace its values.
    """

    def __init__(
        self,
        latency_bound_ms: float | None = None,
        max_in_flight: int | None = None,
        knobs: RequestKnobs | None = None,
    ) -> None:
        knobs = knobs if knobs is not None else RequestKnobs(most_requests=IN_FLIGHT_MAX)
        if latency_bound_ms is not None:
            knobs = replace(knobs, latency_bound_s=latency_bound_ms / 1000)
        if max_in_flight is not None:
            knobs = replace(knobs, most_requests=max_in_flight)
        self._tuner = RequestTuner(knobs)
        self._limits = _make_limits(self._tuner.setting)
        self._told = self._limits

    def limits(self) -> BatchSettings:
        """Return the current limits."""
        return self._limits

    def observe(self, report: BatchReport) -> None:
        """Learn from a finished request."""
        outcome = RequestOutcome(
            events=report.events,
            took_s=report.took_s,
            attempts=report.attempts,
            acknowledged=report.acknowledged,
            backlog_events=report.backlog_events,
            in_flight_events=report.in_flight_events - report.events,
        )
        setting = self._tuner.observe(outcome, report.ended_s)
        self._limits = _make_limits(setting)
        if logger.isEnabledFor(logging.DEBUG):
            self._tell(report)

    def estimates(self) -> RequestEstimates:
        """Return the current estimates of durations, load and capacity."""
        return self._tuner.estimates()

    def _tell(self, report: BatchReport) -> None:
        now, before = self._limits, self._told
        change = now.max_events / before.max_events
        if 1 / TOLD_CHANGE < change < TOLD_CHANGE and now.max_in_flight == before.max_in_flight:
            return
        self._told = now
        found = self._tuner.estimates()
        logger.debug(
            "batches of at most %d events, linger %.1f ms, %d in flight: "
            "a request takes %.1f ms and %.4f ms an event, load %.0f events/s, throttle %.2f; "
            "the last one had %d events in %.1f ms (%d attempts), %d wait",
            now.max_events,
            now.linger_ms,
            now.max_in_flight,
            1000 * (found.fixed_s or 0.0),
            1000 * (found.each_s or 0.0),
            found.load_per_s or 0.0,
            found.throttle,
            report.events,
            1000 * report.took_s,
            report.attempts,
            report.backlog_events,
        )


def _make_limits(setting: RequestSetting) -> BatchSettings:
    return BatchSettings(
        max_events=setting.most_events,
        max_bytes=BATCH_BYTES_MAX,
        linger_ms=1000 * setting.linger_s,
        max_in_flight=setting.most_requests,
    )
