"""OpenTelemetry's trace context in events, as CloudEvents' Distributed Tracing extension has it.

Nothing is to be turned on: a program that traces has imported OpenTelemetry, and without that no span can be
current. So one that does not pays for a look into `sys.modules`, and none needs the package.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from fieldfare.model import Position

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"


class Handled(Protocol):
    """What is known of a message here."""

    position: Position

    @property
    def event(self) -> dict[str, Any]: ...


def add_context(event: dict[str, Any]) -> None:
    """Have an event say which span it comes of, if there is one, and the event does not say it."""
    if "opentelemetry.trace" in sys.modules and TRACEPARENT not in event:
        _propagator().inject(event)


def handling(message: Handled, space: str, subscription: str) -> AbstractContextManager[Any]:
    """The span in which a message is handled: a child of that which its event comes of."""
    if "opentelemetry.trace" not in sys.modules:
        return nullcontext()
    from opentelemetry import trace

    event = message.event
    # Whoever published it may have put anything there.
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
    """What the extension speaks is W3C's format, whatever the program has set for HTTP."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
