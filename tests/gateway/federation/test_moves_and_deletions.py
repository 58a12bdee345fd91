"""Subscriptions and spaces that are deleted while a subscription moves, and the tokens of moved ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from federation_support import Site, sites
from gateway_support import until

from fieldfare.gateway.federation.moving import leaving
from fieldfare.gateway.federation.moving.sessions import Moves

OF_ONE = "/v1/spaces/default/subscriptions/mine"
OF_SPACE = "/v1/spaces/s/subscriptions/mine"
KEY = "k" * 40


def with_keys(root: Path) -> dict[str, Any]:
    file = root / "key"
    file.write_text(KEY)
    return {"admin_key_file": file, "peer_key_file": file}


def authorise(*found: Site) -> None:
    for site in found:
        site.client.headers["authorization"] = f"Bearer {KEY}"


def counted_everywhere(site: Site, others: str) -> None:
    revision = site.gateway.registry.revision()
    until(lambda: site.counts(revision, *others))


def make_space(*found: Site) -> None:
    for site in found:
        site.client.post("/v1/spaces", json={"name": "s"}).raise_for_status()
    found[0].client.put(OF_SPACE, json={"filter": "data.n >= 0"}).raise_for_status()


def begin(site: Site, to: Site, path: str = OF_ONE) -> None:
    until(lambda: site.client.get(path).status_code == 200)
    site.client.post(f"{path}/move", json={"to": to.name}).raise_for_status()


def begin_with_a_message(site: Site, to: Site) -> None:
    """Begin to move the subscription `mine`, of which one message waits, to a site that is ready."""
    counted_everywhere(site, to.name)
    site.publish(1)
    until(lambda: site.client.get(f"{OF_ONE}/backlog").json()["pending"] == 1)
    begin(site, to)
    until(lambda: to.brokers()["moves"].get("ready"))


def moved(site: Site, to: Site, path: str = OF_ONE) -> str:
    """Move a subscription without a backlog; return its token."""
    begin(site, to, path)
    until(lambda: site.client.get(path).status_code == 410)
    until(lambda: to.client.get(path).status_code == 200)
    return str(site.client.get(path).json()["token"])


def test_an_ack_that_settles_the_last_message_is_answered_though_the_subscription_has_gone(
    tmp_path: Path,
) -> None:
    """It was 404, as of a subscription that does not exist."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        a.subscribe("mine", "data.n >= 0")
        begin_with_a_message(a, b)
        deliveries = a.gateway.deliveries
        real = deliveries.save

        async def save(delivery: Any) -> Any:
            saved = await real(delivery)
            while not delivery.moved:
                await asyncio.sleep(0.001)
            return saved

        deliveries.save = save
        [message] = a.client.post(f"{OF_ONE}/pull", json={}).json()["messages"]
        answer = a.client.post(f"{OF_ONE}/ack", json={"positions": [message["position"]]})
        assert (answer.status_code, answer.json()) == (200, {"cursor": "0-1-0"})
        assert a.client.get(OF_ONE).status_code == 410


def status(site: Site, token: str, path: str = OF_ONE) -> int:
    return httpx.get(site.url + path, headers={"authorization": f"Bearer {token}"}).status_code


def test_a_token_of_an_earlier_arrival_reads_nothing(tmp_path: Path) -> None:
    """It outlived the subscription: one that was created with the same id later was readable with it."""
    with sites(tmp_path, "ab", "ab", **with_keys(tmp_path)) as (a, b):
        authorise(a, b)
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "b")
        first = moved(a, b)
        assert status(b, first) == 200
        moved(b, a)
        last = moved(a, b)
        assert (status(b, first), status(b, last)) == (401, 200)
        b.client.delete(OF_ONE).raise_for_status()
        b.subscribe("mine", "data.n < 0")
        assert (status(b, first), status(b, last)) == (401, 401)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_token_ends_with_a_subscription_that_is_deleted_while_it_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    with sites(tmp_path, "abc", "ab bc ac", **with_keys(tmp_path)) as (a, b, c):
        authorise(a, b, c)
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "bc")
        token = moved(a, b)
        monkeypatch.setattr(leaving, "OFFERED_S", 0.5)
        c.stop()  # No offer is accepted.
        begin(b, a)
        b.client.delete(OF_ONE).raise_for_status()
        assert status(b, token) == 401
        if is_restarted:
            a.stop()  # The offer stays cancelled.
            b.stop()
            b.start()
        b.subscribe("mine", "data.n < 0")
        assert status(b, token) == 401
        if is_restarted:
            a.start()
        c.start()
        until(lambda: not b.brokers()["moves"])
        assert status(b, token) == 401


