"""The export of spans by OTLP over HTTP: OpenTelemetry's own exporter and batches, on a thread of their own.

A receiver that is slow, hangs or refuses costs spans, which are counted, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from fieldfare.gateway.metrics import SpanMetrics

WAITING_MAX = 2_048
"""Maximum spans that wait for their export, unless `OTEL_BSP_MAX_QUEUE_SIZE` says otherwise; further ones are
dropped."""
CLOSE_S = 2.0
"""Seconds for which a gateway that stops waits for the last export."""
REPORT_S = 600.0
"""Minimum seconds between two log lines about a failing export."""

_QUOTING_LOGGERS = ("opentelemetry.trace.span", "opentelemetry.trace.propagation.tracecontext")
"""Loggers that warn of wrong trace contexts and quote them: publishers could flood the log or forge lines."""

_LOGGERS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")


class SpanExport:
    """The spans that wait for their export.

    Parameters
    ----------
    exporter
        Sends batches of spans; called on one thread.
    metrics
        Count what becomes of the spans.
    waiting_max
        Maximum spans that wait.
    """

    def __init__(self, exporter: SpanExporter, metrics: SpanMetrics, waiting_max: int = WAITING_MAX) -> None:
        self.resource = _resource()
        self._metrics = metrics
        self._waiting_max = waiting_max
        self._emitted = 0
        self._exporter = _CountingExporter(exporter, metrics)
        self._processor = BatchSpanProcessor(self._exporter, max_queue_size=waiting_max)

    def emit(self, span: ReadableSpan) -> None:
        """Export a span soon, or drop and count it; returns at once."""
        if self._emitted - self._exporter.done >= self._waiting_max:
            self._metrics.dropped.labels("queue").inc()
            return
        self._emitted += 1
        self._processor.on_end(span)

    async def close(self) -> None:
        """Export what waits, within `CLOSE_S`."""
        closing = threading.Thread(target=self._processor.shutdown, name="fieldfare-spans-close", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_S)


class _CountingExporter(SpanExporter):
    """Counts what another exporter does with its spans."""

    def __init__(self, exporter: SpanExporter, metrics: SpanMetrics) -> None:
        self._exporter = exporter
        self._metrics = metrics
        self.done = 0
        """Number of spans that do not wait any more."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self.done += len(spans)
            is_exported = result is SpanExportResult.SUCCESS
            (self._metrics.exported if is_exported else self._metrics.dropped.labels("export")).inc(
                len(spans)
            )
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Seldom(logging.Filter):
    """Passes one line per `REPORT_S`: an exporter logs each batch that it cannot send."""

    def __init__(self) -> None:
        super().__init__()
        self._due_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + REPORT_S
        return True


def open_export(environment: Mapping[str, str], metrics: SpanMetrics) -> SpanExport:
    """Return the export that the environment describes; ValueError if it cannot be used."""
    for name in _QUOTING_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    seldom = _Seldom()
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        for former in [each for each in logger.filters if isinstance(each, _Seldom)]:
            logger.removeFilter(former)
        logger.addFilter(seldom)
    waiting = environment.get(OTEL_BSP_MAX_QUEUE_SIZE, "").strip()
    return SpanExport(OTLPSpanExporter(), metrics, int(waiting) if waiting else WAITING_MAX)


def _resource() -> Resource:
    """Return the description of this process that the environment gives, by default named fieldfare."""
    found = Resource.create()
    is_named = not str(found.attributes[SERVICE_NAME]).startswith("unknown_service")
    return found if is_named else found.merge(Resource({SERVICE_NAME: "fieldfare"}))
