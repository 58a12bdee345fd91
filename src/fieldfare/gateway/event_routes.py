"""``POST /v1/spaces/{space}/events``: CloudEvents in any of their HTTP forms into the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.delivery.keys import place_of
from fieldfare.gateway import events
from fieldfare.gateway.arrow_bodies import decode_arrow
from fieldfare.gateway.door import HEADERS, header
from fieldfare.gateway.events import BatchTooLong, DecodedEvents, Limits
from fieldfare.gateway.json_array import count_bytes
from fieldfare.gateway.problems import Problem
from fieldfare.gateway.requests import drain, read_body
from fieldfare.gateway.subscription_routes import json_response
from fieldfare.gateway.writer import WriterOverloaded
from fieldfare.storage.event_log import Appended, NewRecord

if TYPE_CHECKING:
    from fieldfare.gateway.app import Gateway

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"

INLINE_BYTES = 64 << 10
SLOW_INLINE_PARTS = 1_000
"""Up to so many bytes are decoded at once. Larger bodies, and those that need a closer look at more than so
many parts, are looked at on a thread, so that other requests go on."""

INLINE_MOST_BYTES = events.WHOLE_MAX_BYTES
INLINE_MOST_PARTS = 48_000
"""Usual events up to here are decoded at once, too: they are quicker than a change of threads."""

ANSWER_INLINE_EVENTS = 1_000

REFUSED_SHOWN = 1_000


async def publish(request: Request) -> Response:
    """Append the events of one request as one record."""
    gateway: Gateway = request.app.state.gateway
    space = request.path_params["space"]
    try:
        gateway.subscriptions.check_space(space)
        producer, sequence = _producer_of(request)
        gateway.check_load()
        kind = _kind_of(request)
    except Problem:
        await drain(request, 0)
        raise
    body = await read_body(request, gateway.settings.body_max_bytes)
    try:
        if kind == ARROW:
            decoded = await _decode_arrow(body, gateway)
        else:
            decoded = await _decode(kind, request, body, gateway.limits)
    except BatchTooLong as error:
        limit = gateway.limits.batch_max_events
        detail = f"The batch has {error.count} events or more; at most {limit} are taken in one request."
        raise Problem(413, "batch-too-long", detail, max_events=limit) from None
    if decoded.refused:
        gateway.metrics.refused.inc(len(decoded.refused))
    if not decoded.count:
        if kind == BATCH and not decoded.refused:
            return json_response(
                {"partition": 0, "offset": None, "count": 0, "stamp": None, "duplicate": False}
            )
        raise _nothing_taken(decoded)
    record = NewRecord(space, decoded.payload, decoded.count, producer, sequence, time.time_ns() // 1_000_000)
    try:
        place = await gateway.writer.append(record)
    except WriterOverloaded:
        raise gateway.overloaded("queue", "Events come faster than the disk takes them.") from None
    if place.differs:
        detail = (
            f"The producer {producer!r} has sent something else as number {sequence} in the space {space!r}:"
            " a repeat has the same body, and new events have a new number. Nothing was appended."
        )
        raise Problem(409, "sequence-used", detail)
    if place.duplicate:
        gateway.metrics.duplicates.inc()
    else:
        gateway.metrics.appended(record.count, len(record.payload))
        gateway.records.put(place_of(place.partition, place.offset), record.payload)
    if decoded.refused and decoded.count + len(decoded.refused) > ANSWER_INLINE_EVENTS:
        return await asyncio.to_thread(_answer, decoded, place)
    return _answer(decoded, place)


def _producer_of(request: Request) -> tuple[str | None, int | None]:
    producer = header(request, b"fieldfare-producer")
    sequence = header(request, b"fieldfare-sequence")
    if producer is None and sequence is None:
        return None, None
    if producer is None or sequence is None:
        raise Problem(
            400, "bad-header", "Fieldfare-Producer and Fieldfare-Sequence go together: both, or neither."
        )
    if not 1 <= len(producer) <= 128:
        raise Problem(400, "bad-header", "Fieldfare-Producer has 1 to 128 characters.")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) <= 18):
        raise Problem(400, "bad-header", "Fieldfare-Sequence is a whole number of at most 18 digits.")
    return producer, int(sequence)


def _kind_of(request: Request) -> str:
    """The form of the request: one of the media types above, or ``binary``."""
    content_type = header(request, b"content-type") or ""
    media, _, parameters = content_type.partition(";")
    media = media.strip().lower()
    if media == "application/ndjson":
        media = LINES
    if media in (STRUCTURED, BATCH, LINES):
        if events.charset_of(parameters) not in (*events.UTF8, "us-ascii"):
            raise Problem(415, "content-type", f"JSON events are UTF-8, not {parameters.strip()[:60]}.")
        return media
    if media == ARROW:
        return media
    if not media.startswith("application/cloudevents") and b"ce-specversion" in request.scope[HEADERS]:
        return "binary"
    raise Problem(
        415,
        "content-type",
        f"Events are not taken as {media[:80] or 'a body without Content-Type'}.",
        accepted=[STRUCTURED, BATCH, LINES, ARROW],
        hint="One event may also come in binary mode: its attributes as ce- headers (ce-specversion, ce-id, "
        "ce-source, ce-type), its data as the body.",
    )


async def _decode_arrow(body: bytes, gateway: Gateway) -> DecodedEvents:
    # However few its bytes are, a stream may unpack to ten thousand events.
    return await asyncio.to_thread(decode_arrow, body, gateway.limits, gateway.settings.body_max_bytes)


async def _decode(kind: str, request: Request, body: bytes, limits: Limits) -> DecodedEvents:
    if kind == "binary":
        if len(body) <= INLINE_BYTES:
            return events.decode_binary(request.headers, body, limits)
        return await asyncio.to_thread(events.decode_binary, request.headers, body, limits)
    fast: Callable[[bytes, Limits], DecodedEvents | None] | None
    slow: Callable[[bytes, Limits], DecodedEvents]
    if kind == BATCH:
        fast, slow = events.decode_array_fast, events.decode_array
    elif kind == LINES:
        fast, slow = events.decode_lines_fast, events.decode_lines
    else:
        fast, slow = None, events.decode_single
    small = len(body) <= INLINE_BYTES
    if fast is not None and (
        small or (len(body) <= INLINE_MOST_BYTES and count_bytes(body, b",") <= INLINE_MOST_PARTS)
    ):
        decoded = fast(body, limits)
        if decoded is not None:
            return decoded
        fast = None
    if fast is None and small and count_bytes(body, b",") + count_bytes(body, b"\n") <= SLOW_INLINE_PARTS:
        return slow(body, limits)
    return await asyncio.to_thread(_decode_large, fast, slow, body, limits)


def _decode_large(
    fast: Callable[[bytes, Limits], DecodedEvents | None] | None,
    slow: Callable[[bytes, Limits], DecodedEvents],
    body: bytes,
    limits: Limits,
) -> DecodedEvents:
    decoded = fast(body, limits) if fast is not None else None
    return slow(body, limits) if decoded is None else decoded


def _nothing_taken(decoded: DecodedEvents) -> Problem:
    refused = decoded.refused
    if not refused:
        return Problem(400, "no-events", "The request has no event in it.")
    status = 413 if all(each.too_large for each in refused) else 400
    if len(refused) == 1:
        place = refused[0].document()
        return Problem(
            status,
            "bad-event",
            place.pop("detail"),
            title="The event was refused",
            **place,
            refused=[refused[0].document()],
        )
    return Problem(
        status,
        "bad-events",
        f"All {len(refused)} events were refused; the first because {refused[0].detail}.",
        title="No event was accepted",
        refused=[each.document() for each in refused[:REFUSED_SHOWN]],
    )


def _answer(decoded: DecodedEvents, place: Appended) -> Response:
    document: dict[str, Any] = {
        "partition": place.partition,
        "offset": place.offset,
        "count": place.count,
        "stamp": place.stamp,
        "duplicate": place.duplicate,
    }
    if not decoded.refused:
        return Response(msgspec.json.encode(document), media_type="application/json")
    document = {
        "type": "urn:fieldfare:problem:some-events-refused",
        "title": "Some events were refused",
        "status": 207,
        "detail": f"{decoded.count} events were accepted, {len(decoded.refused)} refused.",
        **document,
        "accepted": [
            {"index": index, "position": f"{place.partition}-{place.offset}-{place_in_record}"}
            for place_in_record, index in enumerate(decoded.accepted)
        ],
        "refused": [each.document() for each in decoded.refused],
    }
    return Response(msgspec.json.encode(document), 207, media_type="application/json")
