"""A receiver of spans on this machine, and contexts that events carry."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE = 0xABCDEF0123456789ABCDEF0123456789
PARENT = 0x0123456789ABCDEF


def context(trace: int = TRACE, span: int = PARENT, flags: str = "01") -> str:
    return f"00-{trace:032x}-{span:016x}-{flags}"


class SpanReceiver:
    """A server of OTLP over HTTP that keeps what it gets."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.requests: list[ExportTraceServiceRequest] = []
        self.hangs = threading.Event()
        self.ends = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if receiver.hangs.is_set():
                    receiver.ends.wait(60)
                    return
                if receiver.status == 200:
                    receiver.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[SpanReceiver]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.ends.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    @property
    def resources(self) -> list[dict[str, str]]:
        found = [each.resource for request in list(self.requests) for each in request.resource_spans]
        return [{each.key: each.value.string_value for each in resource.attributes} for resource in found]

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def said(span: Any) -> dict[str, Any]:
    """The attributes of a received span."""
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
