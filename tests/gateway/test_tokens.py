"""Tokens (JWT): who is let in, with which rights, for how long, and who is not, whatever he sends."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import hmac
import json
import logging
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from gateway_support import SUBSCRIPTIONS, event, run, running, served, until, until_async
from pydantic import ValidationError
from test_keys import ADMIN, admin_file, ask, bearer, make, requests, set_up
from token_support import (
    AUDIENCE,
    ISSUER,
    key_set,
    private_key,
    public_jwk,
    serving_keys,
    sign,
    token_settings,
)
from typer.testing import CliRunner

from fieldfare.cli.app import app
from fieldfare.gateway.admission import token_keys
from fieldfare.gateway.admission import tokens as tokens_module
from fieldfare.gateway.admission.callers import Caller, Right, UnknownSigner
from fieldfare.gateway.admission.token_keys import KeyFile, KeyUrl, TokenKeysError, parse_keys
from fieldfare.gateway.admission.tokens import TOKEN_MAX_BYTES, WebTokens
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.settings import GatewaySettings


@asynccontextmanager
async def trusting(folder: Path, *keys: dict[str, Any], **settings: Any) -> Any:
    """A gateway that takes tokens, and an administrator's key, which its client has."""
    admin = {"admin_key_file": admin_file(folder)}
    async with running(folder / "data", **admin, **(token_settings(folder, *keys) | settings)) as r:
        r.client.headers.update(bearer(ADMIN))
        yield r


class Clock:
    """One that a test sets."""

    def __init__(self) -> None:
        self.wall_s, self.now_s = time.time(), 1000.0


def web_tokens(*keys: dict[str, Any], clock: Clock | None = None, **settings: Any) -> WebTokens:
    clocks: dict[str, Callable[[], float]] = {}
    if clock is not None:
        clocks = {"wall_s": lambda: clock.wall_s, "monotonic_s": lambda: clock.now_s}
    tokens = WebTokens(ISSUER, AUDIENCE, **clocks, **settings)
    tokens.use(parse_keys(key_set(*(keys or (public_jwk("P-256", "one"),))), "the set"))
    return tokens


def found(tokens: WebTokens, token: str) -> Caller | str:
    """Who sends it, or what he is told."""
    try:
        return tokens.find(token.encode())
    except HttpProblem as problem:
        assert problem.status == 401 and 'error="invalid_token"' in problem.headers["WWW-Authenticate"]
        assert token not in json.dumps(problem.body()) and "hint" not in problem.body()
        return problem.detail


@pytest.mark.parametrize(
    ("kind", "alg"),
    [
        *(("RSA", alg) for alg in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        *(("P-256", "ES256"), ("P-384", "ES384"), ("P-521", "ES512"), ("Ed25519", "EdDSA")),
    ],
)
def test_each_kind_of_key_lets_in_who_it_signed_for_and_nobody_else(kind: str, alg: str) -> None:
    mine, other = public_jwk(kind, "one"), public_jwk(f"{kind} other", "one")
    token = sign(kind=kind, alg=alg)
    caller = found(web_tokens(mine), token)
    assert isinstance(caller, Caller) and caller.id == f"gate-17@{ISSUER}"
    assert caller.grants == {"mine": {Right.PUBLISH}}
    assert found(web_tokens(other), token) == "This token is not valid."
    named = web_tokens(public_jwk(kind, "one", alg=alg, use="sig"))
    assert isinstance(found(named, token), Caller)
    head, body, signature = token.split(".")
    for wrong in (f"{head}.{body}.", f"{head}.{body}.{signature[:-4]}", f"{head}.{body[:-4]}.{signature}"):
        assert found(web_tokens(mine), wrong) == "This token is not valid."


def raw_token(header: Any, claims: Any, signature: bytes = b"x" * 64) -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def shared_secret(secret: bytes) -> str:
    """Signed with what everybody knows, as if that were a secret."""
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "x", "exp": 1 << 34, "scope": "admin"}
    unsigned = raw_token({"alg": "HS256", "kid": "one"}, claims).rsplit(".", 1)[0]
    mac = hmac.new(secret, unsigned.encode(), hashlib.sha256).digest()
    return f"{unsigned}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def public_pem() -> bytes:
    public = private_key("P-256").public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "sub": "x", "exp": 1 << 34, "scope": "admin"}
