"""The id of a request: the client's own, or one made here. It is in the answer, and in the log's lines."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from itertools import count

HEADER = b"x-request-id"
SCOPE_KEY = "fieldfare.request_id"

_VALID = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,64}")
_prefix = secrets.token_hex(4)
_numbers = count(1)


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a request's id; the client's own if it has one of at most 64 plain characters."""
    for name, value in headers:
        if name == HEADER and _VALID.fullmatch(value):
            return value
    return b"%s-%x" % (_prefix.encode(), next(_numbers))
