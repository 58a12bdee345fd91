"""Whether this gateway exports spans: the environment variables of OpenTelemetry say so.

Without them nothing of OpenTelemetry is imported. Empty variables count as unset, as its specification says.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fieldfare.gateway.metrics import SpanMetrics

if TYPE_CHECKING:
    from fieldfare.gateway.telemetry.spans import Spans

logger = logging.getLogger("fieldfare.gateway.telemetry")

PROTOCOL = "http/protobuf"
"""The one protocol of export, which is OpenTelemetry's default."""


def open_spans(environment: Mapping[str, str], metrics: SpanMetrics) -> Spans | None:
    """Return the spans of a gateway; None if the environment names no receiver, or the extra is missing."""
    endpoint = _of_traces(environment, "ENDPOINT")
    is_off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if not endpoint or is_off or exporter not in ("", "otlp"):
        return None
    protocol = _of_traces(environment, "PROTOCOL").lower()
    if protocol not in ("", PROTOCOL):
        logger.warning("no spans are exported: OTEL_EXPORTER_OTLP_PROTOCOL is %r, not %s", protocol, PROTOCOL)
        return None
    receiver = _shown(endpoint)
    try:
        from fieldfare.gateway.telemetry.exporting import open_export
        from fieldfare.gateway.telemetry.spans import Spans
    except ImportError as error:
        logger.warning(
            "no spans are exported to %s: %s; install it with pip install 'fieldfare[otel]'", receiver, error
        )
        return None
    try:
        export = open_export(environment, metrics)
    except Exception as error:  # Whatever the libraries raise for a variable that they cannot use.
        logger.warning("no spans are exported to %s: %s", receiver, error)
        return None
    logger.info("spans of sampled events are exported to %s", receiver)
    return Spans(export, metrics)


def _of_traces(environment: Mapping[str, str], name: str) -> str:
    """Return a variable of the exporter: that of traces, or else that of all signals."""
    names = f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}"
    return next((value for each in names if (value := environment.get(each, "").strip())), "")


def _shown(endpoint: str) -> str:
    """Return a receiver's URL without user, password and query, which may be secrets."""
    return re.sub(r"//[^/]*@", "//", endpoint.partition("?")[0])