NOT_VALID = "This token is not valid."
ATTACKS: dict[str, tuple[Callable[[], str], str]] = {
    "no algorithm": (lambda: raw_token({"alg": "none", "kid": "one"}, CLAIMS), NOT_VALID),
    "no algorithm, no signature": (lambda: raw_token({"alg": "none"}, CLAIMS, b""), NOT_VALID),
    "no algorithm, otherwise written": (lambda: raw_token({"alg": "NoNe", "kid": "one"}, CLAIMS), NOT_VALID),
    "the public key as a secret": (lambda: shared_secret(public_pem()), NOT_VALID),
    "the key set's text as a secret": (
        lambda: shared_secret(json.dumps(public_jwk("P-256")).encode()),
        NOT_VALID,
    ),
    "an empty secret": (lambda: shared_secret(b""), NOT_VALID),
    "another kind of key's algorithm": (lambda: sign(kind="RSA", alg="RS256"), NOT_VALID),
    "a key of one's own in the header": (
        lambda: sign(kind="P-256 other", header={"jwk": public_jwk("P-256 other", "one")}),
        NOT_VALID,
    ),
    "a key at one's own address": (
        lambda: sign(kind="P-256 other", header={"jku": "https://evil.example/keys.json", "x5u": "file:///"}),
        NOT_VALID,
    ),
    "a path as the key's name": (lambda: sign(kid="../../../../dev/null"), NOT_VALID),
    "SQL as the key's name": (lambda: sign(kid="one' OR '1'='1"), NOT_VALID),
    "a list as the key's name": (lambda: raw_token({"alg": "ES256", "kid": ["one"]}, CLAIMS), NOT_VALID),
    "an empty name": (lambda: sign(kid=""), NOT_VALID),
    "no issuer": (lambda: sign(iss=None), "This token lacks the claim iss."),
    "a foreign issuer": (lambda: sign(iss=ISSUER.rstrip("/")), "This token is of another issuer"),
    "a list of issuers": (lambda: sign(iss=[ISSUER]), "This token is"),
    "no audience": (lambda: sign(aud=None), "This token lacks the claim aud."),
    "a foreign audience": (lambda: sign(aud="another-service"), "This token is not for this service"),
    "an audience that begins as ours": (lambda: sign(aud=[AUDIENCE + "x"]), "This token is not for this"),
    "an audience that is none": (lambda: sign(aud={"a": 1}), "This token is not"),
    "no end": (lambda: sign(exp=None), "This token lacks the claim exp."),
    "expired": (lambda: sign(exp=int(time.time()) - 60), "This token has expired."),
    "an end that is none": (lambda: sign(exp="tomorrow"), NOT_VALID),
    "an end without end": (lambda: sign(exp=float("inf")), NOT_VALID),
    "not valid yet": (lambda: sign(nbf=int(time.time()) + 60), "This token is not valid yet"),
    "issued in the future": (lambda: sign(iat=int(time.time()) + 60), "This token is not valid yet"),
    "issued never": (lambda: sign(iat="x"), NOT_VALID),
    "nobody's": (lambda: sign(sub=None), "This token lacks the claim sub."),
    "a number's": (lambda: sign(sub=17), NOT_VALID),
    "somebody's with a very long name": (lambda: sign(sub="x" * 256), NOT_VALID),
    "for logging out": (lambda: sign(header={"typ": "logout+jwt"}), NOT_VALID),
    "of a type that is none": (lambda: raw_token({"alg": "ES256", "typ": 1}, CLAIMS), NOT_VALID),
    "critical": (lambda: sign(header={"crit": ["exp"]}), NOT_VALID),
    "not packed": (lambda: sign(header={"b64": False, "crit": ["b64"]}), NOT_VALID),
    "a header that is no object": (lambda: raw_token([], CLAIMS), NOT_VALID),
    "claims that are no object": (lambda: raw_token({"alg": "ES256", "kid": "one"}, []), NOT_VALID),
    "deep": (
        lambda: base64.urlsafe_b64encode(b"[" * 1500).decode() + ".e30.AAAA",
        NOT_VALID,
    ),
    "long": (lambda: sign(sub="x", more="y" * TOKEN_MAX_BYTES), NOT_VALID),
    "four parts": (lambda: sign() + ".e30", NOT_VALID),
    "empty parts": (lambda: "..", NOT_VALID),
    "other letters": (lambda: sign().replace("e", "é", 1), NOT_VALID),
    "padded": (lambda: sign() + "==", NOT_VALID),
}


