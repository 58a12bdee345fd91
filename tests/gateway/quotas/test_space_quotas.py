"""Quotas of a space: subscriptions, cost of filters, bytes of events, connections; and the right to set
them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import Any

import httpx
import pytest
from gateway_support import (
    ARROW,
    BATCH,
    EVENTS,
    LINES,
    SUBSCRIPTIONS,
    Running,
    encode,
    event,
    run,
    running,
    served,
    until,
    until_async,
)
from test_keys import bearer, locked, make
from test_publish_http import problem
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from fieldfare.encodings import pack
from fieldfare.gateway.admission import quotas
from fieldfare.model import COST_MAX

QUOTAS = "/v1/spaces/default/quotas"
RATES = ("events_per_s", "bytes_per_s", "matching_ms_per_s", "changes_per_s", "delivered_bytes_per_s")
TOTALS = ("subscriptions", "filter_cost", "stored_event_bytes", "stored_match_bytes", "connections")
NAMES = (*RATES, *TOTALS)


async def set_quotas(r: Running, **wanted: float | None) -> dict[str, Any]:
    answer = await r.client.put(QUOTAS, json=wanted)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def used(r: Running, name: str) -> int:
    return int((await r.client.get(QUOTAS)).json()["used"][name])


def refused(answer: httpx.Response, status: int, quota: str, limit: float) -> dict[str, Any]:
    """Check the problem of a quota, which names the quota, its value, and the use of this space."""
    told = problem(answer, status)
    assert told["type"] == f"urn:fieldfare:problem:quota-{quota.replace('_', '-')}"
    assert (told["quota"], told["limit"]) == (quota, limit)
    assert ("retry-after" in answer.headers) == (status == 429)
    return told


def test_quotas_are_set_shown_and_kept(tmp_path):
    async def work() -> None:
        async with running(tmp_path, quota_subscriptions=5, quota_connections=7) as r:
            first = (await r.client.get(QUOTAS)).json()
            assert first["limits"] == dict.fromkeys(NAMES) | {"subscriptions": 5, "connections": 7}
            assert first["set"] == {} and set(first["used"]) == set(TOTALS)
            told = await set_quotas(r, subscriptions=2, connections=0, bytes_per_s=None)
            assert told["limits"] == dict.fromkeys(NAMES) | {"subscriptions": 2}
            assert told["set"] == {"subscriptions": 2, "connections": 0}
            for body, pointer in (
                ({"flights": 1}, "flights"),
                ({"subscriptions": -1}, "subscriptions"),
                ({"subscriptions": "many"}, "subscriptions"),
                ({"connections": 1e300}, "connections"),
                ([], ""),
            ):
                assert pointer in problem(await r.client.put(QUOTAS, json=body), 400)["detail"]
            for method in ("GET", "PUT"):
                answer = await r.client.request(method, "/v1/spaces/nowhere/quotas", json={})
                assert problem(answer, 404)["type"].endswith("unknown-space")
        async with running(tmp_path) as r:
            assert (await r.client.get(QUOTAS)).json()["set"] == {"subscriptions": 2, "connections": 0}
            assert (await set_quotas(r))["limits"] == dict.fromkeys(NAMES)

    run(work)


def test_the_manage_right_allows_reading_quotas_but_not_setting_them(tmp_path):
    async def work() -> None:
        async with locked(tmp_path) as r:
            manager = await make(r, "default", "manage")
            assert (await r.client.get(QUOTAS, headers=bearer(manager))).status_code == 200
            problem(await r.client.put(QUOTAS, json={}, headers=bearer(manager)), 403)

    run(work)


def test_no_more_subscriptions_than_a_space_may_have(tmp_path):
    """One too many is refused; in a bulk request each one that does not fit; existing ones may be
    replaced."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await set_quotas(r, subscriptions=3)
            await r.subscribe("a", "data.x = 1")
            many = [{"id": id, "filter": "data.x = 2"} for id in "abcde"]
            told = (await r.client.post(SUBSCRIPTIONS, json={"subscriptions": many})).json()
            assert (told["created"], told["replaced"]) == (2, 1)
            assert [(each["index"], each["id"], each["quota"]) for each in told["refused"]] == [
                (3, "d", "subscriptions"),
                (4, "e", "subscriptions"),
            ]
            for id, body in (("f", {"filter": "data.x = 3"}), ("f", {"filter": "no filter at all ="})):
                answer = await r.client.put(f"{SUBSCRIPTIONS}/{id}", json=body)
                assert refused(answer, 409, "subscriptions", 3)["used"] == 3
            refused(
                await r.client.post(SUBSCRIPTIONS, json={"filter": "data.x = 1"}), 409, "subscriptions", 3
            )
            await r.subscribe("a", "data.x = 7")
            again = await r.client.post(SUBSCRIPTIONS, json={"id": "a", "filter": "data.x = 7"})
            assert again.status_code == 200
            problem(await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x ="}), 400)
            told = (await r.client.post(SUBSCRIPTIONS, json={"subscriptions": [*many, 17]})).json()
            assert [each["index"] for each in told["refused"]] == [3, 4, 5] and told["replaced"] == 1
            assert (await r.client.delete(f"{SUBSCRIPTIONS}/a")).status_code == 204
            await r.subscribe("f", "data.x = 3")
            assert await used(r, "subscriptions") == 3
            await r.client.post("/v1/spaces", json={"name": "other"})
            put = await r.client.put("/v1/spaces/other/subscriptions/a", json={"filter": "data.x = 1"})
            assert put.status_code == 201
        async with running(tmp_path) as r:
            assert await used(r, "subscriptions") == 3
            refused(
                await r.client.put(f"{SUBSCRIPTIONS}/g", json={"filter": "data.x = 1"}),
                409,
                "subscriptions",
                3,
            )

    run(work)


def test_a_space_changes_no_more_subscriptions_in_a_second_than_it_may(tmp_path, monkeypatch):
    """For every kind of change; requests after a large one wait for it. Changes of other spaces continue."""
    monkeypatch.setattr(quotas, "HELD_MAX_S", 0.01)

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "other"})
            await r.subscribe("a", "data.x = 1")
            await set_quotas(r, changes_per_s=0.001)
            many = [{"id": f"s{n}", "filter": "data.x = 2"} for n in range(10)]
            told = (await r.client.post(SUBSCRIPTIONS, json={"subscriptions": many})).json()
            assert told["created"] == 10
            for method, path, body in (
                ("PUT", "/a", {"filter": "data.x = 1"}),
                ("POST", "", {"filter": "data.x = 1"}),
                ("PATCH", "/a", {"delivery": {"paused": True}}),
                ("DELETE", "/a", None),
            ):
                answer = await r.client.request(method, SUBSCRIPTIONS + path, json=body)
                told = refused(answer, 429, "changes_per_s", 0.001)
                assert "used" not in told and int(answer.headers["retry-after"]) > 9_000
            put = await r.client.put("/v1/spaces/other/subscriptions/a", json={"filter": "data.x = 1"})
            assert put.status_code == 201
            assert (await r.client.get(f"{SUBSCRIPTIONS}/a")).status_code == 200
            await set_quotas(r)
            assert (await r.client.delete(f"{SUBSCRIPTIONS}/a")).status_code == 204

    run(work)


