"""The spans of sampled events, made of the times that `Tracer` records.

::

    context of the event (the publisher's span)
    └─ publish SPACE            received ─▶ appended
       ├─ append SPACE          decoded ─▶ appended
       ├─ match SPACE           seen ─▶ matched
       └─ deliver SUBSCRIPTION  noticed ─▶ sent, once for each subscription and attempt
          └─ ack SUBSCRIPTION   acknowledged ─▶ the cursor is durable

Names and attributes are those of the semantic conventions for messaging, which describe clients: each span
has the operation of the client that it serves. Events of a record with one context share the first three. A
delivery and an ack also link to the context of their event, as the conventions say for consumers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind

from fieldfare.delivery.keys import INDEX_BITS, PARTITION_SHIFT, position_of
from fieldfare.gateway.metrics import SpanMetrics
from fieldfare.gateway.telemetry.contexts import sampled_events
from fieldfare.model import space_name
from fieldfare.storage.event_log import NewRecord

EVENTS_PER_S_MAX = 50
SPACE_EVENTS_PER_S_MAX = 20
"""Maximum events traced per second, of all spaces and of one; further ones are counted, and not traced."""
DELIVERIES_MAX = 10
"""Maximum subscriptions whose deliveries of an event are traced, the first ones."""
RECORDS_MAX = 2_000
LIFE_MS = 120_000.0
"""Maximum records traced at a time, and milliseconds for which one is; deliveries and acks after that, or of
older ones, are not traced."""

_SCOPE = InstrumentationScope("fieldfare.gateway")
_new_span_id = RandomIdGenerator().generate_span_id


class SpanSink(Protocol):
    """Receives finished spans."""

    @property
    def resource(self) -> Resource: ...

    def emit(self, span: ReadableSpan) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Context:
    """A context of events of one record."""

    creation: SpanContext
    publish: SpanContext
    keys: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Delivery:
    """The delivery of an event to one subscription: its attempt under way, and the last one's span."""

    name: str
    attempts: int = 0
    began_ms: float | None = None
    span: SpanContext | None = None


@dataclass(slots=True)
class _Record:
    space: str
    marks: Mapping[str, float]
    expires_ms: float
    contexts: list[_Context]


@dataclass(slots=True)
class _Event:
    record: _Record
    context: _Context
    deliveries: dict[int, _Delivery] = field(default_factory=dict)
    """By the subscription's number."""


