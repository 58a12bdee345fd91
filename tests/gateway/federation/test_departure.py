"""`fieldfare brokers leave`: a site leaves the others in good order."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from federation_support import Site, sites
from gateway_support import BATCH, encode, event, until
from typer.testing import CliRunner

from fieldfare.balancing.messages import State
from fieldfare.cli.app import app
from fieldfare.gateway.delivery.backlogs import Backlogs
from fieldfare.gateway.federation import departure
from fieldfare.gateway.federation.links import LinkError, Peer
from fieldfare.storage.errors import StorageError
from fieldfare.storage.sqlite.links import LinkStore

OF_ONE = "/v1/spaces/default/subscriptions/mine"


def leave(site: Site, **body: Any) -> httpx.Response:
    return site.client.post("/v1/leave", json=body)


def state_of(site: Site) -> dict[str, Any]:
    return dict(site.client.get("/v1/leave").json())


def all_quiet(*among: Site) -> bool:
    return all(site.is_quiet() for site in among)


def refusal(site: Site) -> tuple[int, str]:
    """Return the answer to a site's publisher."""
    answer = site.client.post(
        "/v1/spaces/default/events", content=encode([event(9, {"n": 9})]), headers=BATCH
    )
    return answer.status_code, answer.json().get("type", "").rpartition(":")[2]


def command(site: Site, *options: str) -> tuple[int, str]:
    said = CliRunner().invoke(app, ["brokers", "leave", *options, "--url", site.url])
    return said.exit_code, " ".join(said.output.split())


def parted_without(site: Site) -> list[str]:
    """Return the sites that others reach through a site only, as far as it knows their links."""
    known = site.gateway.federation.departure  # type: ignore[union-attr]
    return list(known._clusters.parted_by_leaving())


def leave_with_a_message(site: Site, other: Site) -> None:
    """Begin to leave while the other site's event waits for the subscription `mine` of this one."""
    site.subscribe("mine", "data.n >= 0")
    until(lambda: other.of(site.name).get("filters") == 1 and all_quiet(site, other))
    other.publish(1)
    until(lambda: site.client.get(f"{OF_ONE}/backlog").json()["pending"] == 1)
    assert leave(site).status_code == 202


