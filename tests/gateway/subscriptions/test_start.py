"""Subscriptions that begin in the past: earlier events, then new ones, without a gap or a repetition."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from gateway_support import SUBSCRIPTIONS, Running, event, run, running
from replay_support import ReplayPipeline

from fieldfare.storage.quarantine import QuarantinedRecord


async def begin(
    r: Running, id: str, start: str, filter: str = "data.n >= 0", status: int = 201
) -> dict[str, Any]:
    answer = await r.client.put(f"{SUBSCRIPTIONS}/{id}", json={"filter": filter, "start": start})
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def publish(r: Running, first: int, count: int = 1) -> None:
    for n in range(first, first + count):
        await r.publish(event(n, {"n": n}))


async def numbers(r: Running, id: str, **body: Any) -> list[int]:
    """Pull and ack; return the events' numbers."""
    messages = await r.pull(id, **body)
    await r.ack(id, *(each["position"] for each in messages))
    return [each["event"]["data"]["n"] for each in messages]


def test_the_past_comes_first_and_then_what_is_live(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            replays = ReplayPipeline(r.gateway)
            await publish(r, 0, 5)
            r.pipeline.step()
            made = await begin(r, "s", "earliest")
            assert (made["start"], made["valid_from"]) == ("0-0-0", "0-5-0")
            await publish(r, 5, 3)
            r.pipeline.step()
            assert await numbers(r, "s") == []  # live events wait their turn
            replays.finish()
            assert await numbers(r, "s", wait_s=30, max=4) == [0, 1, 2, 3]
            assert await numbers(r, "s", wait_s=30) == [4, 5, 6, 7]
            await publish(r, 8)
            r.pipeline.step()
            assert await numbers(r, "s", wait_s=30) == [8]
            described = (await r.client.get(f"{SUBSCRIPTIONS}/s")).json()
            assert described["past"] == {
                "kept_from": "0-0-0", "matched_to": "0-5-0", "to": "0-5-0", "is_matched": True,
            }  # fmt: skip

    run(work)


def test_a_waiting_reader_gets_the_replay_and_then_new_events(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            replays = ReplayPipeline(r.gateway)
            await publish(r, 0, 6)
            await begin(r, "s", "0-2-0")
            waiting = asyncio.create_task(numbers(r, "s", wait_s=30))
            await asyncio.sleep(0)
            replays.finish()
            r.pipeline.step()
            assert await waiting == [2, 3, 4, 5]
            waiting = asyncio.create_task(numbers(r, "s", wait_s=30))
            await publish(r, 6)
            r.pipeline.step()
            assert await waiting == [6]

    run(work)


def test_a_start_within_a_record_is_kept_to_and_so_is_a_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            replays = ReplayPipeline(r.gateway)
            answer = await r.publish(*(event(n, {"n": n}) for n in range(5)))
            assert answer["count"] == 5
            assert (await begin(r, "s", "0-0-3"))["start"] == "0-0-3"
            assert (await begin(r, "old", "2020-01-01T00:00:00Z"))["start"] == "0-0-0"
            assert (await begin(r, "now", "latest"))["start"] == "0-1-0"
            replays.finish()
            r.pipeline.step()
            assert await numbers(r, "s") == [3, 4]
            assert await numbers(r, "old") == [0, 1, 2, 3, 4]
            assert await numbers(r, "now") == []
            await publish(r, 5)
            r.pipeline.step()
            assert [await numbers(r, id, wait_s=30) for id in ("s", "old", "now")] == [[5], [5], [5]]

    run(work)


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("2999-01-01T00:00:00Z", "is in the future"),
        ("0-3-0", "past the log's end"),
        ("1-0-0", "the last one is 0"),
        ("2026-07-01T12:00:00", "seconds and a time zone"),
        ("2026-07-01", "seconds and a time zone"),
        ("2026-07-01T12:00Z", "seconds and a time zone"),
        ("2026-02-30T12:00:00Z", "needs a valid date"),
        ("yesterday", "start must be earliest"),
        ("0-0", "three whole numbers"),
        ("", "start must be earliest"),
        ("9" * 30 + "-0-0", "no number of a position has more"),
    ],
)
def test_a_start_that_is_no_place_is_refused_and_nothing_is_made(
    tmp_path: Path, start: str, says: str
) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await publish(r, 0, 2)
            problem = await begin(r, "s", start, status=400)
            assert problem["type"].endswith("bad-position") and problem["pointer"] == "/start"
            assert says in problem["detail"]
            assert (await r.client.get(f"{SUBSCRIPTIONS}/s")).status_code == 404

    run(work)


