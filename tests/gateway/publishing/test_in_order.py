"""Concurrent requests of one producer are in the log in order, in whatever order they arrive."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
from gateway_support import ARROW, BATCH, EVENTS, LINES, encode, event, run, running
from test_publish_http import problem, stored

from fieldfare.gateway import in_order
from fieldfare.gateway.in_order import OrderedAppender
from fieldfare.storage.event_log import Appended, NewRecord, OutOfOrder


def sent_as(sequence: int, follows: int | None, producer: str = "p") -> dict[str, str]:
    headers = LINES | {"fieldfare-producer": producer, "fieldfare-sequence": str(sequence)}
    return headers if follows is None else headers | {"fieldfare-follows": str(follows)}


async def post(r: Any, sequence: int, follows: int | None, producer: str = "p") -> Any:
    body = encode(event(sequence)) + b"\n"
    return await r.client.post(EVENTS, content=body, headers=sent_as(sequence, follows, producer))


def ids(r: Any) -> list[int]:
    return [int(each["id"]) for record in stored(r.gateway) for each in record]


def test_requests_that_overtake_each_other_are_appended_in_order(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            chance = random.Random(7)
            for start in range(0, 200, 20):
                sequences = list(range(start, start + 20))
                chance.shuffle(sequences)
                answers = await asyncio.gather(*(post(r, n, n - 1) for n in sequences))
                assert [answer.status_code for answer in answers] == [200] * 20
                assert [answer.json()["follows"] for answer in answers] == [n - 1 for n in sequences]
            assert ids(r) == list(range(200))
            assert not r.gateway.writer._in_order._waiting and not r.gateway.writer.queued_bytes

    run(work)


def test_one_whose_predecessor_does_not_come_is_refused_after_a_moment(tmp_path, monkeypatch):
    """The client gave up the predecessor, or another process uses its name: no request waits for ever."""
    monkeypatch.setattr(in_order, "HOLD_S", 0.05)

    async def work() -> None:
        async with running(tmp_path) as r:
            told = problem(await post(r, 5, 4), 409)
            assert told["type"].endswith("out-of-order") and told["newest"] == -1
            assert "no request of this producer is known" in told["detail"]
            assert (await post(r, 3, None)).status_code == 200, "who says nothing of order is taken as before"
            told = problem(await post(r, 5, 4), 409)
            assert told["newest"] == 3 and "the newest one is 3" in told["detail"]
            assert (await post(r, 5, 3)).status_code == 200
            told = problem(await post(r, 4, 3), 409)
            assert told["type"].endswith("sequence-passed") and told["newest"] == 5
            again = (await post(r, 5, 4)).json()
            assert again["duplicate"] is True, "a repeat is one, whatever it follows"
            assert ids(r) == [3, 5]

    run(work)


def test_one_that_never_can_be_in_order_is_told_at_once(tmp_path, monkeypatch):
    """Its predecessor was given up by the publisher, but has arrived nevertheless."""
    monkeypatch.setattr(in_order, "HOLD_S", 60.0)

    async def work() -> None:
        async with running(tmp_path) as r:
            for sequence in range(3):
                assert (await post(r, sequence, sequence - 1)).status_code == 200
            told = problem(await post(r, 3, 1), 409)
            assert told["type"].endswith("out-of-order") and told["newest"] == 2

    run(work)


def test_requests_do_not_wait_for_one_that_was_refused_for_good(tmp_path, monkeypatch):
    monkeypatch.setattr(in_order, "HOLD_S", 60.0)

    async def work() -> None:
        async with running(tmp_path) as r:
            behind = [asyncio.create_task(post(r, n, n - 1)) for n in (8, 9)]
            while len(r.gateway.writer._in_order._waiting) < 2:
                await asyncio.sleep(0)
            refused = await r.client.post(EVENTS, content=b"{oops\n", headers=sent_as(7, -1))
            assert refused.status_code == 400
            for answer in await asyncio.gather(*behind):
                assert problem(answer, 409)["newest"] == -1

    run(work)


def test_a_request_whose_events_are_refused_in_part_is_followed_like_any(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            body = encode(event(0)) + b"\n{oops\n"
            answer = await r.client.post(EVENTS, content=body, headers=sent_as(0, -1))
            assert answer.status_code == 207 and answer.json()["follows"] == -1
            assert (await post(r, 1, 0)).status_code == 200
            assert ids(r) == [0, 1]

    run(work)


def test_of_two_processes_with_one_name_each_number_is_taken_once(tmp_path, monkeypatch):
    monkeypatch.setattr(in_order, "HOLD_S", 0.05)

    async def work() -> None:
        async with running(tmp_path) as r:

            async def go(x: int) -> list[int]:
                statuses = []
                for n in range(5):
                    body = encode(event(n, {"x": x})) + b"\n"
                    answer = await r.client.post(EVENTS, content=body, headers=sent_as(n, n - 1))
                    statuses.append(answer.status_code)
                return statuses

            one, other = await asyncio.gather(go(1), go(2))
            assert ids(r) == list(range(5))
            assert all({a, b} == {200, 409} for a, b in zip(one, other, strict=True))

    run(work)


@pytest.mark.parametrize(
    "headers",
    [
        {"fieldfare-follows": "1"},
        sent_as(3, 3),
        sent_as(3, 4),
        sent_as(3, -2),
        sent_as(3, None) | {"fieldfare-follows": "x"},
        sent_as(3, None) | {"fieldfare-follows": "1" * 19},
        sent_as(3, None) | {"fieldfare-follows": "²"},
        sent_as(3, 2) | {"fieldfare-deliver-after": "1"},
    ],
)
def test_what_cannot_be_followed_is_refused(tmp_path, headers):
    async def work() -> None:
        async with running(tmp_path) as r:
            encoded = [(name.encode(), value.encode("latin-1")) for name, value in (LINES | headers).items()]
            answer = await r.client.post(EVENTS, content=encode(event()) + b"\n", headers=encoded)
            assert problem(answer, 400)["type"].endswith("bad-header")
            assert r.gateway.log.end() == 0

    run(work)


def test_waiting_requests_count_in_the_writers_capacity(tmp_path, monkeypatch):
    monkeypatch.setattr(in_order, "HOLD_S", 0.3)

    async def work() -> None:
        async with running(tmp_path) as r:
            waiting = [asyncio.create_task(post(r, n, n - 1, f"p{n}")) for n in range(10, 20)]
            while len(r.gateway.writer._in_order._waiting) < 10:
                await asyncio.sleep(0)
            assert r.gateway.writer.queued_bytes > 0
            assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {409}
            assert r.gateway.writer.queued_bytes == 0

    run(work)


def test_beyond_a_number_of_waiting_records_the_next_is_told_at_once(monkeypatch):
    """Thousands of requests whose predecessors never arrive do not use memory."""
    monkeypatch.setattr(in_order, "HELD_MAX", 3)
    monkeypatch.setattr(in_order, "HOLD_S", 60.0)

    async def work() -> None:
        async def append(record: NewRecord) -> Appended | OutOfOrder:
            await asyncio.sleep(0)
            return OutOfOrder(-1)

        waiting = OrderedAppender(append)
        records = [NewRecord("s", b"{}\n", 1, f"p{n}", 9, follows=8) for n in range(10)]
        tasks = [asyncio.create_task(waiting.append(record)) for record in records]
        begun_s = time.monotonic()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)
        assert sum(task.done() for task in tasks) == 7
        assert time.monotonic() - begun_s < in_order.HOLD_S
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not waiting._waiting and not waiting._room.total

    run(work)


def log_of_one_producer() -> tuple[list[int], Callable[[NewRecord], Awaitable[Appended | OutOfOrder]]]:
    appended: list[int] = []

    async def append(record: NewRecord) -> Appended | OutOfOrder:
        await asyncio.sleep(0)
        assert record.sequence is not None
        if record.sequence in appended:
            return Appended(0, 1, 0, duplicate=True)
        newest = max(appended, default=-1)
        if record.follows not in (None, newest):
            return OutOfOrder(newest)
        appended.append(record.sequence)
        return Appended(0, 1, 0, duplicate=False)

    return appended, append


def test_followers_of_a_record_whose_client_left_are_appended_at_once(monkeypatch):
    """Its connection was cut, but the writer had it already: its followers waited for two seconds."""
    monkeypatch.setattr(in_order, "HOLD_S", 60.0)

    async def work() -> None:
        log, append = log_of_one_producer()

        async def slow(record: NewRecord) -> Appended | OutOfOrder:
            if record.sequence != 0:
                return await append(record)
            await asyncio.sleep(0.01)
            await append(record)
            await asyncio.sleep(3600)  # The record is in the log, and its answer does not come.
            raise AssertionError

        ordered = OrderedAppender(slow)
        first = asyncio.ensure_future(ordered.append(NewRecord("s", b"", 1, "p", 0)))
        follower = asyncio.ensure_future(ordered.append(NewRecord("s", b"", 1, "p", 1, follows=0)))
        other = asyncio.ensure_future(ordered.append(NewRecord("s", b"", 1, "p", 3, follows=2)))
        while log != [0]:
            await asyncio.sleep(0.001)
        first.cancel()
        async with asyncio.timeout(30):
            await follower
        assert log == [0, 1] and not other.done()
        other.cancel()

    asyncio.run(work())


def test_of_many_copies_that_wait_each_is_told_once(monkeypatch):
    """With two groups of copies that follow each other, all of the second were examined for each of the
    first."""
    looks = 0

    class ReadDone(asyncio.Future):  # type: ignore[type-arg]
        def done(self) -> bool:
            nonlocal looks
            looks += 1
            return super().done()

    behind = in_order._Successor
    monkeypatch.setattr(in_order, "_Successor", lambda sequence: behind(sequence, ReadDone()))

    async def work() -> None:
        appended, append = log_of_one_producer()
        waiting = OrderedAppender(append)
        numbers = [(5, 1)] * 200 + [(9, 5)] * 200
        tasks = [
            asyncio.create_task(waiting.append(NewRecord("s", b"{}\n", 1, "p", number, follows=before)))
            for number, before in numbers
        ]
        while waiting._room.total < 400:
            await asyncio.sleep(0)
        await waiting.append(NewRecord("s", b"{}\n", 1, "p", 1))
        places = await asyncio.gather(*tasks)
        assert appended == [1, 5, 9] and all(isinstance(place, Appended) for place in places)
        assert looks < 10 * 400
        assert not waiting._waiting and not waiting._room.total

    run(work)


def test_one_whose_turn_came_while_it_was_tried_needs_no_room_to_wait(monkeypatch):
    """The capacity for waiting requests was used up, so it was refused although its predecessor was in the
    log."""
    monkeypatch.setattr(in_order, "HELD_MAX", 0)

    async def work() -> None:
        appended, append = log_of_one_producer()
        first = NewRecord("s", b"{}\n", 1, "p", 1)
        is_first = True

        async def overtaken(record: NewRecord) -> Appended | OutOfOrder:
            nonlocal is_first
            place = await append(record)
            if record.sequence == 2 and is_first:
                is_first = False
                await waiting.append(first)
            return place

        waiting = OrderedAppender(overtaken)
        place = await waiting.append(NewRecord("s", b"{}\n", 1, "p", 2, follows=1))
        assert isinstance(place, Appended) and appended == [1, 2]

    run(work)


def test_one_that_comes_early_and_is_sent_again_pays_its_quota_once(tmp_path, monkeypatch):
    """With five requests in flight over a bad path, each that overtook another was charged for each
    attempt."""
    monkeypatch.setattr(in_order, "HOLD_S", 0.05)

    async def work() -> None:
        async with running(tmp_path, quota_events_per_s=0.001, quota_bytes_per_s=1e9) as r:
            await r.client.put("/v1/spaces/default/quotas", json={"events_per_s": 3})
            for _ in range(5):
                assert problem(await post(r, 1, 0), 409)["newest"] == -1
            assert (await post(r, 0, -1)).status_code == 200
            assert (await post(r, 1, 0)).status_code == 200
            await r.client.put("/v1/spaces/default/quotas", json={"events_per_s": 0.001})
            assert (await post(r, 2, 1)).status_code == 200
            for _ in range(2):
                # An invalid request is charged, because it is work for the log.
                body = encode(event("other")) + b"\n"
                answer = await r.client.post(EVENTS, content=body, headers=sent_as(2, 1))
                assert answer.status_code in (409, 429)
            assert problem(answer, 429)["quota"] == "events_per_s"

    run(work)


def test_one_that_is_told_at_once_has_paid(tmp_path):
    """An overtaken request is decoded and looked up each time it is sent, and no quota limited this."""

    async def work() -> None:
        async with running(tmp_path) as r:
            for sequence, follows in ((0, -1), (5, 0)):
                assert (await post(r, sequence, follows)).status_code == 200
            await r.client.put("/v1/spaces/default/quotas", json={"events_per_s": 0.001})
            assert problem(await post(r, 4, 0), 409)["type"].endswith("sequence-passed")
            assert problem(await post(r, 4, 0), 429)["quota"] == "events_per_s"

    run(work)


def test_what_found_no_room_pays_nothing(tmp_path):
    async def work() -> None:
        async with running(tmp_path, quota_events_per_s=1, quota_stored_event_bytes=10) as r:
            for _ in range(3):
                assert (await post(r, 0, None)).status_code == 507, "and not 429: nothing was published"

    run(work)


def no_rows() -> bytes:
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, pa.schema([(name, pa.string()) for name in ("id", "source", "type")])).close()
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("body", "content"),
    [(b" [] ", BATCH), (b"\n\n", LINES), (no_rows(), ARROW)],
    ids=["array", "lines", "arrow"],
)
def test_a_request_without_events_has_no_number(tmp_path, monkeypatch, body, content):
    """An empty array was answered with 200, and was not in the log: what followed it waited in vain."""
    monkeypatch.setattr(in_order, "HOLD_S", 60.0)

    async def work() -> None:
        async with running(tmp_path) as r:
            behind = asyncio.create_task(post(r, 8, 7))
            while not r.gateway.writer._in_order._waiting:
                await asyncio.sleep(0)
            for headers in (sent_as(7, -1), sent_as(7, None)):
                told = problem(await r.client.post(EVENTS, content=body, headers=headers | content), 400)
                assert told["type"].endswith("no-events") and "Fieldfare-Sequence" in told["detail"]
            assert problem(await behind, 409)["newest"] == -1
            assert (await post(r, 8, -1)).status_code == 200
            assert ids(r) == [8]

    run(work)
