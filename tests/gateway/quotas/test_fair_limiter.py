"""Many readers of old records in one space leave a thread to another space."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_support import run, running

from fieldfare.delivery.keys import key_at
from fieldfare.gateway.delivery import records as module
from fieldfare.gateway.delivery.records import RecordCache, write_pulled
from fieldfare.gateway.fair_limiter import FairExecutor, FairLimiter
from fieldfare.storage.errors import EventLogError, TrimmedError
from fieldfare.storage.event_log import Record

CALM = 1_000
"""From here on records are read at once."""


class SlowLog:
    """A log of one partition; old records are read when the test allows it."""

    def __init__(self) -> None:
        self.partitions = (self,)
        self.go_on = threading.Event()
        self.reading: list[int] = []
        self.are_read = threading.Semaphore(0)

    def bound(self, start: int, max_bytes: int, max_events: int) -> int:
        return start + 1

    def read(self, start: int, end: int) -> list[Record]:
        if start < CALM:
            self.reading.append(start)
            self.are_read.release()
            self.go_on.wait(30)
        return [Record(start, "default", 1, b'{"k":%d}\n' % start, 0, 0)]


def test_a_crowd_of_one_space_that_reads_old_records_leaves_another_a_thread():
    """Fifty streams of a space had both threads, one after the other, before a calm one's was read."""

    async def work() -> None:
        log = SlowLog()
        records = RecordCache(log, 1 << 20, readers := FairExecutor(3, 2, "test"))

        def composed(space: str, offset: int) -> Any:
            return records.compose(space, [key_at(0, offset)], {}, write_pulled, [])

        crowd = [asyncio.ensure_future(composed("flood", n)) for n in range(50)]
        for _ in range(2):
            await asyncio.to_thread(log.are_read.acquire, timeout=30)
        assert await composed("calm", CALM) == (1, [], [])
        assert await records.names("calm", [key_at(0, CALM)], "k") != [None]
        assert len(log.reading) == 2 and not any(each.done() for each in crowd)
        log.go_on.set()
        assert await asyncio.gather(*crowd) == [(1, [], [])] * 50
        readers.close()

    run(work)


async def asked_by_three(log: SlowLog, records: RecordCache) -> list[Any]:
    """The results of three spaces that request a record while it is being read."""
    crowd = [
        asyncio.ensure_future(records.compose(space, [key_at(0, 7)], {}, write_pulled, []))
        for space in ("a", "b", "c")
    ]
    await asyncio.to_thread(log.are_read.acquire, timeout=30)
    log.go_on.set()
    return await asyncio.gather(*crowd, return_exceptions=True)


def test_a_record_that_many_wait_for_is_read_once():
    """Each thread that needed it read it separately, and fetched it again if the log was in Kafka."""

    async def work() -> None:
        log = SlowLog()
        records = RecordCache(log, 1 << 20, readers := FairExecutor(3, 2, "test"))
        assert await asked_by_three(log, records) == [(1, [], [])] * 3
        assert log.reading == [7]
        readers.close()

    run(work)


def test_a_reader_waiting_for_a_failed_read_tries_it_again():
    class Failing(SlowLog):
        def read(self, start: int, end: int) -> list[Record]:
            found = super().read(start, end)
            if len(self.reading) == 1:
                raise EventLogError("for once")
            return found

    async def work() -> None:
        log = Failing()
        records = RecordCache(log, 1 << 20, readers := FairExecutor(3, 2, "test"))
        found = await asked_by_three(log, records)
        assert sorted(map(str, found)) == ["(1, [], [])", "(1, [], [])", "for once"]
        assert log.reading == [7, 7]
        readers.close()

    run(work)


@pytest.mark.parametrize("kind", [TrimmedError, EventLogError])
def test_what_is_wrong_with_a_later_record_is_not_said_of_the_one_before_it(kind: type[EventLogError]):
    """Reading it ahead failed, and then the requested record was not returned either."""

    class Ending(SlowLog):
        def read(self, start: int, end: int) -> Iterator[Record]:
            yield Record(start, "default", 1, b'{"k":1}\n', 0, 0)
            raise kind("what comes next")

    records = RecordCache(Ending(), 1 << 20, readers := FairExecutor(3, 2, "test"))
    assert records.lines(7, [0]) == [b'{"k":1}']
    readers.close()


