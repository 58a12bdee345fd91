"""Requests of hostile clients, or with very much data: each once had a wrong result, or blocked others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_support import SUBSCRIPTIONS, Running, event, run, running
from test_dead_letters import letters, make, post, retry
from test_delivery_settings import FILTER, A, change, positions, some
from test_keys import admin_file
from test_publish_http import problem as problem_of
from token_support import sign, token_settings

from fieldfare.delivery import delivery as delivery_machine
from fieldfare.gateway import subscriptions
from fieldfare.gateway.routes import delivery as delivery_routes
from fieldfare.gateway.transports import pull
from fieldfare.model import Position


def problem(answer: Any, status: int, kind: str, **members: object) -> dict:
    found = problem_of(answer, status)
    assert found["type"] == f"urn:fieldfare:problem:{kind}"
    assert {name: found.get(name) for name in members} == members
    return found


def test_a_seek_to_many_positions_delays_no_other_request(tmp_path, monkeypatch):
    """A megabyte of them was read on the event loop, for a second."""
    looked = []
    parse = Position.parse
    monkeypatch.setattr(Position, "parse", lambda text: looked.append(text) or parse(text))

    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            answer = await r.client.post(f"{A}/seek", json={"to": "0-0-0," * 170_000})
            assert "partitions" in problem(answer, 400, "bad-position", pointer="/to")["detail"]
            assert len(looked) < 5

    run(work)


def test_a_retry_of_more_than_may_be_is_refused_as_such(tmp_path, monkeypatch):
    """It was asked to retry later, for ever."""
    monkeypatch.setattr(delivery_routes, "RETRIED_BATCH_SIZE", 2)

    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            some_places = await some(r, 3)
            await r.pull("a")
            await post(r, "terminate", *some_places)
            answer = await r.client.post(f"{A}/dead-letters/retry", json={"positions": some_places})
            problem(answer, 413, "too-many-positions", max_positions=2)
            twice = (some_places[0], some_places[0])
            assert await retry(r, *twice) == {"retried": 1, "gone": 0, "left": 2}

    run(work)


def test_a_page_of_dead_letters_ends_when_much_was_read_for_it(tmp_path, monkeypatch):
    """Each may be in a record of megabytes: a thousand records were read for one page."""
    monkeypatch.setattr(delivery_routes, "PAGE_READ_BYTES", 5_000)

    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            places = []
            for n in range(5):
                end = await r.publish(event(n, {"x": 1}), event("large", {"x": 0, "pad": "x" * 2_000}))
                places.append(f"0-{end['offset']}-0")
            r.pipeline.step()
            await r.pull("a")
            await post(r, "terminate", *places)
            found, after = [], {}
            while True:
                page = (await r.client.get(f"{A}/dead-letters", params=after)).json()
                assert 1 <= len(page["dead_letters"]) <= 3
                found += positions(page["dead_letters"])
                if page["next"] is None:
                    break
                after = {"after": page["next"]}
            assert found == places and len(await letters(r)) == 3

    run(work)


def test_a_pull_that_takes_longer_than_its_own_deadline_holds_no_message_twice(tmp_path, monkeypatch):
    now = [1000.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            now[0] += 3.0  # each step takes longer than the last lease may be
            return now[0]

    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            places = await some(r, 40)
            monkeypatch.setattr(pull, "time", Clock)
            monkeypatch.setattr(pull, "first_step", lambda _: 10)
            monkeypatch.setattr(pull, "next_step", lambda *_: 10)
            given = positions(await r.pull("a", ack_deadline_s=5))
            assert given == places[:20], "and the rest comes with the next"

    run(work)


def test_an_answer_that_asks_to_wait_does_not_reveal_the_load_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(subscriptions, "QUEUED_REQUESTS", 1)

    async def work() -> None:
        async with running(tmp_path) as r:
            many = (r.client.put(f"{SUBSCRIPTIONS}/s{n}", json=FILTER) for n in range(20))
            refused = [each for each in await asyncio.gather(*many) if each.status_code == 429]
            assert refused
            for each in refused:
                detail = problem(each, 429, "overloaded")["detail"]
                assert not any(char.isdigit() for char in detail)

    run(work)


@pytest.mark.parametrize(
    "key",
    [None, "wrong", "ff_0123456789ab_" + "0" * 64, sign(exp=1), sign(kid="two")],
    ids=["none", "made up", "of nobody", "expired", "of a foreign key"],
)
def test_a_page_that_may_ask_sees_that_its_key_is_not_valid(tmp_path, key):
    """Without the header of CORS its browser tells it only that the network failed; and it must see whether
    its token is the matter, for then it fetches another."""

    async def work() -> None:
        origin = "https://app.example.com"
        settings = token_settings(tmp_path) | {"admin_key_file": admin_file(tmp_path), "cors_origins": origin}
        async with running(tmp_path / "data", **settings) as r:
            headers = {"origin": origin} | ({} if key is None else {"authorization": f"Bearer {key}"})
            answer = await r.client.get("/v1/spaces", headers=headers)
            problem(answer, 401, "unauthorised")
            assert answer.headers["access-control-allow-origin"] == origin
            assert "WWW-Authenticate" in answer.headers["access-control-expose-headers"]
            is_token = key is not None and "." in key
            assert ("invalid_token" in answer.headers["www-authenticate"]) is is_token

    run(work)


def test_a_number_that_is_too_large_is_named_by_a_pointer_that_is_one(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            answer = await r.client.patch(
                A,
                content='{"delivery": {"ack_deadline_s": 1e999}}',
                headers={"content-type": "application/json"},
            )
            problem(answer, 400, "bad-request", pointer="/delivery")

    run(work)


def test_a_list_of_dead_letters_that_is_full_loses_nothing_and_grows_no_more(tmp_path, monkeypatch):
    """Messages that would be given up are redelivered after the others: nothing is lost, and nothing
    blocks."""
    monkeypatch.setattr(delivery_machine, "WHEN_FULL_S", 0.01)

    async def work() -> None:
        for n in range(2):
            async with running(tmp_path, dead_letters_max=3) as r:  # the second time it is read from disk
                if n == 0:
                    await make(r, max_attempts=1)
                    places = await some(r, 5)
                    for _ in range(4):
                        await post(r, "nack", *positions(await r.pull("a")))
                assert positions(await letters(r)) == places[:3]
                given = [each async for each in _pulled(r, 2)]
                assert given == places[3:]
                answer = await r.client.post(f"{A}/terminate", json={"positions": given})
                problem(answer, 409, "too-many-dead-letters")
                await post(r, "nack", *given)
        async with running(tmp_path, dead_letters_max=3) as r:
            assert (await r.client.delete(f"{A}/dead-letters")).json() == {"removed": 3}
            assert await r.pull("a") == [], "there is room for them, and they were given often enough"
            assert positions(await letters(r)) == places[3:]

    run(work)


async def _pulled(r: Running, count: int) -> AsyncIterator[str]:
    while count > 0:
        for place in positions(await r.pull("a", wait_s=5)):
            count -= 1
            yield place


def test_a_bulk_put_does_not_undo_a_later_pause(tmp_path, monkeypatch):
    """A stream continued although its subscription was reported as paused, until it was read again."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await make(r)
            await some(r, 1)
            await r.pull("a", max=1)
            put = r.gateway.subscriptions.put

            async def overtaken(*args: Any) -> Any:
                result = await put(*args)
                await change(r, paused=True)
                return result

            monkeypatch.setattr(r.gateway.subscriptions, "put", overtaken)
            many = {"subscriptions": [{"id": "a", **FILTER}]}
            assert (await r.client.post(SUBSCRIPTIONS, json=many)).json()["unchanged"] == 1
            assert r.gateway.deliveries.loaded[1].settings.paused

    run(work)
