"""Decode the events of a request by its content type: on the event loop, or on a thread if it takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from fieldfare.gateway.publishing.arrow_bodies import decode_arrow
from fieldfare.gateway.publishing.events import (
    INLINE_BYTES,
    DecodedEvents,
    Limits,
    decode_array,
    decode_array_fast,
    decode_binary,
    decode_lines,
    decode_lines_fast,
    decode_single,
)
from fieldfare.gateway.publishing.request_head import ARROW, BATCH, BINARY, LINES, STRUCTURED
from fieldfare.gateway.text import count_bytes

SLOW_INLINE_PARTS = 200
"""Maximum parts that need the exact decoder, of a body decoded on the event loop; more go to a thread,
so that they do not delay other requests."""

INLINE_BYTES_MAX = 256 << 10
INLINE_PARTS_MAX = 24_000
"""Maximum bytes and parts of a body in the common form that is decoded on the event loop, faster than on a
thread; larger ones go to a thread."""

_Decode = Callable[[bytes, Limits], DecodedEvents]


async def decode_body(
    kind: str, headers: Mapping[str, str], body: bytes, limits: Limits, arrow_max_bytes: int
) -> DecodedEvents:
    """Return the events of a request's body, which has the form `PublishHead.kind`.

    Raise BatchTooLong or HttpProblem if the body cannot be used at all.
    """
    fast: Callable[[bytes, Limits], DecodedEvents | None] | None = None
    exact: _Decode
    if kind == BATCH:
        fast, exact = decode_array_fast, decode_array
    elif kind == LINES:
        fast, exact = decode_lines_fast, decode_lines
    elif kind == STRUCTURED:
        exact = decode_single
    elif kind == BINARY:
        exact = partial(decode_binary, headers)
    else:
        exact = partial(decode_arrow, max_bytes=arrow_max_bytes)
    # Even a small Arrow stream may unpack to ten thousand events.
    is_small = len(body) <= INLINE_BYTES and kind != ARROW
    if fast is not None and (
        is_small or (len(body) <= INLINE_BYTES_MAX and count_bytes(body, b",") <= INLINE_PARTS_MAX)
    ):
        decoded = fast(body, limits)
        if decoded is not None:
            return decoded
        fast = None
    if fast is None and is_small and _parts(body) <= SLOW_INLINE_PARTS:
        return exact(body, limits)
    return await asyncio.to_thread(lambda: (fast and fast(body, limits)) or exact(body, limits))


def _parts(body: bytes) -> int:
    return count_bytes(body, b",") + count_bytes(body, b"\n")
