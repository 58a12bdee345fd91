"""Limits of requests about subscriptions, and their cost for others: ids, queues, pages, hints."""

from __future__ import annotations

import asyncio
import secrets
import threading

import httpx
import pytest
from gateway_support import SUBSCRIPTIONS, run, running
from loop_watch import watched
from test_publish_http import problem

from fieldfare.gateway import subscriptions

pytestmark = pytest.mark.long


def colliding_ids(monkeypatch, *ends: str) -> None:
    """Make the random generator return these ids first, and random ones afterwards."""
    waiting = list(ends)
    drawn = secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", lambda count: waiting.pop(0) if waiting else drawn(count))


def test_an_id_that_was_made_up_never_replaces_a_subscription(tmp_path, monkeypatch):
    """Ids had 32 bits: of a million about a hundred came twice, and in bulk one overwrote another."""

    async def work() -> None:
        async with running(tmp_path) as r:
            colliding_ids(monkeypatch, "aa", "aa", "bb", "bb", "aa", "cc", "aa")
            first = await r.client.post(SUBSCRIPTIONS, json={"filter": "data.x = 1"})
            assert first.json()["id"] == "sub-aa"
            bulk = [{"filter": "data.x = 2"}, {"filter": "data.x = 3"}, {"filter": "data.x = 4"}]
            answer = (await r.client.post(SUBSCRIPTIONS, json={"subscriptions": bulk})).json()
            assert (answer["created"], answer["replaced"], answer["refused"]) == (3, 0, [])
            same = await r.client.post(SUBSCRIPTIONS, json={"filter": "data.x = 1"})
            assert same.status_code == 201, "the same filter, and yet another subscription"
            listed = (await r.client.get(SUBSCRIPTIONS)).json()["subscriptions"]
            assert sorted(each["filter"] for each in listed) == [
                "data.x = 1",
                "data.x = 1",
                "data.x = 2",
                "data.x = 3",
                "data.x = 4",
            ]
            assert len({each["id"] for each in listed}) == 5

    run(work)


def test_made_up_ids_have_bits_enough_for_any_number_of_them(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            made = await r.client.post(SUBSCRIPTIONS, json={"filter": "data.x = 1"})
            assert len(bytes.fromhex(made.json()["id"].removeprefix("sub-"))) * 8 >= 96

    run(work)


def test_changes_of_subscriptions_that_would_wait_for_long_are_refused(tmp_path, monkeypatch):
    """A program that put subscriptions without end: each waited for the registry, and kept its filters in
    memory meanwhile; with a slow disk there was no end to it."""

    async def work() -> None:
        monkeypatch.setattr(subscriptions, "QUEUED_REQUESTS", 20)
        async with running(tmp_path) as r:
            held, go_on = threading.Event(), threading.Event()

            def hold(end: int) -> None:
                held.set()
                go_on.wait(60)

            holding = asyncio.ensure_future(r.gateway.writer.change(hold))
            await asyncio.to_thread(held.wait)
            asked = [
                asyncio.ensure_future(r.client.put(f"{SUBSCRIPTIONS}/s{i}", json={"filter": f"data.x = {i}"}))
                for i in range(30)
            ]
            done, waiting = set(), set(asked)
            while len(done) < 10:
                done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=5)
                await asyncio.sleep(0)
            for each in done:
                told = problem(each.result(), 429)
                assert told["why"] == "changes" and each.result().headers["retry-after"] == "1"
            assert len(waiting) == 20
            for refused in (
                r.client.delete(f"{SUBSCRIPTIONS}/s1"),
                r.client.post(SUBSCRIPTIONS, json={"subscriptions": [{"filter": "data.x = 1"}]}),
                r.client.post("/v1/spaces", json={"name": "other"}),
            ):
                problem(await refused, 429)
            go_on.set()
            assert {each.status_code for each in await asyncio.gather(*waiting)} == {201}
            await holding
            assert 'overload_answers_total{why="changes"} 13.0' in (await r.client.get("/metrics")).text
            assert (await r.client.delete(f"{SUBSCRIPTIONS}/s1")).status_code in (204, 404)

    run(work)


def test_filters_that_wait_are_bounded_in_bytes_too(tmp_path, monkeypatch):
    async def work() -> None:
        monkeypatch.setattr(subscriptions, "QUEUED_BYTES", 10_000)
        async with running(tmp_path) as r:
            filter = "data.x = '" + "y" * 6_000 + "'"
            big = [{"id": f"s{i}", "filter": filter} for i in range(3)]
            alone = await r.client.post(SUBSCRIPTIONS, json={"subscriptions": big})
            assert alone.json()["created"] == 3, "however large, one that is alone is taken"
            held, go_on = threading.Event(), threading.Event()

            def hold(end: int) -> None:
                held.set()
                go_on.wait(60)

            holding = asyncio.ensure_future(r.gateway.writer.change(hold))
            await asyncio.to_thread(held.wait)
            first = asyncio.ensure_future(r.client.post(SUBSCRIPTIONS, json={"filter": filter}))
            while not r.gateway.subscriptions._waiting_requests.total:
                await asyncio.sleep(0)
            problem(await r.client.post(SUBSCRIPTIONS, json={"filter": filter}), 429)
            go_on.set()
            assert (await first).status_code == 201
            await holding

    run(work)


