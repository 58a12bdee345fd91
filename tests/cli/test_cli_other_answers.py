"""Commands on an address where another program answers, or a service of another version."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cli_support import Fieldfare

from fieldfare.client.errors import UnexpectedAnswer
from fieldfare.client.synchronous.client import Client

COMMANDS = (
    ("top", "--once"),
    ("trace", "--for", "0.1s"),
    ("brokers",),
    ("brokers", "leave", "--cancel"),
    ("balance",),
    ("subscriptions", "move", "a"),
    ("spaces", "advertise", "default"),
    ("spaces", "advertise", "default", "data.n = 1"),
    ("spaces", "quotas", "default"),
    ("spaces", "quotas", "default", "events_per_s=1"),
    ("keys", "list"),
    ("quarantine", "list"),
)


class Other(ThreadingHTTPServer):
    """Gives every request the same answer."""

    body = b""


class _Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        assert isinstance(self.server, Other)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    do_GET = do_POST = do_PUT = do_DELETE = _answer

    def log_message(self, *_arguments: object) -> None: ...


@pytest.fixture
def other() -> Iterator[Other]:
    with Other(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("body", [b'{"status": "ok"}', b'{"spaces": 1}', b"[]", b"[" * 100_000])
def test_an_answer_of_another_form_is_an_error_of_one_line(
    fieldfare: Fieldfare, other: Other, command: tuple[str, ...], body: bytes
) -> None:
    """They ended with the traceback of a KeyError, and for nested brackets of a RecursionError."""
    other.body = body
    shown = fieldfare(*command, "--url", f"http://127.0.0.1:{other.server_address[1]}")
    assert shown.exit_code == 1
    assert shown.exception is None or isinstance(shown.exception, SystemExit)
    assert "has an unexpected form" in shown.stderr and "hint: check that" in shown.stderr


def test_a_client_is_told_of_an_answer_that_nests_too_deeply(other: Other) -> None:
    other.body = b"[" * 100_000
    client = Client(url=f"http://127.0.0.1:{other.server_address[1]}")
    with client, pytest.raises(UnexpectedAnswer, match="RecursionError"):
        client.stats()


@pytest.mark.parametrize(
    "command", [("brokers",), ("balance",), ("subscriptions", "move", "a")], ids=" ".join
)
def test_what_other_sites_say_cannot_write_on_the_terminal(
    fieldfare: Fieldfare, other: Other, command: tuple[str, ...]
) -> None:
    hostile = "\x1b[2Joslo\r\n"
    other.body = json.dumps(
        {
            "broker": hostile,
            "routing": "ddbr",
            "links": [],
            "brokers": [],
            "without_path": 0,
            "automatic": {"is_automatic": True, "state": hostile, "last": None},
            "target": {"input": 0.5, "output": 0.5},
            "actions": [],
            "moves": [{"space": hostile, "id": "a", "to": hostile}],
            "resting": 0,
            "pinned": 0,
            "state": "refused",
            "reason": hostile,
        }
    ).encode()
    shown = fieldfare(*command, "--url", f"http://127.0.0.1:{other.server_address[1]}")
    assert shown.exit_code == 0, shown.stderr
    assert r"\x1b[2Joslo\r\n" in shown.stdout and "\x1b" not in shown.stdout
