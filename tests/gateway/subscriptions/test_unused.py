"""Subscriptions that are unused for as long as their settings say are removed, and no others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from gateway_support import SUBSCRIPTIONS, Running, event, run, running, until_async
from receiver_support import LOOPBACK, is_broken, receiving

HOUR_S = 3_600.0


async def subscribe(r: Running, id: str, filter: str = "data.x = 1", **delivery: Any) -> None:
    made = {"filter": filter, "delivery": delivery}
    assert (await r.client.put(f"{SUBSCRIPTIONS}/{id}", json=made)).status_code == 201


async def unused_s(r: Running, id: str) -> float | None:
    """The time for which a subscription was unused; None if it was removed."""
    answer = await r.client.get(f"{SUBSCRIPTIONS}/{id}")
    return float(answer.json()["unused_s"]) if answer.status_code == 200 else None


def test_an_unused_subscription_is_removed_and_the_audit_log_has_the_reason(tmp_path: Path) -> None:
    """A test run creates a subscription and is killed, so the subscription is never deleted by hand."""

    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await subscribe(r, "forgotten", expires_unused_s=HOUR_S)
            await subscribe(r, "read", expires_unused_s=HOUR_S)
            await subscribe(r, "stays")
            for _ in range(3):
                await r.gateway.unused.round(HOUR_S / 4)
                assert await r.pull("read") == []
            assert await unused_s(r, "forgotten") == 0.75 * HOUR_S
            assert await unused_s(r, "read") == 0
            await r.gateway.unused.round(HOUR_S / 4)
            assert await unused_s(r, "forgotten") is None and await unused_s(r, "read") == 0
            assert "unused_s" not in (await r.client.get(f"{SUBSCRIPTIONS}/stays")).json()
            assert r.gateway.subscriptions.count == 2
            assert "fieldfare_expired_subscriptions_total 1.0" in (await r.client.get("/metrics")).text
            path = r.gateway.settings.folder.audit_log
        [line] = [
            each for each in map(json.loads, path.read_text().splitlines()) if each["method"] == "DELETE"
        ]
        assert line["path"] == f"{SUBSCRIPTIONS}/forgotten" and line["key"] == ""
        assert line["because"] == "unused for 3600 s"

    run(work)


def test_settling_waiting_and_changing_count_as_use(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await subscribe(r, "a", expires_unused_s=HOUR_S)
            await r.publish(event(1, {"x": 1}), event(2, {"x": 1}))
            r.pipeline.step()
            first, second = await r.pull("a")
            uses = (
                lambda: r.ack("a", first["position"]),
                lambda: r.client.post(f"{SUBSCRIPTIONS}/a/nack", json={"positions": [second["position"]]}),
                lambda: r.client.post(f"{SUBSCRIPTIONS}/a/seek", json={"to": "latest"}),
                lambda: r.client.patch(f"{SUBSCRIPTIONS}/a", json={"delivery": {"max_attempts": 7}}),
                lambda: r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 2"}),
            )
            for use in uses:
                await r.gateway.unused.round(0.9 * HOUR_S)
                await use()
            await r.gateway.unused.round(0.9 * HOUR_S)
            waiting = asyncio.ensure_future(r.pull("a", wait_s=30))
            await until_async(lambda: r.gateway.deliveries.is_read(1))
            for _ in range(5):
                await r.gateway.unused.round(0.9 * HOUR_S)
            waiting.cancel()
            assert await unused_s(r, "a") == 0

    run(work)


def test_a_pulled_message_counts_as_use_until_its_deadline(tmp_path: Path) -> None:
    """A nightly job pulls one message, processes it for hours, and sends nothing until it is done."""

    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            for id in ("works", "gone"):
                await subscribe(r, id, expires_unused_s=600)
            await r.publish(event(1, {"x": 1}))
            r.pipeline.step()
            assert len(await r.pull("works", ack_deadline_s=3 * HOUR_S)) == 1
            [given] = await r.pull("gone", ack_deadline_s=1_000)
            body = {"positions": [given["position"]], "ack_deadline_s": 2_000}
            assert (await r.client.post(f"{SUBSCRIPTIONS}/gone/extend", json=body)).status_code == 200
            for _ in range(20):
                await r.gateway.unused.round(100)
                assert await unused_s(r, "gone") == 0
            for _ in range(6):
                await r.gateway.unused.round(100)
            assert await unused_s(r, "gone") is None, "its deadline has passed, and ten minutes more"
            for _ in range(82):
                await r.gateway.unused.round(100)
            await r.gateway.unused.round(500)
            assert await unused_s(r, "works") == 500
            await r.gateway.unused.round(100)
            assert await unused_s(r, "works") is None

    run(work)


def test_what_a_person_paused_stays_and_what_loses_the_setting_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await subscribe(r, "paused", expires_unused_s=60, paused=True)
            await subscribe(r, "kept", expires_unused_s=60)
            await r.client.patch(f"{SUBSCRIPTIONS}/kept", json={"delivery": {"expires_unused_s": None}})
            await r.gateway.unused.round(1_000)
            assert await unused_s(r, "paused") == 0
            assert (await r.client.get(f"{SUBSCRIPTIONS}/kept")).status_code == 200
            await r.client.patch(f"{SUBSCRIPTIONS}/paused", json={"delivery": {"paused": False}})
            await r.gateway.unused.round(61)
            assert await unused_s(r, "paused") is None

    run(work)


def test_a_start_goes_on_from_what_was_noted_and_readers_have_a_time_to_come_back(tmp_path: Path) -> None:
    """A service that was down for a week could not be read meanwhile."""

    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            for id in ("half", "nearly", "again"):
                await subscribe(r, id, expires_unused_s=10 * HOUR_S)
            for hour in range(10):
                await r.gateway.unused.round(0.99 * HOUR_S)
                if hour == 4:
                    await r.pull("half")
            await r.pull("again")
            await r.gateway.unused.round(1)
            noted = {each.id: seconds for each, seconds in r.gateway.registry.expiring()}
            assert noted["again"] == 0, "noted at once: a kill must not have it expire early"
            assert 3.4 * HOUR_S < noted["half"] <= 4 * HOUR_S
        async with running(tmp_path, maintenance_s=1e6) as r:
            assert await unused_s(r, "nearly") == 10 * HOUR_S - 600
            await r.gateway.unused.round(599)
            assert await unused_s(r, "nearly") is not None
            await r.gateway.unused.round(1)
            assert await unused_s(r, "nearly") is None
            assert await unused_s(r, "half") == noted["half"] + 600
            await r.gateway.unused.round(10 * HOUR_S - noted["half"] - 600)
            assert await unused_s(r, "half") is None and await unused_s(r, "again") is not None

    run(work)


def test_a_pushed_subscription_expires_when_its_receiver_is_gone_and_not_for_want_of_events(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, maintenance_s=1e6, **LOOPBACK) as r:
                await subscribe(r, "a", push={"url": receiver.url}, expires_unused_s=HOUR_S)
                await until_async(lambda: r.gateway.deliveries.is_read(1))
                for _ in range(3):
                    await r.gateway.unused.round(HOUR_S / 2)
                assert await unused_s(r, "a") == 0, "there was nothing to send"
                await r.publish(event(1, {"x": 1}))
                r.pipeline.step()
                await until_async(lambda: receiver.ids == ["1"])
                gone = "http://127.0.0.1:9/"
                await r.client.patch(f"{SUBSCRIPTIONS}/a", json={"delivery": {"push": {"url": gone}}})
                await r.publish(event(2, {"x": 1}))
                r.pipeline.step()
                await until_async(lambda: is_broken(r))
                await r.gateway.unused.round(HOUR_S / 2)
                assert await unused_s(r, "a") == HOUR_S / 2
                assert await r.pull("a", wait_s=0) is not None
                await r.gateway.unused.round(HOUR_S / 2)
                assert await unused_s(r, "a") == 0, "a reader fetched instead"
                await r.gateway.unused.round(HOUR_S)
                assert await unused_s(r, "a") is None

    run(work)


def test_one_that_is_changed_while_it_is_removed_stays(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, maintenance_s=1e6) as r:
            await subscribe(r, "a", expires_unused_s=60)
            stood = await r.gateway.subscriptions.get("default", "a")
            await r.client.patch(f"{SUBSCRIPTIONS}/a", json={"delivery": {"expires_unused_s": 90}})
            assert await r.gateway.subscriptions.remove_unused(stood) is None
            assert await unused_s(r, "a") == 0

    run(work)


def test_a_subscription_that_is_created_alone_by_post_expires(tmp_path: Path) -> None:
    """It was not watched, nor pushed to, until its settings were changed or the gateway started again."""

    async def work() -> None:
        async with running(tmp_path) as r:
            settings = {"id": "a", "filter": "data.x = 1", "delivery": {"expires_unused_s": HOUR_S}}
            assert (await r.client.post(SUBSCRIPTIONS, json=settings)).status_code == 201
            assert "unused_s" in (await r.client.get(f"{SUBSCRIPTIONS}/a")).json()

    run(work)