def put_many(client: httpx.Client, *items: tuple[str, str]) -> None:
    body = {"subscriptions": [{"id": id, "filter": filter} for id, filter in items]}
    assert client.post(SUBSCRIPTIONS, json=body).json()["refused"] == []


def test_a_page_of_long_filters_ends_before_memory_does_and_none_is_left_out(tmp_path):
    """A page of 10,000 subscriptions with filters of 64 KiB each would be 640 MB, made on the event loop."""

    async def work() -> None:
        async with running(tmp_path) as r:
            ids = [f"s{i:04d}" for i in range(1000)]
            for start in range(0, 1000, 500):
                items = [
                    {"id": id, "filter": f"data.x = '{'y' * 10_000}'"} for id in ids[start : start + 500]
                ]
                await r.client.post(SUBSCRIPTIONS, json={"subscriptions": items})
            found: list[str] = []
            after, pages = "", 0
            while after is not None:
                params = {"limit": 10_000, "after": after}
                answer = await r.client.get(SUBSCRIPTIONS, params=params)
                assert len(answer.content) < 8 << 20
                found += [each["id"] for each in answer.json()["subscriptions"]]
                after, pages = answer.json()["next"], pages + 1
            assert found == ids and pages > 1
            page = (await r.client.get(SUBSCRIPTIONS, params={"limit": 7, "after": "s0990"})).json()
            assert len(page["subscriptions"]) == 7 and page["next"] == "s0997"
            page = (await r.client.get(SUBSCRIPTIONS, params={"limit": 9, "after": "s0990"})).json()
            assert len(page["subscriptions"]) == 9 and page["next"] is None

    run(work)


def test_asking_for_what_is_not_there_and_for_pages_leaves_the_event_loop_to_others(tmp_path, monkeypatch):
    """Whether an unknown id of 128 letters was mistyped took half a second of everybody's to find out."""
    with watched(monkeypatch, tmp_path) as (_, client, watch):
        start = "x" * 100
        put_many(client, *((f"{start}{i:028d}", "data.x = 1") for i in range(200)))
        put_many(client, *((f"s{i}", "data.x = 1") for i in range(10_000)))
        for i in range(300):
            client.post("/v1/spaces", json={"name": f"{'s' * 100}{i}"})
        client.get(SUBSCRIPTIONS, params={"limit": 1})
        watch.restart()
        put_many(client, *((f"t{i}", "data.x = 1") for i in range(2_000)))
        assert client.get(f"{SUBSCRIPTIONS}/{start}{'y' * 28}").status_code == 404
        assert client.get(f"/v1/spaces/{'s' * 100}x/subscriptions").status_code == 404
        assert len(client.get(SUBSCRIPTIONS, params={"limit": 2_000}).json()["subscriptions"]) == 2_000
        long = " AND ".join(f"(a{i} = 1 OR b{i} = 2)" for i in range(95))
        assert client.put(f"{SUBSCRIPTIONS}/long", json={"filter": long}).status_code == 201
        watch.check()
        assert "Did you mean s12" in client.get(f"{SUBSCRIPTIONS}/s12345").json()["hint"]


def test_many_subscriptions_of_one_request_stay_in_memory_only_if_they_are_used(tmp_path):
    """The gateway kept all of them: a hundred thousand were 80 MB until its next start."""

    async def work() -> None:
        async with running(tmp_path) as r:
            many = [{"id": f"mine-{number}", "filter": f"data.x = {number}"} for number in range(20)]
            answer = await r.client.post(SUBSCRIPTIONS, json={"subscriptions": many})
            assert answer.json()["created"] == 20
            assert not r.gateway.subscriptions._held
            assert (await r.client.get(f"{SUBSCRIPTIONS}/mine-7")).json()["filter"] == "data.x = 7"
            assert [id for _, id in r.gateway.subscriptions._held] == ["mine-7"]
            again = [{"id": "mine-7", "filter": "data.x > 7"}]
            await r.client.post(SUBSCRIPTIONS, json={"subscriptions": again})
            assert (await r.client.get(f"{SUBSCRIPTIONS}/mine-7")).json()["filter"] == "data.x > 7"

    run(work)
