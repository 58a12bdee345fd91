"""API keys: their rights, the answers to foreign keys (nothing is revealed), and their end."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_support import (
    BATCH,
    SUBSCRIPTIONS,
    Running,
    encode,
    event,
    run,
    running,
    served,
    until,
    until_async,
)
from pydantic import ValidationError

from fieldfare.gateway.admission.callers import Caller, Right
from fieldfare.gateway.admission.keyring import AdminKeyError, Keyring, read_admin_key
from fieldfare.gateway.openapi.document import api_document
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.storage import open_keys
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.keys import StoredKey
from fieldfare.storage.quarantine import Quarantine, QuarantinedRecord

DOCUMENT = api_document()

ADMIN = "a-first-key-of-an-administrator-0123456789"
OPEN = {"/healthz", "/readyz", "/openapi.json"}

Headers = dict[str, str]


def bearer(key: str) -> Headers:
    return {"authorization": f"Bearer {key}"}


def admin_file(folder: Path) -> Path:
    path = folder / "admin.key"
    path.write_text(ADMIN + "\n")
    return path


@asynccontextmanager
async def locked(folder: Path, **settings: Any) -> Any:
    """A gateway that asks for keys, and its client as the administrator."""
    async with running(folder / "data", admin_key_file=admin_file(folder), **settings) as r:
        r.client.headers.update(bearer(ADMIN))
        yield r


async def make(r: Running, space: str | None, *rights: str, by: str = ADMIN) -> str:
    body = {"space": space, "rights": rights}
    answer = await r.client.post("/v1/keys", json=body, headers=bearer(by))
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return str(answer.json()["key"])


def id_of(key: str) -> str:
    return key.split("_")[1]


async def set_up(r: Running, space: str) -> None:
    """A space with a subscription, events, messages that wait, and a record that was set aside."""
    client = r.client
    await client.post("/v1/spaces", json={"name": space})
    answer = await client.put(f"/v1/spaces/{space}/subscriptions/wanted", json={"filter": "data.x = 1"})
    assert answer.is_success, answer.text
    await r.publish(event("secret-event", {"x": 1}), space=space)
    r.pipeline.step()


def requests(space: str, id: str, position: str, key: str) -> list[tuple[str, str, bytes, Headers]]:
    """Each operation of the API's description, once, for an existing object."""
    found = []
    for path, item in DOCUMENT["paths"].items():
        for method in item:
            if method == "parameters":
                continue
            url = path.format(space=space, id=id, position=position, key=key, delayed="12", broker="b")
            if path.endswith("/trace"):
                url += "?seconds=0.001"
            content = item[method].get("requestBody", {}).get("content", {})
            body, headers = b"", {}
            for media, form in content.items():
                if "example" in form and not body:
                    example = form["example"]
                    if isinstance(example, dict) and "space" in example:
                        example = example | {"space": space}
                    if path.endswith("/ack"):
                        example = {"up_to": position}
                    body, headers = encode(example), {"content-type": media}
            found.append((method.upper(), url, body, headers))
    return found


async def ask(r: Running, request: tuple[str, str, bytes, Headers], key: str | None) -> httpx.Response:
    method, url, body, headers = request
    r.client.headers.pop("authorization", None)
    try:
        with_key = headers if key is None else headers | bearer(key)
        return await r.client.request(method, url, content=body, headers=with_key)
    finally:
        r.client.headers.update(bearer(ADMIN))


def test_a_foreign_key_learns_nothing_from_any_route(tmp_path):
    """For an existing and a missing space, another space's key gets the same answer, word for word."""

    async def work() -> None:
        async with locked(tmp_path) as r:
            await set_up(r, "theirs")
            await set_up(r, "mine")
            Quarantine(DataFolder(tmp_path / "data").quarantine).add(
                QuarantinedRecord(0, "theirs", 1, "odd", 1)
            )
            theirs = await make(r, "theirs", "publish", "subscribe", "manage")
            foreign = [
                await make(r, "mine", "publish", "subscribe", "manage"),
                await make(r, "mine", "publish"),
                await make(r, None, "watch"),
            ]
            there = requests("theirs", "wanted", "0-0-0", id_of(theirs))
            nowhere = requests("nowhere", "wanted", "7-7-0", "0" * 12)
            for key in foreign:
                for one, other in zip(there, nowhere, strict=True):
                    if one[1].endswith(("/stats", "/pipeline", "/backlogs")) or one[1] in (
                        "/metrics",
                        *OPEN,
                        "/v1/filters:check",
                    ):
                        continue
                    told, same = await ask(r, one, key), await ask(r, other, key)
                    assert told.status_code == same.status_code, (one, told.text, same.text)
                    known = told.text.replace("theirs", "nowhere").replace("0-0-0", "7-7-0")
                    known = known.replace(id_of(theirs), "0" * 12)
                    assert known == same.text, one
                    assert "secret-event" not in told.text and "odd" not in told.text
                    if "/v1/spaces/theirs" in one[1]:
                        assert told.status_code == 404, one
            # None of it was done.
            keys = (await r.client.get("/v1/keys")).json()["keys"]
            assert {each["space"] for each in keys} == {"theirs", "mine", None} and len(keys) == 4
            assert r.gateway.log.end() == 2
            assert (await r.client.get("/v1/spaces/theirs/subscriptions/wanted")).is_success
            assert len((await r.client.get("/v1/quarantine")).json()["quarantine"]) == 1

    run(work)


