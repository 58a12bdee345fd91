"""Retention, compaction and broken files in a running gateway: nothing is removed early, no reader waits
long."""

from __future__ import annotations

import asyncio
import time

import pytest
from gateway_support import event, run, running, until_async

from fieldfare.storage.errors import MatchLogError
from fieldfare.storage.files import match_block
from fieldfare.storage.files.match_folder import BlockFile

pytestmark = pytest.mark.long

DAY_S = 86_400.0


async def pull_all(r, id: str, wait_s: float = 0) -> list[str]:
    """The positions of all messages that there are."""
    found: list[str] = []
    while messages := await r.pull(id, max=50, wait_s=wait_s):
        found += [message["position"] for message in messages]
    return found


async def publish_and_match(r, count: int, first: int = 0) -> None:
    for i in range(first, first + count):
        await r.publish(event(i, {"x": 1}))
        r.pipeline.step()


def block_path(r, offset: int):
    return BlockFile(offset, offset + 1).path(r.gateway.match_log.folder)


def rot(path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


@pytest.mark.parametrize("trimmed_first", ["log", "match_log"])
def test_a_kill_during_retention_stops_no_delivery(tmp_path, trimmed_first):
    """The old order, match log first, left a service that was ready but delivered nothing any more."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 10)
            r.pipeline.beat()
            getattr(r.gateway, trimmed_first).trim(6)
        async with running(tmp_path) as r:
            await publish_and_match(r, 2, 10)
            assert (await r.client.get("/v1/stats")).json()["matched_end"] == 12
            found = await pull_all(r, "a")
            assert found == [f"0-{i}-0" for i in range(6, 12)]
            r.gateway.maintenance.round(0)
            await r.ack("a", *found)
            assert await pull_all(r, "a") == []

    run(work)


def test_an_unfinished_batch_is_no_gap_to_pass_over(tmp_path):
    """Killed when only the second of two tasks had written its block: the first one's records will come."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 4)
            r.pipeline.beat(0)
            for offset in (0, 1):
                block_path(r, offset).unlink()
        async with running(tmp_path) as r:
            r.gateway.maintenance.round(1)
            assert (await r.client.get("/v1/stats")).json()["matched_end"] == 0
            r.pipeline.step(2)
            assert await pull_all(r, "a") == [f"0-{i}-0" for i in range(4)]

    run(work)


def test_who_waits_at_a_gap_goes_on_when_it_is_filled_whatever_has_seen_it(tmp_path):
    """A block that could not be synced was removed, and a round of maintenance saw that readers wait there.

    They were not read again when the gap was filled: two subscriptions of a trial received nothing more.
    """

    async def work() -> None:
        async with running(tmp_path, stats_s=3600, maintenance_s=3600) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 4)
            r.pipeline.beat(0)
            await r.gateway.tail.catch_up()
            path = block_path(r, 1)
            content = path.read_bytes()
            path.unlink()
            await r.ack("a", (await r.pull("a", max=1))[0]["position"])
            waiting = asyncio.create_task(r.pull("a", max=10, wait_s=60))
            while not r.gateway.tail.gap_seen:
                assert not waiting.done()
                await asyncio.sleep(0.005)
            await r.gateway.background.maintain()
            path.write_bytes(content)
            await r.gateway.background.maintain()
            async with asyncio.timeout(20):  # at the end of its wait a pull reads by itself
                found = [message["position"] for message in await waiting]
            await r.ack("a", *found)
            while len(found) < 3:
                more = [message["position"] for message in await r.pull("a", max=10, wait_s=30)]
                assert more
                await r.ack("a", *more)
                found += more
            assert found == ["0-1-0", "0-2-0", "0-3-0"]

    run(work)


def test_retention_keeps_what_is_matched_but_not_committed_for_good(tmp_path):
    async def work() -> None:
        async with running(tmp_path, retention_s=1) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 8)
            await r.gateway.tail.catch_up()
            for _ in range(3):
                r.gateway.maintenance.round(10)
            assert r.gateway.log.start() == 0, "the pipeline has said nothing yet"
            r.pipeline.beat(5)
            r.gateway.maintenance.round(10)
            assert r.gateway.log.start() == 5
            assert r.gateway.match_log.block_at(4) is None
            assert r.gateway.match_log.block_at(5) is not None

    run(work)