def test_a_token_ends_with_its_space(tmp_path: Path) -> None:
    """One of a subscription that had moved on read the next space of that name."""
    with sites(tmp_path, "ab", "ab", **with_keys(tmp_path)) as (a, b):
        authorise(a, b)
        make_space(a, b)
        counted_everywhere(a, "b")
        token = moved(a, b, OF_SPACE)
        moved(b, a, OF_SPACE)
        assert status(b, token, OF_SPACE) == 410
        b.client.delete("/v1/spaces/s").raise_for_status()
        make_space(b)
        assert status(b, token, OF_SPACE) == 401
        b.stop()
        b.start()
        assert status(b, token, OF_SPACE) == 401


def test_a_space_in_which_a_subscription_arrives_is_not_deleted(tmp_path: Path) -> None:
    """Its broker processed nothing of others any more: the next message of the move failed for ever."""
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        make_space(a, b, c)
        counted_everywhere(a, "bc")
        c.stop()
        begin(a, b, OF_SPACE)
        until(lambda: b.brokers()["moves"].get("arriving"))
        refused = b.client.delete("/v1/spaces/s")
        assert refused.status_code == 409 and refused.json()["type"].endswith(":moving")
        c.start()
        until(lambda: b.client.get(OF_SPACE).status_code == 200)
        for site in (a, b):
            assert site.client.delete("/v1/spaces/s").status_code == 204


def test_a_move_back_that_is_cancelled_still_sends_readers_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers got 404 where it had been, and made a second subscription there."""
    with sites(tmp_path, "abc", "ab bc ac", **with_keys(tmp_path)) as (a, b, c):
        authorise(a, b, c)
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "bc")
        first = moved(a, b)
        second = moved(b, a)
        third = moved(a, b)
        c.stop()
        monkeypatch.setattr(leaving, "OFFERED_S", 2.0)
        begin(b, a)
        until(lambda: a.brokers()["moves"].get("arriving"))
        a.stop()
        a.start()
        until(lambda: b.brokers()["moves"] == {"here": 1})
        c.start()
        answer = a.client.get(OF_ONE)
        assert answer.status_code == 410 and answer.json()["token"] == third
        assert (status(a, second), status(b, third), status(b, first)) == (410, 200, 401)
        b.publish(2)
        assert b.take("mine", 1) == [2]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_dead_letters_stay_where_they_are_when_their_subscription_comes_back(
    tmp_path: Path, is_restarted: bool
) -> None:
    """The offer removed them."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "b")
        a.publish(1)
        [message] = until(lambda: a.client.post(f"{OF_ONE}/pull", json={}).json()["messages"])
        body = {"positions": [message["position"]], "reason": "unreadable"}
        a.client.post(f"{OF_ONE}/terminate", json=body).raise_for_status()
        moved(a, b)
        begin(b, a)
        until(lambda: "dead letters" in b.client.get(f"{OF_ONE}/move").text)
        assert a.client.get(f"{OF_ONE}/dead-letters").json()["total"] == 1
        assert a.client.delete(f"{OF_ONE}/dead-letters").json() == {"removed": 1}
        if is_restarted:
            a.stop()
            a.start()
            assert a.gateway.subscriptions.count == 0
            until(lambda: b.brokers()["links"][0]["is_up"])
        moved(b, a)
        assert (a.gateway.subscriptions.count, b.gateway.subscriptions.count) == (1, 0)


def test_a_subscription_that_expires_while_it_leaves_keeps_its_settings(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        a.subscribe("mine", "data.n >= 0")
        given = {"max_attempts": 7, "expires_unused_s": 3600}
        a.client.patch(OF_ONE, json={"delivery": given}).raise_for_status()
        begin_with_a_message(a, b)
        unused = a.gateway.unused
        [number] = unused._watched
        expired = unused._expire(unused._watched[number])
        loop = a.gateway.federation._moving.get_loop()  # type: ignore[union-attr]
        asyncio.run_coroutine_threadsafe(expired, loop).result(10)
        until(lambda: b.client.get(OF_ONE).status_code == 200)
        assert b.client.get(OF_ONE).json()["delivery"] == given


def test_moves_are_counted_while_another_one_begins() -> None:
    """`GET /v1/brokers` counts them on a thread; it failed at times with 500."""
    found: dict[int, Any] = {}

    class Late:
        @property
        def state(self) -> str:
            found[len(found)] = self
            return "here"

    moves = object.__new__(Moves)
    moves._book = SimpleNamespace(moves=found)  # type: ignore[assignment]
    found[0] = Late()
    assert moves.counts() == {"here": 1}
