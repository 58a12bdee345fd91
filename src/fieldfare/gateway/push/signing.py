"""Signatures that authenticate requests to receivers, by the Standard Webhooks specification, version 1."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable

PREFIX = "whsec_"
SECRET_MIN_BYTES, SECRET_MAX_BYTES = 24, 64
SECRET_RULE = f"{PREFIX}, followed by {SECRET_MIN_BYTES} to {SECRET_MAX_BYTES} random bytes as base64"


def key_of(secret: str) -> bytes | None:
    """Return the key encoded in a secret; None if the secret is invalid."""
    if not secret.startswith(PREFIX):
        return None
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX).encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    return key if SECRET_MIN_BYTES <= len(key) <= SECRET_MAX_BYTES else None


def signature(secrets: Iterable[str], id: str, time_s: int, body: bytes) -> str:
    """Return the header ``webhook-signature``: one signature per secret."""
    signed = b"%s.%d.%s" % (id.encode(), time_s, body)
    keys = filter(None, map(key_of, secrets))
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return " ".join("v1," + base64.b64encode(digest).decode() for digest in digests)