def test_without_a_key_or_with_a_wrong_one_nothing_is_done(tmp_path):
    async def work() -> None:
        async with locked(tmp_path) as r:
            await set_up(r, "theirs")
            good = await make(r, "theirs", "publish")
            wrong = good[:-1] + ("0" if good[-1] != "0" else "1")
            for request in requests("theirs", "wanted", "0-0-0", id_of(good)):
                for key in (None, wrong, "x", "ff_" + "0" * 12 + "_" + "0" * 64, ADMIN + "x", ""):
                    if request[1] in OPEN and key is None:
                        assert (await ask(r, request, key)).status_code in (200, 503)
                        continue
                    answer = await ask(r, request, key)
                    assert answer.status_code == 401, (request, key, answer.text)
                    assert answer.headers["www-authenticate"].startswith("Bearer")
                    assert key is None or len(key) < 5 or key not in answer.text
            for odd in ("Basic YTpi", "Bearer", "bearer  ", "Bearer " + "x" * 10_000, good):
                answer = await r.client.get("/v1/spaces", headers={"authorization": odd})
                assert answer.status_code == 401, odd
            assert (await r.client.get("/v1/spaces", headers={"authorization": f"bearer {good}"})).is_success
            readiness = await ask(r, ("GET", "/readyz", b"", {}), None)
            assert set(readiness.json()) == {"status"}

    run(work)


RIGHTS = {
    # The operations that each right allows in its space, by a word of the path and the method.
    "publish": {("POST", "events"), ("GET", "delayed"), ("DELETE", "12")},
    "subscribe": {
        *(("GET", "subscriptions"), ("POST", "subscriptions"), ("PUT", "wanted"), ("GET", "wanted")),
        *(("PATCH", "wanted"), ("DELETE", "wanted"), ("POST", "pull"), ("POST", "ack"), ("POST", "nack")),
        *(("POST", "extend"), ("POST", "terminate"), ("POST", "seek"), ("GET", "websocket")),
        *(("GET", "dead-letters"), ("DELETE", "dead-letters"), ("POST", "retry")),
        *(("POST", "ticket"), ("GET", "backlog"), ("GET", "attributes")),
    },
    "manage": {
        *(("GET", "move"), ("GET", "quotas"), ("GET", "advertisement")),
        *(("GET", "keys"), ("POST", "keys"), ("DELETE", "0" * 12)),
    },
    "watch": {
        ("GET", "backlogs"),
        ("GET", "stats"),
        ("GET", "pipeline"),
        ("GET", "trace?seconds=0.001"),
        ("GET", "brokers"),
        ("GET", "leave"),
        ("GET", "balance"),
        ("GET", "metrics"),
    },
    "broker": {("POST", "entries")},
}
OF_THE_SERVICE = ("watch", "broker")
ANY_KEY = {"spaces", "caller", "quarantine", "filters:check", "filters:test", "filters:convert", *"-"}


