"""The spans of sampled events: their parents, their bounds, and what is not traced."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
from gateway_support import encode, event
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry
from telemetry_support import PARENT, TRACE, context
from tests.yardstick import slowness

from fieldfare.delivery.keys import INDEX_BITS, place_of
from fieldfare.gateway.metrics import SpanMetrics
from fieldfare.gateway.telemetry import spans as module
from fieldfare.gateway.telemetry.spans import (
    DELIVERIES_MAX,
    EVENTS_PER_S_MAX,
    LIFE_MS,
    RECORDS_MAX,
    SPACE_EVENTS_PER_S_MAX,
    Spans,
)
from fieldfare.storage.event_log import NewRecord

RECEIVED_MS = 1_700_000_000_000.0
PLACE = place_of(2, 7)
KEY = PLACE << INDEX_BITS


class Sink:
    """Keeps the spans."""

    resource = Resource({})

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def emit(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    async def close(self) -> None:
        pass


class Bench:
    """Spans, and a clock that the test sets."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sink = Sink()
        self.spans = Spans(self.sink, SpanMetrics(self.registry))

    def append(
        self, *contexts: str | None, at_ms: float = 0.0, place: int = PLACE, space: str = "shop"
    ) -> dict[str, float]:
        marks = {
            name: RECEIVED_MS + at_ms + ms for name, ms in (("received", 0), ("decoded", 1), ("appended", 4))
        }
        payload = b"".join(
            encode(event(1, **({} if each is None else {"traceparent": each}))) + b"\n" for each in contexts
        )
        list(self.spans.expire(marks["appended"]))
        self.spans.appended(place, NewRecord(space, payload, len(contexts)), marks)
        return marks

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.sink.spans if span.name == name]

    @property
    def untraced(self) -> float:
        return self.registry.get_sample_value("fieldfare_untraced_events_total") or 0.0


