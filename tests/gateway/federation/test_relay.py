"""`fieldfare relay`: a process between two sites passes their events on, with neither Spark nor Java."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from federation_support import Site
from gateway_support import DEADLINE_S, until
from tests.doses import rounds

from fieldfare.gateway.admission import tls
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.wire import Row
from fieldfare.gateway.relay import RelayGateway, create_relay_app
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.storage.errors import FormatError
from fieldfare.storage.links import Outbox
from fieldfare_lab.ports import find_free_port

ROUNDS = rounds(4)


class RelayProcess:
    """A relay in a process of its own, between two sites."""

    def __init__(self, root: Path, *sites: Site, **environment: str) -> None:
        self._environment = environment
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = root / "hub.log"
        self._command = [sys.executable, "-m", "fieldfare", "relay", "--data", str(root / "hub")]
        self._command += ["--broker", "hub", "--port", str(self.port)]
        for site in sites:
            self._command += ["--peer", f"{site.name}={site.url}"]

    def start(self) -> None:
        environment = {"PATH": "/nonexistent", "PYTHONPATH": os.pathsep.join(sys.path)}
        environment |= self._environment
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)
        until(self.is_alive)

    def is_alive(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/healthz", timeout=DEADLINE_S).status_code == 200
        return False

    def stop(self, how: signal.Signals) -> int:
        self._process.send_signal(how)
        return self._process.wait(DEADLINE_S)

    def state(self) -> Any:
        return httpx.get(f"{self.url}/v1/brokers", timeout=DEADLINE_S).json()


@contextlib.contextmanager
def line(root: Path) -> Iterator[tuple[Site, RelayProcess, Site]]:
    """Start a - hub - b."""
    a, b = (Site(root / name, name, find_free_port()) for name in "ab")
    hub = RelayProcess(root, a, b)
    a.peers = b.peers = {"hub": hub.port}
    with contextlib.ExitStack() as stack:
        hub.start()
        stack.callback(lambda: hub.stop(signal.SIGKILL))
        for site in (a, b):
            site.settings = {"public_url": site.url}
            site.start()
            stack.callback(site.stop)
        yield a, hub, b


def test_a_relay_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with line(tmp_path) as (a, hub, b):
        revision = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(revision, "a"))
        published = 0
        for _ in range(ROUNDS):
            for _ in range(25):
                a.publish(published)
                published += 1
            assert hub.stop(signal.SIGKILL) == -signal.SIGKILL
            a.publish(published, published + 1)
            published += 2
            hub.start()
        came = Counter(b.take("mine", published))
        assert came == Counter(range(published))
        until(lambda: not any(each["outbox_entries"] for each in hub.state()["links"]))
        assert b.pull("mine") == []
        assert [each["name"] for each in hub.state()["brokers"] if each["is_relay"]] == ["hub"]
        assert a.of("hub") == {
            "name": "hub", "links": ["a", "b"], "is_removed": False, "is_leaving": False, "is_relay": True,
            "next_hop": "hub",
        }  # fmt: skip
        assert a.of("b")["next_hop"] == "hub"
        # A receipt that was lost with the relay is repeated.
        until(lambda: a.brokers()["kept_entries"] == 0)


def test_a_subscription_moves_over_a_relay_and_a_site_leaves_behind_it(tmp_path: Path) -> None:
    """Moves and departures wait for the word of all brokers: a relay has none to say."""
    with line(tmp_path) as (a, _, b):
        revision = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(revision, "a") and a.of("b").get("filters") == 1)
        a.publish(1)
        assert b.take("mine", 1) == [1]
        one = "/v1/spaces/default/subscriptions/mine"
        b.client.post(f"{one}/move", json={"to": "a"}).raise_for_status()
        until(lambda: a.client.get(one).status_code == 200)
        b.publish(2)
        assert a.take("mine", 1) == [2]
        assert b.client.post("/v1/leave", json={}).status_code == 202
        until(lambda: b.client.get("/v1/leave").json()["state"] == "left")
        until(lambda: a.of("b")["is_removed"])


def test_a_relay_has_no_spaces_and_says_so(tmp_path: Path) -> None:
    with line(tmp_path) as (_, hub, _):
        for method, path in (
            ("POST", "/v1/spaces/default/events"),
            ("GET", "/v1/spaces"),
            ("GET", "/console"),
        ):
            answer = httpx.request(method, f"{hub.url}{path}", timeout=DEADLINE_S)
            assert answer.status_code == 501 and answer.json()["type"] == "urn:fieldfare:problem:relay"
        until(lambda: httpx.get(f"{hub.url}/readyz", timeout=DEADLINE_S).status_code == 200)
        assert 'fieldfare_link_up{peer="b"}' in httpx.get(f"{hub.url}/metrics", timeout=DEADLINE_S).text
        assert hub.stop(signal.SIGTERM) == 0
        hub.start()


def test_a_relay_makes_keys_for_its_neighbours(tmp_path: Path) -> None:
    admin = tmp_path / "admin.key"
    admin.write_text("a" * 40)
    hub = RelayProcess(tmp_path, Site(tmp_path / "a", "a", 9), FIELDFARE_ADMIN_KEY_FILE=str(admin))
    hub.start()
    try:
        assert httpx.get(f"{hub.url}/v1/brokers", timeout=DEADLINE_S).status_code == 401
        by_admin = {"Authorization": f"Bearer {'a' * 40}"}
        keys, more = f"{hub.url}/v1/keys", {"headers": by_admin, "timeout": DEADLINE_S}
        made = httpx.post(keys, json={"rights": ["broker"]}, **more)
        assert made.status_code == 201
        by_peer = {"Authorization": f"Bearer {made.json()['key']}"}
        entries = f"{hub.url}/v1/brokers/a/entries"
        assert httpx.post(entries, headers=by_peer, timeout=DEADLINE_S).status_code == 415
        assert httpx.post(entries, timeout=DEADLINE_S).status_code == 401
        body = {"rights": ["publish"], "space": "default"}
        assert httpx.post(keys, json=body, **more).status_code == 501
    finally:
        hub.stop(signal.SIGKILL)


def test_a_relay_mends_a_damaged_file_at_its_start(tmp_path: Path) -> None:
    """Its error said that a start would do that, and each start failed."""
    hub = RelayProcess(tmp_path, Site(tmp_path / "a", "a", 9))
    hub.start()
    assert hub.stop(signal.SIGTERM) == 0
    path = tmp_path / "hub" / "links.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = 'outbox_unsent'"
        (page,) = connection.execute(query).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : page * size] = b"x" * size
    path.write_bytes(content)
    hub.start()
    try:
        assert [each["peer"] for each in hub.state()["links"]] == ["a"]
    finally:
        hub.stop(signal.SIGKILL)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"broker": "hub"}, "--peer"),
        ({"broker": "hub", "peers": ("a=http://127.0.0.1:1",), "routing": "fbr"}, "--routing ddbr"),
        ({"broker": "hub", "peers": ("a=http://127.0.0.1:1",), "balance": True}, "--balance"),
    ],
)
def test_settings_that_do_not_fit_a_relay_are_refused(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        RelayGateway(GatewaySettings(data=tmp_path, **given))


def test_the_directory_of_a_site_is_refused(tmp_path: Path) -> None:
    with line(tmp_path) as (a, _, _):
        until(lambda: a.of("b").get("destination") is not None)
        a.stop()
        settings = GatewaySettings(data=a.data, broker="a", peers=("hub=http://127.0.0.1:1",))
        with pytest.raises(FormatError, match="is the data directory of a site"):
            RelayGateway(settings)
        a.start()


def test_a_relay_is_no_destination_and_its_loss_parts_nobody() -> None:
    rows = [Row("b", "i", 1, ("a", "hub")), Row("hub", "j", 1, ("a", "b"), is_relay=True)]
    clusters = Clusters("a", "k", ("",), {"b": "", "hub": ""}, 1, rows)
    for peer in ("b", "hub"):
        clusters.set_up(peer, is_up=True)
    assert clusters.brokers == ["b"] and clusters.path("hub") == "hub"
    assert clusters.parted_by_leaving() == []
    assert [row.name for row in clusters.rows if row.is_relay] == ["hub"]
    clusters.merge("hub", [Row("hub", "j", 2, ("a", "b"))])
    assert clusters.brokers == ["b", "hub"], "it has become a site"


async def answers(gateway: RelayGateway, *wanted: tuple[str, dict[str, str]]) -> list[httpx.Response]:
    transport = httpx.ASGITransport(create_relay_app(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return [await client.get(path, headers=headers) for path, headers in wanted]


def make_certificate(path: Path) -> None:
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    named = ["-subj", "/CN=hub", "-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    subprocess.run([*request, *named], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is missing")
def test_a_relay_shows_a_renewed_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It showed the one of its start until it expired."""
    monkeypatch.setattr(tls, "RENEWED_S", 0.01)
    path = tmp_path / "own.pem"
    make_certificate(path)
    given = {"data": tmp_path / "hub", "broker": "hub", "peers": ("a=http://127.0.0.1:1",)}
    gateway = RelayGateway(GatewaySettings(**given, tls_cert=path, tls_key=path.with_suffix(".key")))  # type: ignore[arg-type]
    certificates = gateway.certificates
    assert certificates is not None
    first = certificates.context

    async def run() -> None:
        await gateway.start()
        make_certificate(path)
        async with asyncio.timeout(DEADLINE_S):
            while certificates.context is first:
                await asyncio.sleep(0.01)
        await gateway.close()

    asyncio.run(run())


