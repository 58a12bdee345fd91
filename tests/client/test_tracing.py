"""Traces go on through the service: from the span that publishes to the one that handles."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags, TraceState
from real_gateway import RealGateway

from fieldfare import AsyncClient, Client, Message
from fieldfare.client.encoding import encode_event

QUOTE = {"source": "/quotes", "type": "quote", "data": {"price": 17}}
EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module")
def tracer() -> trace.Tracer:
    """OpenTelemetry takes one provider in a process's life."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)
    return trace.get_tracer("test")


@pytest.fixture(autouse=True)
def exporter(tracer: trace.Tracer) -> Iterator[InMemorySpanExporter]:
    EXPORTER.clear()
    yield EXPORTER


def published(event: Any) -> dict[str, Any]:
    return dict(json.loads(encode_event(event)))


def test_an_event_says_which_span_it_comes_of(tracer: trace.Tracer) -> None:
    assert "traceparent" not in published(QUOTE)
    with tracer.start_as_current_span("order") as span:
        own = span.get_span_context()
        event = published(QUOTE)
        assert event["traceparent"] == f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
        assert "tracestate" not in event
        forwarded = QUOTE | {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-00", "tracestate": "x=1"}
        assert published(forwarded).items() >= forwarded.items(), "another's word on it counts"
        text = json.dumps(QUOTE | {"id": "1"}).encode()
        assert encode_event(text) == text, "what is encoded stays as it is"
    state = TraceState([("vendor", "1")])
    remote = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(0), trace_state=state)
    with trace.use_span(trace.NonRecordingSpan(remote)):
        assert published(QUOTE)["tracestate"] == "vendor=1"
    assert "traceparent" not in QUOTE


def test_a_handler_runs_in_a_child_of_the_span_that_published(
    gateway: RealGateway, tracer: trace.Tracer
) -> None:
    """Which publishes in turn: the whole way is one trace, over threads and processes."""
    inner: list[str] = []
    with Client(gateway.url) as client:
        client.create_subscription("type = 'quote'", "traced")
        messages = client.subscribe("traced")

        def handle(message: Message) -> None:
            inner.append(published(QUOTE)["traceparent"])
            if len(inner) == 2:
                messages.close()
                raise ValueError("the second cannot be handled")

        with tracer.start_as_current_span("order") as span:
            order = span.get_span_context()
            client.publish(QUOTE)
            client.publish_many([QUOTE])
        messages.process(handle)
    first, second = (each for each in EXPORTER.get_finished_spans() if each.name == "process traced")
    for handled, traceparent in zip((first, second), inner, strict=True):
        assert handled.context is not None and handled.parent is not None
        assert (handled.parent.span_id, handled.context.trace_id) == (order.span_id, order.trace_id)
        assert handled.kind is SpanKind.CONSUMER
        assert traceparent.split("-")[2] == f"{handled.context.span_id:016x}"
    assert dict(first.attributes or {}) == {
        "messaging.system": "fieldfare",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.destination.subscription.name": "traced",
        "messaging.message.id": "0-0-0",
    }
    assert first.status.status_code is StatusCode.UNSET
    assert second.status.status_code is StatusCode.ERROR


def test_handlers_of_asyncio_do_not_mix_up_their_spans(gateway: RealGateway, tracer: trace.Tracer) -> None:
    async def work() -> None:
        async with AsyncClient(gateway.url) as client:
            await client.create_subscription("type = 'order'", "both")
            for number in range(4):
                with tracer.start_as_current_span(f"order {number}"):
                    await client.publish({"source": "/shop", "type": "order", "data": {"n": number}})
            messages = client.subscribe("both")
            seen: dict[int, int] = {}
            met = asyncio.Event()

            async def handle(message: Message) -> None:
                if len(seen) == 3:
                    met.set()
                seen[message.event["data"]["n"]] = trace.get_current_span().get_span_context().trace_id
                await met.wait()
                own = trace.get_current_span().get_span_context().trace_id
                assert own == seen[message.event["data"]["n"]]
                if message.event["data"]["n"] == 3:
                    message.ack()
                    await messages.close()

            await messages.process(handle, concurrency=4)
            orders = {
                span.name: span.context.trace_id
                for span in EXPORTER.get_finished_spans()
                if span.name.startswith("order ") and span.context is not None
            }
            assert {f"order {number}": trace_id for number, trace_id in seen.items()} == orders

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"traceparent": "nonsense"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"traceparent": 17},
        {"traceparent": "x" * 100_000},
        {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "tracestate": "=,=;\x00" * 1000},
        {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "tracestate": True},
    ],
)
def test_odd_trace_context_does_not_prevent_handling(gateway: RealGateway, said: dict[str, Any]) -> None:
    """A publisher may put any value there, and it must not make handlers fail."""
    space = f"odd-{hash(json.dumps(said)) & 0xFFFF}"
    with Client(gateway.url) as admin:
        if space not in admin.spaces():
            admin.create_space(space)
    with Client(gateway.url, space) as client:
        client.create_subscription("TRUE", "odd")
        (position,) = client.publish_many([QUOTE | {"data": None} | {"id": "1"}])
        messages = client.subscribe("odd")
        handled: list[Message] = []

        def handle(message: Message) -> None:
            # This service refuses such values, but another service may accept them.
            message._event = dict(message.event) | said
            handled.append(message)
            messages.close()

        from fieldfare.client.tracing import handling

        messages.process(handle)
        with handling(handled[0], space, "odd") as span:
            assert trace.get_current_span() is span
    assert handled[0].position == position


def test_a_program_without_opentelemetry_needs_and_loads_none() -> None:
    program = (
        "import sys; from fieldfare import Client; from fieldfare.client.encoding import encode_event;"
        "from fieldfare.client.tracing import handling;"
        "assert b'traceparent' not in encode_event({'source': 's', 'type': 't'});"
        "handling(None, 's', 'i').__enter__();"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_spans_of_other_threads_are_not_taken(tracer: trace.Tracer) -> None:
    found: list[dict[str, Any]] = []
    with tracer.start_as_current_span("order"):
        thread = threading.Thread(target=lambda: found.append(published(QUOTE)))
        thread.start()
        thread.join(60)
    assert "traceparent" not in found[0]
