"""A space learns nothing about another: not from a status, body, header, socket or statistic of any route."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from gateway_support import Running, encode, event, pauses, run, served
from test_keys import ADMIN, OPEN, admin_file, ask, bearer, id_of, locked, make, requests, set_up
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import Quarantine, QuarantinedRecord

THEIRS, MISSING = "theirs", "absent"
"""Two spaces whose names are equally long, so that all headers can be compared."""
NO_KEY = "0" * 12
FIGURES = ("/v1/stats", "/v1/backlogs", "/v1/pipeline", "/metrics")
"""Figures of the whole service: only callers with the right to watch may read them."""

Told = tuple[int, dict[str, str], str]


def told(answer: httpx.Response, *names: tuple[str, str]) -> Told:
    """An answer's complete content, with the names of one space and its objects replaced by those of
    another."""
    text = answer.text
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    for one, other in names:
        text = text.replace(one, other)
        headers = {name: value.replace(one, other) for name, value in headers.items()}
    text, ages = re.subn(r'"oldest_s":[0-9.]+', '"oldest_s":0', text)  # the age of a backlog grows
    if ages:
        headers.pop("content-length", None)
    return answer.status_code, headers, text


async def fill(r: Running, space: str) -> str:
    """Create everything that a space can have; return the id of one of its keys."""
    await set_up(r, space)
    many = [{"id": f"s{n}", "filter": f"data.secret = {n}"} for n in range(30)]
    await r.client.post(f"/v1/spaces/{space}/subscriptions", json={"subscriptions": many})
    await r.client.put(f"/v1/spaces/{space}/quotas", json={"subscriptions": 31, "stored_event_bytes": 1})
    wanted = f"/v1/spaces/{space}/subscriptions/wanted"
    messages = (await r.client.post(f"{wanted}/pull", json={})).json()["messages"]
    ids = [message["position"] for message in messages]
    await r.client.post(f"{wanted}/terminate", json={"positions": ids, "reason": "secret"})
    offset = r.gateway.log.end() - 1
    Quarantine(DataFolder(r.gateway.settings.data).quarantine).add(
        QuarantinedRecord(offset, space, 1, "secret", 1)
    )
    return id_of(await make(r, space, "publish", "subscribe", "manage"))


def test_a_foreign_space_is_answered_like_a_missing_one(tmp_path):
    """Word for word, header for header; also one that was deleted."""

    async def work() -> None:
        async with locked(tmp_path) as r:
            theirs = await fill(r, THEIRS)
            await set_up(r, "mine")
            keys = [
                await make(r, "mine", "publish", "subscribe", "manage"),
                await make(r, "mine", "publish"),
                await make(r, "mine", "manage"),
                await make(r, None, "watch"),
            ]
            names = ((THEIRS, MISSING), ("0-0-0", "7-7-0"), (theirs, NO_KEY))
            one = requests(THEIRS, "wanted", "0-0-0", theirs)
            other = requests(MISSING, "wanted", "7-7-0", NO_KEY)
            for is_deleted in (False, True):
                if is_deleted:
                    assert (await r.client.delete(f"/v1/spaces/{THEIRS}")).status_code == 204
                for key in keys:
                    for asked, same in zip(one, other, strict=True):
                        if asked[1] in (*FIGURES, *OPEN):
                            continue
                        answer = await ask(r, asked, key)
                        assert told(answer, *names) == told(await ask(r, same, key)), (asked, is_deleted)
                        if f"/{THEIRS}" in asked[1]:
                            assert answer.status_code == 404, asked
                        assert "secret" not in answer.text

    run(work)


def test_answers_for_one_space_do_not_depend_on_another(tmp_path):
    """Its lists, quotas, statistics, explanations and errors do not depend on other spaces."""

    async def work() -> None:
        async with locked(tmp_path) as r:
            await set_up(r, "mine")
            keys = [await make(r, "mine", right) for right in ("publish", "subscribe", "manage")]
            asked = [
                each
                for each in requests("mine", "wanted", "0-0-0", NO_KEY)
                if (each[0] == "GET" or each[1].startswith("/v1/filters")) and not each[1].endswith("/stream")
            ]
            asked += [("GET", "/v1/spaces/mine/subscriptions/want", b"", {}), ("GET", "/v1/nothing", b"", {})]
            asked.append(("PUT", "/v1/spaces/mine/quotas", b"{}", {"content-type": "application/json"}))
            # That there is no event yet was noted for a second when the subscription was created.
            for _ in pauses():
                if (await r.client.get("/v1/spaces/mine/attributes")).json()["events"]:
                    break
                await asyncio.sleep(0.05)
            before = [told(await ask(r, each, key)) for key in keys for each in asked]
            await fill(r, THEIRS)
            assert [told(await ask(r, each, key)) for key in keys for each in asked] == before
            await r.client.delete(f"/v1/spaces/{THEIRS}")
            assert [told(await ask(r, each, key)) for key in keys for each in asked] == before

    run(work)


def test_a_quota_that_another_space_meets_is_not_ones_own(tmp_path):
    async def work() -> None:
        async with locked(tmp_path, quota_subscriptions=31) as r:
            await fill(r, THEIRS)
            await set_up(r, "mine")
            key = bearer(await make(r, "mine", "publish", "subscribe", "manage"))
            used = (await r.client.get("/v1/spaces/mine/quotas", headers=key)).json()["used"]
            assert used["subscriptions"] == 1 and used["connections"] == 0
            for number in range(30):
                body = {"filter": "data.x = 1"}
                put = await r.client.put(f"/v1/spaces/mine/subscriptions/{number}", json=body, headers=key)
                assert put.status_code == 201
            put = await r.client.put("/v1/spaces/mine/subscriptions/more", json=body, headers=key)
            assert (put.status_code, put.json()["used"]) == (409, 31)

    run(work)


@pytest.mark.long
def test_a_socket_of_another_space_is_as_one_that_there_is_not(tmp_path):
    with served(tmp_path / "data", admin_key_file=admin_file(tmp_path)) as (_, client):
        client.headers.update(bearer(ADMIN))
        for space in (THEIRS, "mine"):
            client.post("/v1/spaces", json={"name": space})
            client.put(f"/v1/spaces/{space}/subscriptions/wanted", json={"filter": "data.x = 1"})
            content = encode([event("secret", {"x": 1})])
            headers = {"content-type": "application/cloudevents-batch+json"}
            client.post(f"/v1/spaces/{space}/events", content=content, headers=headers)
        body = {"space": "mine", "rights": ["publish", "subscribe", "manage"]}
        key = client.post("/v1/keys", json=body).json()["key"]

        def heard(space: str) -> tuple[int, bytes, Any]:
            path = f"/v1/spaces/{space}/subscriptions/wanted/websocket"
            url = str(client.base_url.copy_with(scheme="ws", path=path))
            with pytest.raises(InvalidStatus) as caught:
                connect(url, additional_headers=bearer(key))
            answer = caught.value.response
            headers = {name: value for name, value in answer.headers.raw_items() if name.lower() != "date"}
            return answer.status_code, answer.body, headers

        status, text, headers = heard(THEIRS)
        assert (status, text.replace(THEIRS.encode(), MISSING.encode()), headers) == heard(MISSING)
        assert status == 404 and b"secret" not in text