def test_start_is_of_creation_only(tmp_path: Path) -> None:
    """A request that is sent again changes nothing; what it cannot do it refuses."""

    async def work() -> None:
        async with running(tmp_path, pasts_max=2) as r:
            replays = ReplayPipeline(r.gateway)
            await publish(r, 0, 3)
            made = await begin(r, "s", "earliest")
            replays.finish()
            r.pipeline.step()
            assert await numbers(r, "s") == [0, 1, 2]
            assert await begin(r, "s", "earliest", status=200) == made
            again = await r.client.post(
                SUBSCRIPTIONS, json={"id": "s", "filter": "data.n >= 0", "start": "0-1-0"}
            )
            assert (again.status_code, again.json()) == (200, made)
            assert await numbers(r, "s") == []
            problem = await begin(r, "s", "earliest", filter="data.n > 1", status=409)
            assert problem["type"].endswith("subscription-exists")
            await begin(r, "t", "earliest")
            full = await r.client.put(f"{SUBSCRIPTIONS}/u", json={"filter": "a = 1", "start": "earliest"})
            assert full.status_code == 429 and full.json()["why"] == "pasts" and full.headers["retry-after"]
            replays.finish()
            await r.gateway.background.maintain()
            await begin(r, "u", "earliest")
            many = [
                {"id": "v", "filter": "data.n > 1", "start": "earliest"},
                {"id": "w", "filter": "data.n > 1"},
            ]
            answer = (await r.client.post(SUBSCRIPTIONS, json={"subscriptions": many})).json()
            assert answer["created"] == 1
            assert [(each["id"], each["pointer"]) for each in answer["refused"]] == [("v", "/start")]

    run(work)


def test_a_replaced_filter_leaves_the_past_to_the_first_and_a_deletion_ends_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            replays = ReplayPipeline(r.gateway)
            await publish(r, 0, 4)
            await begin(r, "s", "earliest", filter="data.n < 2")
            gone = await begin(r, "gone", "earliest")
            await publish(r, 4)
            replaced = await r.subscribe("s", "data.n > 2")
            assert replaced["start"] == "0-0-0"
            await publish(r, 5)
            replays.round()
            assert (await r.client.delete(f"{SUBSCRIPTIONS}/gone")).status_code == 204
            replays.finish()
            r.pipeline.step()
            assert await numbers(r, "s", wait_s=30) == [0, 1, 5]
            await r.gateway.background.maintain()
            kept = {path.name for path in r.gateway.settings.folder.replays.iterdir()}
            assert kept == {"1-1"}
            again = await begin(r, "gone", "earliest")
            assert again["revision"] > gone["revision"]
            replays.finish()
            assert await numbers(r, "gone", wait_s=30) == [0, 1, 2, 3, 4, 5]

    run(work)


