"""Ordering keys of events as numbers: equal values have equal numbers; others collide only by chance."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from fieldfare.filters.evaluator import event_getter
from fieldfare.filters.sql.paths import parse_path
from fieldfare.filters.values import ABSENT

NAME_BYTES = 7
"""Bytes of an ordering key's number: fewer than a message key's, so that it is never negative there."""


@lru_cache(1_000)
def name_of(path: str) -> Callable[[bytes], int | None]:
    """Return a function from an event's JSON line to the number of its value at `path`.

    The function returns None where the event has no value there. Equal numeric values have one number,
    whether written as 1 or 1.0; text never equals a number.
    """
    get = event_getter(parse_path(path))

    def name(line: bytes) -> int | None:
        value: Any = get(msgspec.json.decode(line))
        if value is ABSENT or value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        text = msgspec.json.encode(value, order="deterministic")
        return int.from_bytes(blake2b(text, digest_size=NAME_BYTES).digest(), "big")

    return name
