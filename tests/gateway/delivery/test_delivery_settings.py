"""Settings of a subscription's delivery over HTTP: set, changed, refused by name; and what each does."""

from __future__ import annotations

import asyncio
import time

import pytest
from gateway_support import SUBSCRIPTIONS, Running, encode, event, run, running, until_async
from test_publish_http import problem

A = f"{SUBSCRIPTIONS}/a"
FILTER = {"filter": "data.x = 1"}


async def settings_of(r: Running, id: str = "a") -> dict:
    return (await r.client.get(f"{SUBSCRIPTIONS}/{id}")).json().get("delivery", {})


async def change(r: Running, **settings: object) -> dict:
    answer = await r.client.patch(A, json={"delivery": settings})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def some(r: Running, count: int) -> list[str]:
    """Publish and match a number of matching events; return their positions."""
    offset = (await r.publish(*(event(i, {"x": 1}) for i in range(count))))["offset"]
    r.pipeline.step()
    return [f"0-{offset}-{i}" for i in range(count)]


def positions(messages: list[dict]) -> list[str]:
    return [each["position"] for each in messages]


def test_settings_are_set_with_a_subscription_and_changed_one_by_one(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            first = {"max_attempts": 5, "retry_delays_s": [1, 10.5], "max_in_flight": 7}
            made = await r.client.put(A, json=FILTER | {"delivery": first})
            assert (made.status_code, made.json()["delivery"]) == (201, first)
            changed = await change(r, max_attempts=None, ack_deadline_s=2, dead_letter=False)
            rest = {"retry_delays_s": [1, 10.5], "max_in_flight": 7}
            assert changed["delivery"] == {"ack_deadline_s": 2.0, "dead_letter": False, **rest}
            assert changed["revision"] == made.json()["revision"] == r.gateway.registry.revision()
        async with running(tmp_path) as r:
            assert await settings_of(r) == changed["delivery"], "after a restart"
            await r.subscribe("a", "data.x = 2")
            assert await settings_of(r) == changed["delivery"], "another filter leaves them"
            revision = r.gateway.registry.revision()
            again = await r.client.put(A, json={"filter": "data.x = 2", "delivery": {"max_attempts": 3}})
            assert (again.status_code, again.json()["delivery"]) == (200, {"max_attempts": 3})
            assert r.gateway.registry.revision() == revision, "the same filter takes no revision"
            listed = (await r.client.get(SUBSCRIPTIONS)).json()["subscriptions"]
            assert [each["delivery"] for each in listed] == [{"max_attempts": 3}]
            clash = {"id": "a", "filter": "data.x = 2", "delivery": {"max_attempts": 4}}
            problem(await r.client.post(SUBSCRIPTIONS, json=clash), 409)
            many = {"subscriptions": [clash, {"id": "b", **FILTER, "delivery": {"paused": True}}]}
            told = (await r.client.post(SUBSCRIPTIONS, json=many)).json()
            assert (told["created"], told["replaced"]) == (1, 1)
            assert await settings_of(r) == {"max_attempts": 4} and await settings_of(r, "b") == {
                "paused": True
            }
            await r.client.delete(A)
            await r.subscribe("a", "data.x = 2")
            assert await settings_of(r) == {}, "a subscription created again has none of the earlier settings"

    run(work)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ack_deadline_s", [0, -1, 86_401, "5", True, [1]]),
        ("max_attempts", [0, -1, 1_001, 1.5, "5", True]),
        ("retry_delays_s", [5, [-1], [86_401], [0] * 21, ["1"], [None], {"first": 1}]),
        ("max_in_flight", [0, 20_001, 1.0]),
        ("dead_letter", [0, "yes"]),
        ("paused", [1, "no"]),
        ("retries", [1, None]),
    ],
)
def test_a_bad_setting_is_refused_by_its_name_and_changes_nothing(tmp_path, name, values):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.put(A, json=FILTER | {"delivery": {"max_attempts": 2}})
            for value in values:
                bad = {"max_attempts": 9, name: value}
                told = problem(await r.client.patch(A, json={"delivery": bad}), 400)
                assert told["pointer"] == f"/delivery/{name}" and name in told["detail"], value
                put = await r.client.put(f"{SUBSCRIPTIONS}/b", json=FILTER | {"delivery": {name: value}})
                assert problem(put, 400)["pointer"] == f"/delivery/{name}"
                many = {"subscriptions": [{"id": "c", **FILTER, "delivery": {name: value}}, FILTER]}
                told = (await r.client.post(SUBSCRIPTIONS, json=many)).json()
                assert (told["created"], told["refused"][0]["pointer"]) == (1, f"/delivery/{name}")
            assert await settings_of(r) == {"max_attempts": 2}
            problem(await r.client.get(f"{SUBSCRIPTIONS}/b"), 404)
            for body in ({}, {"delivery": 5}, {"delivery": {}, "filter": "data.x = 2"}):
                problem(await r.client.patch(A, json=body), 400)
            problem(await r.client.patch(f"{A}x", json={"delivery": {}}), 404)

    run(work)


