"""The quota on bytes of matches on disk."""

from __future__ import annotations

from pathlib import Path

import httpx
from gateway_support import BATCH, EVENTS, SUBSCRIPTIONS, Running, event, run, running
from replay_support import ReplayPipeline
from test_space_quotas import refused, set_quotas
from test_space_quotas import used as used_of

NAME = "stored_match_bytes"


async def used(r: Running) -> int:
    """The bytes of the space, after maintenance has counted them."""
    r.gateway.maintenance.round(0.0)
    return await used_of(r, NAME)


async def matched(r: Running, *ids: str) -> None:
    await r.publish(*(event(id, {"x": 1}) for id in ids))
    r.pipeline.step()


async def begin(r: Running, id: str, start: str | None = None) -> httpx.Response:
    body = {"filter": "data.x = 1"} | ({"start": start} if start else {})
    return await r.client.put(f"{SUBSCRIPTIONS}/{id}", json=body)


def test_a_space_with_as_many_bytes_of_matches_as_it_may_publishes_no_more(tmp_path: Path) -> None:
    """Until retention has removed some; not even the body is read; existing matches are delivered."""

    async def work() -> None:
        async with running(tmp_path, retention_bytes=1 << 20) as r:
            await begin(r, "a")
            await matched(r, "1")
            assert await used_of(r, NAME) == 0, "counted every round"
            size = await used(r)
            assert size == r.gateway.match_log.size_bytes() > 0
            await r.publish(event("2", {"x": 1}))  # Let in before the bound was met, and matched after it.
            await set_quotas(r, stored_match_bytes=size)
            answer = await r.client.post(EVENTS, content=b"junk", headers=BATCH)
            assert refused(answer, 507, NAME, size)["used"] == size
            r.pipeline.step()
            assert await used(r) > size
            assert [each["event"]["id"] for each in await r.pull("a")] == ["1", "2"]
            await r.client.post("/v1/spaces", json={"name": "other"})
            await r.publish(event("3"), space="other")
            r.gateway.log.trim(2)
            assert await used(r) == 0
            await r.publish(event("4", {"x": 1}))

    run(work)


def test_no_subscription_begins_in_the_past_where_no_more_may_be_matched(tmp_path: Path) -> None:
    """Subscriptions that begin now need no matches of old events, and existing ones may be requested
    again."""

    async def work() -> None:
        async with running(tmp_path) as r:
            assert (await begin(r, "a", "earliest")).status_code == 201
            await matched(r, "1")
            size = await used(r)
            await set_quotas(r, stored_match_bytes=size)
            refused(await begin(r, "b", "earliest"), 507, NAME, size)
            body = {"id": "b", "filter": "data.x = 1", "start": "earliest"}
            refused(await r.client.post(SUBSCRIPTIONS, json=body), 507, NAME, size)
            assert (await begin(r, "b")).status_code == 201
            assert (await begin(r, "a", "earliest")).status_code == 200
            await set_quotas(r, stored_match_bytes=size + 1)
            assert (await begin(r, "c", "earliest")).status_code == 201

    run(work)


def test_what_began_in_the_past_has_its_matches_in_files_of_its_own(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await matched(r, "1", "2")
            assert await used(r) == 0, "no subscription matched"
            await begin(r, "a", "earliest")
            ReplayPipeline(r.gateway).finish()
            size = sum(path.stat().st_size for path in (tmp_path / "pasts").rglob("*.arrow"))
            assert await used(r) == size > 0
        async with running(tmp_path) as r:
            assert await used(r) == size
            await r.client.delete(f"{SUBSCRIPTIONS}/a")
            assert await used(r) == 0

    run(work)


def test_matches_are_counted_for_their_space_and_again_after_a_restart(tmp_path: Path) -> None:
    """Events of two spaces are matched together, into one file."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "other"})
            for space in ("default", "other"):
                url = f"/v1/spaces/{space}/subscriptions/a"
                await r.client.put(url, json={"filter": "data.x = 1"})
            await r.publish(event("1", {"x": 1}), space="other")
            await matched(r, "2", "3", "4")
            size, whole = await used(r), r.gateway.match_log.size_bytes()
            assert size == whole * 3 // 4
            assert r.gateway.quotas.used("other").stored_match_bytes == whole // 4
        async with running(tmp_path) as r:
            assert await used_of(r, NAME) == size

    run(work)


def test_a_space_made_anew_has_none_of_the_old_ones_matches(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            for count in (1, 0):
                await r.client.post("/v1/spaces", json={"name": "market"})
                quotas = "/v1/spaces/market/quotas"
                if count:
                    await r.client.put("/v1/spaces/market/subscriptions/a", json={"filter": "data.x = 1"})
                    await r.publish(event("1", {"x": 1}), space="market")
                    r.pipeline.step()
                r.gateway.maintenance.round(0.0)
                assert bool((await r.client.get(quotas)).json()["used"][NAME]) == bool(count)
                await r.client.delete("/v1/spaces/market")

    run(work)
