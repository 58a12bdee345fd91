"""Help with filters, and compiling them: bounded by request, in turns by space, ended with the client."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_support import DEADLINE_S, SUBSCRIPTIONS, encode, run, running, served, until, until_async
from test_keys import bearer, locked, make
from test_publish_http import problem
from tests.yardstick import slowness

from fieldfare.filters import compile_filter
from fieldfare.filters.help import trace
from fieldfare.gateway.routes import filters as routes
from fieldfare.gateway.routes.requests import unless_gone
from fieldfare.gateway.subscriptions import Subscriptions

PAIRS = "ANY i IN data.a SATISFIES (ANY j IN data.a SATISFIES (i + j = -1))"


def event_of(elements: int) -> dict[str, Any]:
    return {"data": {"a": list(range(elements))}}


def test_an_event_that_a_filter_is_given_up_for_is_not_traced() -> None:
    """Matching gave it up at once, and help evaluated it all the same: for hours, and for all spaces."""
    found = trace(compile_filter(PAIRS), event_of(100_000))
    assert not found.matches and "too much work" in found.errors[0] and "no match" in str(found)


def test_a_request_for_help_takes_a_bounded_number_of_steps(tmp_path: Path) -> None:
    """1,000 events of five million steps each kept the thread of all spaces for half an hour."""

    async def work() -> None:
        async with running(tmp_path) as r:
            body = {"filter": PAIRS, "events": [event_of(900)] * 30}
            for verb in ("test", "explain"):
                answer = await r.client.post(f"/v1/filters:{verb}", json=body)
                told = problem(answer, 413)
                assert told["type"].endswith("too-much-work")
                assert 1 <= told["max_events"] < 20
            few = {"filter": PAIRS, "events": [event_of(10)] * 3}
            answer = (await r.client.post("/v1/filters:test", json=few)).json()
            assert answer["matched"] == 0 and len(answer["results"]) == 3

    run(work)


def test_a_sample_has_no_more_events_than_the_filter_may_take_steps_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "STEPS_MAX", 20_000)

    async def work() -> None:
        async with running(tmp_path) as r:
            for n in range(5):
                attributes = {"specversion": "1.0", "id": str(n), "source": "/t", "type": "t"}
                await r.publish({**attributes, **event_of(40)})
            body = {"filter": PAIRS, "space": "default"}
            sample = (await r.client.post("/v1/filters:explain", json=body)).json()["sample"]
            assert 0 < sample["events"] < 5

    run(work)


class Slow:
    """An evaluation that lasts until it is released; it counts the events that were begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = threading.Event()

    def __call__(self, filter: Any, event: Any) -> Any:
        self.begun += 1
        assert self.go.wait(DEADLINE_S)
        return trace(filter, event)


def test_help_ends_when_its_client_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, left = Slow(), threading.Event()

    async def noting(*args: Any) -> Any:
        try:
            return await unless_gone(*args)
        finally:
            left.set()

    monkeypatch.setattr(routes, "trace", slow)
    monkeypatch.setattr(routes, "unless_gone", noting)
    body = encode({"filter": "data.a = 1", "events": [event_of(1)] * 500})
    head = f"POST /v1/filters:test HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with served(tmp_path) as (_, client):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as leaving:
            leaving.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            until(lambda: slow.begun)
        until(left.is_set)
        slow.go.set()
        answer = client.post("/v1/filters:check", json={"filter": "data.a = 1"})
        assert answer.status_code == 200 and slow.begun == 1, "it continued with other events"


def test_help_of_one_space_leaves_a_thread_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.setattr(routes, "trace", slow)

    async def work() -> None:
        async with locked(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "crowd"})
            crowd, other = await make(r, "crowd", "subscribe"), await make(r, "default", "subscribe")
            body = {"filter": "data.a = 1", "events": [event_of(1)]}
            waiting = [
                asyncio.ensure_future(r.client.post("/v1/filters:test", json=body, headers=bearer(crowd)))
                for _ in range(20)
            ]
            await until_async(lambda: slow.begun)
            check = r.client.post("/v1/filters:check", json={"filter": "data.a = 1"}, headers=bearer(other))
            assert (await check).status_code == 200
            assert slow.begun == 1, "one request of a space at a time"
            slow.go.set()
            assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}

    run(work)


@pytest.mark.long
@pytest.mark.parametrize("path", ["/v1/filters:test", SUBSCRIPTIONS])
def test_a_gateway_that_stops_waits_for_no_help_and_no_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """It waited until the end, and was killed by its supervisor while it saved its state."""
    begun = threading.Event()
    events, deep = [event_of(600)] * 8, {"a": [{"exists": False}]}
    for _ in range(40):
        deep = {"a": deep, "b": [{"exists": False}]}  # type: ignore[dict-item]
    many = [{"id": f"s{n}", "filter": deep, "dialect": "eventbridge"} for n in range(2_000)]
    bodies = {"/v1/filters:test": {"filter": PAIRS, "events": events}, SUBSCRIPTIONS: {"subscriptions": many}}
    check, counted = Subscriptions._check, routes._counted

    def noting(work: Any) -> Any:
        def noted(*args: Any) -> Any:
            begun.set()
            return work(*args)

        return noted

    monkeypatch.setattr(Subscriptions, "_check", noting(check))
    monkeypatch.setattr(routes, "_counted", noting(counted))
    answers: list[Any] = []

    def ask(client: httpx.Client) -> None:
        try:
            answers.append(
                client.post(path, content=encode(bodies[path]), headers={"content-type": "application/json"})
            )
        except httpx.HTTPError as error:
            answers.append(error)

    with served(tmp_path) as (gateway, client):
        asking = threading.Thread(target=ask, args=(client,))
        asking.start()
        until(begun.is_set)
        stopping_s = time.process_time()
        gateway.stop_requests()
        asking.join(DEADLINE_S)
        assert answers[0].status_code == 503 and answers[0].json()["type"].endswith("stopping")
        # One event, or a step of compiling, is done to its end: a second or two of processor time.
        assert time.process_time() - stopping_s < 20 * slowness()
        assert gateway.subscriptions.count == 0


def test_compiling_ends_when_its_client_goes_away_and_nothing_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    held = threading.Event()
    check = Subscriptions._check

    def slow_check(self: Subscriptions, space: str, body: Any) -> Any:
        checked.append(body.id)
        if body.id == "s1":
            assert held.wait(DEADLINE_S)
        return check(self, space, body)

    monkeypatch.setattr(Subscriptions, "_check", slow_check)
    monkeypatch.setattr("fieldfare.gateway.subscriptions.COMPILE_STEP_S", 0.0)

    async def work() -> None:
        async with running(tmp_path) as r:
            many = [{"id": f"s{n}", "filter": "data.x = 1"} for n in range(1_000)]
            asked = asyncio.ensure_future(r.client.post(SUBSCRIPTIONS, json={"subscriptions": many}))
            await until_async(lambda: "s1" in checked)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            held.set()
            await r.subscribe("after", "data.x = 1")
            assert len(checked) < 10 and r.gateway.subscriptions.count == 1

    run(work)