@pytest.mark.parametrize("right", RIGHTS)
def test_a_key_may_what_its_rights_say_and_no_more(tmp_path, right):
    async def work() -> None:
        async with locked(tmp_path) as r:
            await set_up(r, "mine")
            key = await make(r, None if right in OF_THE_SERVICE else "mine", right)
            for method, url, body, headers in requests("mine", "wanted", "0-0-0", "0" * 12):
                word = url.rpartition("/")[2]
                if url in OPEN or word in ANY_KEY or word in ("filters:explain", "stream"):
                    continue
                if "/quarantine/" in url:
                    continue
                answer = await ask(r, (method, url, body, headers), key)
                if (method, word) in RIGHTS[right]:
                    assert answer.status_code not in (401, 403), (method, url, answer.text)
                else:
                    unknown = 404 if right in OF_THE_SERVICE and "/mine/" in f"{url}/" else 403
                    assert answer.status_code == unknown, (method, url, answer.text)
            explain = {"filter": "data.x = 1", "space": "mine"}
            answer = await r.client.post("/v1/filters:explain", json=explain, headers=bearer(key))
            expected = {"subscribe": 200, "watch": 404, "broker": 404}.get(right, 403)
            assert answer.status_code == expected, answer.text
            answer = await r.client.post("/v1/spaces", json={"name": "more"}, headers=bearer(key))
            assert answer.status_code == 403
            spaces = (await r.client.get("/v1/spaces", headers=bearer(key))).json()["spaces"]
            assert spaces == ([] if right in OF_THE_SERVICE else [{"name": "mine"}])

    run(work)


def test_the_manage_right_creates_keys_in_its_space_only(tmp_path):
    async def work() -> None:
        async with locked(tmp_path) as r:
            await set_up(r, "mine")
            await set_up(r, "theirs")
            manager = await make(r, "mine", "manage")
            other = await make(r, "theirs", "publish")
            made = await make(r, "mine", "publish", "subscribe", by=manager)
            for space, rights, status in (
                ("theirs", ["publish"], 404),
                ("nowhere", ["publish"], 404),
                (None, ["watch"], 403),
                (None, ["admin"], 403),
                ("mine", ["admin"], 400),
                (None, ["publish"], 400),
                ("mine", [], 400),
                ("mine", ["fly"], 400),
            ):
                body = {"space": space, "rights": rights}
                answer = await r.client.post("/v1/keys", json=body, headers=bearer(manager))
                assert answer.status_code == status, answer.text
            listed = (await r.client.get("/v1/keys", headers=bearer(manager))).json()["keys"]
            assert {each["id"] for each in listed} == {id_of(manager), id_of(made)}
            answer = await r.client.delete(f"/v1/keys/{id_of(other)}", headers=bearer(manager))
            assert answer.status_code == 404
            answer = await r.client.delete(f"/v1/keys/{id_of(made)}", headers=bearer(manager))
            assert answer.status_code == 204
            assert (await r.client.get("/v1/spaces", headers=bearer(made))).status_code == 401
            nowhere = await r.client.post("/v1/keys", json={"space": "nowhere", "rights": ["publish"]})
            assert nowhere.status_code == 404

    run(work)


def test_keys_hold_over_a_restart_and_revoked_ones_stay_so(tmp_path):
    async def first() -> tuple[str, str]:
        async with locked(tmp_path) as r:
            return await make(r, "default", "publish"), await make(r, "default", "publish")

    async def work() -> None:
        kept, gone = await first()
        async with locked(tmp_path) as r:
            assert (await r.client.delete(f"/v1/keys/{id_of(gone)}")).status_code == 204
        # Also without the administrator's key: a service that had keys is never open to all.
        async with running(tmp_path / "data") as r:
            for key, status in ((kept, 200), (gone, 401), (ADMIN, 401)):
                assert (await r.client.get("/v1/spaces", headers=bearer(key))).status_code == status
            assert (await r.client.get("/v1/spaces")).status_code == 401
        async with locked(tmp_path) as r:
            assert (await r.client.delete(f"/v1/keys/{id_of(kept)}")).status_code == 204
        async with running(tmp_path / "data") as r:
            assert (await r.client.get("/v1/spaces")).status_code == 401

    run(work)


def test_a_service_without_keys_makes_none(tmp_path):
    """Or any program of the machine could lock all others out."""

    async def work() -> None:
        async with running(tmp_path) as r:
            for method, url in (("GET", "/v1/keys"), ("POST", "/v1/keys"), ("DELETE", "/v1/keys/a")):
                answer = await r.client.request(method, url, headers=bearer(ADMIN))
                assert answer.status_code == 409, answer.text
                assert "FIELDFARE_ADMIN_KEY_FILE" in answer.json()["hint"]

    run(work)


