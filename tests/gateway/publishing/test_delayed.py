"""Delayed events are published when they are due, exactly once, whatever happens before."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gateway_support import BATCH, EVENTS, Running, encode, event, run, running, until_async

from fieldfare.gateway import in_order
from fieldfare.gateway.publishing import delayed as module
from fieldfare.storage.errors import EventLogError
from fieldfare.storage.event_log import NewRecord

DELAYED = "/v1/spaces/default/delayed"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The time of day for moving due records, which a test sets by hand."""

    class Clock:
        ahead_ms = 0

        def now_ms(self) -> int:
            return time.time_ns() // 1_000_000 + self.ahead_ms

    clock = Clock()
    monkeypatch.setattr(module, "_now_ms", clock.now_ms)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    return clock


async def later(r: Running, *events: dict[str, Any], after: Any = 3_600, **headers: str) -> Any:
    said = {"Fieldfare-Deliver-After": str(after)} if after is not None else {}
    body = encode(list(events))
    return await r.client.post(EVENTS, content=body, headers={**BATCH, **said, **headers})


async def waits(r: Running) -> dict[str, Any]:
    return dict((await r.client.get(DELAYED)).json())


async def pulled(r: Running, id: str) -> list[str]:
    r.pipeline.step()
    return [each["event"]["id"] for each in await r.pull(id, max=1_000)]


def test_events_come_when_it_is_their_time_in_its_order_and_to_those_who_subscribe_then(
    tmp_path: Path, clock: Any
) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("early", "EXISTS data")
            answer = await later(r, event("late"), event("too"), after=7_200)
            assert answer.status_code == 202, answer.text
            told = answer.json()
            assert (told["count"], told["duplicate"]) == (2, False)
            assert abs(told["due_ms"] - time.time() * 1_000 - 7_200_000) < 60_000
            soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
            assert (
                await later(r, event("soon"), after=None, **{"Fieldfare-Deliver-At": soon})
            ).status_code == 202
            await r.publish(event("now"))
            assert await pulled(r, "early") == ["now"]
            found = await waits(r)
            assert [each["count"] for each in found["delayed"]] == [1, 2] and found["total"] == 2
            assert found["total_bytes"] == sum(each["bytes"] for each in found["delayed"])
            assert "fieldfare_delayed_records 2.0" in (await r.client.get("/metrics")).text
            clock.ahead_ms = 3_700_000
            await until_async(lambda: r.gateway.log.end() == 2)
            await r.subscribe("later", "EXISTS data")
            clock.ahead_ms = 7_300_000
            await until_async(lambda: r.gateway.log.end() == 3)
            assert await pulled(r, "early") == ["soon", "late", "too"]
            assert await pulled(r, "later") == ["late", "too"], "matched as of when its time had come"
            await until_async(lambda: not r.gateway.delayed.held)
            assert await waits(r) == {"delayed": [], "next": None, "total": 0, "total_bytes": 0}
            assert (await later(r, event("at once"), after="0")).status_code == 202
            await until_async(lambda: r.gateway.log.end() == 4)

    run(work)


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        *(
            ({"Fieldfare-Deliver-After": bad}, "bad-header")
            for bad in ("", "soon", "-1", "NaN", "inf", "1e9")
        ),
        *(({"Fieldfare-Deliver-After": bad}, "bad-header") for bad in ("1_0", "0x1", "1" * 31, " ")),
        ({"Fieldfare-Deliver-After": "999999999999"}, "too-late"),
        *(
            ({"Fieldfare-Deliver-At": bad}, "bad-header")
            for bad in ("", "tomorrow", "2030-01-01", "99999-01-01T00:00:00Z")
        ),
        *(
            ({"Fieldfare-Deliver-At": bad}, "bad-header")
            for bad in ("2030-02-30T00:00:00Z", "0000-01-01T00:00:00Z")
        ),
        ({"Fieldfare-Deliver-At": "9999-12-31T23:59:60Z"}, "too-late"),
        ({"Fieldfare-Deliver-At": "2030-01-01T00:00:00Z", "Fieldfare-Deliver-After": "1"}, "bad-header"),
    ],
)
def test_a_time_that_is_none_is_refused(tmp_path: Path, headers: dict[str, str], kind: str) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            answer = await later(r, event(1), after=None, **headers)
            assert answer.status_code == 400 and answer.json()["type"].endswith(f":{kind}"), answer.text
            assert (await waits(r))["total"] == 0 and r.gateway.log.end() == 0

    run(work)