def test_refusals_for_a_rate_are_delayed_up_to_a_number_of_requests(tmp_path, monkeypatch):
    """Otherwise a client that ignores answers would be refused all the time, which is work, too."""
    monkeypatch.setattr(quotas, "HELD_MAX_S", 3_600.0)
    monkeypatch.setattr(quotas, "HELD_MAX", 2)

    async def work() -> None:
        async with running(tmp_path) as r:
            await set_quotas(r, events_per_s=0.0001)
            await r.publish(event())
            ask = [
                asyncio.ensure_future(r.client.post(EVENTS, content=b"[]", headers=BATCH)) for _ in range(5)
            ]
            done, held = await asyncio.wait(ask, return_when=asyncio.FIRST_COMPLETED)
            while len(done) < 3:
                done, held = await asyncio.wait(ask, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0)
            assert len(held) == 2 and {each.result().status_code for each in done} == {429}
            for each in held:
                each.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            assert r.gateway.quotas._held == 0

    run(work)


def test_refused_events_count_in_the_quota(tmp_path, monkeypatch):
    """Checking ten thousand broken events is more work than accepting as many, and no quota limited it."""
    monkeypatch.setattr(quotas, "HELD_MAX_S", 0.01)

    async def work() -> None:
        async with running(tmp_path) as r:
            for name, body, status in (
                ("events_per_s", b"[{}, 5]", 400),
                ("bytes_per_s", b"[" + encode(event()) + b', "' + b"x" * 5_000 + b'"]', 207),
            ):
                await set_quotas(r, **{name: 1})
                assert (await r.client.post(EVENTS, content=body, headers=BATCH)).status_code == status
                answer = await r.client.post(EVENTS, content=body, headers=BATCH)
                refused(answer, 429, name, 1)
            assert int(answer.headers["retry-after"]) > 5_000

    run(work)


ONE = encode(event())
BOMB = {"content-encoding": "gzip"}
LATER = {"fieldfare-deliver-after": "60", "fieldfare-producer": "p", "fieldfare-sequence": "1"}