def test_blocks_that_are_not_durable_are_not_compacted(tmp_path):
    """A compacted block says that everything before it was matched for good: subscribers would skip what a
    power failure has taken of the blocks before."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 10)
            await r.publish(*[event(1_000 + i, {"x": 1}) for i in range(500)])  # too large to be merged
            r.pipeline.step()
            await publish_and_match(r, 100, 11)
            await r.gateway.tail.catch_up()
            r.pipeline.beat(10)
            r.gateway.maintenance.round(1)
            assert all(block_path(r, offset).exists() for offset in range(10, 111))
            block_path(r, 10).unlink()
        async with running(tmp_path) as r:
            assert (await r.client.get("/v1/stats")).json()["matched_end"] == 10
            r.pipeline.step()
            assert len(await pull_all(r, "a")) == 10 + 500 + 100

    run(work)


@pytest.mark.parametrize("jump_days", [8, -8])
def test_a_jump_of_the_clock_deletes_nothing_and_blocks_nothing(tmp_path, monkeypatch, jump_days):
    """A time server said next week, for a minute: everything that was matched was deleted, read or not."""
    now_ns = time.time_ns
    shift_ns = 0
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + shift_ns)

    async def work() -> None:
        nonlocal shift_ns
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 3)
            shift_ns = round(jump_days * DAY_S * 1e9)
            await publish_and_match(r, 3, 3)
            r.pipeline.beat()
            await r.gateway.tail.catch_up()
            r.gateway.maintenance.round(10)
            assert len(await pull_all(r, "a")) == 6
            shift_ns = 0
            rounds = round(7.1 * DAY_S / 600)
            for _ in range(rounds):
                r.gateway.log.observe(600_000, every_ms=1_200_000, keep_ms=round(7 * DAY_S * 1000))
            r.gateway.maintenance.round(600)
            assert r.gateway.log.start() == 6, "after a week of running they go, whatever time they bear"

    run(work)


def test_a_service_that_stood_still_for_a_week_deletes_nothing_when_it_goes_on(tmp_path):
    """Its machine was paused, so that no reader could read."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 3)
            r.pipeline.beat()
            await r.gateway.tail.catch_up()
            r.gateway.maintenance.round(10)
            for _ in range(3):
                r.gateway.maintenance.round(8 * DAY_S)
            assert len(await pull_all(r, "a")) == 3

    run(work)


def test_a_corrupt_block_is_skipped_and_reported_until_its_file_is_deleted(tmp_path):
    """A file of last week lost a sector: subscribers behind it waited for ever, and /readyz said ready."""

    async def work() -> None:
        async with running(tmp_path, stats_s=0.01) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 6)
            r.pipeline.beat()
            await until_async(lambda: r.gateway.tail.tip == 6)
        rot(block_path(r, 2))
        async with running(tmp_path, stats_s=0.01) as r:
            found = await pull_all(r, "a", wait_s=1)
            assert found == [f"0-{i}-0" for i in (0, 1, 3, 4, 5)]
            stats = (await r.client.get("/v1/stats")).json()
            [notice] = stats["notices"]
            assert "records 2 to 2 are lost" in notice and "set-aside" in notice
            assert (await r.client.get("/readyz")).json()["notices"] == [notice]
            assert "fieldfare_set_aside_blocks 1.0" in (await r.client.get("/metrics")).text
        async with running(tmp_path) as r:
            assert (await r.client.get("/v1/stats")).json()["notices"] == [notice]
            for path in r.gateway.match_log.aside():
                path.unlink()
            r.gateway.maintenance.round(1)
            assert (await r.client.get("/v1/stats")).json()["notices"] == []

    run(work)