def test_a_repeat_is_one_before_and_after_its_time_and_when_it_was_cancelled(
    tmp_path: Path, clock: Any
) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            first = {"Fieldfare-Producer": "p", "Fieldfare-Sequence": "1"}
            second = first | {"Fieldfare-Sequence": "2"}
            told = (await later(r, event(1), **first)).json()
            again = (await later(r, event(1), after=99, **first)).json()
            assert again == told | {"duplicate": True}, "what counts is what the first one said"
            other = await later(r, event(2), **first)
            assert (other.status_code, other.json()["type"]) == (409, "urn:fieldfare:problem:sequence-used")
            cancelled = (await later(r, event(2), **second)).json()["id"]
            assert (await r.client.delete(f"{DELAYED}/{cancelled}")).status_code == 204
            assert (await r.client.delete(f"{DELAYED}/{cancelled}")).status_code == 404
            assert (await later(r, event(2), **second)).json()["duplicate"]
            clock.ahead_ms = 4_000_000
            await until_async(lambda: not r.gateway.delayed.held)
            assert (await later(r, event(1), **first)).json()["duplicate"]
            assert r.gateway.log.end() == 1 and (await waits(r))["total"] == 0
            for unknown in ("0", "1", "-1", "x", "9" * 30):
                assert (await r.client.delete(f"{DELAYED}/{unknown}")).status_code == 404

    run(work)


def test_good_events_are_kept_and_bad_ones_named(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            answer = await later(r, event(1), {"id": "no event"}, event(3))
            assert answer.status_code == 202
            assert answer.json()["accepted"] == [{"index": 0}, {"index": 2}]
            assert [each["index"] for each in answer.json()["refused"]] == [1]
            assert (await later(r, {"id": "no event"})).status_code == 400
            assert [each["count"] for each in (await waits(r))["delayed"]] == [2]

    run(work)


def test_what_waits_is_listed_in_pages_and_is_of_its_space_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "other"})
            for n in (5, 1, 4, 2, 3):
                await later(r, event(n), after=100 * n)
            foreign = encode([event("theirs")])
            headers = {**BATCH, "Fieldfare-Deliver-After": "50"}
            told = await r.client.post("/v1/spaces/other/events", content=foreign, headers=headers)
            assert (await r.client.delete(f"{DELAYED}/{told.json()['id']}")).status_code == 404
            found, after = [], ""
            while after is not None:
                answer = (await r.client.get(f"{DELAYED}?limit=2{after and '&after=' + after}")).json()
                found += [each["due_ms"] for each in answer["delayed"]]
                after = answer["next"]
            assert len(found) == 5 and found == sorted(found)
            assert (await r.client.get(f"{DELAYED}?after=x")).status_code == 400
            assert (await r.client.get("/v1/spaces/none/delayed")).status_code == 404
            await r.client.delete("/v1/spaces/other")
            await until_async(lambda: list(r.gateway.delayed.held) == ["default"])

    run(work)


def test_no_more_waits_than_may_and_it_counts_for_the_spaces_quota(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, delayed_max_bytes=1_000) as r:
            assert (await later(r, event(1, "x" * 600))).status_code == 202
            full = await later(r, event(2, "x" * 600))
            assert (full.status_code, full.json()["why"]) == (429, "delayed")
            used = (await r.client.get("/v1/spaces/default/quotas")).json()["used"]["stored_event_bytes"]
            assert 600 < used < 1_000
        async with running(tmp_path, delayed_max_bytes=1_000) as r:
            again = (await r.client.get("/v1/spaces/default/quotas")).json()["used"]["stored_event_bytes"]
            assert again == used and (await later(r, event(2, "x" * 600))).status_code == 429

    run(work)


def test_a_space_that_fills_what_may_wait_leaves_others_their_share(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, delayed_max_bytes=1_000) as r:
            await r.client.post("/v1/spaces", json={"name": "other"})
            assert (await later(r, event(1, "x" * 600))).status_code == 202
            assert (await later(r, event(2, "x" * 600))).status_code == 429
            headers = {**BATCH, "Fieldfare-Deliver-After": "60"}
            codes = []
            for id in range(4):
                body = encode([event(id, "x" * 100)])
                answer = await r.client.post("/v1/spaces/other/events", content=body, headers=headers)
                codes.append(answer.status_code)
            assert codes == [202, 202, 429, 429], "two of about 180 bytes are in half of a thousand"
            assert (await later(r, event(3, "x"))).status_code == 429

    run(work)


