"""The requests that a server behind nginx or Caddy gets, with the files of deploy/."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from proxy_support import PROGRAMS, proxy_of

pytestmark = pytest.mark.long

FORGED = {"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9", "X-Request-Id": "gate-17"}


@dataclass
class Got:
    """A request's first line and headers, and the port that it came from."""

    line: str
    headers: Message
    port: int


class Server(ThreadingHTTPServer):
    """Answers GET, and breaks the connection at a POST; keeps the heads of all requests but /healthz."""

    daemon_threads = True

    def __init__(self) -> None:
        self.got: list[Got] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path != "/healthz":
                    self._note()
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                self._note()
                self.rfile.read(int(self.headers["content-length"]))
                self.close_connection = True

            def _note(self) -> None:
                line = f"{self.command} {self.path} {self.request_version}"
                server.got.append(Got(line, self.headers, self.client_address[1]))

            def log_message(self, *arguments: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, httpx.Client]]:
    if PROGRAMS[request.param] is None:
        pytest.skip(f"{request.param} is not installed: apt-get install {request.param}")
    folder: Path = tmp_path_factory.mktemp(request.param)
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with (
            proxy_of(request.param, folder, f"127.0.0.1:{server.server_address[1]}") as (port, _),
            httpx.Client(base_url=f"https://localhost:{port}", verify=False, timeout=180) as client,
        ):
            yield server, client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_server_gets_the_client_s_address_and_not_a_forged_one(both: tuple[Server, httpx.Client]) -> None:
    server, client = both
    server.got.clear()
    for _ in range(3):
        client.get("/x%3Ay?q=%20", headers=FORGED).raise_for_status()
    for got in server.got:
        assert got.headers.get_all("x-forwarded-for") == ["127.0.0.1"]
        assert got.headers["x-request-id"] == "gate-17"
        assert got.headers["host"] == client.base_url.netloc.decode()
        assert got.line == "GET /x%3Ay?q=%20 HTTP/1.1"
    assert len({got.port for got in server.got}) == 1, "the connection is kept"


def test_a_request_that_may_have_had_an_effect_is_not_repeated(both: tuple[Server, httpx.Client]) -> None:
    server, client = both
    server.got.clear()
    client.get("/first").raise_for_status()  # the POST goes over its connection
    answer = client.post("/events", content=b"{}")
    assert answer.status_code == 502
    assert [got.line.split()[0] for got in server.got] == ["GET", "POST"]
