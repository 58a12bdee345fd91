"""Operations that wait in the middle, and are overtaken by others meanwhile."""

from __future__ import annotations

import asyncio
import threading

from gateway_support import SUBSCRIPTIONS, event, run, running, until_async

from fieldfare.delivery import partition_delivery
from fieldfare.gateway import subscriptions
from fieldfare.gateway.admission.request_guard import HEADERS
from fieldfare.gateway.delivery import service


def held_up(monkeypatch, registry):
    """Saved cursors wait until they are let through."""
    through, begun = threading.Event(), threading.Semaphore(0)
    save = registry.save_cursors

    def save_later(cursors, now_ms):
        begun.release()
        assert through.wait(60)
        save(cursors, now_ms)

    monkeypatch.setattr(registry, "save_cursors", save_later)
    return begun, through


def test_one_of_many_that_is_deleted_while_they_are_taken_in_stays_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(subscriptions, "HELD_BATCH_SIZE", 2)

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("s9", "data.x = 0")
            many = {"subscriptions": [{"id": f"s{n}", "filter": "data.x = 1"} for n in range(10)]}
            # Both wait for the registry's thread, so they are answered together.
            begun, through = threading.Event(), threading.Event()

            def block(ends):
                begun.set()
                assert through.wait(60)

            blocked = asyncio.ensure_future(r.gateway.writer.change(block))
            await until_async(begun.is_set)
            bulk = asyncio.ensure_future(r.client.post(SUBSCRIPTIONS, json=many))
            await until_async(lambda: r.gateway.writer._changes._queue.qsize() == 1)
            gone = asyncio.ensure_future(r.client.delete(f"{SUBSCRIPTIONS}/s8"))
            other = asyncio.ensure_future(r.client.put(f"{SUBSCRIPTIONS}/s9", json={"filter": "data.x = 2"}))
            await until_async(lambda: r.gateway.writer._changes._queue.qsize() == 3)
            through.set()
            await blocked
            assert (await bulk).status_code == 200
            assert (await gone).status_code == 204
            assert (await other).status_code == 200
            assert (await r.client.get(f"{SUBSCRIPTIONS}/s8")).status_code == 404
            assert (await r.client.get(f"{SUBSCRIPTIONS}/s9")).json()["filter"] == "data.x = 2"
            assert (await r.client.get(f"{SUBSCRIPTIONS}/s7")).json()["filter"] == "data.x = 1"

    run(work)


def test_an_ack_is_not_saved_over_by_what_maintenance_knew_before(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "MARKED_BATCH_SIZE", 1)

    async def work() -> None:
        async with running(tmp_path) as r:
            for id in ("a", "b"):
                await r.subscribe(id, "data.x = 1")
            numbers = [r.gateway.registry.get("default", id).number for id in ("a", "b")]
            for id in ("a", "b"):
                await r.publish(event(id, {"x": 0}))
            await r.publish(*(event(n, {"x": 1}) for n in range(3)))
            r.pipeline.step()
            for id in ("a", "b"):
                assert len(await r.pull(id)) == 3
            assert len(r.gateway.deliveries.loaded) == 2
            assert not any(each.is_saved for each in r.gateway.deliveries.loaded.values())
            begun, through = held_up(monkeypatch, r.gateway.registry)
            progress = asyncio.ensure_future(r.gateway.deliveries.save_progress())
            await until_async(lambda: begun.acquire(blocking=False))
            acks = [asyncio.ensure_future(r.ack(id, "0-2-0")) for id in ("a", "b")]
            await until_async(lambda: r.gateway.writer._saves._queue.qsize() == 2)
            through.set()
            await progress
            assert await asyncio.gather(*acks) == ["0-2-1", "0-2-1"]
            for number in numbers:
                assert str(r.gateway.registry.load_cursors([number]).get(number).positions[0]) == "0-2-1"

    run(work)


def test_the_cursor_that_an_ack_answers_is_on_disk(tmp_path, monkeypatch):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(*(event(n, {"x": 1}) for n in range(3)))
            r.pipeline.step()
            assert len(await r.pull("a")) == 3
            begun, through = held_up(monkeypatch, r.gateway.registry)
            first = asyncio.ensure_future(r.ack("a", "0-0-0"))
            await until_async(lambda: begun.acquire(blocking=False))
            second = asyncio.ensure_future(r.ack("a", "0-0-1"))
            await until_async(lambda: r.gateway.writer._saves._queue.qsize() == 1)
            through.set()
            assert await asyncio.gather(first, second) == ["0-0-1", "0-0-2"]

    run(work)


