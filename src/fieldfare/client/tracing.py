"""OpenTelemetry trace context in events, as defined by CloudEvents' Distributed Tracing extension.

There is no setting: a program that traces has imported OpenTelemetry. Other programs pay only for a look-up
in `sys.modules`, and do not need the package.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from fieldfare.model import Position

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"


class Handled(Protocol):
    """The attributes of a message that tracing needs."""

    position: Position

    @property
    def event(self) -> dict[str, Any]: ...


def add_context(event: dict[str, Any]) -> None:
    """Add the current span's ``traceparent`` to an event, if there is a span and the event has none."""
    if "opentelemetry.trace" in sys.modules and TRACEPARENT not in event:
        _propagator().inject(event)


def handling(message: Handled, space: str, subscription: str) -> AbstractContextManager[Any]:
    """Return the span in which a message is handled: a child of the span that its event names."""
    if "opentelemetry.trace" not in sys.modules:
        return nullcontext()
    from opentelemetry import trace

    event = message.event
    # A publisher may have put values of any type there.
    said = {name: event[name] for name in (TRACEPARENT, TRACESTATE) if isinstance(event.get(name), str)}
    return trace.get_tracer("fieldfare").start_as_current_span(
        f"process {subscription}",
        _propagator().extract(said) if TRACEPARENT in said else None,
        trace.SpanKind.CONSUMER,
        {
            "messaging.system": "fieldfare",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": space,
            "messaging.destination.subscription.name": subscription,
            "messaging.message.id": str(message.position),
        },
    )


def _propagator() -> Any:
    """Return a propagator of W3C's format, which the extension uses whatever the program has set for HTTP."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