def test_a_relay_tells_its_neighbours_only_to_those_who_may_watch(tmp_path: Path) -> None:
    admin = tmp_path / "admin.key"
    admin.write_text("a" * 40)
    given = {"data": tmp_path / "hub", "broker": "hub", "peers": ("a=http://127.0.0.1:1",)}
    gateway = RelayGateway(GatewaySettings(**given, admin_key_file=admin))  # type: ignore[arg-type]
    watching = {"Authorization": f"Bearer {'a' * 40}"}
    anybody, watcher = asyncio.run(answers(gateway, ("/readyz", {}), ("/readyz", watching)))
    assert anybody.json() == {"status": "not ready"} and watcher.json()["checks"] == {"a": "down"}


def test_the_readiness_of_a_relay_does_not_depend_on_its_backlog(tmp_path: Path) -> None:
    """Each look read all entries that wait: gigabytes after a day without a link."""
    given = {"data": tmp_path / "hub", "broker": "hub", "peers": ("a=http://127.0.0.1:1",)}
    gateway = RelayGateway(GatewaySettings(**given))  # type: ignore[arg-type]
    looks = 0

    def counted() -> dict[str, Outbox]:
        nonlocal looks
        looks += 1
        return {"a": Outbox(5, 50, 0)}

    gateway.relay._store.outboxes = counted  # type: ignore[method-assign]
    (ready,) = asyncio.run(answers(gateway, ("/readyz", {})))
    assert ready.status_code == 503 and not looks
    (metrics,) = asyncio.run(answers(gateway, ("/metrics", {})))
    assert 'fieldfare_link_outbox_entries{peer="a"} 5.0' in metrics.text and looks == 1