def test_messages_settled_by_a_refused_ack_make_room_for_a_waiting_reader(tmp_path, monkeypatch):
    async def work() -> None:
        async with running(tmp_path, window_max=2) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(*(event(n, {"x": 1}) for n in range(6)))
            r.pipeline.step()
            given = [each["position"] for each in await r.pull("a", max=2)]
            waiting = asyncio.ensure_future(r.pull("a", wait_s=20, max=2))
            await until_async(lambda: r.gateway.deliveries._waiting)
            assert not waiting.done()
            monkeypatch.setattr(partition_delivery, "EARLY_MAX", 0)
            positions = [*given, "0-0-5"]
            answer = await r.client.post(f"{SUBSCRIPTIONS}/a/ack", json={"positions": positions})
            assert answer.status_code == 429
            found = await asyncio.wait_for(waiting, 15)
            assert [each["position"] for each in found] == ["0-0-2", "0-0-3"]

    run(work)


def test_a_stream_whose_head_waits_for_the_client_is_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "IDLE_FORGOTTEN_S", -1.0)

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            number = r.gateway.registry.get("default", "a").number
            route = next(
                each for each in r.routes if each.path.endswith("/stream") and "GET" in (each.methods or ())
            )
            may_send, gone = asyncio.Event(), asyncio.Event()
            sent = []

            async def receive():
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message):
                sent.append(message)
                await may_send.wait()

            scope = {
                "type": "http",
                "method": "GET",
                "path": f"{SUBSCRIPTIONS}/a/stream",
                "path_params": {"space": "default", "id": "a"},
                "query_string": b"",
                "headers": [(b"host", b"localhost")],
                HEADERS: {},
            }
            stream = asyncio.ensure_future(route.app(scope, receive, send))
            await until_async(lambda: sent)
            delivery = r.gateway.deliveries.loaded[number]
            await r.gateway.deliveries.save_progress()
            await r.pull("a")
            assert r.gateway.deliveries.loaded[number] is delivery
            gone.set()
            may_send.set()
            await stream
            assert r.gateway.deliveries.connected == 0

    run(work)


def test_a_delivery_is_not_forgotten_while_a_pull_waits_for_the_disk(tmp_path, monkeypatch):
    """Otherwise messages that only this pull got are skipped for the next reader of the subscription."""
    monkeypatch.setattr(service, "IDLE_FORGOTTEN_S", -1.0)

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            tail, look = r.gateway.tail, r.gateway.tail.read_subscription
            begun, through = asyncio.Event(), asyncio.Event()

            async def look_later(key, number, space):
                monkeypatch.setattr(tail, "read_subscription", look)
                begun.set()
                await through.wait()
                return await look(key, number, space)

            monkeypatch.setattr(tail, "read_subscription", look_later)
            slow = asyncio.ensure_future(r.pull("a", ack_deadline_s=60))
            await begun.wait()
            await r.gateway.deliveries.save_progress()
            assert await r.pull("a") == []
            await r.publish(event(1, {"x": 1}))
            r.pipeline.step()
            through.set()
            assert [each["position"] for each in await slow] == ["0-0-0"]
            assert await r.pull("a") == [], "it is leased"
            await until_async(lambda: r.gateway.deliveries._idle_s)
            assert len(r.gateway.deliveries._idle_s) == 1, "it may be forgotten from now on"

    run(work)


def test_a_space_may_be_created_while_a_thread_looks_for_the_name_of_another(tmp_path, monkeypatch):
    begun, through = threading.Event(), threading.Event()

    def nearest(name, others):
        rest = iter(others)
        near = next(rest)
        begun.set()
        assert through.wait(60)
        return min((near, *rest))

    async def work() -> None:
        async with running(tmp_path) as r:
            monkeypatch.setattr(subscriptions, "nearest", nearest)
            body = {"filter": "data.x = 1", "space": "no"}
            explained = asyncio.ensure_future(r.client.post("/v1/filters:explain", json=body))
            await until_async(begun.is_set)
            assert (await r.client.post("/v1/spaces", json={"name": "more"})).status_code == 201
            through.set()
            assert (await explained).status_code == 404

    run(work)