@pytest.mark.parametrize(("token", "said"), ATTACKS.values(), ids=ATTACKS.keys())
def test_whatever_is_wrong_with_a_token_nobody_gets_in(token: Callable[[], str], said: str) -> None:
    tokens = web_tokens()
    for _ in range(2):  # what was refused is not remembered as something else
        told = found(tokens, token())
        assert isinstance(told, str) and told.startswith(said), told
    assert isinstance(found(tokens, sign()), Caller)


def test_a_key_set_gives_only_keys_that_may_sign() -> None:
    secret = {"kty": "oct", "k": base64.urlsafe_b64encode(b"secret" * 8).decode(), "kid": "secret"}
    signers = parse_keys(
        key_set(
            secret,
            public_jwk("RSA", "to encrypt", use="enc"),
            public_jwk("P-256", "of a shared secret", alg="HS256"),
            public_jwk("P-256", "none", alg="none"),
            {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "no point"},
            {"kty": "EC", "crv": "secp256k1", "kid": "another curve"},
            {"kty": ["RSA"], "kid": "odd"},
            {},
            public_jwk("Ed25519", "good"),
        ),
        "the set",
    )
    assert list(signers) == ["good"]
    assert parse_keys(key_set(), "the set") == {}
    for wrong in (b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b"[" * 100_000):
        with pytest.raises(TokenKeysError, match="the set holds no key set"):
            parse_keys(wrong, "the set")
    with pytest.raises(TokenKeysError, match="private"):
        parse_keys(key_set({**public_jwk("P-256", "one"), "d": "AA"}), "the set")


def test_a_short_rsa_key_signs_nothing() -> None:
    assert found(web_tokens(public_jwk("short", "one")), sign(kind="short", alg="RS256")) == NOT_VALID


def test_a_key_without_a_name_is_meant_where_there_is_one() -> None:
    unnamed = sign(kid=None)
    assert isinstance(found(web_tokens(public_jwk("P-256")), unnamed), Caller)
    assert isinstance(found(web_tokens(public_jwk("P-256", "one")), unnamed), Caller)
    several = web_tokens(public_jwk("P-256", "one"), public_jwk("P-384", "two"))
    assert found(several, unnamed) == NOT_VALID


@pytest.mark.parametrize(
    ("said", "grants"),
    [
        ("publish:a subscribe:a manage:b", {"a": {"publish", "subscribe"}, "b": {"manage"}}),
        (["publish:a", "watch"], {"a": {"publish"}, None: {"watch"}}),
        ("openid profile email  admin", {None: {"admin"}}),
        ("publish", {}),
        ("admin:a watch:a Publish:a fly:a", {}),
        ("publish:a:b", {"a:b": {"publish"}}),
        ("publish:*", {"*": {"publish"}}),  # no space has that name
        ("", {}),
        (17, {}),
        ({"publish:a": True}, {}),
        ([["publish:a"], 17, None], {}),
    ],
)
def test_the_claim_says_which_rights_and_where(said: Any, grants: dict[str | None, set[str]]) -> None:
    caller = found(web_tokens(), sign(said))
    assert isinstance(caller, Caller) and caller.grants == grants
    other = found(web_tokens(claim="permissions"), sign("admin", permissions=said))
    assert isinstance(other, Caller) and other.grants == grants