def test_a_delayed_event_does_not_wait_for_another_spaces_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_BATCH_SIZE", 10)

    async def work() -> None:
        async with running(tmp_path) as r:
            store, kept = r.gateway.delayed._store, []
            keep = store.keep
            first = threading.Event()

            def slow(records: Any, now_ms: int) -> Any:
                first.wait(10)
                kept.append([record.space for record, _ in records])
                return keep(records, now_ms)

            monkeypatch.setattr(store, "keep", slow)
            flood = NewRecord("flood", encode(event(1)) + b"\n", 1)
            waiting = [asyncio.ensure_future(r.gateway.delayed.store(flood, 1 << 50)) for _ in range(100)]
            large = NewRecord("large", encode(event(1, "x" * (5 << 20))) + b"\n", 1)
            waiting += [asyncio.ensure_future(r.gateway.delayed.store(large, 1 << 50)) for _ in range(3)]
            waiting.append(
                asyncio.ensure_future(r.gateway.delayed.store(NewRecord("one", flood.payload, 1), 1 << 50))
            )
            await asyncio.sleep(0)
            first.set()
            await asyncio.gather(*waiting)
            assert "one" in kept[0] + kept[1] + kept[2], "in its turn"
            assert max(each.count("large") for each in kept) == 1 and len(kept) >= 11

    run(work)


class Killed(BaseException):
    """Represents kill -9: nothing after it is executed."""


