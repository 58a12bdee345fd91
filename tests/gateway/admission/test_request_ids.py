"""Request ids: in every answer, in the log's lines, in the audit log, and in the client's errors."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gateway_support import SUBSCRIPTIONS, served, until
from receiver_support import LOOPBACK

from fieldfare.client import ApiError, Client
from fieldfare.gateway.admission.request_ids import HEADER, request_id
from fieldfare.gateway.push.pushes import Push
from fieldfare.runtimes.process.log_lines import (
    FORMAT_VARIABLE,
    REQUEST_ID,
    JsonLines,
    TextLines,
    process_line,
)

ID = HEADER.decode()


def test_every_answer_has_an_id_and_a_clients_own_is_kept(tmp_path: Path) -> None:
    with served(tmp_path) as (_, client):
        made = [client.get(path).headers[ID] for path in ("/healthz", "/nowhere", "/v1/stats")]
        assert len(set(made)) == 3 and all(made)
        answer = client.get("/nowhere", headers={ID: "job-7/a"})
        assert (answer.status_code, answer.headers.get_list(ID)) == (404, ["job-7/a"])
        refused = client.get("/healthz", headers={ID: "mine", "host": "evil.example"})
        assert (refused.status_code, refused.headers[ID]) == (421, "mine")


@pytest.mark.parametrize("id", [b"", b"x" * 65, b"a b", b"a\xff", b'a"b', b"a\x1b[31m"])
def test_an_id_that_could_spoil_a_log_is_replaced(id: bytes) -> None:
    made = request_id([(HEADER, id)])
    assert made != id and len(made) < 30
    assert request_id([(b"other", b"x"), (HEADER, b"good")]) == b"good"


def test_a_failure_is_found_in_the_log_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Kept()
    handler.setFormatter(JsonLines("gateway"))
    logging.getLogger("fieldfare.gateway").addHandler(handler)
    try:
        with served(tmp_path) as (gateway, client):

            def fail(*_: Any) -> Any:
                raise sqlite3.DatabaseError("it broke here")

            monkeypatch.setattr(gateway.subscriptions, "get", fail)
            answer = client.get(f"{SUBSCRIPTIONS}/a", headers={ID: "find-me"})
            assert (answer.status_code, answer.headers[ID]) == (500, "find-me")
            with Client(str(client.base_url)) as library, pytest.raises(ApiError) as raised:
                library.get_subscription("a")
            assert raised.value.request_id and f"(request {raised.value.request_id})" in str(raised.value)
    finally:
        logging.getLogger("fieldfare.gateway").removeHandler(handler)
    found = [json.loads(line) for line in lines]
    [mine] = [each for each in found if each.get("request") == "find-me"]
    assert mine["level"] == "ERROR" and "it broke here" in mine["exception"]
    assert any(each.get("request") == raised.value.request_id for each in found)


def test_a_push_does_not_log_the_request_that_began_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its lines, for as long as the service ran, named the request that had set the address."""
    seen: list[str] = []

    async def noted(self: Push) -> None:
        seen.append(REQUEST_ID.get())

    monkeypatch.setattr(Push, "_run", noted)
    with served(tmp_path, **LOOPBACK) as (_, client):
        body = {"filter": "data.x = 1", "delivery": {"push": {"url": "http://127.0.0.1:9/hook"}}}
        client.put(f"{SUBSCRIPTIONS}/a", json=body, headers={ID: "began-it"}).raise_for_status()
        until(lambda: seen)
    assert seen == [""]


def test_the_audit_log_names_the_request(tmp_path: Path) -> None:
    with served(tmp_path, admin_key_file=admin_key(tmp_path)) as (gateway, client):
        headers = {"authorization": f"Bearer {KEY}", ID: "change-1"}
        client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 1"}, headers=headers).raise_for_status()
        path = gateway.settings.folder.logs / "audit.log"
        until(lambda: path.exists() and "change-1" in path.read_text())


KEY = "k" * 40


def admin_key(root: Path) -> Path:
    path = root / "admin.key"
    path.write_text(KEY)
    path.chmod(0o600)
    return path


def test_requests_to_others_are_not_logged_one_by_one() -> None:
    """A site sends several a second to each neighbour."""
    program = (
        "from fieldfare.runtimes.process.log_lines import configure_logging as c; import logging; c('x');"
    )
    program += " logging.getLogger('httpx').info('HTTP Request: POST'); logging.getLogger('x').info('a line')"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
    assert "a line" in said and "HTTP Request" not in said


def test_lines_of_both_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    record = logging.LogRecord("fieldfare.x", logging.WARNING, "", 0, "%s\nb \ud800", ("a",), None)
    line = JsonLines("indexer").format(record)
    assert "\n" not in line and line.isascii()
    assert json.loads(line) == {
        "time": json.loads(line)["time"],
        "level": "WARNING",
        "process": "indexer",
        "logger": "fieldfare.x",
        "message": "a\nb \ud800",
    }
    assert TextLines().format(record).endswith(" WARNING fieldfare.x: a\nb \ud800")
    assert (process_line("", "up"), process_line("gateway", "up")) == (
        "fieldfare: up",
        "fieldfare gateway: up",
    )
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    assert json.loads(process_line("", "up"))["process"] == "supervisor"
