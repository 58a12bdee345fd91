"""Pull, ack and nack over HTTP, across restarts."""

from __future__ import annotations

import asyncio
import time

from gateway_support import DEADLINE_S, EVENTS, SUBSCRIPTIONS, event, run, running, until_async
from test_publish_http import problem

from fieldfare.model import Cursor


def positions(messages: list[dict]) -> list[str]:
    return [each["position"] for each in messages]


def test_a_subscriber_gets_what_matches_in_order_with_the_events_as_published(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x > 1")
            events = [event(i, {"x": i}) for i in range(4)]
            await r.publish(*events)
            await r.publish(event("more", {"x": 9}))
            r.pipeline.step()
            messages = await r.pull("a")
            assert positions(messages) == ["0-0-2", "0-0-3", "0-1-0"]
            assert [each["event"] for each in messages] == [events[2], events[3], event("more", {"x": 9})]
            assert await r.pull("a") == [], "leased"
            assert await r.ack("a", "0-0-2", "0-1-0") == "0-0-3"
            assert await r.ack("a", "0-0-3") == "0-2-0"

    run(work)


def test_a_new_subscription_begins_now_and_a_replaced_one_goes_on(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.publish(event(0, {"x": 1}))
            await r.subscribe("a", "data.x = 1")
            await r.publish(event(1, {"x": 1}))
            await r.subscribe("a", "data.x = 2")  # before anybody has read what the first filter found
            await r.publish(event(2, {"x": 1}), event(3, {"x": 2}))
            r.pipeline.step()
        async with running(tmp_path) as r:
            assert [each["event"]["id"] for each in await r.pull("a")] == ["1", "3"]
            many = {"subscriptions": [{"id": "a", "filter": "data.x = 3"}]}
            await r.client.post(SUBSCRIPTIONS, json=many)
            await r.ack("a", "0-1-0")
        async with running(tmp_path) as r:
            assert [each["event"]["id"] for each in await r.pull("a")] == ["3"]

    run(work)


def test_a_deleted_subscription_made_again_under_its_id_starts_afresh(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(event(1, {"x": 1}))
            await r.client.delete(f"{SUBSCRIPTIONS}/a")
            await r.subscribe("a", "data.x = 1")
            await r.publish(event(2, {"x": 1}))
            r.pipeline.step()
            assert [each["event"]["id"] for each in await r.pull("a")] == ["2"]

    run(work)


def test_after_a_restart_unacked_messages_come_again_and_acked_ones_never(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "EXISTS(data.x)")
            await r.publish(*(event(i, {"x": i}) for i in range(6)))
            r.pipeline.step()
            assert len(await r.pull("a")) == 6
            await r.ack("a", "0-0-0", "0-0-2", "0-0-5")
        async with running(tmp_path) as r:
            assert positions(await r.pull("a")) == ["0-0-1", "0-0-3", "0-0-4"]
            answer = await r.client.post(f"{SUBSCRIPTIONS}/a/ack", json={"up_to": "0-0-4"})
            assert answer.json() == {"cursor": "0-1-0"}
        async with running(tmp_path) as r:
            assert await r.pull("a") == []

    run(work)


def test_nack_and_the_deadline_bring_a_message_again(tmp_path):
    async def work() -> None:
        async with running(tmp_path, wait_max_s=2 * DEADLINE_S) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(event(1, {"x": 1}), event(2, {"x": 1}))
            r.pipeline.step()
            first, second = positions(await r.pull("a", ack_deadline_s=2 * DEADLINE_S))
            for position, deadline_s in ((second, 2 * DEADLINE_S), (first, 0.5)):
                nacked = await r.client.post(f"{SUBSCRIPTIONS}/a/nack", json={"positions": [position]})
                assert nacked.json() == {"returned": 1}
                assert positions(await r.pull("a", max=1, ack_deadline_s=deadline_s)) == [position]
            # A pull that came back only at the end of its wait would be too late for this test.
            again = await r.pull("a", wait_s=2 * DEADLINE_S)
            assert positions(again) == [first], "its deadline has passed"

    run(work)


def test_a_pull_waits_until_something_matches_and_no_longer(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            start_s = time.monotonic()
            assert await r.pull("a", wait_s=0.1) == []
            assert 0.1 <= time.monotonic() - start_s < 10
            pulls = [asyncio.ensure_future(r.pull("a", wait_s=20, max=1)) for _ in range(2)]
            await r.publish(event(0, {"x": 0}))
            r.pipeline.step()
            await asyncio.sleep(0.03)
            assert not any(pull.done() for pull in pulls)
            await r.publish(event(1, {"x": 1}), event(2, {"x": 1}))
            r.pipeline.step()
            found = sorted(positions(await pulls[0]) + positions(await pulls[1]))
            assert found == ["0-1-0", "0-1-1"], "two who pull share the messages"

    run(work)


def test_a_pull_that_waits_ends_when_its_subscription_is_deleted(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            pull = asyncio.ensure_future(r.client.post(f"{SUBSCRIPTIONS}/a/pull", json={"wait_s": 10}))
            await until_async(lambda: r.gateway.deliveries._waiting)
            await r.client.delete(f"{SUBSCRIPTIONS}/a")
            problem(await pull, 404)

    run(work)


def test_acks_that_make_no_sense_are_refused_by_place(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(event(1, {"x": 1}))
            for body, pointer in [
                ({"positions": ["0-0-0", "nonsense"]}, "/positions/1"),
                ({"positions": ["1-0-0"]}, "/positions/0"),
                ({"up_to": "0-7-0"}, "/up_to"),
                ({"positions": 5}, "/positions"),
                ({}, None),
                ({"positions": [], "up_to": "0-0-0"}, None),
            ]:
                told = problem(await r.client.post(f"{SUBSCRIPTIONS}/a/ack", json=body), 400)
                assert told.get("pointer") == pointer
            problem(await r.client.post(f"{SUBSCRIPTIONS}/b/ack", json={"positions": []}), 404)
            problem(await r.client.post(f"{SUBSCRIPTIONS}/b/pull", json={}), 404)
            problem(await r.client.post(f"{SUBSCRIPTIONS}/a/pull", json={"max": 0}), 400)
            huge = {"positions": ["0-99999999999999999999999-0"]}
            problem(await r.client.post(f"{SUBSCRIPTIONS}/a/ack", json=huge), 400)

    run(work)


def test_a_cursor_moves_over_what_does_not_match_and_is_saved_without_an_ack(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            number = r.gateway.registry.revision()
            await r.subscribe("a", "data.x = 1")
            for i in range(3):
                await r.publish(event(i, {"x": 0}))
                r.pipeline.step()
            assert await r.pull("a") == []
            number = r.gateway.registry.get("default", "a").number
            await r.gateway.deliveries.save_progress()
            cursor = r.gateway.registry.load_cursors([number]).get(number)
            assert isinstance(cursor, Cursor) and str(cursor.positions[0]) == "0-3-0"

    run(work)


def test_many_records_and_blocks_are_read_on_from_wherever_a_subscriber_was(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("even", "data.even = TRUE")
            await r.subscribe("seventh", "data.seventh = TRUE")
            expected = {"even": [], "seventh": []}
            for batch in range(30):
                events = []
                for i in range(10):
                    n = batch * 10 + i
                    events.append(event(n, {"even": n % 2 == 0, "seventh": n % 7 == 0}))
                    for name, divisor in (("even", 2), ("seventh", 7)):
                        if n % divisor == 0:
                            expected[name].append(f"0-{batch}-{i}")
                await r.publish(*events)
                if batch % 4 == 3:
                    r.pipeline.step()
            r.pipeline.step()
            for name in expected:
                found: list[str] = []
                while messages := positions(await r.pull(name, max=7)):
                    found += messages
                    await r.ack(name, *messages)
                assert found == expected[name]
            r.gateway.match_log.compact(25)
        async with running(tmp_path) as r:
            assert await r.pull("even") == []

    run(work)


def test_retention_takes_old_events_and_a_late_subscriber_goes_on_with_what_is_left(tmp_path):
    async def work() -> None:
        async with running(tmp_path, retention_bytes=1 << 20) as r:
            await r.subscribe("a", "data.x = 1")
            for i in range(20):
                await r.publish(event(i, {"x": 1, "padding": "y" * 100_000}))
                if i < 18:
                    r.pipeline.step()
            held = await r.pull("a", max=1)
            await r.gateway.tail.catch_up()
            r.pipeline.beat()
            r.gateway.maintenance.round(0)
            start = r.gateway.log.start()
            assert 8 <= start <= 18, "what the pipeline has not matched stays"
            found = positions(await r.pull("a", max=100))
            assert found[-1] == "0-17-0"
            assert set(found) >= {f"0-{i}-0" for i in range(start, 18)}
            await r.ack("a", *positions(held), *found)
            r.pipeline.step()
            assert positions(await r.pull("a")) == ["0-18-0", "0-19-0"]
        async with running(tmp_path) as r:
            await r.subscribe("late", "data.x = 1")
            assert len(await r.pull("a")) == 2

    run(work)


def test_stats_tell_the_lag_and_the_latency(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(event(1, {"x": 1}), event(2, {"x": 2}))
            stats = (await r.client.get("/v1/stats")).json()
            assert (stats["log_end"], stats["matched_end"], stats["lag_events"]) == (1, 0, 2)
            r.pipeline.step()
            await r.pull("a")
            stats = (await r.client.get("/v1/stats")).json()
            assert (stats["matched_end"], stats["lag_events"]) == (1, 0)
            assert (stats["events_total"], stats["matches_total"], stats["delivered_total"]) == (2, 1, 1)
            assert stats["match_latency_ms"]["p50"] >= 0
            text = (await r.client.get("/metrics")).text
            for line in (
                "fieldfare_events_total 2.0",
                "fieldfare_matches_total 1.0",
                "fieldfare_deliveries_total 1.0",
                "fieldfare_lag_events 0.0",
            ):
                assert line in text
            await r.client.post(EVENTS, content=b"[{}]", headers={"content-type": "application/json"})
            assert 'route="publish",status="415"' in (await r.client.get("/metrics")).text

    run(work)
