"""The whole gateway over a log of several partitions with holes: everything reported over HTTP is true."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "storage"))

from gateway_support import encode, event, run, running
from memory_log import MemoryEventLog
from memory_matches import MemoryMatchLog

from fieldfare.filters import compile_filter
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.delivery.record_lines import all_lines
from fieldfare.storage import NewMatchBlock


class Stores:
    """Logs that outlive the gateway, and a pipeline that matches some of what they hold."""

    def __init__(self, partitions: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = MemoryEventLog(partitions, seed=5)
        self.matches = MemoryMatchLog()
        self.chance = random.Random(3)
        opens = sys.modules[Gateway.__module__]
        monkeypatch.setattr(opens, "open_event_log", lambda url: self.log)
        monkeypatch.setattr(opens, "open_match_log", lambda url: self.matches)

    def match(self, gateway: Gateway, records: int = 1 << 30) -> None:
        """Match up to a number of offsets of each partition, and report the progress."""
        versions = list(gateway.registry.versions(gateway.registry.revision(), 0))
        filters = {version.number: compile_filter(version.filter) for version in versions}
        for partition in self.log.partitions:
            matches = self.matches.partition(partition.number)
            start = matches.end(partition.start())
            end = min(partition.end(), start + records)
            if start < end:
                counts = np.zeros(end - start, np.int32)
                found: list[list[int]] = []
                for record in partition.read(start, end):
                    counts[record.offset - start] = record.count
                    for line in all_lines(record.payload):
                        data = json.loads(line)
                        found.append([n for n, filter in sorted(filters.items()) if filter.matches(data)])
                indptr = np.cumsum([0, *map(len, found)], dtype=np.int64)
                numbers = np.array([n for some in found for n in some], np.uint32)
                extra = {"matched_ms": time.time_ns() // 1_000_000}
                matches.write(NewMatchBlock.by_event(start, end, counts, indptr, numbers, extra))
        ends = [self.matches.partition(each.number).end(each.start()) for each in self.log.partitions]
        beat: dict[str, Any] = {"pid": 1, "state": "running", "time_ms": time.time_ns() // 1_000_000}
        beat |= {"offset": sum(ends), "matched": ends, "snapshot_revision": gateway.registry.revision()}
        gateway.settings.folder.heartbeat.write_bytes(encode(beat))


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Stores:
    return Stores(3, monkeypatch)


def by_partition(positions: list[str]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for partition, offset, index in (map(int, position.split("-")) for position in positions):
        found.setdefault(partition, []).append((offset, index))
    return found


async def pull_all(r: Any, id: str, wait_s: float = 0.0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while messages := await r.pull(id, max=50, wait_s=wait_s):
        found += messages
    return found


def test_every_message_comes_once_in_its_partitions_order_over_restarts(tmp_path, stores):
    """Publishers, a pipeline in pieces, a reader who acks some; the gateway is restarted in between."""

    async def work() -> None:
        published: dict[str, int] = {}
        acked: set[str] = set()
        given: list[str] = []
        for round in range(4):
            async with running(tmp_path) as r:
                if round == 0:
                    await r.publish(*(event(f"early-{i}", {"x": 1}) for i in range(9)))
                    stored = await r.subscribe("a", "data.x = 1")
                    assert len(stored["valid_from"].split(",")) == 3
                for i in range(12):
                    some = [event(f"{round}-{i}-{n}", {"x": n % 2}) for n in range(4)]
                    place = await r.publish(*some)
                    for n in (1, 3):
                        published[f"{place['partition']}-{place['offset']}-{n}"] = round
                    if i % 5 == 0:
                        stores.match(r.gateway, records=7)
                stores.match(r.gateway)
                messages = await pull_all(r, "a")
                given += [message["position"] for message in messages]
                for message in messages:
                    assert message["event"]["data"]["x"] == 1
                some = [each["position"] for each in messages if stores.chance.random() < 0.7]
                if some:
                    await r.ack("a", *some)
                    acked.update(some)
                stats = (await r.client.get("/v1/stats")).json()
                assert stats["log_end"] == stats["matched_end"]
        async with running(tmp_path) as r:
            rest = [message["position"] for message in await pull_all(r, "a")]
        assert set(given) | set(rest) == published.keys()
        assert set(rest) == published.keys() - acked, "what was acked does not come again, all else does"
        for own in by_partition(rest).values():
            assert own == sorted(own)
        assert max(Counter(rest).values()) == 1
        assert len(by_partition(given)) == 3, "the test is of several partitions"

    run(work)


def test_up_to_settles_within_its_partition(tmp_path, stores):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(event("0", {"x": 1}))
            for i in range(40):
                await r.publish(event(i, {"x": 1}))
            stores.match(r.gateway)
            places = by_partition([message["position"] for message in await pull_all(r, "a")])
            middle = places[1][len(places[1]) // 2]
            answer = await r.client.post(
                "/v1/spaces/default/subscriptions/a/ack", json={"up_to": f"1-{middle[0]}-{middle[1]}"}
            )
            cursors = answer.json()["cursor"].split(",")
            assert [cursor.split("-")[0] for cursor in cursors] == ["0", "1", "2"]
            assert cursors[0] == f"0-{places[0][0][0]}-0"
        async with running(tmp_path) as r:
            again = by_partition([message["position"] for message in await pull_all(r, "a")])
            assert again == {0: places[0], 1: [each for each in places[1] if each > middle], 2: places[2]}
            for nowhere in ("3-0-0", f"1-{10**9}-0", "127-0-0"):
                answer = await r.client.post(
                    "/v1/spaces/default/subscriptions/a/ack", json={"positions": [nowhere]}
                )
                assert answer.status_code == 400 and nowhere in answer.json()["detail"]

    run(work)


def test_a_log_whose_own_retention_overtakes_matching_gives_what_comes_after(tmp_path, stores, caplog):
    """A topic of Kafka keeps a day, and the pipeline was away for two."""

    async def work() -> None:
        async with running(tmp_path, stats_s=0.01) as r:
            await r.subscribe("a", "data.x = 1")
            for i in range(9):
                await r.publish(event(i, {"x": 1}))
            stores.match(r.gateway, records=2)
            before = await pull_all(r, "a")
            waiting = asyncio.create_task(pull_all(r, "a", wait_s=3))
            for partition in stores.log.partitions:
                partition.trim(partition.end())
            places = {(await r.publish(event(f"new {i}", {"x": 1})))["partition"] for i in range(9)}
            assert places == {0, 1, 2}
            stores.match(r.gateway)
            r.gateway.maintenance.round(10)
            found = await waiting
            while len(found) < 9:
                found += await r.pull("a", wait_s=20)
            assert {each["event"]["id"] for each in found} == {f"new {i}" for i in range(9)}
            stats = (await r.client.get("/v1/stats")).json()
            assert stats["log_end"] == stats["matched_end"] and stats["lag_events"] == 0
            assert (
                before
                and "retention removed records" in caplog.text
                and "Increase the topic's retention" in caplog.text
            )

    run(work)


def test_matches_in_any_partition_wake_readers_and_retention_works_per_partition(tmp_path, stores):
    async def work() -> None:
        async with running(tmp_path, retention_s=1, stats_s=0.01) as r:
            await r.subscribe("a", "data.x = 1")
            seen: set[int] = set()
            for i in range(30):
                place = await r.publish(event(i, {"x": 1}))
                stores.match(r.gateway)
                (message,) = await r.pull("a", wait_s=10)
                assert message["position"] == f"{place['partition']}-{place['offset']}-0"
                seen.add(place["partition"])
            assert seen == {0, 1, 2}
            await r.gateway.tail.catch_up()
            for _ in range(3):
                r.gateway.maintenance.round(10)
            assert [each.start() for each in stores.log.partitions] == list(r.gateway.tail.tips)
            for number in range(3):
                assert stores.matches.partition(number).blocks == {}
            place = await r.publish(event("new", {"x": 1}))
            stores.match(r.gateway)
            new = await pull_all(r, "a", wait_s=1)
            assert [each["position"] for each in new] == [f"{place['partition']}-{place['offset']}-0"]

    run(work)