class Spans:
    """Makes the spans of sampled events; for the event loop.

    Parameters
    ----------
    sink
        Receives each span when it has ended.
    metrics
        Count the sampled events that are not traced.
    """

    def __init__(self, sink: SpanSink, metrics: SpanMetrics) -> None:
        self._sink = sink
        self._metrics = metrics
        self._records: dict[int, _Record] = {}
        self._events: dict[int, _Event] = {}
        self._unacked: dict[int, set[int]] = {}
        """Traced events that were delivered and not acknowledged, by the subscription's number."""
        self._order: deque[int] = deque()
        self._second = 0
        self._taken: Counter[str] = Counter()
        """Events traced in this second, by space."""

    async def close(self) -> None:
        """Export the spans that have ended."""
        await self._sink.close()

    def __contains__(self, place: int) -> bool:
        """Whether the record at a place is traced."""
        return place in self._records

    def expire(self, now_ms: float) -> Iterator[int]:
        """End the traces of old records; yield their places."""
        while self._order:
            place = self._order[0]
            if len(self._order) < RECORDS_MAX and now_ms < self._records[place].expires_ms:
                return
            self._order.popleft()
            for context in self._records.pop(place).contexts:
                for key in context.keys:
                    for number in self._events.pop(key).deliveries:
                        self._settle(key, number)
            yield place

    def appended(self, place: int, record: NewRecord, marks: Mapping[str, float]) -> bool:
        """Begin to trace the sampled events of an appended record; return whether there are any."""
        contexts: dict[tuple[int, int], _Context] = {}
        space, now_ms = space_name(record.space), marks["appended"]
        traced = _Record(space, marks, now_ms + LIFE_MS, [])
        for index, creation in sampled_events(record.payload):
            if not self._admits(space, now_ms):
                continue
            identity = creation.trace_id, creation.span_id
            if (context := contexts.get(identity)) is None:
                context = contexts[identity] = _Context(creation, _child(creation))
                traced.contexts.append(context)
            key = place << INDEX_BITS | index
            context.keys.append(key)
            self._events[key] = _Event(traced, context)
        if not contexts:
            return False
        self._records[place] = traced
        self._order.append(place)
        for context in traced.contexts:
            parent, publish = context.creation, context.publish
            said = _described("publish", space, context.keys, type="send")
            received_ms = marks["received"]
            self._emit(SpanKind.SERVER, space, parent, publish, received_ms, now_ms, said)
            said = _described("append", space, context.keys)
            decoded_ms = marks.get("decoded", received_ms)
            self._emit(SpanKind.INTERNAL, space, publish, _child(publish), decoded_ms, now_ms, said)
        return True

    def matched(self, place: int) -> None:
        """Note that the matches of a record were read, if it is traced."""
        record = self._records.get(place)
        if record is None or (end_ms := record.marks.get("matched")) is None:
            return
        begin_ms = record.marks.get("seen", end_ms)
        for context in record.contexts:
            said = _described("match", record.space, context.keys)
            span = _child(context.publish)
            self._emit(SpanKind.INTERNAL, record.space, context.publish, span, begin_ms, end_ms, said)

    def fetched(self, keys: Iterable[int], number: int, name: str, now_ms: float) -> None:
        """Note that messages were composed for a subscription."""
        for key, event in self._traced(keys):
            delivery = event.deliveries.get(number)
            if delivery is None:
                if len(event.deliveries) == DELIVERIES_MAX:
                    continue
                delivery = event.deliveries[number] = _Delivery(name)
            self._unacked.setdefault(number, set()).add(key)
            delivery.attempts += 1
            first_ms = event.record.marks.get("noticed", now_ms)
            delivery.began_ms = min(first_ms, now_ms) if delivery.attempts == 1 else now_ms

    def sent(self, keys: Iterable[int], number: int, now_ms: float) -> None:
        """Note that messages were handed to a subscription's connection, or accepted by its address."""
        for key, event in self._traced(keys):
            if (delivery := event.deliveries.get(number)) is not None:
                self._delivered(key, event, delivery, now_ms)

    def acked(self, keys: Iterable[int], number: int, began_ms: float, now_ms: float) -> None:
        """Note that messages were acknowledged, from the request to the durable cursor."""
        for key, event in self._traced(keys):
            delivery = event.deliveries.get(number)
            if delivery is None:
                continue
            self._delivered(key, event, delivery, began_ms)  # The ack may overtake the end of the sending.
            if (deliver := delivery.span) is None:
                continue
            delivery.span = None
            self._settle(key, number)
            said = _described("ack", event.record.space, (key,), type="settle", subscription=delivery.name)
            links = (Link(event.context.creation),)
            span = _child(deliver)
            self._emit(SpanKind.SERVER, delivery.name, deliver, span, began_ms, now_ms, said, links)

    def acked_up_to(self, key: int, number: int, began_ms: float, now_ms: float) -> None:
        """Note that all messages of a partition up to a key were acknowledged."""
        partition = key >> PARTITION_SHIFT
        delivered = self._unacked.get(number, ())
        keys = [each for each in delivered if each <= key and each >> PARTITION_SHIFT == partition]
        self.acked(keys, number, began_ms, now_ms)

    def _settle(self, key: int, number: int) -> None:
        """Note that a subscription's ack of an event is not waited for any more."""
        keys = self._unacked.get(number, set())
        keys.discard(key)
        if not keys:
            self._unacked.pop(number, None)

    def _traced(self, keys: Iterable[int]) -> Iterator[tuple[int, _Event]]:
        """Yield those events among some keys that are traced."""
        for key in sorted(self._events.keys() & keys) if self._events else ():
            yield key, self._events[key]

    def _delivered(self, key: int, event: _Event, delivery: _Delivery, now_ms: float) -> None:
        """End the attempt of a delivery, if one is under way."""
        if (began_ms := delivery.began_ms) is None:
            return
        context = event.context
        delivery.began_ms, delivery.span = None, _child(context.publish)
        said = _described("deliver", event.record.space, (key,), type="receive", subscription=delivery.name)
        if delivery.attempts > 1:
            said["fieldfare.attempt"] = delivery.attempts
        links = (Link(context.creation),)
        name, span, publish = delivery.name, delivery.span, context.publish
        self._emit(SpanKind.PRODUCER, name, publish, span, began_ms, now_ms, said, links)

    def _admits(self, space: str, now_ms: float) -> bool:
        """Return whether one more event of a space may be traced in this second."""
        if (second := int(now_ms // 1000)) != self._second:
            self._second = second
            self._taken.clear()
        if self._taken[space] >= SPACE_EVENTS_PER_S_MAX or self._taken.total() >= EVENTS_PER_S_MAX:
            self._metrics.untraced.inc()
            return False
        self._taken[space] += 1
        return True

    def _emit(
        self,
        kind: SpanKind,
        destination: str,
        parent: SpanContext,
        span: SpanContext,
        begin_ms: float,
        end_ms: float,
        said: Mapping[str, str | int],
        links: tuple[Link, ...] = (),
    ) -> None:
        begin_ns = int(begin_ms * 1e6)
        self._sink.emit(
            ReadableSpan(
                f"{said['messaging.operation.name']} {destination}",
                span,
                parent,
                self._sink.resource,
                said,
                links=links,
                kind=kind,
                start_time=begin_ns,
                end_time=max(begin_ns, int(end_ms * 1e6)),
                instrumentation_scope=_SCOPE,
            )
        )


def _child(parent: SpanContext) -> SpanContext:
    """Return the context of a new span below another."""
    return SpanContext(parent.trace_id, _new_span_id(), False, parent.trace_flags, parent.trace_state)


def _described(
    operation: str,
    space: str,
    keys: Iterable[int],
    *,
    type: str | None = None,
    subscription: str | None = None,
) -> dict[str, str | int]:
    """Return the attributes of a span about some events of one record."""
    first, *others = keys
    said: dict[str, str | int] = {
        "messaging.system": "fieldfare",
        "messaging.operation.name": operation,
        "messaging.destination.name": space,
        "messaging.destination.partition.id": str(first >> PARTITION_SHIFT),
    }
    if others:
        said["messaging.batch.message_count"] = 1 + len(others)
    else:
        said["messaging.message.id"] = str(position_of(first))
    if type is not None:
        said["messaging.operation.type"] = type
    if subscription is not None:
        said["messaging.destination.subscription.name"] = subscription
    return said
