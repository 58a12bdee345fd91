"""The writer's thread: grouped, fenced, and answered one by one."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import pytest
from gateway_support import run

from fieldfare.gateway.writer import Writer, WriterClosed, WriterOverloaded
from fieldfare.model import Position
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.errors import EventLogError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.registry import Cursor


def record(text: bytes = b"{}\n", **more) -> NewRecord:
    return NewRecord("default", text, text.count(b"\n"), **more)


class Log:
    """A log that can be held up, and that counts its transactions."""

    def __init__(self, log) -> None:
        self.log = log
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.groups: list[int] = []
        self.fences = 0
        self.fail = False

    def end(self):
        return self.log.end()

    def append(self, records):
        self.entered.set()
        self.gate.wait(10)
        if self.fail:
            raise EventLogError("the disk is gone")
        self.groups.append(len(records))
        return self.log.append(records)

    @contextmanager
    def fence(self):
        self.fences += 1
        with self.log.fence() as end:
            yield end


@pytest.fixture
def stores(tmp_path):
    return Log(open_event_log(f"sqlite:///{tmp_path}/log.db")), open_registry(f"sqlite:///{tmp_path}/r.db")


def test_all_appends_that_wait_go_in_one_transaction(stores):
    log, registry = stores

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        writer.start()
        log.gate.clear()
        first = asyncio.ensure_future(writer.append(record()))
        assert await asyncio.to_thread(log.entered.wait, 10)
        others = [asyncio.ensure_future(writer.append(record())) for _ in range(20)]
        await asyncio.sleep(0)
        log.gate.set()
        places = await asyncio.gather(first, *others)
        assert [place.offset for place in places] == list(range(21))
        assert log.groups == [1, 20]
        assert writer.queued_bytes == 0
        await writer.close()

    run(work)


def test_a_change_runs_between_records_and_its_error_is_its_own(stores):
    log, registry = stores

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        writer.start()
        await writer.append(record())

        def fail(end: int) -> None:
            raise RuntimeError("no")

        results = await asyncio.gather(
            writer.change(lambda end: end),
            writer.change(fail),
            writer.change(lambda end: end + 1),
            return_exceptions=True,
        )
        assert results[0] == 1 and results[2] == 2
        assert isinstance(results[1], RuntimeError)
        await writer.close()

    run(work)


def test_more_bytes_than_may_wait_are_refused_and_nothing_is_lost(stores):
    log, registry = stores

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=100)
        writer.start()
        log.gate.clear()
        waiting = asyncio.ensure_future(writer.append(record(b"x" * 79 + b"\n")))
        await asyncio.sleep(0)
        with pytest.raises(WriterOverloaded):
            await writer.append(record(b"x" * 79 + b"\n"))
        log.gate.set()
        assert (await waiting).offset == 0
        assert (await writer.append(record(b"x" * 79 + b"\n"))).offset == 1
        await writer.close()

    run(work)


def test_a_record_that_breaks_a_limit_does_not_take_its_neighbours_with_it(stores):
    log, registry = stores

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        log.gate.clear()
        writer.start()
        bad = NewRecord("default", b"{}\n", 7)
        results = asyncio.gather(
            *(writer.append(each) for each in (record(), bad, record())), return_exceptions=True
        )
        assert await asyncio.to_thread(log.entered.wait, 10)
        log.gate.set()
        good, refused, also_good = await results
        assert isinstance(refused, ValueError)
        assert {good.offset, also_good.offset} == {0, 1}
        await writer.close()

    run(work)


def test_a_log_that_fails_is_told_to_each_who_waits_and_the_thread_goes_on(stores):
    log, registry = stores

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        writer.start()
        log.fail = True
        with pytest.raises(EventLogError):
            await writer.append(record())
        log.fail = False
        assert (await writer.append(record())).offset == 0
        await writer.close()

    run(work)


def test_the_newest_cursor_of_a_group_stays_and_closing_finishes_what_waits(stores):
    log, registry = stores

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        log.gate.clear()
        writer.start()
        blocked = asyncio.ensure_future(writer.append(record()))
        await asyncio.sleep(0)
        saves = [
            asyncio.ensure_future(writer.save_cursors([(5, Cursor(Position(0, offset, 0)))]))
            for offset in range(3)
        ]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0)
        log.gate.set()
        await asyncio.gather(blocked, *saves, closing)
        assert registry.load_cursor(5) == Cursor(Position(0, 2, 0))
        with pytest.raises(WriterClosed):
            await writer.append(record())

    run(work)


def test_a_cursor_that_cannot_be_stored_does_not_fail_the_acks_beside_it(stores):
    """One client's ack of an index of thirty digits: whoever acknowledged in the same moment got a 500."""
    log, registry = stores

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        log.gate.clear()
        writer.start()
        blocked = asyncio.ensure_future(writer.append(record()))
        await asyncio.sleep(0)
        good = Cursor(Position(0, 1, 0))
        saves = [
            asyncio.ensure_future(writer.save_cursors([each]))
            for each in [(1, good), (2, Cursor(Position(0, 0, 10**30))), (3, good)]
        ]
        await asyncio.sleep(0)
        log.gate.set()
        await blocked
        first, bad, last = await asyncio.gather(*saves, return_exceptions=True)
        assert first is last is None and isinstance(bad, ValueError)
        assert registry.load_cursor(1) == registry.load_cursor(3) == good
        assert registry.load_cursor(2) is None
        await writer.close()

    run(work)


def test_those_who_publish_wait_for_a_bounded_number_of_changes(stores):
    """Thousands of subscriptions changed at once: all were written inside one fence, and appends waited."""
    log, registry = stores

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        log.gate.clear()
        writer.start()
        blocked = asyncio.ensure_future(writer.append(record()))
        await asyncio.to_thread(log.entered.wait)
        done: list[int] = []
        changes = [
            asyncio.ensure_future(writer.change(lambda end, number=number: done.append(number)))
            for number in range(300)
        ]
        await asyncio.sleep(0)
        log.gate.set()
        await asyncio.gather(blocked, *changes)
        assert done == list(range(300)) and log.fences >= 5
        await writer.close()

    run(work)
