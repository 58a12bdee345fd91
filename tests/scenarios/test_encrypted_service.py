"""A whole service with an encrypted space: everything arrives, and nothing plain is in any of its files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest
from service_support import RunningService, running_service
from tests.docs.test_documentation import blocks

from fieldfare import Client
from fieldfare.client import NewSubscription
from fieldfare.client.encryption import SpaceKey

pytestmark = [pytest.mark.service, pytest.mark.spark, pytest.mark.timeout(1200)]

PLANTED = ("PLANTED-SYMBOL", "PLANTED-NOTE", "417.23", "417.24", "plantedname")


def quote(price: float, symbol: str, note: str = "") -> dict[str, Any]:
    return {"source": "/q", "type": "quote", "data": {"plantedname": price, "symbol": symbol, "note": note}}


def planted_in(*folders: Path) -> list[str]:
    """The files in which a planted word stands."""
    return [
        f"{path}: {word}"
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
        for word in PLANTED
        if word.encode() in path.read_bytes()
    ]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """One service for all; once it has stopped, nothing planted is in any of its files."""
    folder = tmp_path_factory.mktemp("service")
    with running_service(
        folder / "data", console=folder / "console.txt", webhook_allow="127.0.0.1", webhook_handshake=0
    ) as running:
        yield running
    assert planted_in(folder) == []


def test_events_and_filters_go_through_a_service_that_never_sees_them(service: RunningService) -> None:
    """Published, matched, delivered, pulled, pushed, refused, rotated; then every file is searched."""
    key = SpaceKey.generate({"data.plantedname": (0, 500, "0.01")}, ["data.symbol"])
    filter = "data.plantedname < 417.24 AND data.symbol = 'PLANTED-SYMBOL'"
    with receiving() as (hook, bodies):
        with Client(service.url) as admin:
            admin.create_space("secret", encrypted=key)
        with Client(service.url, "secret", encryption=key) as client:
            client.create_subscription(filter, "a")
            client.create_subscriptions([("b", "data.plantedname BETWEEN 417.23 AND 417.24"), ("c", "TRUE")])
            pushed = {"push": {"url": hook}}
            client.create_subscriptions([NewSubscription("data.plantedname = 417.25", "d", delivery=pushed)])
            client.publish_many(
                [
                    quote(417.23, "PLANTED-SYMBOL", "PLANTED-NOTE"),
                    quote(417.24, "PLANTED-SYMBOL"),
                    quote(417.25, "other"),
                ]
            )
            with client.subscribe("a") as messages:
                message = next(messages)
                assert message.event["data"]["note"] == "PLANTED-NOTE"
                message.ack()
            pulled = [each.event["data"]["plantedname"] for each in client.pull("b", wait_s=60)]
            assert pulled == [417.23, 417.24]
            assert len(client.pull("c", wait_s=60)) == 3
            assert client.get_subscription("a").filter == filter
            body = bodies.get(timeout=180)
            assert b"other" not in body and json.loads(key.open_line(body))["data"]["symbol"] == "other"
            both = key.rotated()
        with Client(service.url, "secret", encryption=both) as client:
            client.replace_subscription("a", filter)
            client.publish(quote(417.23, "PLANTED-SYMBOL", "again")).result(60)
            with client.subscribe("a") as messages:
                message = next(messages)
                assert message.event["data"]["note"] == "again"
                message.ack()
        with Client(service.url, "secret") as plain, pytest.raises(Exception, match="encrypted"):
            plain.publish_many([quote(417.23, "PLANTED-SYMBOL")])
    assert planted_in(service.folder.root) == []


@contextmanager
def receiving() -> Iterator[tuple[str, SimpleQueue[bytes]]]:
    """A webhook's receiver: its address, and the bodies that come."""
    bodies: SimpleQueue[bytes] = SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.put(self.rfile.read(int(self.headers["content-length"])))
            self.send_response_only(204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/hook", bodies
        finally:
            server.shutdown()


def test_the_examples_of_the_page_run(service: RunningService, tmp_path: Path) -> None:
    environment = os.environ | {"FIELDFARE_URL": service.url}
    shell = "fieldfare() { " + sys.executable + ' -m fieldfare "$@"; }\n'
    (script,) = (text for language, text in blocks("docs/encrypted-spaces.md") if language == "sh")
    done = subprocess.run(
        ["bash", "-euc", shell + script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith('{"symbol":"YHOO","price":18.49}\n')
    (program,) = (text for language, text in blocks("docs/encrypted-spaces.md") if language == "python")
    names: dict[str, Any] = {"url": service.url}
    exec(program.replace('"other.key"', repr(str(tmp_path / "other.key"))), names)
    with Client(service.url, "other", encryption=names["key"]) as client:
        assert client.pull("cheap", wait_s=60)[0].event["data"]["price"] == 18.49


def test_the_command_line_makes_a_key_and_reads_what_it_publishes(
    service: RunningService, tmp_path: Path
) -> None:
    environment = os.environ | {
        "FIELDFARE_URL": service.url,
        "FIELDFARE_SPACE": "command",
        "FIELDFARE_SPACE_PASSPHRASE": "horse",
    }

    def fieldfare(*arguments: str, given: str = "", with_key: bool = True) -> Any:
        key = ("--space-key", str(tmp_path / "k")) if with_key else ()
        command = [sys.executable, "-m", "fieldfare", *key, *arguments]
        return subprocess.run(
            command, input=given, env=environment, capture_output=True, text=True, timeout=120
        )

    numbers = ("--number", "data.price=0:500:0.01", "--text", "data.symbol")
    made = fieldfare("keys", "space", "create", str(tmp_path / "k"), *numbers, with_key=False)
    assert made.returncode == 0 and "The service sees the order of numbers" in made.stderr, made.stderr
    assert fieldfare("spaces", "create", "command", "--encrypted").returncode == 0
    assert fieldfare("subscriptions", "create", "a", "data.price < 18.5").returncode == 0
    refused = fieldfare("subscriptions", "create", "b", "data.price * 2 < 3")
    assert refused.returncode == 1 and "only comparisons" in refused.stderr
    line = '{"price":18.49,"symbol":"X"}\n'
    assert fieldfare("publish", "-", "--type", "q", given=line).returncode == 0
    assert '"price":18.49' in fieldfare("subscribe", "a", "--json", "-n", "1").stdout
    rotated = fieldfare("keys", "space", "rotate", str(tmp_path / "k"))
    assert rotated.returncode == 0 and not (tmp_path / "k.next").exists(), rotated.stderr
    assert fieldfare("publish", "-", "--type", "q", given=line).returncode == 0
    assert '"price":18.49' in fieldfare("subscribe", "a", "--json", "-n", "1").stdout
    dropped = fieldfare("keys", "space", "drop", str(tmp_path / "k"))
    assert dropped.returncode == 0, dropped.stderr
    assert "epochs  2;" in fieldfare("keys", "space", "show", str(tmp_path / "k")).stdout
