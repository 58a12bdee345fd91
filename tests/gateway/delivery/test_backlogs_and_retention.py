"""Lists by backlog while messages are acked one by one, and retention removes records."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from gateway_support import DEADLINE_S, Running, event, run, running, until_async
from test_backlogs import counted, listed, pending, publish

from fieldfare.delivery.delivery import Delivery
from fieldfare.gateway.delivery import backlogs


async def begin(r: Running, records: int) -> None:
    """Subscribe, and publish records of ten events each in one block."""
    await r.subscribe("a", "data.x >= 0")
    assert await pending(r) == {"a": 0}
    for _ in range(records):
        await r.publish(*(event(i, {"x": i}) for i in range(10)))
    end = r.pipeline.step()
    await until_async(lambda: r.gateway.tail.tips[0] >= end)


async def taken(r: Running, count: int) -> list[str]:
    """Pull messages, and forget what was read beyond them; return their positions."""
    messages = await r.pull("a", max=count, ack_deadline_s=2 * DEADLINE_S)
    delivery_of(r).forget_unread()
    return [each["position"] for each in messages]


def delivery_of(r: Running) -> Delivery:
    (delivery,) = r.gateway.deliveries.loaded.values()
    return delivery


async def trim(r: Running, offset: int) -> None:
    """Remove records, as maintenance does, none of whose events is cached."""
    await r.gateway.deliveries.save_progress()
    r.gateway.deliveries._records._held.clear()
    r.gateway.log.trim(offset)
    await asyncio.to_thread(r.gateway.backlogs.forget_before, 0, offset)
    r.gateway.tail.begins = (offset,)


async def shown(r: Running) -> tuple[int, bool]:
    """The pending messages in the list, and whether their number is exact."""
    (found,) = await listed(r)
    return found["backlog"]["pending"], found["backlog"]["is_exact"]


def test_messages_acked_one_by_one_that_retention_removes_leave_an_estimate(tmp_path: Path) -> None:
    """They are taken away twice: the list must not call the rest exact."""

    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await begin(r, 4)
            positions = await taken(r, 20)
            await r.ack("a", *positions[1:])
            assert await shown(r) == (21, True)
            await trim(r, 2)
            assert await shown(r) == (1, False)
            assert await counted(r, ["a"]) == await pending(r) == {"a": 20}

    run(work)


def test_acks_of_messages_that_retention_has_removed_leave_an_estimate(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await begin(r, 4)
            positions = await taken(r, 20)
            assert await shown(r) == (40, True)
            await trim(r, 2)
            assert await shown(r) == (20, False)
            await r.ack("a", *positions[1:])
            await r.gateway.deliveries.save_progress()
            assert await shown(r) == (1, False)
            assert await counted(r, ["a"]) == await pending(r) == {"a": 20}

    run(work)


def test_messages_in_flight_that_retention_has_removed_are_no_exact_number(tmp_path: Path) -> None:
    """The reader of all messages still has some of them: a saved cursor counts what it has."""

    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await begin(r, 2)
            messages = await r.pull("a", max=20, ack_deadline_s=2 * DEADLINE_S)
            assert await shown(r) == (20, True)
            await trim(r, 2)
            await r.ack("a", messages[0]["position"])
            await r.gateway.deliveries.save_progress()
            assert not (await shown(r))[1]
            assert await counted(r, ["a"]) == await pending(r) == {"a": 0}

    run(work)


def test_messages_that_were_read_before_retention_removed_them_are_taken_away_once(tmp_path: Path) -> None:
    """A reader's next request finds that their events are gone."""

    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await begin(r, 4)
            (message,) = await r.pull("a", max=1)
            await r.ack("a", message["position"])
            assert await shown(r) == (39, True)
            await trim(r, 2)
            assert await shown(r) == (20, True)
            assert len(await r.pull("a", max=1, ack_deadline_s=2 * DEADLINE_S)) == 1
            await r.gateway.deliveries.save_progress()
            assert await shown(r) == (20, True)
            assert await counted(r, ["a"]) == {"a": 20}

    run(work)


def test_matches_that_are_not_counted_before_retention_removes_them_are_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlogs, "KEPT_UP_S", 1e6)

    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await begin(r, 4)
            await trim(r, 2)
            assert await shown(r) == (20, True)
            assert await counted(r, ["a"]) == {"a": 20}

    run(work)


@pytest.mark.parametrize("is_counted", [True, False])
def test_numbers_that_retention_overtakes_before_they_are_in_the_list_are_not_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_counted: bool
) -> None:
    """A count, or a saved cursor, has messages that are taken away before it reaches the list."""
    monkeypatch.setattr(backlogs, "KEPT_UP_S", 1e6)

    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await begin(r, 4)
            assert await shown(r) == (40, True)
            if is_counted:
                assert await counted(r, ["a"]) == {"a": 40}
            else:
                await r.ack("a", *await taken(r, 10))
            await trim(r, 2)
            if not is_counted:  # A later note becomes one with that of before.
                await taken(r, 1)
                await r.gateway.deliveries.save_progress()
            assert not (await shown(r))[1]
            assert await counted(r, ["a"]) == await pending(r) == {"a": 20}

    run(work)


def test_a_count_during_which_messages_are_acked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the list loses the acks: the count has these messages, and follows their acks."""
    has_begun, goes_on = threading.Event(), threading.Event()

    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await begin(r, 4)
            positions = await taken(r, 15)
            counter = r.gateway.backlogs._counter
            oldest_ms = counter._oldest_ms

            def wait(firsts: list[int]) -> Any:
                if not has_begun.is_set():
                    has_begun.set()
                    assert goes_on.wait(DEADLINE_S)
                return oldest_ms(firsts)

            monkeypatch.setattr(counter, "_oldest_ms", wait)
            counting = asyncio.ensure_future(counted(r, ["a"]))
            await until_async(has_begun.is_set)
            await r.ack("a", *positions)
            goes_on.set()
            assert await counting == await pending(r) == {"a": 25}
            await publish(r, *range(5))
            assert await pending(r) == {"a": 30}

    run(work)
