"""Lists by backlog and sums by space: against the count of each subscription in the match log."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from gateway_support import DEADLINE_S, SUBSCRIPTIONS, Running, event, run, running, until_async
from numpy.typing import NDArray
from tests.yardstick import slowness

from fieldfare.gateway.delivery import backlog_table
from fieldfare.gateway.delivery.backlogs import Backlogs
from fieldfare.storage.errors import CorruptBlockError, RegistryError
from fieldfare.storage.files.match_block import FileBlock

SEED = 38


async def listed(r: Running, **query: Any) -> list[dict[str, Any]]:
    """All pages of the list by backlog."""
    found: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        params = {"sort": "backlog", **query, **after}
        answer = await r.client.get(SUBSCRIPTIONS, params=params)
        assert answer.status_code == 200, answer.text
        found += answer.json()["subscriptions"]
        if answer.json()["next"] is None:
            return found
        after = {"after": answer.json()["next"]}


async def pending(r: Running) -> dict[str, int]:
    found = await listed(r)
    assert all(each["backlog"]["is_exact"] for each in found), found
    return {each["id"]: each["backlog"]["pending"] for each in found}


async def counted(r: Running, ids: list[str]) -> dict[str, int]:
    """The pending messages of each, counted one by one."""
    found = {}
    for id in ids:
        one = (await r.client.get(f"{SUBSCRIPTIONS}/{id}/backlog")).json()
        assert one["is_exact"]
        found[id] = one["pending"]
    return found


async def publish(r: Running, *values: int) -> None:
    """Publish events, have them matched, and wait until the gateway has read that, however busy it is."""
    await r.publish(*(event(i, {"x": x}) for i, x in enumerate(values)))
    end = r.pipeline.step()
    await until_async(lambda: r.gateway.tail.tips[0] >= end)


def test_the_list_begins_with_the_greatest_backlog(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            for id, least in (("few", 8), ("all", 0), ("none", 100), ("many", 3)):
                await r.subscribe(id, f"data.x >= {least}")
            await publish(r, *range(10))
            found = await listed(r)
            assert [(each["id"], each["backlog"]["pending"]) for each in found] == [
                ("all", 10),
                ("many", 7),
                ("few", 2),
                ("none", 0),
            ]
            assert [each["id"] for each in await listed(r, limit=1)] == [each["id"] for each in found]
            assert 0 <= found[0]["backlog"]["oldest_s"] < 60 and found[3]["backlog"]["oldest_s"] is None
            await r.pull("all", max=4)
            (first, *_) = await listed(r)
            assert (first["backlog"]["in_flight"], first["backlog"]["dead_letters"]) == (4, 0)
            terminated = {"positions": ["0-0-1"], "reason": "broken"}
            await r.client.post(f"{SUBSCRIPTIONS}/all/terminate", json=terminated)
            sums = (await r.client.get("/v1/spaces/default/backlog")).json()
            assert sums["pending"] == 18 and sums["behind"] == 3 and sums["subscriptions"] == 4
            assert sums["dead_letters"] == 1 and sums["in_flight"] == 3 and sums["is_exact"]
            whole = (await r.client.get("/v1/backlogs", params={"limit": 2})).json()
            assert [each["id"] for each in whole["subscriptions"]] == ["all", "many"]
            assert [(each["space"], each["pending"]) for each in whole["spaces"]] == [("default", 18)]
            assert whole["total"]["pending"] == 18

    run(work)


@pytest.mark.long
def test_the_table_counts_what_each_subscription_is_owed(tmp_path: Path) -> None:
    """After any calls, and a restart in between, the listed number is that of a count in the match log."""
    print(f"seed {SEED}")
    random = Random(SEED)

    async def step(r: Running, ids: list[str], held: dict[str, list[str]]) -> None:
        id = random.choice(ids)
        path = f"{SUBSCRIPTIONS}/{id}"
        match random.randrange(10):
            case 0 | 1 | 2:
                await publish(r, *(random.randrange(10) for _ in range(5)))
            case 3 | 4:
                held[id] += [each["position"] for each in await r.pull(id, max=random.randrange(1, 8))]
            case 5:
                settled = {each for each in held[id] if random.random() < 0.5}
                await r.ack(id, *settled)
                held[id] = [each for each in held[id] if each not in settled]
            case 6 if held[id]:
                await r.client.post(f"{path}/ack", json={"up_to": held[id][0]})
            case 7:
                await r.client.post(f"{path}/nack", json={"positions": held[id][:2]})
                terminated = {"positions": held[id][2:4], "reason": "odd"}
                await r.client.post(f"{path}/terminate", json=terminated)
                held[id] = held[id][4:]
            case 8:
                await r.client.post(f"{path}/dead-letters/retry", json={})
            case 9 if random.random() < 0.3:
                await r.client.post(f"{path}/seek", json={"to": random.choice(["earliest", "latest"])})
                held[id] = []

    async def work() -> None:
        ids = [f"s{number}" for number in range(5)]
        for lap in range(3):
            async with running(tmp_path) as r:
                held: dict[str, list[str]] = {id: [] for id in ids}
                if lap == 0:
                    for number, id in enumerate(ids):
                        await r.subscribe(id, f"data.x < {2 * number + 1}")
                for _ in range(15):
                    await step(r, ids, held)
                    found = await listed(r)
                    shown = {each["id"]: each["backlog"] for each in found}
                    truth = await counted(r, ids)
                    exact = {id: truth[id] for id in ids if shown[id]["is_exact"]}
                    assert {id: shown[id]["pending"] for id in exact} == exact
                    assert await pending(r) == truth, "a count corrects the table"
                for id in ids:
                    await r.client.post(f"{SUBSCRIPTIONS}/{id}/nack", json={"positions": held[id]})

    run(work)


def test_what_was_pending_before_a_restart_is_counted_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x >= 0")
            await r.subscribe("late", "data.x >= 0")
            await publish(r, *range(10))
            await publish(r, *range(10))
            await r.client.post(f"{SUBSCRIPTIONS}/a/ack", json={"up_to": "0-1-4"})
        async with running(tmp_path) as r:
            assert await pending(r) == {"a": 5, "late": 20}
            await publish(r, *range(10))
            await r.subscribe("new", "data.x >= 0")
            await r.client.delete(f"{SUBSCRIPTIONS}/late")
            assert await pending(r) == {"a": 15, "new": 0}

    run(work)


def test_matches_that_retention_removes_are_pending_no_more(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x >= 0")
            await r.subscribe("b", "data.x >= 0")
            for _ in range(4):
                await publish(r, *range(10))
            assert await pending(r) == {"a": 40, "b": 40}
            await r.pull("b", max=15)
            await r.client.post(f"{SUBSCRIPTIONS}/b/ack", json={"up_to": "0-1-4"})
            assert await pending(r) == {"a": 40, "b": 25}
            r.gateway.log.trim(3)
            await r.gateway.background.maintain()
            assert r.gateway.log.partitions[0].start() == 3
            assert await pending(r) == {"a": 10, "b": 10}
            assert len(await r.pull("a", max=100)) == 10
            assert await pending(r) == {"a": 10, "b": 10}

    run(work)


def test_a_count_while_retention_removes_records_takes_them_away_once(tmp_path: Path) -> None:
    """Retention removes records, and then their matches are taken from the numbers of the lists."""

    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await r.subscribe("a", "data.x >= 0")
            for _ in range(4):
                await publish(r, *range(10))
            assert await pending(r) == {"a": 40}
            r.gateway.log.trim(3)
            assert await counted(r, ["a"]) == await pending(r) == {"a": 10}
            await asyncio.to_thread(r.gateway.backlogs.forget_before, 0, 3)
            assert await pending(r) == {"a": 10}

    run(work)


def test_records_that_were_sought_past_are_not_taken_away_when_retention_removes_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await r.subscribe("a", "data.x >= 0")
            for _ in range(3):
                await publish(r, *range(10))
            assert await pending(r) == {"a": 30}
            await r.client.post(f"{SUBSCRIPTIONS}/a/seek", json={"to": "latest"})
            assert await pending(r) == {"a": 0}
            r.gateway.log.trim(3)
            await r.gateway.background.maintain()
            await publish(r, *range(10))
            assert await pending(r) == await counted(r, ["a"]) == {"a": 10}

    run(work)


def test_a_count_during_which_the_subscription_was_sought_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its number, of before the seek, replaces that of after it."""
    has_begun, goes_on = threading.Event(), threading.Event()

    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await r.subscribe("a", "data.x >= 0")
            await publish(r, *range(10))
            assert await pending(r) == {"a": 10}
            counter = r.gateway.backlogs._counter
            oldest_ms = counter._oldest_ms

            def wait(firsts: list[int]) -> int | None:
                if not has_begun.is_set():
                    has_begun.set()
                    assert goes_on.wait(DEADLINE_S)
                return oldest_ms(firsts)

            monkeypatch.setattr(counter, "_oldest_ms", wait)
            counting = asyncio.ensure_future(counted(r, ["a"]))
            await until_async(has_begun.is_set)
            await r.client.post(f"{SUBSCRIPTIONS}/a/seek", json={"to": "latest"})
            goes_on.set()
            assert await counting == await pending(r) == {"a": 0}

    run(work)


