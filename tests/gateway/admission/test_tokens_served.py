"""Tokens (JWT) at a gateway: every route, open streams when a token expires, and the source of the keys."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway_support import SUBSCRIPTIONS, event, run, running, served, until, until_async
from pydantic import ValidationError
from test_keys import ADMIN, admin_file, ask, bearer, make, requests, set_up
from token_support import (
    AUDIENCE,
    ISSUER,
    key_set,
    public_jwk,
    serving_keys,
    sign,
    token_settings,
)
from typer.testing import CliRunner

from fieldfare.cli.app import app
from fieldfare.gateway.admission import token_keys
from fieldfare.gateway.admission.token_keys import KeyFile, KeyUrl, TokenKeysError
from fieldfare.gateway.settings import GatewaySettings


@asynccontextmanager
async def trusting(folder: Path, *keys: dict[str, Any], **settings: Any) -> Any:
    """A gateway that takes tokens, and an administrator's key, which its client has."""
    admin = {"admin_key_file": admin_file(folder)}
    async with running(folder / "data", **admin, **(token_settings(folder, *keys) | settings)) as r:
        r.client.headers.update(bearer(ADMIN))
        yield r


def test_a_token_has_its_rights_and_a_foreign_one_learns_nothing(tmp_path: Path) -> None:
    """The walk of test_keys.py, with tokens: every route says the same of another's space as of none."""

    async def work() -> None:
        async with trusting(tmp_path) as r:
            for space in ("theirs", "mine"):
                await set_up(r, space)
            foreign = sign("publish:mine subscribe:mine manage:mine watch")
            there = requests("theirs", "wanted", "0-0-0", "0" * 12)
            nowhere = requests("nowhere", "wanted", "7-7-0", "0" * 12)
            for one, other in zip(there, nowhere, strict=True):
                if one[1] in (
                    "/v1/stats",
                    "/v1/backlogs",
                    "/v1/pipeline",
                    "/metrics",
                    "/readyz",
                    "/healthz",
                    "/openapi.json",
                ):
                    continue
                told, same = await ask(r, one, foreign), await ask(r, other, foreign)
                known = told.text.replace("theirs", "nowhere").replace("0-0-0", "7-7-0")
                assert (told.status_code, known) == (same.status_code, same.text), one
                assert told.status_code == 404 or "/theirs" not in one[1], one
                assert "secret-event" not in told.text
            # The names in a token are not checked: for a typing error the names of others must not be
            # suggested.
            slips = [
                await r.client.get(f"/v1/spaces/{name}/subscriptions", headers=bearer(sign(scope)))
                for name, scope in (("their", "subscribe:their"), ("their", "subscribe:mine"))
            ]
            assert slips[0].json() == slips[1].json() and slips[0].status_code == 404
            for scope, path, status in (
                ("subscribe:mine", "/v1/spaces/mine/subscriptions", 200),
                ("publish:mine", "/v1/spaces/mine/subscriptions", 403),
                ("subscribe:nowhere", "/v1/spaces/nowhere/subscriptions", 404),
                ("watch", "/v1/stats", 200),
                ("publish:mine", "/v1/stats", 403),
                ("admin", "/v1/spaces/theirs/subscriptions", 200),
                ("publish:mine", "/v1/keys", 403),
                ("manage:mine publish:theirs", "/v1/keys", 200),
                ("", "/v1/spaces", 200),
            ):
                answer = await r.client.get(path, headers=bearer(sign(scope)))
                assert answer.status_code == status, (scope, path, answer.text)
            listed = await r.client.get(
                "/v1/spaces", headers=bearer(sign("publish:mine subscribe:theirs manage:gone"))
            )
            assert [each["name"] for each in listed.json()["spaces"]] == ["mine", "theirs"]
            made = await make(r, "mine", "publish", by=sign("manage:mine"))
            assert (await r.client.get("/v1/spaces", headers=bearer(made))).is_success
            for wrong in (sign(aud="x"), sign(kid="two"), "a.b.c", sign() + "x" * 10_000):
                answer = await r.client.get("/v1/spaces", headers=bearer(wrong))
                assert answer.status_code == 401 and wrong not in answer.text

    run(work)


