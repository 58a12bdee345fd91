"""What exported spans cost a publish request: microseconds of the event loop, without the receiver.

    python benchmarks/spans.py

calls what `POST /v1/spaces/{space}/events` calls for tracing: with the export off, and on, for events
without a trace context, for unsampled and for sampled ones. A sampled event has two spans until then, one
when it is matched and two for each subscription; the service traces at most 50 events per second.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from fieldfare.gateway.metrics import SpanMetrics
from fieldfare.gateway.telemetry import spans as module
from fieldfare.gateway.telemetry.exporting import SpanExport
from fieldfare.gateway.telemetry.spans import Spans
from fieldfare.gateway.tracing import Tracer
from fieldfare.storage.event_log import Appended, NewRecord

CONTEXT = "00-" + "a" * 32 + "-" + "b" * 16


def payload(events: int, flags: str | None) -> bytes:
    """Return a record's events, with a trace context each if there are flags."""
    attributes = {} if flags is None else {"traceparent": f"{CONTEXT}-{flags}"}
    line = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": {"price": 17}} | attributes
    return (json.dumps(line).encode() + b"\n") * events


def cost_us(tracer: Tracer, record: NewRecord, calls: int) -> float:
    """Return the time of one request's calls, the least of five runs, in microseconds."""

    def run() -> float:
        began_s = time.perf_counter()
        for offset in range(calls):
            marks = tracer.received()
            if marks is not None:
                tracer.decoded(marks)
                tracer.appended(marks, record, Appended(offset, record.count, 1, duplicate=False))
        return (time.perf_counter() - began_s) / calls * 1e6

    return min(run() for _ in range(5))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=2_000, help="requests of a run (default: %(default)s)")
    calls = parser.parse_args().calls
    module.EVENTS_PER_S_MAX = module.SPACE_EVENTS_PER_S_MAX = 1 << 30

    def exporting() -> Tracer:
        metrics = SpanMetrics(CollectorRegistry())
        return Tracer(Spans(SpanExport(InMemorySpanExporter(), metrics, 1 << 30), metrics))

    tracers: dict[str, Callable[[], Tracer]] = {"off": Tracer, "on": exporting}
    for name, events, flags in (
        *(("off", 1, "01"), ("on", 1, None), ("on", 1000, None)),
        *(("on", 1, "00"), ("on", 1000, "00"), ("on", 1, "01")),
    ):
        record = NewRecord("default", payload(events, flags), events)
        said = {None: "no context", "00": "unsampled", "01": "sampled"}[flags]
        print(f"{name:4}{events:6} events, {said:12}{cost_us(tracers[name](), record, calls):9.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