def test_a_token_lasts_until_it_expires_whatever_the_clock_does() -> None:
    """A clock that is set back would have it last for ever; one that was wrong and is put right must not
    keep out who has a good one."""
    for wall_s, now_s, lasts in (
        (629, 629, True),
        (631, 0, False),
        (0, 631, False),
        (-86_400, 629, True),
        (-86_400, 631, False),
    ):
        clock = Clock()
        tokens = web_tokens(clock=clock)
        token = sign()
        first = tokens.find(token.encode())
        clock.wall_s, clock.now_s = clock.wall_s + wall_s, clock.now_s + now_s
        assert (tokens.find(token.encode()) is first) is lasts  # PyJWT's own clock is not set
        tokens.sweep()
        assert first.has_ended is not lasts


def test_what_is_remembered_is_bounded_and_what_is_open_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens_module, "HELD_MAX", 3)
    clock = Clock()
    tokens = web_tokens(clock=clock)
    callers = [tokens.find(sign(sub=str(number)).encode()) for number in range(5)]
    assert len(tokens._held) == 3
    clock.now_s += 700
    tokens.sweep()
    assert all(caller.has_ended for caller in callers) and not tokens._held
    del callers
    gc.collect()
    assert not tokens._known


def test_tokens_travel_nowhere() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(web_tokens())


def test_keys_that_could_not_be_had_yet_are_no_fault_of_the_token() -> None:
    tokens = WebTokens(ISSUER, AUDIENCE)
    with pytest.raises(UnknownSigner) as caught:
        tokens.find(sign().encode())
    assert caught.value.status == 503 and caught.value.headers["Retry-After"]


# With a gateway


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
                if one[1] in ("/v1/stats", "/metrics", "/readyz", "/healthz", "/openapi.json"):
                    continue
                told, same = await ask(r, one, foreign), await ask(r, other, foreign)
                known = told.text.replace("theirs", "nowhere").replace("0-0-0", "7-7-0")
                assert (told.status_code, known) == (same.status_code, same.text), one
                assert told.status_code == 404 or "/theirs" not in one[1], one
                assert "secret-event" not in told.text
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
    """Its holder worked for who had the name before; a restart makes no difference."""
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
    """A stream and a WebSocket would go on for as long as somebody reads."""
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
        until(lambda: gateway.pump.connected == 1)
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
        until(lambda: gateway.pump.connected == 0)
        if end == "key goes":
            assert client.get("/v1/spaces", headers=bearer(token)).status_code == 401
            by_two = sign("subscribe:trial", kind="P-384", alg="ES384", kid="two")
            assert client.get("/v1/spaces", headers=bearer(by_two)).status_code == 200


def test_keys_at_a_url_are_looked_for_once_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token by a new key waits for it; made-up ones have the issuer asked once."""
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


def test_keys_that_come_too_slowly_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "FETCH_MAX_S", 0.0)
    with serving_keys(public_jwk("P-256", "one")) as shown:
        with pytest.raises(TokenKeysError, match="longer than"):
            KeyUrl(shown.url, 5).read()
        monkeypatch.setattr(token_keys, "FETCH_MAX_S", 6.0)
        assert KeyUrl(shown.url, 5).read()
    with pytest.raises(TokenKeysError, match="cannot be read"):
        KeyUrl(shown.url, 5).read()


def test_a_file_of_keys_is_read_again_when_it_changed_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    source = KeyFile(path)
    with pytest.raises(TokenKeysError, match=r"keys\.json: No such file"):
        source.read()
    path.write_bytes(key_set(public_jwk("P-256", "one"))[:-5])  # somebody is writing it
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
        with pytest.raises(ValidationError, match="go together"):
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
