"""Limits on client requests about deliveries, and their effect on others: numbers, bodies, sizes, memory."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from gateway_support import SUBSCRIPTIONS, encode, event, run, running, served, until
from loop_watch import watched
from test_delivery_http import positions
from test_publish_http import problem

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.delivery import service
from fieldfare.storage import NewMatchBlock
from fieldfare.storage.event_log import NewRecord

pytestmark = pytest.mark.long

JSON = {"content-type": "application/json"}
NOWHERE = [
    "0-0-4294967295",
    "0-0-70000",
    "0-0-65536",
    "0-0-10000",
    "0-0-" + "9" * 30,
    "0-" + "9" * 30 + "-0",
    "9" * 30 + "-0-0",
    "0-0-" + "9" * 5000,
    "0-281474976710655-0",
    "0-2-0",
    "0--1-0",
    "-1-0-0",
    "0-0-1.5",
    "0-0-١",
    "0-0-0-0",
    "",
]


def number_of(gateway: Gateway, id: str) -> int:
    found = gateway.registry.get("default", id)
    assert found is not None
    return found.number


def test_an_impossible_position_moves_no_cursor_and_fails_no_other_ack(tmp_path):
    """A client with a bug acknowledged 0-0-70000: its cursor went to another record for good, and with an
    index of thirty digits the acks of other clients in the same group failed, and retention with them."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await r.subscribe("b", "data.x = 1")
            await r.publish(*(event(i, {"x": 1}) for i in range(3)))
            r.pipeline.step()
            await r.publish(event(4, {"x": 1}))  # not matched yet
            assert len(await r.pull("a")) == len(await r.pull("b")) == 3
            for text in NOWHERE:
                for body, pointer in (({"up_to": text}, "/up_to"), ({"positions": [text]}, "/positions/0")):
                    bad = r.client.post(f"{SUBSCRIPTIONS}/a/ack", json=body)
                    good = r.client.post(f"{SUBSCRIPTIONS}/b/ack", json={"positions": ["0-0-0"]})
                    answer, other = await asyncio.gather(bad, good)
                    assert problem(answer, 400)["pointer"] == pointer
                    assert other.json() == {"cursor": "0-0-1"}
                problem(await r.client.post(f"{SUBSCRIPTIONS}/a/nack", json={"positions": [text]}), 400)
            answer = await r.client.post(f"{SUBSCRIPTIONS}/a/ack", json={"up_to": "0-1-0"})
            assert "has not been matched yet" in problem(answer, 503)["detail"]
            assert answer.headers["retry-after"] == "1"
            await r.gateway.background.maintain()
            assert await r.ack("a", "0-0-0") == "0-0-1"
            assert (await r.client.post(f"{SUBSCRIPTIONS}/a/ack", json={"up_to": "0-0-2"})).json() == {
                "cursor": "0-1-0"
            }
            r.pipeline.step()
            assert positions(await r.pull("a")) == ["0-1-0"]

    run(work)