@contextmanager
def killed_at(gateway: Any, step: str) -> Iterator[asyncio.Event]:
    """Prevent all steps of moving a record from a given step on."""
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()
    store, writer = gateway.delayed._store, gateway.writer

    def stop(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(reached.set)
        raise EventLogError("killed")

    async def stop_appending(record: Any, is_due: bool = False) -> Any:
        return stop()

    if step == "taken":
        writer.append = stop_appending
    elif step == "appended":
        store.done = stop
    elif step == "before":
        store.take = stop
    yield reached


@pytest.mark.parametrize("step", ["before", "taken", "appended"])
def test_a_kill_between_any_two_steps_neither_loses_nor_doubles(
    tmp_path: Path, clock: Any, step: str
) -> None:
    """The next gateway continues with the files left by the killed one."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "EXISTS data")
            for n in range(20):
                assert (await later(r, event(n), after=100 * (1 + n % 3))).status_code == 202
            with killed_at(r.gateway, step) as reached:
                clock.ahead_ms = 400_000
                await reached.wait()
        async with running(tmp_path) as r:
            assert r.gateway.delayed.held["default"][0] == 20
            await until_async(lambda: not r.gateway.delayed.held)
            found = await pulled(r, "a")
            assert found == sorted(map(str, range(20)), key=lambda n: (int(n) % 3, int(n)))
            assert r.gateway.log.end() == 20

    run(work)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_fails_and_however_often_it_starts_anew_each_comes_once(
    tmp_path: Path, clock: Any, seed: int
) -> None:
    async def work() -> None:
        rng = random.Random(seed)
        sent: list[str] = []
        for _ in range(6):
            async with running(tmp_path) as r:
                if not sent:
                    await r.subscribe("a", "EXISTS data")
                store, writer = r.gateway.delayed._store, r.gateway.writer
                done, append = store.done, writer.append

                def done_or_not(ids: Any, done: Any = done) -> None:
                    if rng.random() < 0.5:
                        raise EventLogError("by chance, before")
                    done(ids)
                    if rng.random() < 0.3:
                        raise EventLogError("by chance, after")

                async def append_or_not(record: Any, is_due: bool = False, append: Any = append) -> Any:
                    if rng.random() < 0.3:
                        raise EventLogError("by chance, before")
                    place = await append(record, is_due=is_due)
                    if rng.random() < 0.3:
                        raise EventLogError("by chance, after")
                    return place

                store.done, writer.append = done_or_not, append_or_not
                for _ in range(rng.randrange(8)):
                    sent.append(str(len(sent)))
                    told = await later(r, event(sent[-1]), after=rng.randrange(0, 50))
                    assert told.status_code == 202
                clock.ahead_ms += rng.randrange(30_000)
                await asyncio.sleep(0.02 * rng.random())
        clock.ahead_ms += 100_000
        async with running(tmp_path) as r:
            await until_async(lambda: not r.gateway.delayed.held)
            assert sorted(await pulled(r, "a"), key=int) == sent, f"seed {seed}"

    monkey = pytest.MonkeyPatch()
    monkey.setattr(module, "RETRY_S", 0.001)
    try:
        run(work)
    finally:
        monkey.undo()


def test_a_clock_that_is_set_forward_or_back_is_noticed(tmp_path: Path, clock: Any) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await later(r, event(1), after=3_600)
            clock.ahead_ms = -86_400_000
            await later(r, event(2), after=3_600)
            await asyncio.sleep(0.05)
            assert r.gateway.log.end() == 0
            clock.ahead_ms = 86_400_000
            await until_async(lambda: r.gateway.log.end() == 2)

    run(work)


async def now(r: Running, sequence: int, follows: int) -> Any:
    """Publish an event that follows another one of the same producer."""
    said = numbered(sequence) | {"Fieldfare-Follows": str(follows)}
    return await r.client.post(EVENTS, content=encode([event(sequence)]), headers={**BATCH, **said})


def numbered(sequence: int) -> dict[str, str]:
    return {"Fieldfare-Producer": "p", "Fieldfare-Sequence": str(sequence)}


def told_of(answer: Any) -> tuple[int, str, int]:
    told = answer.json()
    assert "which is delayed and cannot be followed" in told["detail"], told
    return answer.status_code, told["type"].rpartition(":")[2], told["newest"]


def test_following_a_delayed_request_is_refused_at_once(
    tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never appears under that number: ordered requests waited for two seconds each time."""
    monkeypatch.setattr(in_order, "HOLD_S", 3_600.0)

    async def work() -> None:
        async with running(tmp_path) as r:
            assert (await now(r, 0, -1)).status_code == 200
            assert (await later(r, event(1), **numbered(1))).status_code == 202
            assert told_of(await now(r, 2, 1)) == (409, "out-of-order", 0)
            assert (await now(r, 2, 0)).status_code == 200, "behind what is in the log, as it was told"
            early = [asyncio.ensure_future(now(r, n, n - 1)) for n in (4, 5)]
            await until_async(lambda: len(r.gateway.writer._in_order._waiting) == 2)
            assert (await later(r, event(3), **numbered(3))).status_code == 202
            assert told_of(await early[0]) == (409, "out-of-order", 2)
            assert (await early[1]).json()["newest"] == 2, "and so is a request that waits for that one"
            assert (await later(r, event("both"), **numbered(4))).status_code == 202
            assert (await now(r, 4, 2)).status_code == 200
            assert (await now(r, 5, 4)).status_code == 200, "the number of both is in the log, too"
            assert (await later(r, event(6), **numbered(6))).status_code == 202
        async with running(tmp_path) as r:
            assert told_of(await now(r, 7, 6)) == (409, "out-of-order", 5)
            clock.ahead_ms = 4_000_000
            await until_async(lambda: not r.gateway.delayed.held)
            assert told_of(await now(r, 7, 6)) == (409, "out-of-order", 5)
            assert not r.gateway.writer._in_order._waiting and not r.gateway.writer.queued_bytes

    run(work)


def test_without_delayed_events_nothing_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_order, "HOLD_S", 0.01)

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "other"})
            foreign = {**BATCH, **numbered(1), "Fieldfare-Deliver-After": "50"}
            await r.client.post("/v1/spaces/other/events", content=encode([event(1)]), headers=foreign)
            monkeypatch.setattr(r.gateway.delayed._store, "has_kept", None)
            answer = await now(r, 2, 1)
            assert answer.status_code == 409 and "later" not in answer.json()["detail"]

    run(work)


def test_what_is_due_comes_however_much_its_space_has_waiting_for_the_log(tmp_path: Path, clock: Any) -> None:
    """While its space flooded the log it repeatedly found no space, and due events of others waited behind
    it."""

    async def work() -> None:
        async with running(tmp_path) as r:
            assert (await later(r, event(1), after=100)).status_code == 202
            room, key = r.gateway.writer._queued, r.gateway.subscriptions.check_space("default")
            room.take(key, r.gateway.settings.queue_max_bytes)
            assert (await r.client.post(EVENTS, content=b"[%s]" % encode(event(2)), headers=BATCH)).json()[
                "why"
            ] == "queue"
            clock.ahead_ms = 200_000
            await until_async(lambda: r.gateway.log.end() == 1)
            room.give_back(key, r.gateway.settings.queue_max_bytes)
            await until_async(lambda: not r.gateway.delayed.held)
            assert room.total == 0

    run(work)
