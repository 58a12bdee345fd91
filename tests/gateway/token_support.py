"""An issuer of tokens, with keys of every kind, and its key set."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER = "https://login.example.com/"
AUDIENCE = "fieldfare"


@cache
def private_key(kind: str) -> Any:
    """A private key of a kind, or another one of the same kind: ``RSA``, ``RSA other``."""
    name = kind.split()[0]
    if name == "RSA":
        return rsa.generate_private_key(65537, 2048)
    if name == "short":
        return rsa.generate_private_key(65537, 1024)
    if name == "Ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(
        {"P-256": ec.SECP256R1, "P-384": ec.SECP384R1, "P-521": ec.SECP521R1}[name]()
    )


def public_jwk(kind: str, kid: str | None = None, **more: Any) -> dict[str, Any]:
    """A public key in the form of a key set."""
    key = private_key(kind).public_key()
    if isinstance(key, rsa.RSAPublicKey):
        form = jwt.algorithms.RSAAlgorithm.to_jwk(key, as_dict=True)
    elif isinstance(key, ed25519.Ed25519PublicKey):
        form = jwt.algorithms.OKPAlgorithm.to_jwk(key, as_dict=True)
    else:
        form = jwt.algorithms.ECAlgorithm.to_jwk(key, as_dict=True)
    form.pop("key_ops", None)
    return {**form, **({"kid": kid} if kid is not None else {}), **more}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def sign(
    scope: Any = "publish:mine",
    *,
    kind: str = "P-256",
    alg: str = "ES256",
    kid: str | None = "one",
    header: dict[str, Any] | None = None,
    **claims: Any,
) -> str:
    """A signed token; claims that are None are omitted."""
    now = int(time.time())
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "gate-17", "iat": now, "exp": now + 600, "scope": scope}
    said = {name: value for name, value in {**said, **claims}.items() if value is not None}
    headers = {**({"kid": kid} if kid is not None else {}), **(header or {})}
    # Not jwt.encode: it makes no token that is wrong.
    return jwt.api_jws.encode(json.dumps(said).encode(), private_key(kind), alg, headers)


def token_settings(folder: Path, *keys: dict[str, Any]) -> dict[str, Any]:
    """Settings of a gateway that takes this issuer's tokens, and a file with its keys."""
    path = folder / "keys.json"
    path.write_bytes(key_set(*(keys or (public_jwk("P-256", "one"),))))
    return {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_jwks": str(path)}


class KeyServer:
    """Shows a key set by HTTP.

    Attributes
    ----------
    body, status, asked
        What it answers, and how often it was asked.
    """

    def __init__(self, body: bytes) -> None:
        self.body, self.status, self.asked = body, 200, 0
        self.url = ""


@contextmanager
def serving_keys(*keys: dict[str, Any]) -> Iterator[KeyServer]:
    shown = KeyServer(key_set(*keys))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.asked += 1
            self.send_response(shown.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            try:
                self.wfile.write(shown.body)
            except OSError:  # the client closed the connection
                pass

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    shown.url = f"http://127.0.0.1:{server.server_port}/keys.json"
    try:
        yield shown
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