@pytest.mark.parametrize(
    ("name", "body", "headers", "status"),
    [
        ("events_per_s", b"[1, 1, 1, 1]", BATCH, 413),
        ("events_per_s", b"[" + b",".join([ONE] * 4) + b"]", BATCH, 413),
        ("events_per_s", b"\n".join([ONE] * 4), LINES, 413),
        ("bytes_per_s", b"\n".join([ONE] * 4), LINES, 413),
        ("bytes_per_s", b"\n" * 1_000, LINES, 400),
        ("bytes_per_s", b"[" + b" " * 1_000 + b"]", BATCH, 200),
        ("bytes_per_s", b"no table", ARROW, 400),
        ("bytes_per_s", pack(b" " * (20 << 20), "gzip"), LINES | BOMB, 413),
        ("bytes_per_s", pack(b" " * 1_000, "gzip")[:-8], LINES | BOMB, 400),
        ("bytes_per_s", b"no gzip" * 100, LINES | BOMB, 400),
        ("events_per_s", encode(event(2)), LINES | LATER, 409),
    ],
    ids=[
        *("array", "events", "lines", "bytes", "blanks", "nothing", "table"),
        *("packed", "cut", "unpacked", "later"),
    ],
)
def test_batches_refused_as_a_whole_count_in_the_quota(tmp_path, monkeypatch, name, body, headers, status):
    """Batches with too many events were not charged, so a client could make the service read them
    endlessly."""
    monkeypatch.setattr(quotas, "HELD_MAX_S", 0.01)

    async def work() -> None:
        async with running(tmp_path, batch_max_events=3) as r:
            assert (await r.client.post(EVENTS, content=ONE, headers=LINES | LATER)).status_code == 202
            await set_quotas(r, **{name: 0.01})
            answer = await r.client.post(EVENTS, content=body, headers=headers)
            assert answer.status_code == status, answer.text
            refused(await r.client.post(EVENTS, content=body, headers=headers), 429, name, 0.01)

    run(work)