def test_a_new_subscription_whose_match_is_seen_first_is_counted(tmp_path: Path) -> None:
    """The block with the first match may be read before the request that stored the subscription goes on."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await listed(r)
            added, r.gateway.backlogs._changed = r.gateway.backlogs._changed, lambda number, new: None
            r.gateway.deliveries._on_change[:] = []
            await r.subscribe("a", "data.x >= 0")
            await publish(r, 1, 2, 3)
            await listed(r)
            subscription = await r.gateway.subscriptions.get("default", "a")
            added(subscription.number, subscription)
            assert await pending(r) == {"a": 3}

    run(work)


def test_an_error_of_the_registry_delays_the_first_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x >= 0")
            await publish(r, 1, 2, 3)
        tries = 0

        def fail_once(self: Backlogs, *place: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise RegistryError("the disk hangs")
            return load_some(self, *place)

        load_some = Backlogs._load_some
        monkeypatch.setattr(Backlogs, "_load_some", fail_once)
        monkeypatch.setattr("fieldfare.gateway.delivery.backlogs.RETRY_S", 0.01)
        async with running(tmp_path) as r:
            assert await pending(r) == {"a": 3}

    run(work)


def test_a_list_before_the_cursors_are_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        monkeypatch.setattr("fieldfare.gateway.delivery.backlogs.ROWS_WAITED_S", 0.01)
        monkeypatch.setattr("fieldfare.gateway.delivery.backlogs.RETRY_S", 60.0)

        def fail(self: Backlogs, *place: Any) -> Any:
            raise RegistryError("the disk hangs")

        monkeypatch.setattr(Backlogs, "_load_some", fail)
        async with running(tmp_path) as r:
            answer = await r.client.get(SUBSCRIPTIONS, params={"sort": "backlog"})
            assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
            assert (await r.client.get("/metrics")).status_code == 200

    run(work)


@pytest.mark.parametrize(
    "query",
    [{"sort": "size"}, {"sort": "backlog", "after": "a"}, {"sort": "backlog", "after": "1-99999999999"}],
)
def test_a_wrong_parameter_is_named(tmp_path: Path, query: dict[str, str]) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            answer = await r.client.get(SUBSCRIPTIONS, params=query)
            assert answer.status_code == 400 and answer.json()["parameter"] in query

    run(work)


def test_the_worst_spaces_and_subscriptions_have_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        monkeypatch.setattr("fieldfare.gateway.maintenance.figures.WORST_SUBSCRIPTIONS", 1)
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x >= 0")
            await r.subscribe("b", "data.x > 0")
            await publish(r, 0, 1)
            text = (await r.client.get("/metrics")).text
            assert 'fieldfare_backlog_messages{space="default"} 3.0' in text
            assert 'fieldfare_subscription_backlog_messages{space="default",subscription="a"} 2.0' in text
            assert 'subscription="b"' not in text

    run(work)


class Block:
    """A block, given the number of matches of each subscription."""

    def __init__(self, start: int, end: int, numbers: NDArray[np.uint32], counts: NDArray[np.int64]) -> None:
        self.start, self.end = start, end
        self._lengths = numbers, counts

    def lengths(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        return self._lengths


@pytest.mark.parametrize("behind", [1_000, 1_000_000])
def test_a_million_subscriptions_are_listed_by_backlog_in_time(behind: int) -> None:
    """Few of them have a backlog, or all: a page, the next one and the sums take 200 ms at most."""
    random = np.random.default_rng(SEED)
    table = backlog_table.BacklogTable(1)
    numbers = random.permutation(1_000_000) + 1
    for start in range(0, 1_000_000, 100_000):
        some = numbers[start : start + 100_000].tolist()
        table.load([backlog_table.Row(number, f"s{number % 3}", (0,)) for number in some])
    table.begin((0,))
    table.complete()
    with_matches = np.sort(random.choice(numbers, behind, replace=False)).astype(np.uint32)
    counts = random.integers(1, 100, behind)
    table.count_new(0, Block(0, 10, with_matches, counts), 10, 5)  # type: ignore[arg-type]
    truth = sorted(
        (-count, number)
        for count, number in zip(counts.tolist(), with_matches.tolist(), strict=True)
        if number % 3 == 1
    )
    slow = slowness()
    begun_s = time.thread_time()
    page = table.greatest("s1", None, 100)
    following = table.greatest("s1", (page[-1].pending, page[-1].number), 100)
    sums = table.sums()
    took_s = time.thread_time() - begun_s
    assert [(-each.pending, each.number) for each in page + following] == truth[:200]
    assert sums["s1"].pending == -sum(each[0] for each in truth) and sums["s1"].behind == len(truth)
    assert took_s < 0.2 * slow


def test_times_of_many_blocks_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_table, "TIMES_MAX", 100)
    times = backlog_table._Times()
    for end in range(1, 1001):
        times.add(end, 10 * end)
    found = times.at(np.arange(1000))
    assert len(times._ends) <= 101 and (np.diff(found) >= 0).all()
    assert (found <= 10 * (np.arange(1000) + 1)).all(), "never later than the block's own time"


def test_subscriptions_that_are_created_while_the_cursors_are_read_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their first matches came before the count began, and they were noted after it."""
    update = Backlogs._update
    has_updated, may_begin = asyncio.Event(), asyncio.Event()

    async def slow_update(self: Backlogs, *, begins: bool = False) -> None:
        if begins:
            has_updated.set()
            await may_begin.wait()
        await update(self, begins=begins)

    async def never(self: Backlogs) -> None:
        pass

    async def work() -> None:
        monkeypatch.setattr(Backlogs, "_update", slow_update)
        monkeypatch.setattr(Backlogs, "_keep_up", never)
        async with running(tmp_path) as r:
            await has_updated.wait()
            await r.subscribe("a", "data.x >= 0")
            await publish(r, 1, 2, 3)
            may_begin.set()
            assert await pending(r) == {"a": 3}

    run(work)


def test_a_corrupt_block_is_left_out_and_delays_neither_the_count_nor_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = FileBlock.lengths

    def read(block: FileBlock) -> Any:
        if block.start == 1:
            raise CorruptBlockError(0, (1, 2), "the block is broken")
        return lengths(block)

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x >= 0")
            for _ in range(3):
                await publish(r, *range(10))
        monkeypatch.setattr(FileBlock, "lengths", read)
        async with running(tmp_path, maintenance_s=1e6, stats_s=1e6) as r:
            assert [each["backlog"]["pending"] for each in await listed(r)] == [20]
            assert r.gateway.maintenance.broken == {(0, (1, 2))}, "maintenance looks at it"
            r.gateway.log.trim(3)
            await r.gateway.background.maintain()
            assert r.gateway.tail.begins == (3,)
            assert [each["backlog"]["pending"] for each in await listed(r)] == [0]

    run(work)