@pytest.mark.long
def test_a_revoked_key_ends_what_is_open_for_it_at_once(tmp_path):
    """A stream, and a pull that waits for a minute; another key's stream on the same subscription goes on."""
    with served(tmp_path / "data", admin_key_file=admin_file(tmp_path)) as (gateway, client):
        client.headers.update(bearer(ADMIN))
        client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 1"})
        body = {"space": "default", "rights": ["subscribe"]}
        revoked, other = (client.post("/v1/keys", json=body).json()["key"] for _ in range(2))
        ended: dict[str, Any] = {}

        def follow(name: str, key: str) -> None:
            with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream", headers=bearer(key)) as response:
                ended[name + " opened"] = True
                for _ in response.iter_raw():
                    pass
            ended[name] = True

        def pull() -> None:
            answer = client.post(f"{SUBSCRIPTIONS}/a/pull", json={"wait_s": 60}, headers=bearer(revoked))
            ended["pull"] = answer.json()

        work = [(follow, ("revoked", revoked)), (follow, ("other", other)), (pull, ())]
        threads = [threading.Thread(target=target, args=args) for target, args in work]
        for thread in threads:
            thread.start()
        until(lambda: gateway.deliveries.connected == 2)
        until(lambda: gateway.keyring._callers[id_of(revoked)]._watchers.__len__() == 2)
        assert client.delete(f"/v1/keys/{id_of(revoked)}").status_code == 204
        until(lambda: "revoked" in ended and "pull" in ended)
        assert ended["pull"] == {"messages": []}
        assert gateway.deliveries.connected == 1 and "other" not in ended
        again = client.get(f"{SUBSCRIPTIONS}/a/stream", headers=bearer(revoked))
        assert again.status_code == 401
        client.delete(f"/v1/keys/{id_of(other)}")
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


def test_no_key_is_to_be_seen_in_logs_reprs_and_files(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)

    async def work() -> None:
        async with locked(tmp_path) as r:
            key = await make(r, "default", "publish")
            await r.client.post("/v1/keys", json={"space": "default"})
            listed = (await r.client.get("/v1/keys")).text
            settings = repr(r.gateway.settings) + r.gateway.settings.model_dump_json()
            kept = repr(r.gateway.keyring.listed(Caller("", {None: (Right.ADMIN,)})))
            secret = key.split("_")[2]
            for text in (listed, settings, kept, caplog.text):
                assert secret not in text and ADMIN not in text
            for path in (tmp_path / "data").rglob("*"):
                if path.is_file():
                    found = path.read_bytes()
                    assert secret.encode() not in found and ADMIN.encode() not in found, path
            with pytest.raises(TypeError):
                pickle.dumps(r.gateway.keyring)

    run(work)


def test_the_keys_store_keeps_what_it_is_given(tmp_path):
    url = DataFolder(tmp_path).registry_url
    store = open_keys(url)
    keys = [
        StoredKey("b", b"1" * 32, "default", ("publish", "subscribe"), "gate 17", 5, "admin"),
        StoredKey("a", b"2" * 32, None, ("watch",), "", 6, "b"),
    ]
    for key in keys:
        store.add(key)
    store.revoke("b", 7)
    store.revoke("b", 8)
    store.revoke("nobody", 9)
    store.close()
    assert open_keys(url).keys() == [keys[1]] and open_keys(url).has_any()
    ring = Keyring(pickle.loads(pickle.dumps(store)), None)
    assert ring.required and [key.id for key in ring.listed(Caller("", {None: (Right.ADMIN,)}))] == ["a"]


@pytest.mark.parametrize("text", ["", "short", "x" * 600, "x" * 40 + "\n" + "y" * 40, "ä" * 40])
def test_an_admin_key_that_is_none_is_refused_by_its_files_name(tmp_path, text):
    path = tmp_path / "admin.key"
    path.write_text(text)
    with pytest.raises(AdminKeyError) as caught:
        read_admin_key(path)
    assert str(path) in str(caught.value)
    assert not text or text not in str(caught.value)
    with pytest.raises(AdminKeyError, match=r"missing\.key"):
        read_admin_key(tmp_path / "missing.key")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "events.example.com"])
def test_a_public_address_needs_keys_or_to_be_meant(monkeypatch, tmp_path, host):
    with pytest.raises(ValidationError, match=r"set FIELDFARE_ADMIN_KEY_FILE .* --jwt-issuer, .* --insecure"):
        GatewaySettings(host=host)
    assert GatewaySettings(host=host, insecure=True)
    assert GatewaySettings(host=host, admin_key_file=admin_file(tmp_path))
    for loopback in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert GatewaySettings(host=loopback)