def test_a_gateway_that_starts_again_goes_on_within_the_past(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await publish(r, 0, 6)
            await begin(r, "s", "earliest")
            ReplayPipeline(r.gateway).finish()
            assert await numbers(r, "s", max=2) == [0, 1]
            held = await r.pull("s", max=2)
            assert [each["event"]["data"]["n"] for each in held] == [2, 3]
        async with running(tmp_path) as r:
            await publish(r, 6)
            r.pipeline.step()
            assert await numbers(r, "s", wait_s=30, max=4) == [2, 3, 4, 5]
            assert await numbers(r, "s", wait_s=30) == [6]
            await r.client.post(f"{SUBSCRIPTIONS}/s/seek", json={"to": "0-5-0"})
            assert await numbers(r, "s", wait_s=30) == [5, 6]
            # Before it began there is nothing.
            await begin(r, "later", "0-4-0")
            await r.client.post(f"{SUBSCRIPTIONS}/later/seek", json={"to": "earliest"})
            ReplayPipeline(r.gateway).finish()
            assert await numbers(r, "later", wait_s=30) == [4, 5, 6]

    run(work)


def test_a_subscription_that_lost_its_first_cursor_begins_at_its_start(tmp_path: Path) -> None:
    """It has no copy of an earlier cursor yet: it began at its creation, and silently skipped its past."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await publish(r, 0, 5)
            r.pipeline.step()
            await begin(r, "s", "0-2-0")
            ReplayPipeline(r.gateway).finish()
            r.pipeline.step()
        with closing(sqlite3.connect(tmp_path / "registry.db")) as registry, registry:
            assert registry.execute("DELETE FROM cursors").rowcount == 1
        async with running(tmp_path) as r:
            assert await numbers(r, "s", wait_s=30) == [2, 3, 4]

    run(work)


def test_what_retention_takes_is_passed_over_and_the_answer_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            replays = ReplayPipeline(r.gateway)
            await publish(r, 0, 8)
            r.pipeline.step()
            await begin(r, "s", "earliest")
            r.gateway.log.trim(3)
            replays.finish()
            replay = (await r.client.get(f"{SUBSCRIPTIONS}/s")).json()["past"]
            assert (replay["kept_from"], replay["matched_to"]) == ("0-3-0", "0-8-0")
            assert (await begin(r, "t", "earliest"))["start"] == "0-3-0"
            assert (await begin(r, "u", "0-1-0"))["start"] == "0-3-0"
            assert await numbers(r, "s") == [3, 4, 5, 6, 7]
            await publish(r, 8)
            r.pipeline.step()
            await r.gateway.tail.catch_up()
            r.gateway.log.trim(8)
            await r.gateway.background.maintain()
            described = (await r.client.get(f"{SUBSCRIPTIONS}/s")).json()
            assert described["start"] == "0-0-0" and "past" not in described
            await r.gateway.background.maintain()
            assert list(r.gateway.settings.folder.replays.iterdir()) == []
            assert [await numbers(r, id, wait_s=30) for id in ("s", "t", "u")] == [[8], [8], [8]]

    run(work)


def test_a_block_of_the_past_that_rots_while_retention_takes_its_beginning_is_matched_again(
    tmp_path: Path,
) -> None:
    """It begins before the remaining events, and a waiting reader never got past it."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await publish(r, 0, 4)
            await begin(r, "s", "earliest")
            ReplayPipeline(r.gateway).finish()
            r.pipeline.step()
            await r.gateway.background.maintain()
            (block,) = r.gateway.settings.folder.replays.rglob("*.arrow")
            block.write_bytes(block.read_bytes()[:-20])
            r.gateway.log.trim(1)
            assert await numbers(r, "s") == []
            await r.gateway.background.maintain()
            assert not block.exists()
            ReplayPipeline(r.gateway).finish()
            assert await numbers(r, "s", wait_s=30) == [1, 2, 3]

    run(work)


def test_a_block_of_the_past_that_rots_is_matched_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await publish(r, 0, 4)
            await begin(r, "s", "earliest")
            ReplayPipeline(r.gateway).finish()
            await r.gateway.background.maintain()
            assert not r.gateway.registry.replays(only_open=True)
            (block,) = r.gateway.settings.folder.replays.rglob("*.arrow")
            block.write_bytes(block.read_bytes()[:-20])
            assert await numbers(r, "s") == []
            await r.gateway.background.maintain()
            assert not block.exists() and r.gateway.registry.replays(only_open=True)
            ReplayPipeline(r.gateway).finish()
            assert await numbers(r, "s", wait_s=30) == [0, 1, 2, 3]
            block.unlink()  # and one that is lost
            await r.gateway.background.maintain()
            assert r.gateway.registry.replays(only_open=True)

    run(work)


def test_events_of_other_spaces_and_records_set_aside_are_no_part_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "other"})
            await publish(r, 0)
            await r.publish(event(1, {"n": 1}), space="other")
            await publish(r, 2, 3)
            aside = QuarantinedRecord(3, "default", 1, "cannot be matched: Error", 0)
            r.gateway.quarantine.add(aside)
            await begin(r, "s", "earliest")
            ReplayPipeline(r.gateway).finish()
            assert await numbers(r, "s") == [0, 2, 4]

    run(work)
