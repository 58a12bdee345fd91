"""At which other sites a subscription counts, in the answers about it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from federation_support import Site, sites
from gateway_support import DEADLINE_S, until


def test_a_subscription_says_at_which_sites_it_counts(tmp_path: Path) -> None:
    path = "/v1/spaces/default/subscriptions/mine"
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        until(lambda: {each["name"] for each in c.brokers()["brokers"]} == {"a", "b", "c"})
        c.subscribe("mine", "data.n < 100")
        waited = c.client.get(path, params={"sites_wait_s": 60}).json()
        assert waited["sites"] == {"a": True, "b": True}
        a.publish(1)
        assert c.take("mine", 1) == [1]
        b.stop()
        replaced = c.client.put(path, json={"filter": "data.n < 50"}).json()
        assert replaced["sites"] == {"a": False, "b": False}
        assert c.client.get(path, params={"sites_wait_s": 0.05}).json()["sites"] == replaced["sites"]
        assert c.client.get(path, params={"sites_wait_s": 61}).status_code == 400
        [listed] = c.client.get("/v1/spaces/default/subscriptions").json()["subscriptions"]
        assert "sites" not in listed


@contextmanager
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, Event, Event]]:
    """A site whose subscription does not count at another one; set when a wait for that begins, and ends."""
    begun, ended = Event(), Event()
    with sites(tmp_path, "ab", "ab") as (a, b):
        until(lambda: {each["name"] for each in b.brokers()["brokers"]} == {"a", "b"})
        a.stop()
        b.subscribe("mine", "data.n < 100")
        federation = b.gateway.federation
        assert federation is not None
        real = federation.wait_for_counting

        async def wait_for_counting(revision: int, wait_s: float) -> dict[str, bool]:
            begun.set()
            try:
                return await real(revision, wait_s)
            finally:
                ended.set()

        monkeypatch.setattr(federation, "wait_for_counting", wait_for_counting)
        yield b, begun, ended


PATH, WAIT = "/v1/spaces/default/subscriptions/mine", {"sites_wait_s": 60}


def test_a_site_that_stops_answers_those_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stop took ten seconds, and the request had no answer."""
    with waiting(tmp_path, monkeypatch) as (b, begun, _), ThreadPoolExecutor(1) as threads:
        asking = threads.submit(b.client.get, PATH, params=WAIT)
        assert begun.wait(DEADLINE_S)
        b.stop()
        assert asking.result(DEADLINE_S).json()["sites"] == {"a": False}


def test_no_site_waits_for_a_client_that_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with waiting(tmp_path, monkeypatch) as (b, begun, ended):
        with socket.create_connection((b.client.base_url.host, b.client.base_url.port), DEADLINE_S) as left:
            path = f"{PATH}?sites_wait_s={WAIT['sites_wait_s']}"
            left.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert begun.wait(DEADLINE_S)
            assert not ended.is_set()
        assert ended.wait(WAIT["sites_wait_s"] / 2)
