"""The backlog of a subscription: its counts in every state of a message, and where it is estimated."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from gateway_support import DEADLINE_S, SUBSCRIPTIONS, Running, event, run, running, until_async

from fieldfare.delivery.partition_delivery import PartitionDelivery
from fieldfare.gateway.delivery import backlog

SEED = 20


async def backlog_of(r: Running, id: str) -> dict[str, Any]:
    response = await r.client.get(f"{SUBSCRIPTIONS}/{id}/backlog")
    assert response.status_code == 200, response.text
    return response.json()


def counts(found: dict[str, Any]) -> tuple[int, int, int, int]:
    assert found["is_exact"]
    return found["pending"], found["in_flight"], found["redeliveries"], found["dead_letters"]


def test_each_state_of_a_message_is_counted(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x >= 2")
            new = await backlog_of(r, "a")
            assert counts(new) == (0, 0, 0, 0)
            assert new["oldest_s"] is None and new["cursor"] == "0-0-0" and new["readers"] == 0
            for first in (0, 6):
                await r.publish(*(event(i, {"x": i}) for i in range(first, first + 6)))
            assert counts(await backlog_of(r, "a")) == (0, 0, 0, 0), "not matched yet"
            r.pipeline.step()
            found = await backlog_of(r, "a")
            assert counts(found) == (10, 0, 0, 0)
            assert 0 <= found["oldest_s"] < 60
            assert len(await r.pull("a", max=4)) == 4
            assert counts(await backlog_of(r, "a")) == (10, 4, 0, 0)
            await r.ack("a", "0-0-3")
            assert counts(await backlog_of(r, "a")) == (9, 3, 0, 0)
            await r.client.post(f"{SUBSCRIPTIONS}/a/nack", json={"positions": ["0-0-2"], "delay_s": 60})
            assert counts(await backlog_of(r, "a")) == (9, 2, 1, 0)
            terminated = {"positions": ["0-0-4"], "reason": "broken"}
            await r.client.post(f"{SUBSCRIPTIONS}/a/terminate", json=terminated)
            assert counts(await backlog_of(r, "a")) == (8, 1, 1, 1)
        async with running(tmp_path) as r:
            assert counts(await backlog_of(r, "a")) == (8, 0, 0, 1), (
                "unacked messages are new after a restart"
            )
            await r.client.post(f"{SUBSCRIPTIONS}/a/dead-letters/retry", json={})
            pending, _, redeliveries, _ = counts(await backlog_of(r, "a"))
            assert (pending, redeliveries) == (9, 1)
            await r.client.post(f"{SUBSCRIPTIONS}/a/ack", json={"positions": ["0-1-1", "0-1-2"]})
            assert counts(await backlog_of(r, "a"))[0] == 7, "acked before they were delivered again"
            await r.client.post(f"{SUBSCRIPTIONS}/a/seek", json={"to": "earliest"})
            assert counts(await backlog_of(r, "a"))[0] >= 10

    run(work)


def test_messages_that_retention_removed_in_flight_are_pending_no_more(tmp_path: Path) -> None:
    """Retention removes whole records, and the block of the match log may begin before the log does."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x >= 0")
            for first in range(0, 12, 3):
                await r.publish(*(event(i, {"x": i}) for i in range(first, first + 3)))
            r.pipeline.step()
            assert len(await r.pull("a", max=4)) == 4
            r.gateway.log.trim(2)
            found = await backlog_of(r, "a")
            assert counts(found)[0] == 6 and found["cursor"] == "0-2-0" and found["oldest_s"] is not None
            answer = await r.client.post(f"{SUBSCRIPTIONS}/a/seek", json={"to": "0-0-0"})
            assert answer.status_code == 200 and answer.json() == {"cursor": "0-2-0"}

    run(work)


