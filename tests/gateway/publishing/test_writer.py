"""The writer threads: writes are grouped, stamped and answered one by one, and no thread waits for
another."""

from __future__ import annotations

import asyncio
import threading

import pytest
from gateway_support import run

from fieldfare.gateway.writer import Writer, WriterClosed, WriterOverloaded
from fieldfare.model import Cursor, Position
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.errors import EventLogError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.registry import Put


def record(text: bytes = b"{}\n", **more) -> NewRecord:
    return NewRecord("default", text, text.count(b"\n"), **more)


class Log:
    """A log that can be delayed, and that counts its transactions."""

    def __init__(self, log) -> None:
        self.log = log
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.groups: list[int] = []
        self.fail = False

    @property
    def partitions(self):
        return self.log.partitions

    def append(self, records):
        self.entered.set()
        self.gate.wait(60)
        if self.fail:
            raise EventLogError("the disk is gone")
        self.groups.append(len(records))
        return self.log.append(records)


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


def test_a_change_is_told_the_logs_end_and_its_error_is_its_own(stores):
    log, registry = stores

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        writer.start()
        await writer.append(record())

        def fail(end: int) -> None:
            raise RuntimeError("no")

        results = await asyncio.gather(
            writer.change(lambda ends: ends),
            writer.change(fail),
            writer.change(lambda ends: ends[0] + 1),
            return_exceptions=True,
        )
        assert results[0] == (1,) and results[2] == 2
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
            asyncio.ensure_future(writer.save_cursors([(5, Cursor((Position(0, offset, 0),)))]))
            for offset in range(3)
        ]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0)
        log.gate.set()
        await asyncio.gather(blocked, *saves, closing)
        assert registry.load_cursors([5]).get(5) == Cursor((Position(0, 2, 0),))
        with pytest.raises(WriterClosed):
            await writer.append(record())

    run(work)


def test_a_cursor_that_cannot_be_stored_does_not_fail_the_acks_beside_it(stores):
    """After one client's ack with an index of thirty digits, all acks at the same moment were answered with
    500."""
    log, registry = stores

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        log.gate.clear()
        writer.start()
        blocked = asyncio.ensure_future(writer.append(record()))
        await asyncio.sleep(0)
        good = Cursor((Position(0, 1, 0),))
        saves = [
            asyncio.ensure_future(writer.save_cursors([each]))
            for each in [(1, good), (2, Cursor((Position(0, 0, 10**30),))), (3, good)]
        ]
        await asyncio.sleep(0)
        log.gate.set()
        await blocked
        first, bad, last = await asyncio.gather(*saves, return_exceptions=True)
        assert first is last is None and isinstance(bad, ValueError)
        assert registry.load_cursors([1]).get(1) == registry.load_cursors([3]).get(3) == good
        assert registry.load_cursors([2]).get(2) is None
        await writer.close()

    run(work)


def put(registry, id: str):
    """A change that stores a subscription and gives its revision."""
    return lambda end: registry.apply([Put("default", id, "a = 1", "sql", b"")], end, 0)[0]


@pytest.mark.parametrize("seed", range(3))
def test_what_is_published_after_a_changes_answer_meets_it_and_what_was_acknowledged_before_does_not(
    stores, seed
):
    """Concurrent publishers and subscribers; each checks its own sequence of calls, and those of the
    others."""
    log, registry = stores
    registry.create_space("default")

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        writer.start()
        revisions, stamps = [0], [0]

        async def publish() -> None:
            for _ in range(30):
                answered = max(revisions)
                place = await writer.append(record())
                assert place.stamp >= answered
                stamps.append(place.stamp)

        async def subscribe(name: int) -> None:
            for n in range(30):
                acknowledged, end = max(stamps), writer.log_ends
                stored = await writer.change(put(registry, f"{name}-{n % 5}"))
                assert stored.revision > acknowledged
                assert stored.valid_from >= end
                revisions.append(stored.revision)

        await asyncio.gather(*(publish() for _ in range(4)), *(subscribe(seed * 10 + n) for n in range(3)))
        versions = {change.revision for change in registry.changes(0, 1 << 60)}
        assert versions == set(range(1, 91))
        await writer.close()

    run(work)
    first = {subscription.id: subscription for subscription in registry.list("default")}
    for found in log.log.read(0, log.log.end()):
        for subscription in first.values():
            assert found.offset >= subscription.valid_from[0] or found.stamp < subscription.revision


def test_events_are_taken_while_the_registry_hangs_and_acks_while_the_log_does(stores):
    log, registry = stores
    registry.create_space("default")

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        writer.start()
        release = threading.Event()
        hanging = asyncio.ensure_future(writer.change(lambda end: release.wait(60)))
        assert (await writer.append(record())).offset == 0
        release.set()
        assert await hanging
        log.entered.clear()
        log.gate.clear()
        blocked = asyncio.ensure_future(writer.append(record()))
        assert await asyncio.to_thread(log.entered.wait, 10)
        await writer.save_cursors([(1, Cursor((Position(0, 1, 0),)))])
        stored = await writer.change(put(registry, "a"))
        assert stored.valid_from == (1,)
        assert writer.floor() == 0, "the append that hangs was stamped before"
        log.gate.set()
        assert (await blocked).stamp == 0
        assert writer.floor() == stored.revision == (await writer.append(record())).stamp
        await writer.close()

    run(work)


def test_an_append_with_an_unknown_result_holds_the_floor_until_one_succeeds(stores):
    """A broker died during the append, and may have the record when it is back, with its old stamp."""
    log, registry = stores
    registry.create_space("default")

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        writer.start()
        log.fail = True
        with pytest.raises(EventLogError):
            await writer.append(record())
        stored = await writer.change(put(registry, "a"))
        with pytest.raises(EventLogError):
            await writer.append(record())
        assert writer.floor() == 0
        log.fail = False
        await writer.probe()
        assert writer.floor() == stored.revision
        await writer.close()

    run(work)


def test_a_change_that_fails_half_way_counts_as_far_as_it_came(stores):
    log, registry = stores
    registry.create_space("default")

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        writer.start()

        def half(end: int) -> None:
            put(registry, "a")(end)
            raise RuntimeError("no")

        with pytest.raises(RuntimeError):
            await writer.change(half)
        assert (await writer.append(record())).stamp == 1
        await writer.close()

    run(work)


def test_acks_do_not_starve_beside_changes_without_end(stores):
    """SQLite's waiting writers sleep for up to a tenth of a second, so a writer that comes at once wins."""
    log, registry = stores
    registry.create_space("default")

    async def work() -> None:
        writer = Writer(log, registry, queue_max_bytes=1 << 20)
        writer.start()
        changing = True

        async def change() -> None:
            while changing:
                await asyncio.gather(*(writer.change(put(registry, f"{n}")) for n in range(20)))

        changes = asyncio.ensure_future(change())
        for offset in range(20):
            await asyncio.wait_for(writer.save_cursors([(7, Cursor((Position(0, offset, 0),)))]), 30)
        changing = False
        await changes
        assert registry.load_cursors([7]).get(7) == Cursor((Position(0, 19, 0),))
        await writer.close()

    run(work)