def times_ms(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None and span.end_time is not None
    return round(span.start_time / 1e6 - RECEIVED_MS, 2), round(span.end_time / 1e6 - RECEIVED_MS, 2)


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def only(spans: Iterable[ReadableSpan]) -> ReadableSpan:
    (span,) = spans
    return span


def context_of(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


def test_each_step_is_a_span_below_that_of_the_publisher() -> None:
    bench = Bench()
    marks = bench.append(context())
    marks |= {"seen": RECEIVED_MS + 5, "matched": RECEIVED_MS + 6, "noticed": RECEIVED_MS + 8}
    bench.spans.matched(PLACE)
    bench.spans.fetched([KEY], 3, "bills", RECEIVED_MS + 9)
    bench.spans.sent([KEY], 3, RECEIVED_MS + 10)
    bench.spans.acked([KEY], 3, RECEIVED_MS + 20, RECEIVED_MS + 23)

    publish, append, match = (only(bench.named(f"{name} shop")) for name in ("publish", "append", "match"))
    deliver, ack = (only(bench.named(f"{name} bills")) for name in ("deliver", "ack"))
    assert {context_of(span).trace_id for span in bench.sink.spans} == {TRACE}
    assert len({context_of(span).span_id for span in bench.sink.spans} | {PARENT}) == 6
    parents = {span.name: span.parent.span_id for span in bench.sink.spans if span.parent}
    of_publish, of_deliver = context_of(publish).span_id, context_of(deliver).span_id
    assert parents == {
        "publish shop": PARENT, "append shop": of_publish, "match shop": of_publish,
        "deliver bills": of_publish, "ack bills": of_deliver,
    }  # fmt: skip
    assert [times_ms(span) for span in (publish, append, match, deliver, ack)] == [
        (0, 4), (1, 4), (5, 6), (8, 10), (20, 23)
    ]  # fmt: skip
    assert [links(span) for span in (publish, append, match, deliver, ack)] == [
        [],
        [],
        [],
        [PARENT],
        [PARENT],
    ]
    kinds = [span.kind for span in (publish, append, match, deliver, ack)]
    internal = SpanKind.INTERNAL
    assert kinds == [SpanKind.SERVER, internal, internal, SpanKind.PRODUCER, SpanKind.SERVER]
    assert dict(publish.attributes or {}) == {
        "messaging.system": "fieldfare",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "shop",
        "messaging.destination.partition.id": "2",
        "messaging.message.id": "2-7-0",
    }
    assert dict(ack.attributes or {}) == {
        "messaging.system": "fieldfare",
        "messaging.operation.name": "ack",
        "messaging.operation.type": "settle",
        "messaging.destination.name": "shop",
        "messaging.destination.subscription.name": "bills",
        "messaging.destination.partition.id": "2",
        "messaging.message.id": "2-7-0",
    }


def test_events_with_one_context_share_the_span_of_their_request() -> None:
    bench = Bench()
    bench.append(context(), None, context(), context(span=9), context(flags="00"))
    shared, alone = bench.named("publish shop")
    assert shared.attributes and alone.attributes
    assert shared.attributes["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in shared.attributes
    assert alone.attributes["messaging.message.id"] == "2-7-3"
    assert [span.parent.span_id for span in (shared, alone) if span.parent] == [PARENT, 9]
    bench.spans.fetched([KEY, KEY + 1, KEY + 2, KEY + 3, KEY + 4], 1, "all", RECEIVED_MS + 9)
    bench.spans.sent([KEY, KEY + 1, KEY + 2, KEY + 3, KEY + 4], 1, RECEIVED_MS + 9)
    assert [(span.attributes or {})["messaging.message.id"] for span in bench.named("deliver all")] == [
        "2-7-0", "2-7-2", "2-7-3",
    ]  # fmt: skip


def test_unsampled_events_have_no_spans() -> None:
    bench = Bench()
    bench.append(None, context(flags="00"), "rubbish")
    bench.spans.matched(PLACE)
    bench.spans.fetched([KEY, KEY + 1], 1, "all", RECEIVED_MS)
    bench.spans.sent([KEY, KEY + 1], 1, RECEIVED_MS)
    bench.spans.acked([KEY], 1, RECEIVED_MS, RECEIVED_MS)
    assert bench.sink.spans == [] and bench.untraced == 0 and PLACE not in bench.spans


def test_each_attempt_is_a_delivery_and_only_the_last_is_acked() -> None:
    bench = Bench()
    bench.append(context())
    for at in (10, 50):
        bench.spans.fetched([KEY], 1, "all", RECEIVED_MS + at)
        bench.spans.sent([KEY], 1, RECEIVED_MS + at + 1)
        bench.spans.sent([KEY], 1, RECEIVED_MS + at + 2)
    for _ in range(2):
        bench.spans.acked([KEY], 1, RECEIVED_MS + 60, RECEIVED_MS + 61)
    first, second = bench.named("deliver all")
    assert (first.attributes or {}).get("fieldfare.attempt") is None
    assert (second.attributes or {})["fieldfare.attempt"] == 2
    assert [times_ms(first), times_ms(second)] == [(10, 11), (50, 51)]
    ack = only(bench.named("ack all"))
    assert ack.parent is not None and ack.parent.span_id == context_of(second).span_id


def test_an_ack_may_overtake_the_end_of_the_sending() -> None:
    bench = Bench()
    bench.append(context())
    bench.spans.fetched([KEY], 1, "all", RECEIVED_MS + 10)
    bench.spans.acked([KEY], 1, RECEIVED_MS + 12, RECEIVED_MS + 13)
    bench.spans.sent([KEY], 1, RECEIVED_MS + 14)
    assert times_ms(only(bench.named("deliver all"))) == (10, 12)
    assert times_ms(only(bench.named("ack all"))) == (12, 13)


def test_an_ack_up_to_a_position_acks_those_before_it_in_its_partition() -> None:
    bench = Bench()
    places = [place_of(2, 7), place_of(2, 8), place_of(2, 9), place_of(1, 1)]
    keys = [place << INDEX_BITS for place in places]
    for place in places:
        bench.append(context(), place=place)
    bench.spans.fetched(keys, 1, "all", RECEIVED_MS)
    bench.spans.sent(keys, 1, RECEIVED_MS)
    bench.spans.acked_up_to(keys[1], 1, RECEIVED_MS, RECEIVED_MS)
    bench.spans.acked_up_to(keys[1], 2, RECEIVED_MS, RECEIVED_MS)
    acked = [(span.attributes or {})["messaging.message.id"] for span in bench.named("ack all")]
    assert acked == ["2-7-0", "2-8-0"]


def test_acks_up_to_a_position_cost_nothing_for_events_of_other_subscriptions() -> None:
    """Whoever publishes sampled events must not slow the acks of all others: 1,000 took a second."""
    bench = Bench()
    places = [place_of(2, number) for number in range(RECORDS_MAX)]
    for number, place in enumerate(places):
        bench.append(context(), at_ms=number * LIFE_MS / 2 / RECORDS_MAX, place=place)
    keys = [place << INDEX_BITS for place in places]
    bench.spans.fetched(keys, 1, "all", RECEIVED_MS)
    began_s = time.thread_time()
    for _ in range(1_000):
        bench.spans.acked_up_to(keys[-1], 2, RECEIVED_MS, RECEIVED_MS)
    assert time.thread_time() - began_s < 0.1 * slowness()
    bench.spans.acked_up_to(keys[-1], 1, RECEIVED_MS, RECEIVED_MS)
    acked = len(bench.named("ack all"))
    assert acked > RECORDS_MAX / 2
    bench.spans.acked_up_to(keys[-1], 1, RECEIVED_MS, RECEIVED_MS)
    assert len(bench.named("ack all")) == acked


def test_only_so_many_subscriptions_of_an_event_are_traced() -> None:
    bench = Bench()
    bench.append(context())
    for number in range(10_000):
        bench.spans.fetched([KEY], number, f"s{number}", RECEIVED_MS)
        bench.spans.sent([KEY], number, RECEIVED_MS)
        bench.spans.acked([KEY], number, RECEIVED_MS, RECEIVED_MS)
    assert len(bench.sink.spans) == 2 + 2 * DELIVERIES_MAX


def test_a_flood_of_sampled_events_is_traced_in_part_and_counted() -> None:
    bench = Bench()
    for number in range(1000):
        bench.append(context(), place=PLACE + number, space="flood")
    assert len(bench.named("publish flood")) == SPACE_EVENTS_PER_S_MAX
    assert bench.untraced == 1000 - SPACE_EVENTS_PER_S_MAX
    bench.append(context(), place=PLACE + 5000, space="other")
    assert len(bench.named("publish other")) == 1, "another space has its share"
    for number in range(100):
        bench.append(context(), place=PLACE + 6000 + number, space=f"s{number}")
    assert len([span for span in bench.sink.spans if span.name.startswith("publish")]) == EVENTS_PER_S_MAX
    bench.append(context(), place=PLACE + 7000, space="flood", at_ms=1000)
    assert len(bench.named("publish flood")) == SPACE_EVENTS_PER_S_MAX + 1
    assert len(bench.spans._taken) == 1


def test_traces_of_records_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.append(context())
    assert list(bench.spans.expire(RECEIVED_MS + LIFE_MS)) == []
    assert list(bench.spans.expire(RECEIVED_MS + LIFE_MS + 5)) == [PLACE]
    assert (bench.spans._events, bench.spans._records) == ({}, {})
    bench.spans.fetched([KEY], 1, "all", RECEIVED_MS)
    bench.spans.matched(PLACE)
    assert len(bench.sink.spans) == 2
    monkeypatch.setattr(module, "EVENTS_PER_S_MAX", 1 << 30)
    monkeypatch.setattr(module, "SPACE_EVENTS_PER_S_MAX", 1 << 30)
    for number in range(2 * RECORDS_MAX):
        bench.append(context(), place=PLACE + number)
    assert len(bench.spans._records) == len(bench.spans._order) == len(bench.spans._events) == RECORDS_MAX
    assert PLACE not in bench.spans and PLACE + 2 * RECORDS_MAX - 1 in bench.spans


def test_a_span_never_ends_before_it_begins() -> None:
    """The clock of the machine may be set back between two steps."""
    bench = Bench()
    marks = bench.append(context())
    marks |= {"seen": RECEIVED_MS + 9, "matched": RECEIVED_MS - 1000, "noticed": RECEIVED_MS - 500}
    bench.spans.matched(PLACE)
    bench.spans.fetched([KEY], 1, "all", RECEIVED_MS - 900)
    bench.spans.sent([KEY], 1, RECEIVED_MS - 2000)
    for span in bench.sink.spans:
        begin_ms, end_ms = times_ms(span)
        assert begin_ms <= end_ms