def test_the_record_names_issuer_and_subject_and_no_log_a_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    good, wrong = sign("subscribe:default"), sign("subscribe:default", aud="another")

    async def work() -> None:
        async with trusting(tmp_path) as r:
            for token, status in ((good, 201), (wrong, 401)):
                answer = await r.client.put(
                    f"{SUBSCRIPTIONS}/a", json={"filter": "TRUE"}, headers=bearer(token)
                )
                assert answer.status_code == status

    run(work)
    lines = (tmp_path / "data/logs/audit.log").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == [f"gate-17@{ISSUER}"]
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            for token in (good, wrong):
                assert token.split(".")[2].encode() not in path.read_bytes(), path
                assert token.split(".")[2] not in caplog.text


def test_a_token_of_a_space_that_was_deleted_has_no_rights_in_a_later_one(tmp_path: Path) -> None:
    """Its holder had rights in the earlier space of this name; a restart makes no difference."""
    before = sign("publish:trial subscribe:trial publish:mine")
    path = "/v1/spaces/trial/subscriptions"

    async def first() -> None:
        async with trusting(tmp_path) as r:
            for name in ("trial", "mine"):
                await r.client.post("/v1/spaces", json={"name": name})
            assert (await r.client.get(path, headers=bearer(before))).status_code == 200
            assert (await r.client.delete("/v1/spaces/trial")).status_code == 204
            assert (await r.client.get(path, headers=bearer(before))).status_code == 404
            await r.client.post("/v1/spaces", json={"name": "trial"})
            await check(r)

    async def check(r: Any) -> None:
        for token, status in (
            (before, 404),
            (sign("subscribe:trial"), 404),  # it may be from before, as far as clocks can tell
            (sign("subscribe:trial", iat=None), 404),
            (sign("subscribe:trial", iat=int(time.time()) + 40), 401),
            (sign("admin"), 200),
        ):
            assert (await r.client.get(path, headers=bearer(token))).status_code == status
        listed = (await r.client.get("/v1/spaces", headers=bearer(before))).json()["spaces"]
        assert listed == [{"name": "mine"}]

    async def second() -> None:
        async with trusting(tmp_path) as r:
            await check(r)
        async with trusting(tmp_path, jwt_leeway_s=0) as r:
            later = sign("subscribe:trial", iat=int(time.time()))
            assert (await r.client.get(path, headers=bearer(later))).status_code in (200, 404)
            tokens = r.gateway.keyring._tokens
            tokens._ended_ms["trial"] -= 2000
            later = sign("subscribe:trial", iat=int(time.time()), sub="later")
            assert (await r.client.get(path, headers=bearer(later))).status_code == 200

    run(first)
    run(second)