def test_numbers_of_a_pull_and_of_a_stream_are_refused_by_name(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            for text in ('"max":0', '"max":-1', '"max":1.5', '"max":"1"', '"wait_s":-1', '"wait_s":NaN'):
                body = f"{{{text}}}".encode()
                problem(await r.client.post(f"{SUBSCRIPTIONS}/a/pull", content=body, headers=JSON), 400)
            for value in ("0", "-1", "86401", "1e999", "null, 1"):
                body = b'{"ack_deadline_s":%s}' % value.encode()
                problem(await r.client.post(f"{SUBSCRIPTIONS}/a/pull", content=body, headers=JSON), 400)
            for body in (b'{"max":%s}' % (b"9" * 30), b'{"max":%s}' % (b"9" * 18), b'{"wait_s":1e-320}'):
                answer = await r.client.post(f"{SUBSCRIPTIONS}/a/pull", content=body, headers=JSON)
                assert answer.status_code in (200, 400), answer.text
            for name, value in [
                ("window", "0"),
                ("window", "9" * 30),
                ("window", "1.5"),
                ("window", "-1"),
                ("ack_deadline_s", "nan"),
                ("ack_deadline_s", "inf"),
                ("ack_deadline_s", "0"),
                ("ack", "yes"),
            ]:
                told = problem(await r.client.get(f"{SUBSCRIPTIONS}/a/stream", params={name: value}), 400)
                assert told["parameter"] == name

    run(work)


def test_an_ack_of_more_positions_than_may_be_in_flight_is_refused_whole(tmp_path):
    """Parsing a body of 8 MiB of positions took a second of the event loop."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            for verb in ("ack", "nack"):
                answer = await r.client.post(
                    f"{SUBSCRIPTIONS}/a/{verb}", json={"positions": ["0-0-0"] * 20_001}
                )
                assert problem(answer, 413)["max_positions"] == 20_000
                answer = await r.client.post(f"{SUBSCRIPTIONS}/a/{verb}", json={"positions": ["0"] * 400_000})
                problem(answer, 413)

    run(work)


def test_an_ack_whose_body_comes_late_does_not_take_the_cursor_back(tmp_path, monkeypatch):
    """A phone sends the head of an ack, loses its network for two minutes, and sends the body. Meanwhile its
    other half went on, the gateway forgot the idle delivery and read it again: the late ack was settled on
    the forgotten one, and saved its old cursor over the new."""

    async def work() -> None:
        monkeypatch.setattr(service, "IDLE_FORGOTTEN_S", -1.0)
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(event(1, {"x": 1}))
            r.pipeline.step()
            assert len(await r.pull("a")) == 1
            begun, go_on = asyncio.Event(), asyncio.Event()

            async def late_body() -> AsyncIterator[bytes]:
                begun.set()
                await go_on.wait()
                yield encode({"positions": ["0-0-0"]})

            late = asyncio.ensure_future(
                r.client.post(
                    f"{SUBSCRIPTIONS}/a/ack",
                    content=late_body(),
                    headers={"content-type": "application/json"},
                )
            )
            await begun.wait()
            assert await r.ack("a", "0-0-0") == "0-1-0"
            await r.gateway.deliveries.save_progress()
            await r.publish(event(2, {"x": 1}))
            r.pipeline.step()
            assert await r.ack("a", *positions(await r.pull("a"))) == "0-2-0"
            go_on.set()
            assert (await late).json() == {"cursor": "0-2-0"}
            saved = r.gateway.registry.load_cursors([n := number_of(r.gateway, "a")]).get(n)
            assert saved is not None and str(saved.positions[0]) == "0-2-0"

    run(work)


def test_saving_cursors_without_readers_pauses_after_each_batch(tmp_path, monkeypatch):
    """Five thousand streams had messages since the last round: saving their cursors takes half a second,
    during which new messages would be late."""
    monkeypatch.setattr(service, "MARKED_BATCH_SIZE", 2)
    worked_s, rested_s = [], []

    async def work() -> None:
        async with running(tmp_path) as r:
            for id in "abcde":
                await r.subscribe(id, "data.x = 1")
            await r.publish(event(1, {"x": 1}))
            r.pipeline.step()
            for id in "abcde":
                assert len(await r.pull(id)) == 1
            save = r.gateway.deliveries._save_some

            async def timed(some) -> None:
                began_s = time.monotonic()
                await save(some)
                worked_s.append(time.monotonic() - began_s)

            class Resting:
                """A replacement for asyncio in the delivery service, and nowhere else."""

                def __getattr__(self, name: str) -> Any:
                    return getattr(asyncio, name)

                @staticmethod
                async def sleep(pause_s: float) -> None:
                    if pause_s > 0:
                        rested_s.append(pause_s)
                    await asyncio.sleep(0)

            monkeypatch.setattr(r.gateway.deliveries, "_save_some", timed)
            monkeypatch.setattr(service, "asyncio", Resting())
            await r.gateway.deliveries.save_progress()
            monkeypatch.undo()
            assert all(each.is_saved for each in r.gateway.deliveries.loaded.values())

    run(work)
    assert len(worked_s) == len(rested_s) == 3
    assert all(worked <= rested for worked, rested in zip(worked_s, rested_s, strict=True))


def test_an_ack_whose_body_comes_after_the_subscription_went_is_told_so(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            begun, go_on = asyncio.Event(), asyncio.Event()

            async def late_body() -> AsyncIterator[bytes]:
                begun.set()
                await go_on.wait()
                yield encode({} if verb == "pull" else {"positions": []})

            for verb in ("ack", "nack", "pull"):
                await r.subscribe("a", "data.x = 1")
                begun.clear(), go_on.clear()
                late = asyncio.ensure_future(
                    r.client.post(
                        f"{SUBSCRIPTIONS}/a/{verb}",
                        content=late_body(),
                        headers={"content-type": "application/json"},
                    )
                )
                await begun.wait()
                await r.client.delete(f"{SUBSCRIPTIONS}/a")
                go_on.set()
                problem(await late, 404)

    run(work)


def test_acks_of_what_never_matched_are_not_remembered():
    """A client that acknowledges every position of the log, not only its own, is harmless, and cheap."""
    delivery, session = Delivery(1, [0]), Session(10)
    delivery.feed(np.array([3, 9, 20], np.int64), 30)
    assert delivery.take(session, 2, 0.0, 30.0) == [3, 9]
    assert delivery.ack([4, 5, 9, 10, 19, 21]) == 1
    assert [[each.index for each in run] for run in delivery.cursor().acked] == [[9, 9]]


def test_many_acked_behind_one_that_is_stuck_are_one_entry_of_the_cursor():
    """With 50,000 messages acked behind one that is not, each further ack sorted and saved all of them."""
    delivery, session = Delivery(1, [0]), Session(1 << 20)
    delivery.feed(np.arange(0, 150_000, 3, dtype=np.int64), 150_000)
    first, *others = delivery.take(session, 50_000, 0.0, 30.0)
    rng = np.random.default_rng(1)
    for at in rng.permutation(len(others)).tolist():
        delivery.ack([others[at]])
    assert len(delivery.mark().runs) == len(delivery.cursor().acked) == 1
    delivery.ack([first])
    assert delivery.cursor().acked == () and delivery.cursor_keys[0] == 150_000


def test_what_is_settled_leaves_memory_before_its_deadline():
    """A subscriber with a deadline of a day that acks at once: every message it ever got stayed in memory."""
    delivery, session = Delivery(1, [0]), Session(1000)
    tracemalloc.start()
    try:
        for start in range(0, 200_000, 1000):
            delivery.feed(np.arange(start, start + 1000, dtype=np.int64), start + 1000)
            keys = delivery.take(session, 1000, float(start), 86_400.0)
            assert len(keys) == 1000
            delivery.ack(keys)
            if start == 0:
                begun_bytes = tracemalloc.get_traced_memory()[0]
        grown_bytes = tracemalloc.get_traced_memory()[0] - begun_bytes
    finally:
        tracemalloc.stop()
    assert grown_bytes < 1 << 20
    assert session.held == delivery.in_flight == 0


def test_very_many_leases_that_run_out_at_once_are_ended_in_steps():
    delivery, session = Delivery(1, [0]), Session(1 << 20)
    delivery.feed(np.arange(20_000, dtype=np.int64), 20_000)
    for _ in range(20):
        delivery.take(session, 1000, 0.0, 1.0)
    assert delivery.expire(1.0) and delivery.in_flight > 0
    while delivery.expire(1.0):
        pass
    assert delivery.in_flight == session.held == 0
    assert delivery.take(session, 1 << 20, 1.0, 1.0) == list(range(20_000))


RECORD_EVENTS = 10_000


def append_large_records(gateway: Gateway, count: int, number: int, matched: list[int]) -> None:
    """Append records of 10,000 events; one subscription matches the same events of each."""
    lines = b"".join(encode(event(i, {"x": i, "text": "." * 40})) + b"\n" for i in range(RECORD_EVENTS))
    for first in range(0, count, 6):
        records = min(6, count - first)
        record = NewRecord("default", lines, RECORD_EVENTS, appended_ms=time.time_ns() // 1_000_000)
        gateway.log.append([record] * records)
        lengths = np.zeros(records * RECORD_EVENTS, np.int64)
        lengths[[record * RECORD_EVENTS + index for record in range(records) for index in matched]] = 1
        gateway.match_log.write(
            NewMatchBlock.by_event(
                first,
                first + records,
                np.full(records, RECORD_EVENTS, np.int32),
                np.concatenate(([0], np.cumsum(lengths))),
                np.full(int(lengths.sum()), number, np.uint32),
            )
        )


def put_subscription(client: httpx.Client, id: str) -> None:
    client.put(f"{SUBSCRIPTIONS}/{id}", json={"filter": "data.x = 1"}).raise_for_status()


def test_a_pull_of_sparse_matches_from_large_records_leaves_the_event_loop_to_others(tmp_path, monkeypatch):
    """One match in each of many records of 10,000 events: each was read and split while all others waited."""
    with watched(monkeypatch, tmp_path, record_cache_bytes=1) as (gateway, client, watch):
        put_subscription(client, "a")
        append_large_records(gateway, 36, number_of(gateway, "a"), [5_000])
        watch.restart()
        messages = client.post(f"{SUBSCRIPTIONS}/a/pull", json={"max": 1000}).json()["messages"]
        assert positions(messages) == [f"0-{record}-5000" for record in range(36)]
        watch.check()


def test_a_reader_as_fast_as_the_gateway_lets_the_others_have_their_turn(tmp_path, monkeypatch):
    """A stream whose client reads as fast as it is written never had to wait, so no other had a turn."""
    with watched(monkeypatch, tmp_path) as (gateway, client, watch):
        put_subscription(client, "a")
        append_large_records(gateway, 2, number_of(gateway, "a"), list(range(RECORD_EVENTS)))
        watch.restart()
        url = f"{SUBSCRIPTIONS}/a/stream?window=20000"
        found = 0
        with client.stream("GET", url) as response:
            for chunk in response.iter_raw():
                found += chunk.count(b"\n\n")
                if found > 20_000:
                    break
        watch.check()


def test_acks_beside_one_stuck_message_leave_the_event_loop_to_others(tmp_path, monkeypatch):
    """110 ms each at 50,000."""
    with watched(monkeypatch, tmp_path) as (gateway, client, watch):
        put_subscription(client, "a")
        append_large_records(gateway, 5, number_of(gateway, "a"), list(range(RECORD_EVENTS)))
        client.post(f"{SUBSCRIPTIONS}/a/pull", json={"max": 1, "ack_deadline_s": 3600})
        watch.restart()
        left = 49_999
        while left:
            body = {"max": 10_000, "ack_deadline_s": 3600}
            found = positions(client.post(f"{SUBSCRIPTIONS}/a/pull", json=body).json()["messages"])
            mine = [position for position in found if position != "0-0-0"]
            left -= len(mine)
            last = mine.pop()
            for some in (mine, [last]):
                answer = client.post(f"{SUBSCRIPTIONS}/a/ack", json={"positions": some})
                assert answer.json() == {"cursor": "0-0-0"}
        watch.check()
        assert client.post(f"{SUBSCRIPTIONS}/a/ack", json={"positions": ["0-0-0"]}).json() == {
            "cursor": "0-5-0"
        }


def test_a_reader_that_goes_with_all_in_its_hands_leaves_the_event_loop_to_others(tmp_path, monkeypatch):
    """A stream with a window of 20,000 was disconnected: returning each of its messages delayed all others,
    and so did an ack up to the last of them."""
    with watched(monkeypatch, tmp_path) as (gateway, client, watch):
        put_subscription(client, "a")
        append_large_records(gateway, 2, number_of(gateway, "a"), list(range(RECORD_EVENTS)))
        watch.restart()
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream?window=20000") as response:
            found = 0
            for chunk in response.iter_raw():
                found += chunk.count(b"\n\n")
                if found > 20_000:
                    break
        until(lambda: gateway.deliveries.connected == 0)
        body = {"max": 20_000, "ack_deadline_s": 3600}
        assert len(client.post(f"{SUBSCRIPTIONS}/a/pull", json=body).json()["messages"]) == 20_000
        assert client.post(f"{SUBSCRIPTIONS}/a/ack", json={"up_to": "0-1-9999"}).json()["cursor"] == "0-2-0"
        watch.check()


def test_retention_that_took_a_readers_events_is_passed_over_in_one_step(tmp_path):
    """A reader returns after its events were removed: each of a million was looked up in the log."""
    with served(tmp_path) as (gateway, client):
        put_subscription(client, "a")
        append_large_records(gateway, 5, number_of(gateway, "a"), list(range(RECORD_EVENTS)))
        until(lambda: gateway.tail.tip == 5)
        asked: list[int] = []
        original = gateway.log.bound
        gateway.log.bound = lambda start, *rest: (asked.append(start), original(start, *rest))[1]
        gateway.log.trim(4)
        messages = client.post(f"{SUBSCRIPTIONS}/a/pull", json={"max": 3}).json()["messages"]
        assert positions(messages) == ["0-4-0", "0-4-1", "0-4-2"]
        assert len(asked) < 10
