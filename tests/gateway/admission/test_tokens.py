"""Tokens (JWT): which are accepted, with which rights and for how long, and which are rejected."""

from __future__ import annotations

import base64
import gc
import hashlib
import hmac
import json
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from token_support import (
    AUDIENCE,
    ISSUER,
    key_set,
    private_key,
    public_jwk,
    sign,
)

from fieldfare.gateway.admission import tokens as tokens_module
from fieldfare.gateway.admission.callers import Caller, Right, UnknownSigner
from fieldfare.gateway.admission.token_keys import TokenKeysError, parse_keys
from fieldfare.gateway.admission.tokens import TOKEN_MAX_BYTES, WebTokens
from fieldfare.gateway.problems import HttpProblem


class Clock:
    """One that a test sets."""

    def __init__(self) -> None:
        self.wall_s, self.now_s = time.time(), 1000.0


def web_tokens(*keys: dict[str, Any], clock: Clock | None = None, **settings: Any) -> WebTokens:
    clocks: dict[str, Callable[[], float]] = {}
    if clock is not None:
        clocks = {"wall_s": lambda: clock.wall_s, "monotonic_s": lambda: clock.now_s}
    tokens = WebTokens(ISSUER, AUDIENCE, has_space=lambda name: True, **clocks, **settings)
    tokens.use(parse_keys(key_set(*(keys or (public_jwk("P-256", "one"),))), "the set"))
    return tokens


def found(tokens: WebTokens, token: str) -> Caller | str:
    """The caller that a token identifies, or the error."""
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
def test_tokens_signed_by_each_kind_of_key_are_accepted_and_no_others(kind: str, alg: str) -> None:
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
    """A token signed with the public key as a shared secret."""
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
    "a foreign issuer": (lambda: sign(iss=ISSUER.rstrip("/")), "This token is from an issuer that"),
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
    "one without a name": (lambda: sign(sub=""), NOT_VALID),
    "a number's": (lambda: sign(sub=17), NOT_VALID),
    "somebody's with a very long name": (lambda: sign(sub="x" * 256), NOT_VALID),
    "half a character's": (lambda: sign(sub="\ud800"), NOT_VALID),
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
def test_invalid_tokens_are_rejected(token: Callable[[], str], said: str) -> None:
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


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
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
    keep out the holder of a valid one."""
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


def test_tokens_cannot_be_pickled() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(web_tokens())


def test_keys_that_could_not_be_had_yet_are_no_fault_of_the_token() -> None:
    tokens = WebTokens(ISSUER, AUDIENCE, has_space=lambda name: True)
    with pytest.raises(UnknownSigner) as caught:
        tokens.find(sign().encode())
    assert caught.value.status == 503 and caught.value.headers["Retry-After"]
