"""Signatures by which receivers know requests: those of the Standard Webhooks specification, version 1."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable

PREFIX = "whsec_"
SECRET_MIN_BYTES, SECRET_MAX_BYTES = 24, 64
SECRET_RULE = f"{PREFIX} and behind it {SECRET_MIN_BYTES} to {SECRET_MAX_BYTES} bytes of chance as base64"


def key_of(secret: str) -> bytes | None:
    """The key that a secret stands for; None if it is no secret."""
    if not secret.startswith(PREFIX):
        return None
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX).encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    return key if SECRET_MIN_BYTES <= len(key) <= SECRET_MAX_BYTES else None


def signature(secrets: Iterable[str], id: str, time_s: int, body: bytes) -> str:
    """The header ``webhook-signature``: a signature by each of the secrets."""
    signed = b"%s.%d.%s" % (id.encode(), time_s, body)
    keys = filter(None, map(key_of, secrets))
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return " ".join("v1," + base64.b64encode(digest).decode() for digest in digests)
