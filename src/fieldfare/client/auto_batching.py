"""The policy behind ``batch="auto"``: a publisher that measures its requests and adapts to them.

`RequestTuner` decides; this gives it the reports of finished requests, and tells the user what it decided: in
`PublisherStats`, and in the log at debug level.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Literal

from fieldfare.client.batching import BatchPolicy, BatchReport, BatchSettings
from fieldfare.publishing.requests import (
    RequestEstimates,
    RequestKnobs,
    RequestOutcome,
    RequestSetting,
    RequestTuner,
)

logger = logging.getLogger("fieldfare.client")

MAX_BATCH_BYTES = 4 << 20
"""Bytes in one request: half of what the service takes unless it is set otherwise. It matters on a long path,
where 10,000 events in one round trip need it."""

MOST_IN_FLIGHT = 5
"""Requests at the same time, unless it is set otherwise."""

TOLD_CHANGE = 1.25
"""The log tells of a batch size that has changed by this factor since it told the last time."""


class AutoBatching:
    """Adapts batch size, linger and requests in flight to load, service and path.

    A publisher needs one of its own.

    Parameters
    ----------
    latency_bound_ms : float, optional
        How old an event may become until it is durable. Without it events are as young as can be; with it the
        slack is spent on fewer, larger requests. It is a goal: a path or a service that is slower than that
        cannot be helped, and a load that needs larger batches to be carried at all gets them.
    max_in_flight : int, optional
        Requests at the same time at most, by default 5; more than one only while it helps: with a backlog,
        and while requests do not queue at the service. Order is kept (see `BatchSettings.max_in_flight`).
    knobs : RequestKnobs, optional
        Everything that can be set; the two above, where they are given, replace its values.
    """

    def __init__(
        self,
        latency_bound_ms: float | None = None,
        max_in_flight: int | None = None,
        knobs: RequestKnobs | None = None,
    ) -> None:
        knobs = knobs if knobs is not None else RequestKnobs(most_requests=MOST_IN_FLIGHT)
        if latency_bound_ms is not None:
            knobs = replace(knobs, latency_bound_s=latency_bound_ms / 1000)
        if max_in_flight is not None:
            knobs = replace(knobs, most_requests=max_in_flight)
        self._tuner = RequestTuner(knobs)
        self._limits = _make_limits(self._tuner.setting)
        self._told = self._limits

    def limits(self) -> BatchSettings:
        """The limits that hold now."""
        return self._limits

    def observe(self, report: BatchReport) -> None:
        """Learn from a finished request."""
        outcome = RequestOutcome(
            events=report.events,
            took_s=report.took_s,
            attempts=report.attempts,
            acknowledged=report.acknowledged,
            backlog_events=report.backlog_events,
        )
        setting = self._tuner.observe(outcome, report.ended_s)
        self._limits = _make_limits(setting)
        if logger.isEnabledFor(logging.DEBUG):
            self._tell(report)

    def estimates(self) -> RequestEstimates:
        """What it has learned."""
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


def choose_policy(batch: BatchPolicy | Literal["auto"]) -> BatchPolicy:
    """The policy of a new publisher; "auto" makes a new `AutoBatching`."""
    if isinstance(batch, str):
        if batch == "auto":
            return AutoBatching()
        raise ValueError(f'batch is "auto", BatchSettings(...) or a policy, not {batch!r}')
    return batch


def find_estimates(policy: BatchPolicy) -> RequestEstimates | None:
    """What a policy has learned, if it is one that learns."""
    return policy.estimates() if isinstance(policy, AutoBatching) else None


def _make_limits(setting: RequestSetting) -> BatchSettings:
    return BatchSettings(
        max_events=setting.most_events,
        max_bytes=MAX_BATCH_BYTES,
        linger_ms=1000 * setting.linger_s,
        max_in_flight=setting.most_requests,
    )