@pytest.mark.parametrize("delivery", [{"max_in_flight": 1}, {"order_by": "data.of"}], ids=str)
def test_a_count_wakes_the_readers_that_waited_for_removed_messages(
    tmp_path: Path, delivery: dict[str, Any]
) -> None:
    """The count settles these messages: no lease ends after it, so nothing else would wake the readers."""

    async def work() -> None:
        async with running(tmp_path, wait_max_s=2 * DEADLINE_S) as r:
            settings = {"filter": "data.x >= 0", "delivery": delivery}
            assert (await r.client.put(f"{SUBSCRIPTIONS}/a", json=settings)).status_code == 201
            for i in range(2):
                await r.publish(event(i, {"x": i, "of": "one"}))
            r.pipeline.step()
            assert len(await r.pull("a", max=1, ack_deadline_s=2 * DEADLINE_S)) == 1
            waiting = asyncio.ensure_future(r.pull("a", wait_s=2 * DEADLINE_S))
            await until_async(lambda: r.gateway.deliveries._waiting)
            r.gateway.log.trim(1)
            assert counts(await backlog_of(r, "a"))[0] == 1
            assert [each["event"]["id"] for each in await waiting] == ["1"]

    run(work)


def test_pending_is_what_a_reader_then_gets(tmp_path: Path) -> None:
    """After any calls, the number of delivered messages is the reported number of pending ones."""
    print(f"seed {SEED}")
    random = Random(SEED)

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x < 7")
            held: list[str] = []
            for _ in range(60):
                match random.randrange(4):
                    case 0:
                        await r.publish(*(event(i, {"x": random.randrange(10)}) for i in range(5)))
                        r.pipeline.step()
                    case 1:
                        held += [each["position"] for each in await r.pull("a", max=random.randrange(1, 8))]
                    case 2:
                        settled = {each for each in held if random.random() < 0.5}
                        await r.ack("a", *settled)
                        held = [each for each in held if each not in settled]
                    case _:
                        await r.client.post(f"{SUBSCRIPTIONS}/a/nack", json={"positions": held[:3]})
                        held = held[3:]
            pending = (await backlog_of(r, "a"))["pending"]
            await r.client.post(f"{SUBSCRIPTIONS}/a/nack", json={"positions": held})
            got = await r.pull("a", max=1_000)
            assert len(got) == pending > 0

    run(work)


def test_a_backlog_beyond_what_is_read_is_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x < 5")
            for _ in range(20):
                await r.publish(*(event(i, {"x": i}) for i in range(10)))
                r.pipeline.step()
            assert (await backlog_of(r, "a"))["pending"] == 100
            read_from, looked = r.gateway.deliveries.read_from, 0

            async def read_little(*what: Any) -> Any:
                nonlocal looked
                looked += 1
                return await read_from(*what) if looked <= 4 else None

            monkeypatch.setattr(r.gateway.deliveries, "read_from", read_little)
            found = await backlog_of(r, "a")
            assert not found["is_exact"] and found["pending"] == 100
            looked = 0
            monkeypatch.setattr(backlog, "COUNTING_S", 0.0)
            found = await backlog_of(r, "a")
            assert looked == 0 and not found["is_exact"]

    run(work)


def test_reading_the_backlog_does_not_count_as_use(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            settings = {"filter": "data.x = 1", "delivery": {"expires_unused_s": 3600}}
            await r.client.put(f"{SUBSCRIPTIONS}/a", json=settings)
            before = (await r.client.get(f"{SUBSCRIPTIONS}/a")).json()["unused_s"]
            await backlog_of(r, "a")
            assert (await r.client.get(f"{SUBSCRIPTIONS}/a")).json()["unused_s"] >= before
            assert (await r.client.get(f"{SUBSCRIPTIONS}/b/backlog")).status_code == 404

    run(work)


def test_matches_that_were_acked_early_are_not_owed() -> None:
    """Beside a plain twin: runs before, between, around and behind the matches."""
    random = Random(SEED)
    for _ in range(300):
        keys = np.array(sorted(random.sample(range(100), random.randrange(20))), np.int64)
        ends = sorted(random.sample(range(100), 2 * random.randrange(8)))
        runs = list(zip(ends[::2], ends[1::2], strict=True))
        partition = PartitionDelivery(random.randrange(60), runs)
        owed = [
            key >= partition.next_key and not any(first <= key <= last for first, last in runs)
            for key in keys.tolist()
        ]
        assert partition.are_owed(keys).tolist() == owed, (keys, runs)
