"""Ordering keys of events, as numbers: the same for what is the same value, and only by chance for others."""

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
"""Fewer than of a key, so that they are never negative there."""


@lru_cache(1_000)
def name_of(path: str) -> Callable[[bytes], int | None]:
    """What makes the JSON line of an event the number of what it has at a path; None for nothing there.

    Numbers that are equal have one number, whether they were written as 1 or 1.0; text is never a number.
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