def test_requests_at_the_same_time_get_no_more_than_one_at_a_time_would(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await set_quotas(r, subscriptions=10)
            puts = [r.client.put(f"{SUBSCRIPTIONS}/s{n}", json={"filter": "data.x = 1"}) for n in range(40)]
            many = [
                r.client.post(
                    SUBSCRIPTIONS,
                    json={"subscriptions": [{"id": f"b{m}-{n}", "filter": "data.x = 1"} for n in range(5)]},
                )
                for m in range(4)
            ]
            answers = await asyncio.gather(*puts, *many)
            assert {answer.status_code for answer in answers} <= {200, 201, 409}
            assert r.gateway.registry.count("default") == 10 == await used(r, "subscriptions")

    run(work)


def test_filters_cost_what_explain_says_and_no_more_than_a_space_may(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            costs = {}
            for filter in (
                "data.x = 1",
                "data.x IN (1, 2, 3, 4, 5)",
                "data.x LIKE '%a_b%'",
            ):
                answer = await r.client.post("/v1/filters:explain", json={"filter": filter})
                costs[filter] = answer.json()["cost"]
            cheap, listed, checked = costs.values()
            assert cheap == 1 < listed == 3 < checked
            await set_quotas(r, filter_cost=5)
            await r.subscribe("a", "data.x IN (1, 2, 3, 4, 5)")
            await r.subscribe("b", "data.x = 1")
            answer = await r.client.put(f"{SUBSCRIPTIONS}/c", json={"filter": "data.x IN (1, 2, 3, 4, 5)"})
            assert refused(answer, 409, "filter_cost", 5)["used"] == 4
            answer = await r.client.put(f"{SUBSCRIPTIONS}/b", json={"filter": "data.x LIKE '%a_b%'"})
            refused(answer, 409, "filter_cost", 5)
            await r.subscribe("a", "data.x = 5")
            await r.subscribe("c", "data.x IN (1, 2, 3, 4, 5)")
            assert await used(r, "filter_cost") == 5
            # Beyond its quota, a space may make its filters cheaper.
            await set_quotas(r, filter_cost=2)
            await r.subscribe("c", "data.x IN (1, 2, 3)")
            await r.client.delete(f"{SUBSCRIPTIONS}/a")
            assert await used(r, "filter_cost") == 3
        async with running(tmp_path) as r:
            assert await used(r, "filter_cost") == 3

    run(work)


def test_filters_whose_costs_overflow_stop_neither_a_request_nor_a_start(tmp_path):
    """Three patterns of 131 bytes ended every later start, and one of 15 levels its whole request."""

    def pattern(levels: int) -> object:
        return {"a": pattern(levels - 1)} if levels else ["x"]

    async def work() -> None:
        async with running(tmp_path) as r:
            deep = [
                {"id": f"s{levels}", "filter": pattern(levels), "dialect": "eventbridge"}
                for levels in (13, 14, 15, 90)
            ]
            answer = (await r.client.post(SUBSCRIPTIONS, json={"subscriptions": deep})).json()
            assert (answer["created"], answer["refused"]) == (4, [])
        # Rows from before costs were bounded.
        with sqlite3.connect(tmp_path / "registry.db") as registry:
            registry.execute("UPDATE subscriptions SET cost = 4765408885708300849 WHERE id <> 's90'")
        registry.close()
        async with running(tmp_path) as r:
            assert await used(r, "filter_cost") == 4 * COST_MAX
            for each in deep:
                assert (await r.client.delete(f"{SUBSCRIPTIONS}/{each['id']}")).status_code == 204
            assert await used(r, "filter_cost") == 0

    run(work)


def test_a_space_keeps_no_more_bytes_of_events_than_it_may(tmp_path):
    """Until retention has removed some; a repeat of a stored request needs no space."""

    async def work() -> None:
        numbered = BATCH | {"fieldfare-producer": "p", "fieldfare-sequence": "1"}
        body = encode([event("1", "x" * 1_000)])
        async with running(tmp_path, retention_bytes=1 << 20) as r:
            for _ in range(3):
                assert (await r.client.post(EVENTS, content=body, headers=numbered)).status_code == 200
            size = await used(r, "stored_event_bytes")
            assert size == r.gateway.log.sizes()["default"]
            await set_quotas(r, stored_event_bytes=2 * size + 10)
            assert (await r.client.post(EVENTS, content=body, headers=BATCH)).status_code == 200
            answer = await r.client.post(EVENTS, content=body, headers=BATCH)
            assert refused(answer, 507, "stored_event_bytes", 2 * size + 10)["used"] == 2 * size
            await r.client.post("/v1/spaces", json={"name": "other"})
            await r.publish(event(2), space="other")
            r.gateway.log.trim(1)
            r.gateway.maintenance.round(0.0)
            assert await used(r, "stored_event_bytes") == size
            assert (await r.client.post(EVENTS, content=body, headers=BATCH)).status_code == 200
        async with running(tmp_path) as r:
            assert await used(r, "stored_event_bytes") == 2 * size
            await set_quotas(r, stored_event_bytes=size)
            # Not even looked at.
            refused(
                await r.client.post(EVENTS, content=b"junk", headers=BATCH), 507, "stored_event_bytes", size
            )

    run(work)


def test_events_that_come_at_the_same_time_fit_together_or_are_refused(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            body = encode([event("1", "x" * 1_000)])
            await set_quotas(r, stored_event_bytes=12_000)
            answers = await asyncio.gather(
                *(r.client.post(EVENTS, content=body, headers=BATCH) for _ in range(30))
            )
            size = r.gateway.log.sizes()["default"]
            taken = [answer for answer in answers if answer.status_code == 200]
            assert size == len(taken) * size // len(taken) <= 12_000 < size + size // len(taken)
            assert await used(r, "stored_event_bytes") == size

    run(work)


@pytest.mark.long
def test_a_space_has_no_more_connections_open_than_it_may(tmp_path):
    """Streams, WebSockets and pulls count together; one that ends makes room."""
    with served(tmp_path) as (_, client):
        client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 1"})
        client.put(QUOTAS, json={"connections": 2})
        url = str(client.base_url.copy_with(scheme="ws", path=f"{SUBSCRIPTIONS}/a/websocket"))
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream") as stream, connect(url):
            assert stream.status_code == 200
            until(lambda: client.get(QUOTAS).json()["used"]["connections"] == 2)
            for method, path in (("GET", "stream"), ("POST", "pull")):
                answer = client.request(
                    method, f"{SUBSCRIPTIONS}/a/{path}", content=b"{}" if path == "pull" else None
                )
                assert refused(answer, 429, "connections", 2)["used"] == 2
            with pytest.raises(InvalidStatus) as caught:
                connect(url)
            assert caught.value.response.status_code == 429
            assert json.loads(caught.value.response.body)["quota"] == "connections"
        until(lambda: client.get(QUOTAS).json()["used"]["connections"] == 0)
        assert client.post(f"{SUBSCRIPTIONS}/a/pull", json={}).status_code == 200


def test_a_pull_that_waits_is_a_connection(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await set_quotas(r, connections=1)
            waiting = asyncio.ensure_future(r.pull("a", wait_s=30))
            await until_async(lambda: r.gateway.quotas.used("default").connections == 1)
            answer = await r.client.post(f"{SUBSCRIPTIONS}/a/pull", json={})
            refused(answer, 429, "connections", 1)
            await r.publish(event(1, {"x": 1}))
            r.pipeline.step()
            assert len(await waiting) == 1
            assert len(await r.pull("a")) == 0

    run(work)
