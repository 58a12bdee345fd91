"""Decode the events of a request by its content type: on the event loop, or on a thread if it takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from starlette.requests import Request

from fieldfare.gateway.admission.request_guard import HEADERS, header
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.arrow_bodies import decode_arrow
from fieldfare.gateway.publishing.events import (
    INLINE_BYTES,
    UTF8,
    DecodedEvents,
    Limits,
    charset_of,
    decode_array,
    decode_array_fast,
    decode_binary,
    decode_lines,
    decode_lines_fast,
    decode_single,
)
from fieldfare.gateway.text import count_bytes

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
BINARY = "binary"
"""The form of a request whose event's attributes are headers, and whose body is the event's data."""

SLOW_INLINE_PARTS = 200
"""Maximum parts that need the exact decoder, of a body decoded on the event loop; more go to a thread,
so that they do not delay other requests."""

INLINE_BYTES_MAX = 256 << 10
INLINE_PARTS_MAX = 24_000
"""Maximum bytes and parts of a body in the common form that is decoded on the event loop, faster than on a
thread; larger ones go to a thread."""

_Decode = Callable[[bytes, Limits], DecodedEvents]


def kind_of(request: Request) -> str:
    """Return the form of the request: a media type, or `BINARY`; else raise Problem 415."""
    content_type = header(request, b"content-type") or ""
    media, _, parameters = content_type.partition(";")
    media = media.strip().lower()
    if media == "application/ndjson":
        media = LINES
    if media in (STRUCTURED, BATCH, LINES):
        if charset_of(parameters) not in (*UTF8, "us-ascii"):
            raise HttpProblem(
                415, "content-type", f"JSON events must be UTF-8, not {parameters.strip()[:60]}."
            )
        return media
    if media == ARROW:
        return media
    if not media.startswith("application/cloudevents") and b"ce-specversion" in request.scope[HEADERS]:
        return BINARY
    raise HttpProblem(
        415,
        "content-type",
        f"The Content-Type {media[:80] or '(none)'} is not supported for events.",
        accepted=[STRUCTURED, BATCH, LINES, ARROW],
        hint="One event may also come in binary mode: its attributes as ce- headers (ce-specversion, ce-id, "
        "ce-source, ce-type), its data as the body.",
    )


async def decode_body(
    kind: str, headers: Mapping[str, str], body: bytes, limits: Limits, arrow_max_bytes: int
) -> DecodedEvents:
    """Return the events of a request's body, in the form `kind_of` returned.

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
