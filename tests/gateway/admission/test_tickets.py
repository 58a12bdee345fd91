"""Tickets for browsers: for the streams of one subscription, for a while, as long as the key is valid."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from gateway_support import (
    BATCH,
    EVENTS,
    SUBSCRIPTIONS,
    NaivePipeline,
    Running,
    encode,
    event,
    run,
    served,
    until_async,
)
from hypothesis import given
from hypothesis import strategies as st
from test_keys import ADMIN, admin_file, bearer, locked, make
from websockets.sync.client import connect

from fieldfare.gateway.admission import tickets
from fieldfare.gateway.admission.callers import ANY_CALLER, Caller
from fieldfare.gateway.admission.tickets import PARAMETER, Tickets, split_query
from fieldfare.gateway.problems import HttpProblem
from fieldfare.model import Subscription

STREAM = f"{SUBSCRIPTIONS}/a/stream"


async def ticket_of(r: Running, key: str, subscription: str = "a", **more: Any) -> str:
    answer = await r.client.post(f"{SUBSCRIPTIONS}/{subscription}/ticket", json=more, headers=bearer(key))
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return str(answer.json()["ticket"])


async def status_of(r: Running, path: str, method: str = "GET", **query: str) -> int:
    """Return the status of a request without a key; of a stream, its beginning only."""
    request = r.client.build_request(method, path, params=query)
    del request.headers["authorization"]
    deliveries = r.gateway.deliveries
    assert not deliveries.connected
    sending = asyncio.create_task(r.client.send(request))
    await until_async(lambda: sending.done() or deliveries.connected)
    if not sending.done():  # the stream is open: this client returns an answer at its end only
        sending.cancel()
        await asyncio.wait((sending,))
        await until_async(lambda: not deliveries.connected)
        return 200
    return sending.result().status_code


def test_a_ticket_opens_the_streams_of_its_subscription_and_nothing_else(tmp_path: Path) -> None:
    async def work() -> None:
        async with locked(tmp_path) as r:
            for id in ("a", "b"):
                await r.subscribe(id, "data.x = 1")
            key = await make(r, "default", "subscribe")
            ticket = await ticket_of(r, key)
            assert await status_of(r, STREAM, ticket=ticket) == 200
            assert await status_of(r, STREAM, ticket=ticket, ack="auto") == 200, "it can be used again"
            assert await status_of(r, STREAM, ticket=ticket, window="none") == 400, "other parameters count"
            assert await status_of(r, STREAM) == 401
            assert await status_of(r, STREAM, ticket="ft_invented") == 401
            assert await status_of(r, f"{SUBSCRIPTIONS}/b/stream", ticket=ticket) == 401
            assert await status_of(r, f"{SUBSCRIPTIONS}/a", ticket=ticket) == 401
            assert await status_of(r, f"{SUBSCRIPTIONS}/a/pull", "POST", ticket=ticket) == 401
            assert await status_of(r, f"{SUBSCRIPTIONS}/a", "DELETE", ticket=ticket) == 401

    run(work)


def test_a_ticket_ends_in_time_and_with_its_key(tmp_path: Path) -> None:
    async def work() -> None:
        async with locked(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            now_s = [0.0]
            r.gateway.tickets._clock_s = lambda: now_s[0]
            key = await make(r, "default", "subscribe")
            short, long = await ticket_of(r, key), await ticket_of(r, key, valid_s=3600)
            now_s[0] = 61
            assert await status_of(r, STREAM, ticket=short) == 401
            assert await status_of(r, STREAM, ticket=long) == 200
            await r.client.delete(f"/v1/keys/{key.split('_')[1]}")
            assert await status_of(r, STREAM, ticket=long) == 401

    run(work)


def test_a_ticket_needs_the_right_to_subscribe(tmp_path: Path) -> None:
    async def work() -> None:
        async with locked(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            publisher, stranger = await make(r, "default", "publish"), await make(r, None, "watch")
            for key, id, body, status in (
                (publisher, "a", {}, 403),
                (stranger, "a", {}, 404),
                (ADMIN, "none", {}, 404),
                (ADMIN, "a", {"valid_s": 0}, 400),
                (ADMIN, "a", {"valid_s": 86_401}, 400),
                (ADMIN, "a", {"valid": 1}, 400),
            ):
                answer = await r.client.post(f"{SUBSCRIPTIONS}/{id}/ticket", json=body, headers=bearer(key))
                assert answer.status_code == status, answer.text
            del r.client.headers["authorization"]
            assert (await r.client.post(f"{SUBSCRIPTIONS}/a/ticket", json={})).status_code == 401

    run(work)


def test_a_websocket_is_opened_with_a_ticket(tmp_path: Path) -> None:
    with served(tmp_path / "data", admin_key_file=admin_file(tmp_path)) as (gateway, client):
        client.headers.update(bearer(ADMIN))
        client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 1"})
        ticket = client.post(f"{SUBSCRIPTIONS}/a/ticket", json={}).json()["ticket"]
        published = client.post(EVENTS, content=encode([event(1, {"x": 1})]), headers=BATCH)
        assert published.status_code == 200
        NaivePipeline(gateway).step()
        url = f"ws://127.0.0.1:{client.base_url.port}{SUBSCRIPTIONS}/a/websocket?ticket={ticket}"
        with connect(url) as socket:
            message = json.loads(socket.recv(timeout=20))
            assert message["fieldfareposition"] == "0-0-0"


def test_a_ticket_is_not_for_a_later_subscription_with_the_same_id(tmp_path: Path) -> None:
    async def work() -> None:
        async with locked(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            ticket = await ticket_of(r, ADMIN)
            await r.subscribe("a", "data.x = 2")
            assert await status_of(r, STREAM, ticket=ticket) == 200, "another filter, the same subscription"
            await r.client.delete(f"{SUBSCRIPTIONS}/a")
            assert await status_of(r, STREAM, ticket=ticket) == 404
            await r.subscribe("a", "data.x = 1")
            assert await status_of(r, STREAM, ticket=ticket) == 401
            assert await status_of(r, STREAM, ticket=ticket, ack="auto") == 401

    run(work)


def test_one_space_cannot_have_all_tickets_by_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "TICKETS_OF_SPACE_MAX", 3)
    monkeypatch.setattr(tickets, "TICKETS_MAX", 5)
    now_s = [0.0]
    issued = Tickets(lambda: now_s[0])
    paths = frozenset(("/stream",))
    one, two, three = (Subscription("a", space, "true", "sql", 7, 1, (0,)) for space in ("1", "2", "3"))
    keys = [Caller(str(n), {}) for n in range(4)]
    for key in keys[:3]:
        issued.issue(key, one, paths, 10)
    with pytest.raises(HttpProblem, match="maximum number of valid tickets"):
        issued.issue(keys[3], one, paths, 10)
    assert issued.find(issued.issue(keys[3], two, paths, 10), "/stream").caller is keys[3]
    issued.issue(keys[3], two, paths, 20)
    with pytest.raises(HttpProblem, match="maximum number of valid tickets"):
        issued.issue(keys[3], three, paths, 10)
    keys[0].end()
    issued.issue(keys[3], three, paths, 10)
    now_s[0] = 11
    issued.issue(ANY_CALLER, one, paths, 10)
    assert {space: len(found) for space, found in issued._of_spaces.items()} == {"1": 1, "2": 2, "3": 1}
    issued.issue(ANY_CALLER, one, paths, 10)
    issued.issue(ANY_CALLER, one, paths, 10)
    assert {space: len(found) for space, found in issued._of_spaces.items()} == {"1": 3, "2": 1}
    assert len(issued._tickets) == 4


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=4), st.text(max_size=8))
def test_other_parameters_of_a_query_are_left_as_they_are(pairs: list[tuple[str, str]], ticket: str) -> None:
    others = [(name, value) for name, value in pairs if name != PARAMETER]
    plain = urlencode(others).encode()
    assert split_query(plain) == (None, plain)
    for at in range(len(others) + 1):
        query = urlencode([*others[:at], (PARAMETER, ticket), *others[at:]]).encode()
        _, rest = split_query(query)
        read, expected = (parse_qsl(each.decode(), keep_blank_values=True) for each in (rest, plain))
        assert read == expected