def test_events_of_one_space_do_not_come_with_anothers_key(tmp_path):
    """Events of other spaces do not appear in pulls, samples or acks."""

    async def work() -> None:
        async with locked(tmp_path) as r:
            await set_up(r, "mine")
            await set_up(r, "theirs")
            key = await make(r, "mine", "subscribe", "publish")
            pulled = await r.client.post(
                "/v1/spaces/mine/subscriptions/wanted/pull", json={}, headers=bearer(key)
            )
            assert [each["position"] for each in pulled.json()["messages"]] == ["0-0-0"]
            far = {"up_to": "0-999-0"}
            answer = await r.client.post(
                "/v1/spaces/mine/subscriptions/wanted/ack", json=far, headers=bearer(key)
            )
            assert answer.status_code == 400 and "0-2-0" not in answer.text, "the log's end is not revealed"
            batch = await r.client.post(
                "/v1/spaces/mine/events", content=json.dumps([event(2)]), headers=BATCH | bearer(key)
            )
            assert batch.status_code == 200
            await asyncio.sleep(0)

    run(work)


def test_the_audit_log_records_changes_without_secrets(tmp_path):
    """An operator wants to know who took a subscription away, and who tried to."""

    async def work() -> None:
        async with locked(tmp_path) as r:
            await set_up(r, "mine")
            key = await make(r, "mine", "subscribe")
            mine = "/v1/spaces/mine/subscriptions/wanted"
            assert (await r.client.delete(mine, headers=bearer(key))).status_code == 204
            foreign = await r.client.delete(f"{SUBSCRIPTIONS}/other", headers=bearer(key))
            assert foreign.status_code == 404
            await r.client.get(mine)
            await r.client.post(f"{mine}/pull", json={})
            for nobodys in (None, "wrong"):
                assert (await ask(r, ("DELETE", mine, b"", {}), nobodys)).status_code == 401
        lines = [json.loads(line) for line in (tmp_path / "data/logs/audit.log").read_text().splitlines()]
        told = [(each["key"], each["method"], each["path"], each["status"]) for each in lines]
        assert told == [
            ("admin", "POST", "/v1/spaces", 201),
            ("admin", "PUT", mine, 201),
            ("admin", "POST", "/v1/keys", 201),
            (id_of(key), "DELETE", mine, 204),
            (id_of(key), "DELETE", f"{SUBSCRIPTIONS}/other", 404),
        ]
        assert lines[2]["made"] == f"/v1/keys/{id_of(key)}"
        assert all(abs(each["time_ms"] - time.time() * 1000) < 60_000 for each in lines)

    run(work)


def test_an_unknown_right_is_refused_with_those_that_there_are(tmp_path):
    """The answer was "Invalid enum value"."""

    async def work() -> None:
        async with locked(tmp_path) as r:
            for name, hint in (("nonsense", None), ("subscrib", "Did you mean subscribe?")):
                refused = await r.client.post(
                    "/v1/keys", json={"space": "default", "rights": ["publish", name]}, headers=bearer(ADMIN)
                )
                assert refused.status_code == 400
                detail = refused.json()["detail"]
                assert f"There is no right {name!r}" in detail
                assert "publish, subscribe, manage" in detail and "watch, admin" in detail
                assert refused.json().get("hint") == hint

    run(work)


def test_a_reload_takes_another_admin_key_and_keeps_the_old_one_where_the_new_one_is_none(tmp_path):
    """SIGHUP, after a secret was rotated; and after one that is not written yet."""
    other = ADMIN[::-1]

    async def work() -> None:
        async with locked(tmp_path) as r:
            (tmp_path / "admin.key").write_text("short")
            await asyncio.to_thread(r.gateway.reload)
            assert (await r.client.get("/v1/keys")).status_code == 200
            (tmp_path / "admin.key").write_text(other)
            await asyncio.to_thread(r.gateway.reload)
            assert (await r.client.get("/v1/keys")).status_code == 401
            assert (await r.client.get("/v1/keys", headers=bearer(other))).status_code == 200

    run(work)


def test_a_reload_opens_the_record_of_changes_again(tmp_path):
    async def work() -> None:
        async with locked(tmp_path) as r:
            audit = r.gateway.settings.folder.audit_log
            await make(r, "default", "publish")
            await until_async(audit.exists)
            audit.rename(tmp_path / "yesterday")
            await asyncio.to_thread(r.gateway.reload)
            await make(r, "default", "publish")
            await until_async(audit.exists)
            assert len((tmp_path / "yesterday").read_text().splitlines()) == 1

    run(work)
