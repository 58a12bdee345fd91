"""Spans from a service to a receiver on this machine, and receivers that hang, refuse or are away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from gateway_support import BATCH, EVENTS, SUBSCRIPTIONS, encode, event, matching, served, until
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, TraceFlags
from prometheus_client import CollectorRegistry
from telemetry_support import PARENT, TRACE, SpanReceiver, context, said

from fieldfare.gateway.context import Gateway
from fieldfare.gateway.metrics import SpanMetrics
from fieldfare.gateway.telemetry.contexts import sampled_context
from fieldfare.gateway.telemetry.exporting import SpanExport
from fieldfare.gateway.telemetry.opening import open_spans

pytestmark = pytest.mark.long

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@contextlib.contextmanager
def exporting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, **environment: str
) -> Iterator[tuple[Gateway, httpx.Client]]:
    """A gateway that exports its spans, and a pipeline that matches what arrives."""
    for name, value in {ENDPOINT: url, "OTEL_BSP_SCHEDULE_DELAY": "20", **environment}.items():
        monkeypatch.setenv(name, value)
    with served(tmp_path) as (gateway, client), matching(gateway):
        yield gateway, client


def publish(client: httpx.Client, *contexts: str | None) -> None:
    events = [
        event(at, {"secret": "hush"}, **({} if each is None else {"traceparent": each}))
        for at, each in enumerate(contexts)
    ]
    assert client.post(EVENTS, content=encode(events), headers=BATCH).status_code == 200


def figure(client: httpx.Client, name: str) -> float:
    rows = [line for line in client.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(row.split()[-1]) for row in rows)


def test_an_event_is_followed_from_publish_to_ack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SpanReceiver().running() as receiver:
        resources = {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test"}
        with exporting(tmp_path, monkeypatch, receiver.url, **resources) as (_, client):
            for name in ("a", "b", "none"):
                filter = "data.secret = 'other'" if name == "none" else "EXISTS id"
                client.put(f"{SUBSCRIPTIONS}/{name}", json={"filter": filter})
            publish(client, context(), None, context(flags="00"))
            for name in ("a", "b"):
                messages = client.post(f"{SUBSCRIPTIONS}/{name}/pull", json={"wait_s": 30}).json()["messages"]
                assert len(messages) == 3
                body = (
                    {"up_to": messages[-1]["position"]}
                    if name == "a"
                    else {"positions": [messages[0]["position"]]}
                )
                assert client.post(f"{SUBSCRIPTIONS}/{name}/ack", json=body).status_code == 200
            until(lambda: receiver.named("ack b"))
            until(lambda: figure(client, "fieldfare_exported_spans_total") == 7)
        names = sorted(span.name for span in receiver.spans)
        assert names == sorted(
            ["publish default", "append default", "match default", "deliver a", "deliver b", "ack a", "ack b"]
        )
        by_name = {span.name: span for span in receiver.spans}
        assert {span.trace_id for span in receiver.spans} == {TRACE.to_bytes(16, "big")}
        publish_span = by_name["publish default"]
        assert publish_span.parent_span_id == PARENT.to_bytes(8, "big")
        for name in ("append default", "match default", "deliver a", "deliver b"):
            assert by_name[name].parent_span_id == publish_span.span_id, name
        for name in ("a", "b"):
            assert by_name[f"ack {name}"].parent_span_id == by_name[f"deliver {name}"].span_id
            ((link,), _) = by_name[f"ack {name}"].links, by_name[f"deliver {name}"].links
            assert link.span_id == PARENT.to_bytes(8, "big")
            assert said(by_name[f"ack {name}"])["messaging.destination.subscription.name"] == name
        assert all(0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in receiver.spans)
        assert by_name["deliver a"].end_time_unix_nano <= by_name["ack a"].end_time_unix_nano
        (resource, *_) = receiver.resources
        assert (resource["service.name"], resource["deployment.environment.name"]) == ("fieldfare", "test")
        text = b"".join(each.SerializeToString() for each in receiver.requests)
        assert b"hush" not in text and b"/test" not in text, "no payload"


def test_delayed_events_and_streams_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An automatic stream acks what it has sent when its window is full."""
    with SpanReceiver().running() as receiver, exporting(tmp_path, monkeypatch, receiver.url) as (_, client):
        client.put(f"{SUBSCRIPTIONS}/all", json={"filter": "EXISTS id"})
        content = encode([event(1, traceparent=context())])
        delayed = client.post(EVENTS, content=content, headers=BATCH | {"Fieldfare-Deliver-After": "0.05"})
        assert delayed.status_code == 202, delayed.text
        query = "ack=auto&window=1"
        with client.stream("GET", f"{SUBSCRIPTIONS}/all/stream?{query}") as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("id:"))
            next(lines)
            publish(client, None)
            next(lines)
            until(lambda: receiver.named("ack all"))
        assert [len(receiver.named(f"{name} default")) for name in ("publish", "append", "match")] == [
            1,
            1,
            1,
        ]
        assert len(receiver.named("deliver all")) == 1


