"""Attempts to evade access control: using revoked keys, and making changes that are not logged."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator

from gateway_support import STRUCTURED, encode, event, run
from test_keys import bearer, id_of, locked, make, set_up
from test_publish_http import problem

from fieldfare.gateway.admission import keyring as keyring_module

MINE = "/v1/spaces/mine"


def test_a_slow_body_is_refused_after_its_key_was_revoked(tmp_path):
    async def work() -> None:
        async with locked(tmp_path) as r:
            await set_up(r, "mine")
            key = await make(r, "mine", "publish", "subscribe")
            end = r.gateway.log.end()
            subscriptions = f"{MINE}/subscriptions"
            for method, path, body, headers in (
                ("POST", f"{MINE}/events", encode(event(2)), STRUCTURED),
                ("PUT", f"{subscriptions}/late", b'{"filter": "data.x = 2"}', {}),
                ("POST", f"{subscriptions}/wanted/seek", b'{"to": "latest"}', {}),
                ("POST", "/v1/filters:explain", b'{"filter": "a = 1", "space": "mine"}', {}),
            ):
                mine = await make(r, "mine", "publish", "subscribe")

                async def trickle(body: bytes = body, id: str = id_of(mine)) -> AsyncIterator[bytes]:
                    yield body[:5]
                    assert (await r.client.delete(f"/v1/keys/{id}")).status_code == 204
                    yield body[5:]

                sent = {"content-type": "application/json"} | headers | bearer(mine)
                problem(await r.client.request(method, path, content=trickle(), headers=sent), 401)
            assert r.gateway.log.end() == end
            listed = (await r.client.get(subscriptions, headers=bearer(key))).json()["subscriptions"]
            assert [each["id"] for each in listed] == ["wanted"]

    run(work)


def test_a_key_cannot_create_another_while_it_is_being_revoked(tmp_path, monkeypatch):
    async def work() -> None:
        async with locked(tmp_path) as r:
            await set_up(r, "mine")
            key = await make(r, "mine", "manage")
            other = id_of(await make(r, "mine", "subscribe"))
            keyring = r.gateway.keyring
            begun, through = threading.Event(), threading.Event()
            revoke = keyring._store.revoke

            def slowly(id: str, now_ms: int) -> None:
                begun.set()
                assert through.wait(60)
                revoke(id, now_ms)

            monkeypatch.setattr(keyring._store, "revoke", slowly)
            end = asyncio.create_task(r.client.delete(f"/v1/keys/{id_of(key)}"))
            assert await asyncio.to_thread(begun.wait, 60)
            body = {"space": "mine", "rights": ["subscribe"]}
            heir = asyncio.create_task(r.client.post("/v1/keys", json=body, headers=bearer(key)))
            theft = asyncio.create_task(r.client.delete(f"/v1/keys/{other}", headers=bearer(key)))
            while len(keyring.changing._waiters or ()) < 2:
                await asyncio.sleep(0)
            through.set()
            assert (await end).status_code == 204
            problem(await heir, 401)
            problem(await theft, 401)
            assert other in {each["id"] for each in (await r.client.get("/v1/keys")).json()["keys"]}

    run(work)


def test_no_name_of_a_subscription_hides_a_change_of_it_from_the_audit_log(tmp_path):
    names = ("ack", "nack", "pull", "stream", "events", "a:test", "b:check", "extend", "terminate")

    async def work() -> None:
        async with locked(tmp_path) as r:
            await set_up(r, "mine")
            key = bearer(await make(r, "mine", "subscribe"))
            for name in names:
                path = f"{MINE}/subscriptions/{name}"
                await r.client.put(path, json={"filter": "a = 1"}, headers=key)
                await r.client.patch(path, json={"delivery": {"paused": True}}, headers=key)
                for verb in ("pull", "ack", "nack", "extend", "terminate"):
                    await r.client.post(f"{path}/{verb}", json={"positions": []}, headers=key)
                await r.client.post(f"{path}/seek", json={"to": "latest"}, headers=key)
                await r.client.delete(path, headers=key)
        lines = [json.loads(line) for line in (tmp_path / "data/logs/audit.log").read_text().splitlines()]
        told = [(each["method"], each["path"].removeprefix(f"{MINE}/subscriptions/")) for each in lines[3:]]
        assert told == [
            (method, name + more)
            for name in names
            for method, more in (("PUT", ""), ("PATCH", ""), ("POST", "/seek"), ("DELETE", ""))
        ]

    run(work)


def test_one_space_cannot_use_up_all_keys_of_the_service(tmp_path, monkeypatch):
    monkeypatch.setattr(keyring_module, "KEYS_OF_SPACE_MAX", 3)

    async def work() -> None:
        async with locked(tmp_path) as r:
            await set_up(r, "mine")
            manager = await make(r, "mine", "manage")
            mine = [await make(r, "mine", "subscribe", by=manager) for _ in range(2)]
            body = {"space": "mine", "rights": ["subscribe"]}
            refused = await r.client.post("/v1/keys", json=body, headers=bearer(manager))
            assert "of this space" in problem(refused, 409)["detail"]
            await make(r, "default", "subscribe")
            await make(r, None, "watch")
            await r.client.delete(f"/v1/keys/{id_of(mine[0])}", headers=bearer(manager))
            await make(r, "mine", "subscribe", by=manager)

    run(work)