def test_a_block_that_is_rotten_within_is_passed_over_too(tmp_path, monkeypatch):
    """Its directory can be read, but one of its lists cannot: only a reader of that list notices."""
    monkeypatch.setattr(match_block, "BATCH_MATCHES", 1)

    async def work() -> None:
        async with running(tmp_path, stats_s=0.01) as r:
            for id in "abcdefgh":
                await r.subscribe(id, "data.x = 1")
            await publish_and_match(r, 3)
            r.pipeline.beat()
            await until_async(lambda: r.gateway.tail.tip == 3)
        path = block_path(r, 1)
        whole = path.read_bytes()
        for place in range(len(whole) - 1, 0, -1):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            try:
                block = match_block.FileBlock(path, 0, (1, 2))
            except MatchLogError:
                continue
            try:
                block.check()
            except MatchLogError as error:
                if "checksum of batch" in str(error):
                    break
        async with running(tmp_path, stats_s=0.01) as r:
            for id in "abcdefgh":
                found = await pull_all(r, id, wait_s=0.1)
                assert found in (["0-0-0", "0-2-0"], ["0-0-0", "0-1-0", "0-2-0"])
            assert len((await r.client.get("/v1/stats")).json()["notices"]) == 1

    run(work)


def test_a_torn_block_at_the_end_is_left_to_a_pipeline_that_starts(tmp_path):
    """It was not committed, so it can be matched again; nothing is set aside, nothing is lost."""

    async def work() -> None:
        async with running(tmp_path, stats_s=0.01) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 3)
            r.pipeline.beat(2, state="starting")
        rot(block_path(r, 2))
        async with running(tmp_path, stats_s=0.01) as r:
            assert await pull_all(r, "a") == ["0-0-0", "0-1-0"]
            assert r.gateway.maintenance.is_asked
            r.gateway.maintenance.mend()
            assert r.gateway.match_log.aside() == []
            r.gateway.match_log.recover(2)
            r.pipeline.step()
            r.pipeline.beat()
            assert await pull_all(r, "a", wait_s=1) == ["0-2-0"]

    run(work)


def test_a_torn_block_is_left_to_a_pipeline_that_has_not_started_since_a_power_failure(tmp_path):
    """The last heartbeat before a power failure says that the pipeline runs, for the seconds until the next
    one starts: torn blocks were set aside, which that one would have matched again."""

    async def work() -> None:
        async with running(tmp_path, stats_s=0.01) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 3)
            r.pipeline.beat(2)
        rot(block_path(r, 2))
        async with running(tmp_path, stats_s=0.01) as r:
            assert await pull_all(r, "a") == ["0-0-0", "0-1-0"]
            assert r.gateway.maintenance.is_asked
            r.gateway.maintenance.mend()
            assert r.gateway.match_log.aside() == []
            r.gateway.match_log.recover(2)
            r.pipeline.step()
            r.pipeline.beat()
            assert await pull_all(r, "a", wait_s=1) == ["0-2-0"]

    run(work)


def test_a_deleted_block_is_skipped(tmp_path):
    async def work() -> None:
        async with running(tmp_path, stats_s=0.01) as r:
            await r.subscribe("a", "data.x = 1")
            await publish_and_match(r, 5)
            r.pipeline.beat()
            await until_async(lambda: r.gateway.tail.tip == 5)
            block_path(r, 1).unlink()
            r.gateway.match_log.forget((1, 2))
            found = await pull_all(r, "a", wait_s=1)
            assert found == [f"0-{i}-0" for i in (0, 2, 3, 4)]

    run(work)


def test_a_step_of_maintenance_that_fails_holds_up_no_other(tmp_path, monkeypatch, caplog):
    async def work() -> None:
        async with running(tmp_path, retention_bytes=1 << 20) as r:
            await r.subscribe("a", "data.x = 1")
            for i in range(15):
                await r.publish(event(i, {"x": 1, "padding": "y" * 100_000}))
                r.pipeline.step()
            r.pipeline.beat()
            await r.gateway.tail.catch_up()

            def fail(*_: object, **__: object) -> None:
                raise MatchLogError("a disk error")

            monkeypatch.setattr(r.gateway.log, "observe", fail)
            monkeypatch.setattr(r.gateway.match_log, "compact", fail)
            r.gateway.maintenance.round(1)
            assert r.gateway.log.start() > 0
            assert caplog.text.count("a disk error") == 2
            await asyncio.sleep(0)

    run(work)