def stays_for_some_looks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until a site has looked for twice as long as it takes to leave whether anything waits."""
    looks, known = [0], site.gateway.federation.departure  # type: ignore[union-attr]
    look = known._look

    async def counted() -> None:
        await look()
        looks[0] += 1

    monkeypatch.setattr(known, "_look", counted)
    until(lambda: looks[0] >= 2 * departure.SETTLED_S / departure.STEP_S)
    assert state_of(site)["state"] == "withdrawn"


def test_a_site_leaves_and_nothing_is_lost(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        for site in (a, b, c):
            site.subscribe("mine", "data.n >= 0")
        until(lambda: all_quiet(a, b, c))
        a.publish(1)
        b.publish(2)
        until(lambda: b.client.get(f"{OF_ONE}/backlog").json()["pending"] == 2)
        until(lambda: not parted_without(b))
        code, said = command(b, "--timeout", "1")
        assert code == 1 and "1 subscriptions with a backlog, 2 messages of these" in said
        until(lambda: state_of(b)["state"] == "withdrawn" and not state_of(b)["sites"])
        assert a.of("b")["is_leaving"] and a.of("b")["filters"] == 0
        a.publish(3)
        assert refusal(b) == (503, "leaving")
        put = b.client.put("/v1/spaces/default/subscriptions/late", json={"filter": "data.n > 0"})
        assert put.status_code == 503
        assert sorted(c.take("mine", 3)) == [1, 2, 3] == sorted(a.take("mine", 3))
        b.stop()
        b.start()
        assert state_of(b)["state"] == "withdrawn" and refusal(b) == (503, "leaving")
        assert sorted(b.take("mine", 2)) == [1, 2]
        code, said = command(b, "--timeout", "30")
        assert code == 0 and "the broker b has left: stop it" in said
        until(lambda: a.of("b")["is_removed"] and c.of("b")["is_removed"])
        a.publish(4)
        assert c.take("mine", 1) == [4] == a.take("mine", 1)
        b.stop()
        b.start()
        assert b.pull("mine") == [] and refusal(b) == (503, "leaving")
        until(lambda: state_of(b) == {**state_of(b), "state": "left", "untold": []})
        code, said = command(b, "--cancel")
        assert code == 1 and "all others refuse its name for good" in said
        assert leave(b).json()["state"] == "left"


def test_a_site_between_others_leaves_only_if_it_is_forced(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        c.subscribe("mine", "data.n >= 0")
        until(lambda: a.of("c").get("filters") == 1 and all_quiet(a, b, c))
        answer = leave(b)
        assert answer.status_code == 409 and answer.json()["type"].endswith("cut-vertex")
        assert answer.json()["parted"] == ["c"] and state_of(b)["state"] == "staying"
        a.publish(1)
        assert c.take("mine", 1) == [1]
        assert leave(b, force=True).status_code == 202
        until(lambda: state_of(b)["state"] == "left")
        a.publish(2)
        until(lambda: a.brokers()["without_path"] >= 1)


def test_a_site_that_stays_after_all_gets_events_again(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        leave_with_a_message(b, a)
        until(lambda: state_of(b)["state"] == "withdrawn" and not state_of(b)["sites"])
        balancer = b.gateway.federation.balancer.edge
        until(lambda: balancer.state is State.NOT_AVAILABLE)
        code, said = command(b, "--cancel")
        assert code == 0 and "the broker b stays" in said
        until(lambda: balancer.state is not State.NOT_AVAILABLE)
        until(lambda: a.of("b")["filters"] == 1 and all_quiet(a, b))
        a.publish(2)
        b.publish(3)
        assert sorted(b.take("mine", 3)) == [1, 2, 3]
        assert not a.of("b")["is_leaving"]


def test_subscriptions_that_are_moving_arrive_before_a_site_leaves(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        revision = b.subscribe("mine", "data.n >= 0")
        a.subscribe("other", "data.n >= 0")
        until(lambda: b.counts(revision, "a") and all_quiet(a, b))
        a.publish(1)
        until(lambda: b.client.get(f"{OF_ONE}/backlog").json()["pending"] == 1)
        b.client.post(f"{OF_ONE}/move", json={"to": "a"}).raise_for_status()
        assert leave(b).status_code == 202
        until(lambda: state_of(b)["waits_for"].get("moves") == 1)
        a.client.post("/v1/spaces/default/subscriptions/other/move", json={"to": "b"}).raise_for_status()
        other = "/v1/spaces/default/subscriptions/other/move"
        until(lambda: a.client.get(other).json().get("state") == "refused")
        # What is published from now on is for the other site.
        until(lambda: b.client.get(f"{OF_ONE}/move").json().get("state") == "ended")
        a.publish(2)
        assert b.take("mine", 1) == [1]
        until(lambda: state_of(b)["state"] == "left")
        assert a.take("mine", 1) == [2]


def test_delayed_events_are_sent_before_a_site_leaves(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        a.subscribe("mine", "data.n >= 0")
        until(lambda: b.of("a").get("filters") == 1 and all_quiet(a, b))
        later = {**BATCH, "Fieldfare-Deliver-After": "6"}
        body = encode([event(5, {"n": 5})])
        begun_s = time.monotonic()
        answer = b.client.post("/v1/spaces/default/events", content=body, headers=later)
        assert answer.status_code == 202, answer.text
        assert leave(b).json()["state"] == "closing"
        until(lambda: state_of(b)["waits_for"].get("delayed_records") == 1)
        until(lambda: state_of(b)["state"] == "left")
        assert time.monotonic() - begun_s > 5
        assert a.take("mine", 1) == [5]


def test_a_broker_that_knows_no_other_one_leaves_at_once(tmp_path: Path) -> None:
    with sites(tmp_path, "a", "") as (a,):
        assert leave(a).status_code == 202
        until(lambda: state_of(a)["state"] == "left")


def test_a_site_leaves_with_routing_by_filter_and_one_between_stays(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc", routing="fbr") as (a, b, c):
        a.subscribe("mine", "data.n >= 0")
        until(lambda: c.of("b").get("filters") == 1 and all_quiet(a, b, c))
        c.publish(1)
        assert leave(b, force=True).json()["type"].endswith("cannot-leave")
        assert leave(c).status_code == 202
        until(lambda: state_of(c)["state"] == "left" and b.of("c")["is_removed"])
        b.publish(2)
        assert a.take("mine", 2) == [1, 2]


def test_a_site_that_stays_before_all_others_have_heard_gets_events_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others were told that it has no filters between the two steps of staying, and nothing after that."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        b.subscribe("mine", "data.n >= 0")
        until(lambda: a.of("b").get("filters") == 1 and all_quiet(a, b))
        federation: Any = b.gateway.federation
        publish, set_leaving, is_open = federation._interest.publish, federation.links.set_leaving, False

        async def slow(*, is_leaving: bool) -> None:
            nonlocal is_open
            if not is_leaving:
                is_open = True
                await asyncio.to_thread(publish, federation._writer.stamp)
            await set_leaving(is_leaving=is_leaving)

        monkeypatch.setattr(federation._interest, "publish", lambda stamp: is_open and publish(stamp))
        monkeypatch.setattr(federation.links, "set_leaving", slow)
        assert leave(b).status_code == 202
        until(lambda: state_of(b)["state"] == "withdrawn")
        assert b.client.delete("/v1/leave").json()["state"] == "staying"
        until(lambda: a.of("b").get("filters") == 1 and all_quiet(a, b))
        a.publish(1)
        assert b.take("mine", 1) == [1]


def test_a_site_that_cannot_store_that_it_stays_is_leaving_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that it stayed, and took nothing until its next start."""

    def full(*_: Any) -> None:
        raise StorageError("the disk is full")

    with sites(tmp_path, "ab", "ab") as (a, b):
        leave_with_a_message(b, a)
        until(lambda: state_of(b)["state"] == "withdrawn")
        with monkeypatch.context() as patched:
            patched.setattr(LinkStore, "set_row", full)
            assert b.client.delete("/v1/leave").status_code >= 500
        until(lambda: state_of(b)["state"] == "withdrawn")
        assert b.client.delete("/v1/leave").json()["state"] == "staying"
        until(lambda: a.of("b").get("filters") == 1 and all_quiet(a, b))
        b.publish(2)
        assert sorted(b.take("mine", 2)) == [1, 2]