@pytest.mark.long
@pytest.mark.parametrize("end", ["expires", "key goes", "space goes"])
def test_what_is_open_for_a_token_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Otherwise a stream and a WebSocket would continue for as long as their reader reads."""
    monkeypatch.setattr(token_keys, "SWEEP_S", 0.02)
    monkeypatch.setattr(KeyFile, "look_s", 0.02)
    admin = {"admin_key_file": admin_file(tmp_path)}
    both = (public_jwk("P-256", "one"), public_jwk("P-384", "two"))
    with served(tmp_path / "data", **admin, **token_settings(tmp_path, *both)) as (gateway, client):
        client.headers.update(bearer(ADMIN))
        client.post("/v1/spaces", json={"name": "trial"})
        path = "/v1/spaces/trial/subscriptions/a"
        client.put(path, json={"filter": "data.x = 1"})
        token = sign("subscribe:trial")
        ended = threading.Event()

        def follow() -> None:
            with client.stream("GET", f"{path}/stream", headers=bearer(token)) as response:
                assert response.status_code == 200
                for _ in response.iter_raw():
                    pass
            ended.set()

        thread = threading.Thread(target=follow)
        thread.start()
        until(lambda: gateway.deliveries.connected == 1)
        tokens: Any = gateway.keyring._tokens
        assert not ended.is_set()
        if end == "expires":
            tokens._wall_s = lambda: time.time() + 3600
        elif end == "key goes":
            (tmp_path / "keys.json").write_bytes(key_set(both[1]))
        else:
            assert client.delete("/v1/spaces/trial").status_code == 204
        until(ended.is_set)
        thread.join(20)
        until(lambda: gateway.deliveries.connected == 0)
        if end == "key goes":
            assert client.get("/v1/spaces", headers=bearer(token)).status_code == 401
            by_two = sign("subscribe:trial", kind="P-384", alg="ES384", kid="two")
            assert client.get("/v1/spaces", headers=bearer(by_two)).status_code == 200


def test_keys_at_a_url_are_looked_for_once_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token with a new key waits for the key; invented keys cause only one request to the
    issuer."""
    monkeypatch.setattr(token_keys, "ASKED_LOOK_S", 0.0)

    async def work() -> None:
        with serving_keys(public_jwk("P-256", "one")) as shown:
            async with trusting(tmp_path, jwt_jwks=shown.url) as r:
                ok = await r.client.get("/v1/spaces", headers=bearer(sign()))
                assert ok.status_code == 200 and shown.asked == 1
                shown.body = key_set(public_jwk("P-256", "one"), public_jwk("P-384", "two"))
                by_two = bearer(sign(kind="P-384", alg="ES384", kid="two"))
                first = await asyncio.gather(*(r.client.get("/v1/spaces", headers=by_two) for _ in range(5)))
                assert {each.status_code for each in first} == {200} and shown.asked == 2
                monkeypatch.setattr(token_keys, "ASKED_LOOK_S", 30.0)
                for number in range(50):
                    made_up = bearer(sign(kid=f"made-up-{number}"))
                    assert (await r.client.get("/v1/spaces", headers=made_up)).status_code == 401
                assert shown.asked == 2
                # The issuer is away, or talks nonsense: what was known stays.
                monkeypatch.setattr(token_keys, "ASKED_LOOK_S", 0.0)
                for shown.status, shown.body in (
                    (500, b""),
                    (200, b"<html>"),
                    (302, b""),
                    (200, b"x" * 300_000),
                ):
                    asked = shown.asked
                    made_up = bearer(sign(kid="made-up"))
                    assert (await r.client.get("/v1/spaces", headers=made_up)).status_code == 401
                    assert shown.asked == asked + 1
                    assert (await r.client.get("/v1/spaces", headers=by_two)).status_code == 200
                shown.status, shown.body = 200, key_set(public_jwk("P-384", "two"))
                assert (await r.client.get("/v1/spaces", headers=made_up)).status_code == 401
                assert (await r.client.get("/v1/spaces", headers=bearer(sign()))).status_code == 401
                assert (await r.client.get("/v1/spaces", headers=by_two)).status_code == 200

    run(work)


def test_a_service_starts_without_its_issuer_and_takes_tokens_once_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "SWEEP_S", 0.02)
    monkeypatch.setattr(token_keys, "NONE_YET_LOOK_S", 0.05)

    async def work() -> None:
        with serving_keys(public_jwk("P-256", "one")) as shown:
            shown.status = 503
            async with trusting(tmp_path, jwt_jwks=shown.url) as r:
                answer = await r.client.get("/v1/spaces", headers=bearer(sign()))
                assert answer.status_code == 503 and answer.headers["retry-after"]
                assert answer.json()["type"].endswith("no-token-keys")
                assert (await r.client.get("/v1/spaces")).status_code == 200, "keys count all the same"
                shown.status = 200
                signed = bearer(sign())
                while (await r.client.get("/v1/spaces", headers=signed)).status_code != 200:
                    await asyncio.sleep(0.01)

    run(work)


def test_an_endless_key_set_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens still expire, and requests that wait for a key are answered."""
    monkeypatch.setattr(token_keys, "SWEEP_S", 0.002)
    monkeypatch.setattr(token_keys, "WAIT_MAX_S", 0.05)
    released = threading.Event()
    reads: list[str] = []

    class Hanging:
        look_s = 0.0

        def read(self) -> None:
            reads.append("begun")
            released.wait(60)

    async def work() -> None:
        sweeps: list[int] = []
        watch = token_keys.KeyWatch(Hanging(), lambda signers: None, lambda: sweeps.append(1))
        watch.start()
        await until_async(lambda: reads)
        await asyncio.gather(*(watch.look_again() for _ in range(20)))
        seen = len(sweeps)
        await until_async(lambda: len(sweeps) > seen + 10)
        assert len(reads) == 1
        released.set()
        await watch.close()

    run(work)


def test_keys_that_come_too_slowly_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "FETCH_MAX_S", 0.0)
    with serving_keys(public_jwk("P-256", "one")) as shown:
        with pytest.raises(TokenKeysError, match="longer than"):
            KeyUrl(shown.url, 5).read()
        monkeypatch.setattr(token_keys, "FETCH_MAX_S", 6.0)
        assert KeyUrl(shown.url, 5).read()
    with pytest.raises(TokenKeysError, match="cannot be read"):
        KeyUrl(shown.url, 5).read()


def test_a_head_that_trickles_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of it comes in time, and the last one never: a withdrawn key would count for hours."""
    monkeypatch.setattr(token_keys, "FETCH_MAX_S", 0.3)
    ended = threading.Event()

    def trickle() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            try:
                while not ended.wait(0.02):
                    connection.sendall(b"x: y\r\n")
            except OSError:
                """It was hung up on."""

    with socket.create_server(("127.0.0.1", 0)) as listener:
        trickling = threading.Thread(target=trickle)
        trickling.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/keys.json"
        reading = ThreadPoolExecutor(1).submit(KeyUrl(url, 5).read)
        try:
            with pytest.raises(TokenKeysError, match="longer than"):
                reading.result(20)
        finally:
            ended.set()
            trickling.join(10)