def test_ordering_keys_of_many_records_are_read_in_several_turns(monkeypatch):
    """Five hundred that had to be read first, a mebibyte each, kept a thread for seconds."""
    monkeypatch.setattr(module, "NAMED_RECORDS", 3)

    async def work() -> None:
        records = RecordCache(SlowLog(), 1 << 20, readers := FairExecutor(3, 2, "test"))
        at_once: list[int] = []
        names = records._names

        def counted(keys: Any, path: str) -> list[int | None]:
            at_once.append(len(keys))
            return names(keys, path)

        monkeypatch.setattr(records, "_names", counted)
        keys = [key_at(0, offset) for offset in range(CALM, CALM + 8)]
        found = await records.names("a", keys, "k")
        assert found == names(keys, "k") and len(set(found)) == 8
        assert at_once == [3, 3, 2]
        assert await records.names("a", [], "k") == []
        readers.close()

    run(work)


def test_spaces_with_many_readers_are_served_in_turn():
    async def work() -> None:
        slots, order = FairLimiter(3, 2), []

        async def hold(space: str) -> None:
            await slots.acquire(space)
            order.append(space)
            await asyncio.sleep(0)
            slots.release(space)

        await asyncio.gather(*(hold(space) for space in "a" * 20 + "b" * 20 + "c"))
        assert order.index("c") <= 6, "two of each crowd are before it, and those that had a place"
        assert len(order) == 41 and not slots.taken and not slots._spaces and not slots._users

    run(work)


def test_a_cancelled_wait_delays_no_other():
    async def work() -> None:
        threads = FairExecutor(2, 1, "test")
        go_on = threading.Event()
        waiting = [asyncio.ensure_future(threads.run("a", go_on.wait, 30)) for _ in range(20)]
        await asyncio.sleep(0)
        for each in waiting[1::2]:
            each.cancel()
        await asyncio.sleep(0)
        waiting[0].cancel()
        go_on.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [each is True for each in found] == [False, *([False, True] * 10)[:-1]]
        assert await threads.run("a", sum, (1, 2)) == 3
        assert not threads._slots.taken and not threads._slots._users
        threads.close()

    run(work)


def test_what_is_read_for_a_subscription_is_read_in_its_spaces_turn(tmp_path, monkeypatch):
    async def work() -> None:
        async with running(tmp_path, record_cache_bytes=0) as r:
            seen: dict[str, set[str]] = {}
            run_shared = FairExecutor.run

            async def noted(self: FairExecutor, space: str, work: Any, *args: Any) -> Any:
                seen.setdefault(self._threads._thread_name_prefix, set()).add(space)
                return await run_shared(self, space, work, *args)

            monkeypatch.setattr(FairExecutor, "run", noted)
            await r.client.post("/v1/spaces", json={"name": "other"})
            for space in ("default", "other"):
                path = f"/v1/spaces/{space}/subscriptions/a"
                wanted = {"filter": "EXISTS data", "delivery": {"order_by": "type"}}
                assert (await r.client.put(path, json=wanted)).status_code == 201
                for n in range(2):
                    await r.publish({"specversion": "1.0", "id": str(n), "source": "/x", "type": "t",
                                     "data": 1}, space=space)  # fmt: skip
            r.pipeline.step()
            for space in ("default", "other"):
                path = f"/v1/spaces/{space}/subscriptions/a"
                answer = await r.client.post(f"{path}/pull", json={})
                assert len(answer.json()["messages"]) == 1, "the second of its key waits for the first"
            keys = {r.gateway.subscriptions.check_space(space) for space in ("default", "other")}
            assert len(keys) == 2
            assert seen["fieldfare-readers"] >= keys
            await r.client.delete("/v1/spaces/other/subscriptions/a")
            assert len(r.gateway.deliveries._name_of) == 1

    run(work)