def test_a_site_leaves_that_has_been_linked_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that a former neighbour may have seen stays in its outbox, without an entry, for ever."""
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        b.subscribe("mine", "data.n >= 0")
        until(lambda: a.of("b").get("filters") == 1 and all_quiet(a, b, c))
        links: Any = a.gateway.federation.links  # type: ignore[union-attr]
        post, numbered = links._post, links.peers["b"].numbered

        async def cut(peer: Peer, *request: Any) -> Any:
            if peer.name == "b" and peer.numbered > numbered:
                raise LinkError("cut")
            return await post(peer, *request)

        monkeypatch.setattr(links, "_post", cut)
        a.publish(1)
        until(lambda: any(each["unacknowledged"] for each in a.brokers()["links"]))
        for site in (a, b):
            site.stop()
        del a.peers["b"], b.peers["a"]
        for site in (a, b):
            site.start()
        assert b.take("mine", 1) == [1]
        assert leave(a).status_code == 202
        until(lambda: state_of(a)["state"] == "left")


def test_a_site_that_has_started_again_waits_until_its_backlogs_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left with unread messages, if their count took longer than half a second."""
    count_past, is_open = Backlogs._count_past, False

    async def slow(self: Backlogs, *given: int) -> None:
        while not is_open:
            await asyncio.sleep(0.01)
        await count_past(self, *given)

    with sites(tmp_path, "ab", "ab") as (a, b):
        leave_with_a_message(b, a)
        until(lambda: state_of(b)["state"] == "withdrawn" and not state_of(b)["sites"])
        b.stop()
        monkeypatch.setattr(Backlogs, "_count_past", slow)
        b.start()
        until(lambda: state_of(b)["waits_for"].get("uncounted_backlogs"))
        stays_for_some_looks(b, monkeypatch)
        is_open = True
        until(lambda: state_of(b)["waits_for"] == {"subscriptions": 1, "messages": 1})
        assert b.take("mine", 1) == [1]
        until(lambda: state_of(b)["state"] == "left")


def test_a_site_waits_for_a_subscription_that_begins_in_the_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it matches of the past is in no sum before it was read."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        until(lambda: all_quiet(a, b))
        b.publish(1)
        body = {"filter": "data.n >= 0", "start": "earliest"}
        assert b.client.put("/v1/spaces/default/subscriptions/past", json=body).status_code == 201
        assert leave(b).status_code == 202
        until(lambda: state_of(b)["waits_for"].get("uncounted_backlogs"))
        stays_for_some_looks(b, monkeypatch)
        assert b.client.delete("/v1/spaces/default/subscriptions/past").status_code == 204
        until(lambda: state_of(b)["state"] == "left")