def test_a_file_of_keys_is_read_again_when_it_changed_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    source = KeyFile(path)
    with pytest.raises(TokenKeysError, match=r"keys\.json: No such file"):
        source.read()
    path.write_bytes(key_set(public_jwk("P-256", "one"))[:-5])  # the file is being written
    for _ in range(2):
        with pytest.raises(TokenKeysError, match="holds no key set"):
            source.read()
    path.write_bytes(key_set(public_jwk("P-256", "one")))
    assert source.read() and source.read() is None
    path.write_bytes(key_set(public_jwk("P-256", "another")))
    assert list(source.read() or ()) == ["another"]
    path.write_bytes(b" " * 300_000)
    with pytest.raises(TokenKeysError, match="larger"):
        source.read()


def test_a_changed_file_counts_for_a_gateway_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "SWEEP_S", 0.01)
    monkeypatch.setattr(KeyFile, "look_s", 0.01)

    async def work() -> None:
        async with trusting(tmp_path) as r:
            tokens = r.gateway.keyring._tokens
            assert (await r.client.get("/v1/spaces", headers=bearer(sign()))).status_code == 200
            (tmp_path / "keys.json").write_bytes(key_set(public_jwk("P-384", "two")))
            await until_async(lambda: "two" in tokens._signers)
            assert (await r.client.get("/v1/spaces", headers=bearer(sign()))).status_code == 401

    run(work)


def test_a_service_that_took_tokens_is_never_open_to_all(tmp_path: Path) -> None:
    """A setting that is forgotten at a restart must not let everybody in."""

    async def first() -> None:
        async with running(tmp_path / "data", **token_settings(tmp_path)) as r:
            assert (await r.client.get("/v1/spaces")).status_code == 401
            admin = bearer(sign("admin"))
            assert (await r.client.get("/v1/spaces", headers=admin)).status_code == 200
            assert (await r.client.get("/v1/keys", headers=admin)).json() == {"keys": []}
            await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "TRUE"}, headers=admin)
            r.client.headers.update(bearer(sign("publish:default")))
            await r.publish(event(1))

    async def second() -> None:
        async with running(tmp_path / "data") as r:
            assert (await r.client.get("/v1/spaces")).status_code == 401
            assert (await r.client.get("/v1/spaces", headers=bearer(sign("admin")))).status_code == 401

    run(first)
    run(second)


def test_settings_that_are_wrong_are_named_at_the_start(tmp_path: Path) -> None:
    whole = token_settings(tmp_path)
    assert GatewaySettings.model_validate({"host": "0.0.0.0", **whole})
    for missing in whole:
        with pytest.raises(ValidationError, match="must be given together"):
            GatewaySettings.model_validate({name: value for name, value in whole.items() if name != missing})
    for place in ("http://login.example.com/keys", "https://me:word@login.example.com/keys", "https:///keys"):
        with pytest.raises(ValidationError):
            GatewaySettings.model_validate(whole | {"jwt_jwks": place})
    assert GatewaySettings.model_validate(whole | {"jwt_jwks": "http://127.0.0.1:8080/keys"})
    (tmp_path / "junk.json").write_text("junk")
    for file, message in (("missing.json", "No such file"), ("junk.json", "holds no key set")):
        options = ["--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-jwks", str(tmp_path / file)]
        shown = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data"), *options])
        assert shown.exit_code == 1 and not (tmp_path / "data").exists()
        assert file in shown.stderr and message in shown.stderr
    shown = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data"), "--jwt-issuer", ISSUER])
    assert shown.exit_code == 1 and "--jwt-jwks" in shown.stderr