def test_nothing_is_exported_of_what_is_not_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        SpanReceiver().running() as receiver,
        exporting(tmp_path, monkeypatch, receiver.url) as (gateway, client),
    ):
        client.put(f"{SUBSCRIPTIONS}/all", json={"filter": "EXISTS id"})
        publish(client, None, context(flags="00"), "00-rubbish-01", context(trace=0), "ff" + context()[2:])
        messages = client.post(f"{SUBSCRIPTIONS}/all/pull", json={"wait_s": 30}).json()["messages"]
        client.post(f"{SUBSCRIPTIONS}/all/ack", json={"positions": [each["position"] for each in messages]})
        assert len(messages) == 5
        assert gateway.tracer._marks == {}
        # What is exported later was not held back.
        publish(client, context())
        until(lambda: receiver.named("match default"))
        assert {span.name for span in receiver.spans} <= {
            "publish default",
            "append default",
            "match default",
        }


@pytest.mark.parametrize("state", ["hangs", "refuses", "is away"])
def test_a_receiver_in_trouble_costs_spans_and_nothing_else(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SpanReceiver(403 if state == "refuses" else 200).running() as receiver:
        if state == "hangs":
            receiver.hangs.set()
        url = "http://127.0.0.1:9" if state == "is away" else receiver.url
        bounds = {"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
        with exporting(tmp_path, monkeypatch, url, **bounds) as (gateway, client):
            client.put(f"{SUBSCRIPTIONS}/all", json={"filter": "EXISTS id"})
            for _ in range(10):
                publish(client, *[context()] * 4)
            found = 0
            while found < 40:
                pulled = client.post(f"{SUBSCRIPTIONS}/all/pull", json={"wait_s": 30}).json()["messages"]
                found += len(pulled)
                positions = [each["position"] for each in pulled]
                assert (
                    client.post(f"{SUBSCRIPTIONS}/all/ack", json={"positions": positions}).status_code == 200
                )
            until(lambda: figure(client, "fieldfare_dropped_spans_total") > 0)
            assert figure(client, "fieldfare_exported_spans_total") == 0
            spans = gateway.spans
            assert spans is not None
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 20, "the gateway stops as ever"


def metrics() -> tuple[CollectorRegistry, SpanMetrics]:
    registry = CollectorRegistry()
    return registry, SpanMetrics(registry)


def a_span() -> ReadableSpan:
    return ReadableSpan("one", SpanContext(1, 2, False, TraceFlags(1)))


class Failing(SpanExporter):
    """Fails in each way."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("a fault of an exporter")

    def shutdown(self) -> None:
        pass


def test_what_becomes_of_each_span_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")

    def figures(exporter: SpanExporter) -> list[float | None]:
        registry, counting = metrics()
        export = SpanExport(exporter, counting)
        for _ in range(3):
            export.emit(a_span())
        asyncio.run(export.close())
        dropped = registry.get_sample_value("fieldfare_dropped_spans_total", {"why": "export"})
        return [registry.get_sample_value("fieldfare_exported_spans_total"), dropped]

    assert figures(InMemorySpanExporter()) == [3, None]
    assert figures(Failing()) == [0, 3]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {ENDPOINT: ""},
        {ENDPOINT: "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "TRUE"},
        {ENDPOINT: "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
        {ENDPOINT: "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {ENDPOINT: "http://127.0.0.1:9", "OTEL_BSP_MAX_QUEUE_SIZE": "many"},
        {ENDPOINT: "http://127.0.0.1:9", "OTEL_BSP_MAX_QUEUE_SIZE": "-1"},
    ],
)
def test_export_is_off_unless_the_environment_names_a_receiver(environment: dict[str, str]) -> None:
    assert open_spans(environment, metrics()[1]) is None


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    name = "fieldfare.gateway.telemetry.exporting"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert open_spans({ENDPOINT: "http://127.0.0.1:9"}, metrics()[1]) is None
    assert "pip install 'fieldfare[otel]'" in caplog.text


@pytest.mark.parametrize("queue", ["", "many"])
def test_the_log_names_the_receiver_without_its_password(
    queue: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = "http://ann:pass@word@127.0.0.1:9/otlp?token=word"
    monkeypatch.setenv(ENDPOINT, endpoint)
    caplog.set_level(logging.INFO)
    spans = open_spans({ENDPOINT: endpoint, "OTEL_BSP_MAX_QUEUE_SIZE": queue}, metrics()[1])
    if spans is not None:
        asyncio.run(spans.close())
    assert "exported to http://127.0.0.1:9/otlp" in caplog.text
    assert "word" not in caplog.text


@pytest.mark.parametrize(
    "state", ["forged\nERROR line", "k=v\0", "=", ",".join(f"k{n}=v" for n in range(33))]
)
def test_a_publisher_cannot_write_into_the_log(
    state: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each event with a wrong context would write a line, with what the publisher wrote in it."""
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    spans = open_spans({ENDPOINT: "http://127.0.0.1:9"}, metrics()[1])
    assert spans is not None
    caplog.clear()
    sampled_context(context(), state)
    sampled_context(context() + "-x" * 300, None)
    assert caplog.text == ""
    asyncio.run(spans.close())


def test_a_gateway_without_a_receiver_imports_nothing(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from fieldfare.gateway.context import Gateway\n"
        "from fieldfare.gateway.settings import GatewaySettings\n"
        "gateway = Gateway(GatewaySettings(data=Path(sys.argv[1])))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')], gateway.tracer.received())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split("\n")[0] == "[] None", done.stdout + done.stderr
