"""A deleted space is closed at once and removed automatically, and a later one of its name has none of its
data."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from gateway_support import BATCH, LINES, Running, encode, event, run, running, served, until, until_async
from test_keys import ADMIN, admin_file, bearer, locked, make
from test_publish_http import problem

from fieldfare.gateway import space_removal, subscriptions
from fieldfare.storage import open_registry
from fieldfare.storage.errors import RegistryError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import QuarantinedRecord

SPACE = "/v1/spaces/market"
NUMBERED = BATCH | {"fieldfare-producer": "p", "fieldfare-sequence": "1"}


async def fill(r: Running) -> None:
    """Subscriptions, events with a producer, matches, a dead letter, quotas, a record that was set aside."""
    client = r.client
    assert (await client.post("/v1/spaces", json={"name": "market"})).status_code == 201
    for id in "abc":
        answer = await client.put(f"{SPACE}/subscriptions/{id}", json={"filter": "data.x = 1"})
        assert answer.status_code == 201
    body = encode([event("old", {"x": 1}), event("older", {"x": 1})])
    assert (await client.post(f"{SPACE}/events", content=body, headers=NUMBERED)).status_code == 200
    r.pipeline.step()
    messages = (await client.post(f"{SPACE}/subscriptions/a/pull", json={})).json()["messages"]
    ids = [message["position"] for message in messages]
    assert len(ids) == 2
    await client.post(f"{SPACE}/subscriptions/a/terminate", json={"positions": ids[:1]})
    assert (await client.put(f"{SPACE}/quotas", json={"subscriptions": 3})).status_code == 200
    r.gateway.quarantine.add(QuarantinedRecord(r.gateway.log.end() - 1, "market", 1, "odd", 5))


async def is_new(r: Running) -> None:
    """A space of the same name has nothing of the one before."""
    client = r.client
    assert (await client.post("/v1/spaces", json={"name": "market"})).status_code == 201
    assert (await client.get(f"{SPACE}/subscriptions")).json()["subscriptions"] == []
    quotas = (await client.get(f"{SPACE}/quotas")).json()
    assert quotas["set"] == {} and set(quotas["used"].values()) == {0}
    explained = await client.post("/v1/filters:explain", json={"filter": "data.x = 1", "space": "market"})
    assert explained.json()["sample"]["events"] == 0
    problem(await client.post("/v1/quarantine/0-0-0/retry"), 404)
    made = (await client.put(f"{SPACE}/subscriptions/a", json={"filter": "data.x = 1"})).json()
    assert made["space"] == "market"
    assert (await client.post(f"{SPACE}/subscriptions/a/seek", json={"to": "earliest"})).status_code == 200
    body = encode([event("new", {"x": 1})])
    answer = await client.post(f"{SPACE}/events", content=body, headers=NUMBERED)
    assert answer.status_code == 200 and not answer.json()["duplicate"]
    r.pipeline.step()
    messages = (await client.post(f"{SPACE}/subscriptions/a/pull", json={})).json()["messages"]
    assert [message["event"]["id"] for message in messages] == ["new"]
    assert (await client.get(f"{SPACE}/subscriptions/a/dead-letters")).json()["total"] == 0
    told = problem(await client.post(f"{SPACE}/events", content=encode([event("x")]), headers=NUMBERED), 409)
    assert "'market'" in told["detail"] and "#" not in told["detail"]
    for method, path in (("GET", "subscriptions/z"), ("DELETE", "subscriptions/z")):
        assert "#" not in (await client.request(method, f"{SPACE}/{path}")).text
    listed = (await client.get(f"{SPACE}/subscriptions")).json()["subscriptions"]
    assert [each["space"] for each in listed] == ["market"]


def test_nothing_of_a_space_is_left_and_one_of_its_name_is_another(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await fill(r)
            assert (await r.client.delete(SPACE)).status_code == 204
            problem(await r.client.delete(SPACE), 404)
            assert (await r.client.get("/v1/spaces")).json()["spaces"] == [{"name": "default"}]
            for method, path in (
                ("GET", "subscriptions"),
                ("GET", "subscriptions/a"),
                ("PUT", "subscriptions/a"),
                ("POST", "events"),
                ("POST", "subscriptions/a/pull"),
                ("GET", "quotas"),
                ("PUT", "quotas"),
            ):
                content = b"{}" if path != "events" else b""
                answer = await r.client.request(method, f"{SPACE}/{path}", content=content)
                assert problem(answer, 404)["type"].endswith("unknown-space"), path
            assert r.gateway.registry.count() == 0 == r.gateway.subscriptions.count
            await is_new(r)
        async with running(tmp_path) as r:
            assert (await r.client.get(f"{SPACE}/subscriptions/a")).status_code == 200
            assert (await r.client.delete(SPACE)).status_code == 204
        async with running(tmp_path) as r:
            await is_new(r)

    run(work)


def test_the_default_space_stays(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            told = problem(await r.client.delete("/v1/spaces/default"), 409)
            assert told["type"].endswith("default-space")
            assert (await r.client.get("/v1/spaces/default/subscriptions/a")).status_code == 200
            problem(await r.client.delete("/v1/spaces/nowhere"), 404)

    run(work)


def test_keys_of_a_space_end_with_it_also_over_a_restart(tmp_path):
    async def work() -> None:
        async with locked(tmp_path) as r:
            await fill(r)
            manager = await make(r, "market", "manage", "publish", "subscribe")
            listed = (await r.client.get("/v1/quarantine", headers=bearer(manager))).json()["quarantine"]
            assert [each["space"] for each in listed] == ["market"]
            other = await make(r, "default", "publish")
            problem(await r.client.delete(SPACE, headers=bearer(manager)), 403)
            problem(await r.client.delete(SPACE, headers=bearer(other)), 404)
            assert (await r.client.delete(SPACE)).status_code == 204
            problem(await r.client.get(f"{SPACE}/subscriptions", headers=bearer(manager)), 401)
            await r.client.post("/v1/spaces", json={"name": "market"})
            problem(await r.client.get(f"{SPACE}/subscriptions", headers=bearer(manager)), 401)
            heir = bearer(await make(r, "market", "manage"))
            assert not (await r.client.get("/v1/quarantine", headers=heir)).json()["quarantine"]
            problem(await r.client.post("/v1/quarantine/0-0-0/retry", headers=heir), 404)
            await r.client.delete(SPACE)
            assert [key["space"] for key in (await r.client.get("/v1/keys")).json()["keys"]] == ["default"]
        async with locked(tmp_path) as r:
            problem(await r.client.get(f"{SPACE}/subscriptions", headers=bearer(manager)), 401)
            assert (await r.client.get("/v1/spaces", headers=bearer(other))).status_code == 200

    run(work)


def test_a_key_that_is_made_at_the_same_time_is_not_one_for_the_next_space(tmp_path):
    async def work() -> None:
        async with locked(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "market"})
            body = {"space": "market", "rights": ["subscribe"]}
            creations = [r.client.post("/v1/keys", json=body) for _ in range(5)]
            more = [r.client.post("/v1/keys", json=body) for _ in range(5)]
            answers = await asyncio.gather(*creations, r.client.delete(SPACE), *more)
            assert answers[5].status_code == 204
            await r.client.post("/v1/spaces", json={"name": "market"})
            for answer in answers[:5] + answers[6:]:
                assert answer.status_code in (201, 404)
                if answer.status_code == 201:
                    listed = await r.client.get(
                        f"{SPACE}/subscriptions", headers=bearer(answer.json()["key"])
                    )
                    problem(listed, 401)
            assert r.gateway._keys.keys() == [] and r.gateway._keys.has_any()

    run(work)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_kill_while_a_space_is_removed_leaves_the_rest_to_the_next_gateway(tmp_path, monkeypatch, steps):
    """It is closed from its first step on; the rest is removed automatically, even if a new one of its name
    exists."""
    monkeypatch.setattr(subscriptions, "REMOVED_BATCH_SIZE", 1)

    async def work() -> None:
        async with running(tmp_path) as r:
            await fill(r)
            done = 0
            remove_some = r.gateway.subscriptions.remove_some

            async def killed(key: str) -> list[int]:
                nonlocal done
                if done == steps:
                    raise space_removal.WriterClosed
                done += 1
                return list(await remove_some(key))

            monkeypatch.setattr(r.gateway.subscriptions, "remove_some", killed)
            assert (await r.client.delete(SPACE)).status_code == 204
            assert r.gateway.registry.count() == 3 - steps
            assert (await r.client.post("/v1/spaces", json={"name": "market"})).status_code == 201
            await r.client.put(f"{SPACE}/subscriptions/mine", json={"filter": "data.x = 2"})
        async with running(tmp_path) as r:
            await until_async(lambda: not r.gateway.registry.unfinished_spaces())
            assert r.gateway.registry.count() == 1 == r.gateway.subscriptions.count
            assert (await r.client.get(f"{SPACE}/subscriptions/mine")).status_code == 200

    run(work)


def test_a_kill_before_the_first_step_leaves_the_space_there(tmp_path, monkeypatch):
    async def work() -> None:
        async with running(tmp_path) as r:
            await fill(r)

            def fails(name: str, now_ms: int) -> str:
                raise RegistryError("the disk is gone")

            monkeypatch.setattr(r.gateway.registry, "delete_space", fails)
            problem(await r.client.delete(SPACE), 503)
            assert (await r.client.get(f"{SPACE}/subscriptions/a")).status_code == 200
        async with running(tmp_path) as r:
            assert len((await r.client.get(f"{SPACE}/subscriptions")).json()["subscriptions"]) == 3

    run(work)


def test_what_cannot_be_removed_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(space_removal, "AGAIN_S", 0.01)

    async def work() -> None:
        async with running(tmp_path) as r:
            await fill(r)
            apply, failures = r.gateway.registry.apply, [RegistryError("full")] * 3

            def sometimes(*arguments: Any) -> Any:
                if failures:
                    raise failures.pop()
                return apply(*arguments)

            monkeypatch.setattr(r.gateway.registry, "apply", sometimes)
            assert (await r.client.delete(SPACE)).status_code == 204
            assert not failures and r.gateway.registry.count() == 0

    run(work)


def test_what_comes_at_the_same_time_is_of_the_old_space_or_refused(tmp_path):
    """Nothing that is asked for while a space goes is found in the one that is made after it."""

    async def work() -> None:
        async with running(tmp_path) as r:
            for _ in range(5):
                await r.client.post("/v1/spaces", json={"name": "market"})
                puts = [
                    r.client.put(f"{SPACE}/subscriptions/s{n}", json={"filter": "data.x = 1"})
                    for n in range(20)
                ]
                events = [
                    r.client.post(f"{SPACE}/events", content=encode(event(n)) + b"\n", headers=LINES)
                    for n in range(20)
                ]
                quotas = r.client.put(f"{SPACE}/quotas", json={"subscriptions": 7})
                answers = await asyncio.gather(
                    *puts[:10], *events[:10], r.client.delete(SPACE), *puts[10:], *events[10:], quotas
                )
                assert {answer.status_code for answer in answers} <= {200, 201, 204, 404}
                assert (await r.client.post("/v1/spaces", json={"name": "market"})).status_code == 201
                assert not (await r.client.get(f"{SPACE}/subscriptions")).json()["subscriptions"]
                told = (await r.client.get(f"{SPACE}/quotas")).json()
                assert told["set"] == {} and set(told["used"].values()) == {0}
                await r.client.delete(SPACE)
            assert r.gateway.registry.count() == 0 == r.gateway.subscriptions.count

    run(work)


@pytest.mark.long
@pytest.mark.parametrize("with_keys", [False, True])
def test_what_is_open_in_a_space_ends_with_it(tmp_path, with_keys):
    settings = {"admin_key_file": admin_file(tmp_path)} if with_keys else {}
    with served(tmp_path / "data", **settings) as (gateway, client):
        client.headers.update(bearer(ADMIN))
        client.post("/v1/spaces", json={"name": "market"})
        for space in ("market", "default"):
            client.put(f"/v1/spaces/{space}/subscriptions/a", json={"filter": "data.x = 1"})
        key = (
            client.post("/v1/keys", json={"space": "market", "rights": ["subscribe"]}) if with_keys else None
        )
        headers = bearer(key.json()["key"]) if key is not None else {}
        ended: dict[str, Any] = {}

        def follow(space: str) -> None:
            path = f"/v1/spaces/{space}/subscriptions/a/stream"
            with client.stream("GET", path, headers=headers if space == "market" else {}) as response:
                ended[space] = b"".join(response.iter_raw())

        def pull() -> None:
            path = f"{SPACE}/subscriptions/a/pull"
            ended["pull"] = client.post(path, json={"wait_s": 60}, headers=headers).status_code

        work = [(follow, ("market",)), (follow, ("default",)), (pull, ())]
        threads = [threading.Thread(target=target, args=args) for target, args in work]
        for thread in threads:
            thread.start()
        until(lambda: gateway.deliveries.connected == 2 and len(gateway.deliveries._waiting) == 2)
        until(lambda: gateway.quotas.used("market").connections == 2)
        assert client.delete(SPACE).status_code == 204
        until(lambda: "market" in ended and "pull" in ended)
        assert ended["pull"] in ((200, 404) if with_keys else (404,))
        assert gateway.deliveries.connected == 1 and "default" not in ended
        client.delete("/v1/spaces/default/subscriptions/a")
        for thread in threads:
            thread.join()


def test_deleting_many_subscriptions_delays_no_other_space(tmp_path):
    """They are removed some hundred at a time; in between other spaces change theirs."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "market"})
            many = [{"id": f"s{n}", "filter": f"data.x = {n}"} for n in range(3_000)]
            told = await r.client.post(f"{SPACE}/subscriptions", json={"subscriptions": many})
            assert told.json()["created"] == 3_000
            deleting = asyncio.ensure_future(r.client.delete(SPACE))
            await until_async(lambda: not r.gateway.subscriptions.is_there("market"))
            await r.subscribe("a", "data.x = 1")
            assert not deleting.done()
            assert (await deleting).status_code == 204
            assert open_registry(DataFolder(Path(tmp_path)).registry_url).count() == 1

    run(work)


def test_what_a_space_advertises_is_forgotten_before_the_deletion_is_done():
    """A kill in between left it to another space of the name; and it was forgotten after some time only."""
    steps = []

    class Space:
        def unfinished_spaces(self):
            return []

        async def delete_space(self, name):
            return name

        async def cancel_some(self, key):
            return 0

        async def remove_some(self, key):
            steps.append("removed")
            return [1] if len(steps) < 4 else []

        def end_space(self, name): ...

        def deleted(self, number): ...

    async def forget(key):
        steps.append(f"{key} forgotten")

    async def work():
        space = Space()
        space.changing = asyncio.Lock()
        removal = space_removal.SpaceRemoval(space, space, space, space, space, forget)
        await removal.delete("market")

    asyncio.run(work())
    assert steps == ["market forgotten", "removed", "removed", "removed"]