def test_the_deadline_of_a_subscription_counts_where_its_reader_names_none(tmp_path):
    async def work() -> None:
        async with running(tmp_path, ack_deadline_s=600) as r:
            await r.client.put(A, json=FILTER | {"delivery": {"ack_deadline_s": 0.05}})
            given = await some(r, 1)
            assert positions(await r.pull("a", max=1)) == given
            assert positions(await r.pull("a", max=1, wait_s=10)) == given
            await change(r, ack_deadline_s=500)
            assert positions(await r.pull("a", max=1, wait_s=10)) == given
            due_s = r.gateway.deliveries.loaded[1].next_deadline_s
            assert due_s is not None and 300 < due_s - time.monotonic() <= 500

    run(work)


def test_readers_together_hold_no_more_than_may_be_in_flight(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.put(A, json=FILTER | {"delivery": {"max_in_flight": 3}})
            given = await some(r, 6)
            assert positions(await r.pull("a", max=2)) == given[:2]
            assert positions(await r.pull("a")) == given[2:3]
            waiting = asyncio.ensure_future(r.pull("a", wait_s=10))
            await until_async(lambda: r.gateway.deliveries._waiting)
            await r.ack("a", given[0])
            assert positions(await waiting) == given[3:4]
            waiting = asyncio.ensure_future(r.pull("a", wait_s=10))
            await until_async(lambda: r.gateway.deliveries._waiting)
            await change(r, max_in_flight=None)
            assert positions(await waiting) == given[4:], "a waiting reader is woken"

    run(work)


def test_a_paused_subscription_gives_nothing_and_loses_nothing(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.put(A, json=FILTER)
            held = await some(r, 1)
            assert positions(await r.pull("a")) == held
            await change(r, paused=True)
            given = await some(r, 2)
            assert await r.pull("a", wait_s=0.05) == []
            await r.ack("a", *held)
        async with running(tmp_path) as r:
            assert await r.pull("a") == [], "after a restart too"
            waiting = asyncio.ensure_future(r.pull("a", wait_s=10))
            await until_async(lambda: r.gateway.deliveries._waiting)
            await change(r, paused=False)
            assert positions(await waiting) == given
            assert await settings_of(r) == {}

    run(work)


def test_large_events_behind_small_ones_stay_within_the_bytes_in_flight(tmp_path):
    """The limit counted with the mean size: after 20 small events 20 large ones came together, 100 times as
    much as was set. Two readers, who pull at the same time, share it exactly."""

    async def work() -> None:
        async with running(tmp_path) as r:
            limit = 20_000
            await r.client.put(A, json=FILTER | {"delivery": {"max_in_flight_bytes": limit}})
            large = [event(f"l{i}", {"x": 1, "text": "x" * 9_000}) for i in range(20)]
            await r.publish(
                *(event(i, {"x": 1}) for i in range(20)), *large, event("huge", {"x": 1, "y": "z" * 30_000})
            )
            r.pipeline.step()
            seen: list[str] = []
            while len(seen) < 41:
                pulled = [
                    each
                    for some in await asyncio.gather(*(r.pull("a", max=100) for _ in range(3)))
                    for each in some
                ]
                sizes = [len(encode(each["event"])) for each in pulled]
                assert sum(sizes) <= limit or len(sizes) == 1, sizes
                assert {each["attempt"] for each in pulled} == {1}, "what did not fit was no attempt"
                seen += positions(pulled)
                await r.ack("a", *positions(pulled))
            assert len(set(seen)) == len(seen) == 41

    run(work)
