"""Trace contexts of events: those of a record whose ``traceparent`` has the flag that they are sampled.

Publishers may write anything into these attributes, so the work for a record is bounded, whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fieldfare.arrow_events.stream import ArrowPayloadError, is_arrow, read_events

SEARCHED_MAX_BYTES = 64 << 10
SEARCHED_MAX_ROWS = 1_000
"""Maximum bytes of a record's JSON lines, and maximum rows of an Arrow record, that are searched for
contexts; events behind them are not traced."""
EVENTS_MAX = 16
"""Maximum sampled events of a record; further ones are not traced."""
STATE_MAX_CHARS = 512
"""Maximum characters of a ``tracestate``; a longer one is left out."""

_MARK = b'"traceparent"'
_TEXT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf](?:-.*)?")
"""The form of a sampled context; its propagator decides."""
_MEMBER = re.compile(rb'"traceparent"\s*:\s*"' + _TEXT.pattern.encode())
_propagator = TraceContextTextMapPropagator()


class _Traced(msgspec.Struct):
    traceparent: Any = None
    tracestate: Any = None


_decoder = msgspec.json.Decoder(_Traced)


def sampled_events(payload: bytes) -> list[tuple[int, SpanContext]]:
    """Return the first sampled events of a record's payload: the index of each, and its context."""
    found: list[tuple[int, SpanContext]] = []
    for index, parent, state in _rows(payload) if is_arrow(payload) else _lines(payload):
        context = sampled_context(parent, state)
        if context is not None:
            found.append((index, context))
            if len(found) == EVENTS_MAX:
                break
    return found


def sampled_context(parent: Any, state: Any) -> SpanContext | None:
    """Return the context that two attributes of an event hold; None if it is invalid or not sampled."""
    if not isinstance(parent, str) or _TEXT.fullmatch(parent) is None:
        return None
    carrier = {"traceparent": parent}
    if isinstance(state, str) and len(state) <= STATE_MAX_CHARS:
        carrier["tracestate"] = state
    context = get_current_span(_propagator.extract(carrier)).get_span_context()
    return context if context.is_valid and context.trace_flags.sampled else None


def _lines(payload: bytes) -> Iterator[tuple[int, Any, Any]]:
    """Yield index and attributes of the JSON lines that may have a sampled context, each once."""
    if payload.find(_MARK, 0, SEARCHED_MAX_BYTES) < 0:  # Much faster than the expression.
        return
    index = counted = end = 0
    while (found := _MEMBER.search(payload, end, SEARCHED_MAX_BYTES)) is not None:
        start = payload.rfind(b"\n", 0, found.start()) + 1
        index, counted = index + payload.count(b"\n", counted, start), start
        end = payload.find(b"\n", start, SEARCHED_MAX_BYTES)
        if end < 0:
            return
        with suppress(msgspec.DecodeError):
            # Decoded, as the text may stand anywhere in the event's data.
            event = _decoder.decode(memoryview(payload)[start:end])
            yield index, event.traceparent, event.tracestate


def _rows(payload: bytes) -> Iterator[tuple[int, Any, Any]]:
    """Yield index and attributes of the first rows of an Arrow record with the column ``traceparent``."""
    if payload.find(b"traceparent", 0, SEARCHED_MAX_BYTES) < 0:
        return
    try:
        events = read_events(payload)
    except ArrowPayloadError:
        return
    parents, states = (_column(events, name) for name in ("traceparent", "tracestate"))
    for index, parent in enumerate(parents):
        yield index, parent, states[index] if states else None


def _column(events: pa.RecordBatch, name: str) -> list[Any]:
    """Return the first values of a column; none if there is no such column."""
    if name not in events.schema.names:
        return []
    return list(events.column(name).slice(0, SEARCHED_MAX_ROWS).to_pylist())
