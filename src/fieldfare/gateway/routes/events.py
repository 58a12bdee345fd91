"""``POST /v1/spaces/{space}/events``: CloudEvents in any of their HTTP forms into the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fieldfare.delivery.keys import place_of
from fieldfare.gateway.admission.bodies import Bodies, drain
from fieldfare.gateway.admission.door import HEADERS, header
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.delivery.records import RecordCache
from fieldfare.gateway.in_order import RecordOutOfOrder
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing import events
from fieldfare.gateway.publishing.arrow_bodies import decode_arrow
from fieldfare.gateway.publishing.delayed import Delayed, DelayedFull
from fieldfare.gateway.publishing.events import BatchTooLong, DecodedEvents, Limits
from fieldfare.gateway.publishing.sealed import sealed_only
from fieldfare.gateway.routes.delayed import due_of, kept_document
from fieldfare.gateway.routes.requests import json_response
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.text import count_bytes
from fieldfare.gateway.writer import Writer, WriterOverloaded
from fieldfare.model import space_name
from fieldfare.storage.delayed import Kept
from fieldfare.storage.event_log import FIRST, Appended, NewRecord

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"

INLINE_BYTES = 64 << 10
SLOW_INLINE_PARTS = 200
"""Up to so many bytes are decoded at once. Larger bodies, and those that need a closer look at more than so
many parts, are looked at on a thread, so that other requests go on."""

INLINE_MOST_BYTES = 256 << 10
INLINE_MOST_PARTS = 24_000
"""Usual events up to here are decoded at once, too: they are quicker than a change of threads."""

ANSWER_INLINE_EVENTS = 1_000

REFUSED_SHOWN = 1_000

_PASSING = frozenset((429, 503, 507))
"""Who is told so sends the same again."""

_TOO_LARGE = f"Send fewer events at once. {events.CLAIM_CHECK}"


@dataclass(frozen=True, slots=True)
class EventRoutes:
    """Events in."""

    subscriptions: Subscriptions
    writer: Writer
    records: RecordCache
    bodies: Bodies
    load: Load
    quotas: Quotas
    metrics: Metrics
    delayed: Delayed
    limits: Limits
    delay_max_s: float

    async def publish(self, request: Request) -> Response:
        """Append the events of one request as one record."""
        name = request.path_params["space"]
        try:
            space = self.subscriptions.check_space(name)
            sender = _sender_of(request)
            due_ms = due_of(request, time.time_ns() // 1_000_000, self.delay_max_s)
            if due_ms is not None and sender.follows is not None:
                detail = "Events for later follow nothing: Fieldfare-Follows is for events of now."
                raise HttpProblem(400, "bad-header", detail)
            self.load.check()
            self.quotas.check(space, time.monotonic())
            self.quotas.check_room(space, "stored_event_bytes")
            self.quotas.check_room(space, "stored_match_bytes")
            kind = _kind_of(request)
        except HttpProblem as refused:
            await self.quotas.hold(refused)
            await drain(request, 0)
            raise
        try:
            return await self._publish(request, space, sender, kind, due_ms)
        except HttpProblem as refused:
            if sender.producer is not None and sender.sequence is not None and refused.status not in _PASSING:
                self.writer.refused(space, sender.producer, sender.sequence)
            raise

    async def _publish(
        self, request: Request, space: str, sender: _Sender, kind: str, due_ms: int | None
    ) -> Response:
        name = request.path_params["space"]
        decoded = await self._decoded(request, space, kind)
        if self.subscriptions.check_space(name) != space:  # it was deleted, and made anew, meanwhile
            raise HttpProblem(404, "unknown-space", f"The space {name!r} was deleted.")
        if not decoded.count:
            if kind == BATCH and not decoded.refused and sender.sequence is None:
                return json_response(
                    {"partition": 0, "offset": None, "count": 0, "stamp": None, "duplicate": False}
                )
            raise _nothing_taken(decoded, is_numbered=sender.sequence is not None)
        size_bytes = len(decoded.payload)
        spent = {"events_per_s": decoded.count, "bytes_per_s": size_bytes}
        now_s = time.monotonic()
        self.quotas.spend(space, now_s, **spent)
        self.quotas.shares.published(space, now_s)
        now_ms = time.time_ns() // 1_000_000
        record = NewRecord(
            space,
            decoded.payload,
            decoded.count,
            sender.producer,
            sender.sequence,
            now_ms,
            follows=sender.follows,
        )
        try:
            with self.quotas.storing(space, size_bytes) as stored:
                place = await (self._append(record) if due_ms is None else self._keep(record, due_ms))
                stored.is_kept = not place.duplicate
        except Exception as error:
            is_told_at_once = isinstance(error, RecordOutOfOrder) and not error.has_waited
            # It came too early, or there was no room, and it will be sent again. Who is told at once that it
            # is out of order has paid: as often as he likes he could have the service work for nothing.
            if not is_told_at_once:
                self.quotas.give_back(space, time.monotonic(), **spent)
            if isinstance(error, RecordOutOfOrder):
                raise _out_of_order(record, error) from None
            raise
        if place.differs:
            raise _sequence_used(record)
        if isinstance(place, Kept):
            return json_response(kept_document(place) | _judged(decoded), 202)
        if decoded.refused and decoded.count + len(decoded.refused) > ANSWER_INLINE_EVENTS:
            return await asyncio.to_thread(_answer, decoded, place, sender.follows)
        return _answer(decoded, place, sender.follows)

    async def _keep(self, record: NewRecord, due_ms: int) -> Kept:
        """Have a record wait for its time."""
        try:
            kept = await self.delayed.keep(record, due_ms)
        except DelayedFull:
            raise self.load.overloaded("delayed", "As many events wait for their time as may.") from None
        if kept.duplicate:
            self.metrics.duplicates.inc()
        return kept

    async def _append(self, record: NewRecord) -> Appended:
        try:
            place = await self.writer.append(record)
        except WriterOverloaded:
            raise self.load.overloaded("queue", "Events come faster than the disk takes them.") from None
        if place.duplicate:
            self.metrics.duplicates.inc()
        else:
            self.metrics.appended(record.count, len(record.payload))
            key = place_of(place.partition, place.offset)
            self.records.put(key, record.payload, record.appended_ms)
        return place

    async def _decoded(self, request: Request, space: str, kind: str) -> DecodedEvents:
        """The events of a request; what of it comes to nothing is paid for, too.

        It is as much work as the rest, and no quota would bound who sends nothing else.
        """
        refused = wasted_bytes = 0
        try:
            body = await self.bodies.read(request, way_out=_TOO_LARGE)
            wasted_bytes = len(body)
            decoded = await self._decode(kind, request, body)
            encryption = self.subscriptions.encryption(space)
            if encryption is not None:
                decoded = await sealed_only(decoded, encryption)
            if refused := len(decoded.refused):
                self.metrics.refused.inc(refused)
            if decoded.count:
                wasted_bytes = max(0, wasted_bytes - len(decoded.payload)) if refused else 0
            return decoded
        except BatchTooLong as error:
            refused, limit = error.count, self.limits.batch_max_events
            detail = f"The batch has {error.count} events or more; at most {limit} are taken in one request."
            raise HttpProblem(413, "batch-too-long", detail, max_events=limit) from None
        except HttpProblem as problem:
            if problem.status in (400, 413) and not wasted_bytes:
                # So much came, and was unpacked up to there.
                unpacked = "unpacked_bytes" if problem.status == 400 else "max_bytes"
                is_packed = header(request, b"content-encoding") is not None
                wasted_bytes = self.bodies.held_by(request.scope)
                wasted_bytes += problem.place.get(unpacked, 0) if is_packed else 0
            raise
        finally:
            if refused or wasted_bytes:
                now_s = time.monotonic()
                self.quotas.spend(space, now_s, events_per_s=refused, bytes_per_s=wasted_bytes)

    async def _decode(self, kind: str, request: Request, body: bytes) -> DecodedEvents:
        if kind == ARROW:
            # However few its bytes are, a stream may unpack to ten thousand events.
            return await asyncio.to_thread(decode_arrow, body, self.limits, self.bodies.body_max_bytes)
        if kind == "binary":
            if len(body) <= INLINE_BYTES and count_bytes(body, b",") <= SLOW_INLINE_PARTS:
                return events.decode_binary(request.headers, body, self.limits)
            return await asyncio.to_thread(events.decode_binary, request.headers, body, self.limits)
        return await _decode(kind, body, self.limits)


def _sequence_used(record: NewRecord) -> HttpProblem:
    detail = (
        f"The producer {record.producer!r} has sent something else as number {record.sequence} in the"
        f" space {space_name(record.space)!r}: a repeat has the same body, and new events have a new"
        " number. Nothing was appended."
    )
    return HttpProblem(409, "sequence-used", detail)


def _out_of_order(record: NewRecord, error: RecordOutOfOrder) -> HttpProblem:
    assert record.sequence is not None
    newest = error.newest
    if newest > record.sequence:
        detail = (
            f"Number {record.sequence} of the producer {record.producer!r} would come behind its number"
            f" {newest} in the space {space_name(record.space)!r}. Nothing was appended."
        )
        return HttpProblem(409, "sequence-passed", detail, newest=newest)
    known = "none of its numbers is known" if newest == FIRST else f"its newest number is {newest}"
    later = " (published for later, so nothing comes behind it)" if error.is_behind_later else ""
    detail = (
        f"Number {record.sequence} of the producer {record.producer!r} is to follow {record.follows}{later},"
        f" and {known} in the space {space_name(record.space)!r}. Nothing was appended."
    )
    return HttpProblem(409, "out-of-order", detail, newest=newest)


def _judged(decoded: DecodedEvents) -> dict[str, Any]:
    """Of events published for later, those that are not taken, where there are any."""
    if not decoded.refused:
        return {}
    return {
        "accepted": [{"index": index} for index in decoded.accepted],
        "refused": [each.document() for each in decoded.refused],
    }


@dataclass(frozen=True, slots=True)
class _Sender:
    """Who publishes, the number of this request, and which of its own it follows."""

    producer: str | None = None
    sequence: int | None = None
    follows: int | None = None


def _sender_of(request: Request) -> _Sender:
    producer = header(request, b"fieldfare-producer")
    sequence = header(request, b"fieldfare-sequence")
    follows = header(request, b"fieldfare-follows")
    if producer is None and sequence is None:
        if follows is not None:
            detail = "Fieldfare-Follows needs Fieldfare-Producer and Fieldfare-Sequence."
            raise HttpProblem(400, "bad-header", detail)
        return _Sender()
    if producer is None or sequence is None:
        raise HttpProblem(
            400, "bad-header", "Fieldfare-Producer and Fieldfare-Sequence go together: both, or neither."
        )
    if not 1 <= len(producer) <= 128:
        raise HttpProblem(400, "bad-header", "Fieldfare-Producer has 1 to 128 characters.")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) <= 18):
        raise HttpProblem(400, "bad-header", "Fieldfare-Sequence is a whole number of at most 18 digits.")
    if follows is None:
        return _Sender(producer, int(sequence))
    if follows != str(FIRST) and not (follows.isascii() and follows.isdigit() and len(follows) <= 18):
        raise HttpProblem(
            400, "bad-header", f"Fieldfare-Follows is a sequence number, or {FIRST} where none came before."
        )
    if int(follows) >= int(sequence):
        raise HttpProblem(400, "bad-header", "Fieldfare-Follows is less than Fieldfare-Sequence.")
    return _Sender(producer, int(sequence), int(follows))


def _kind_of(request: Request) -> str:
    """The form of the request: one of the media types above, or ``binary``."""
    content_type = header(request, b"content-type") or ""
    media, _, parameters = content_type.partition(";")
    media = media.strip().lower()
    if media == "application/ndjson":
        media = LINES
    if media in (STRUCTURED, BATCH, LINES):
        if events.charset_of(parameters) not in (*events.UTF8, "us-ascii"):
            raise HttpProblem(415, "content-type", f"JSON events are UTF-8, not {parameters.strip()[:60]}.")
        return media
    if media == ARROW:
        return media
    if not media.startswith("application/cloudevents") and b"ce-specversion" in request.scope[HEADERS]:
        return "binary"
    raise HttpProblem(
        415,
        "content-type",
        f"Events are not taken as {media[:80] or 'a body without Content-Type'}.",
        accepted=[STRUCTURED, BATCH, LINES, ARROW],
        hint="One event may also come in binary mode: its attributes as ce- headers (ce-specversion, ce-id, "
        "ce-source, ce-type), its data as the body.",
    )


async def _decode(kind: str, body: bytes, limits: Limits) -> DecodedEvents:
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


def _nothing_taken(decoded: DecodedEvents, *, is_numbered: bool) -> HttpProblem:
    refused = decoded.refused
    if not refused:
        detail = "The request has no event in it."
        if is_numbered:  # answered with success it would seem to be in the log, and could be followed
            detail += " Only what is appended has a Fieldfare-Sequence: leave the request out."
        return HttpProblem(400, "no-events", detail)
    status = 413 if all(each.too_large for each in refused) else 400
    if len(refused) == 1:
        place = refused[0].document()
        return HttpProblem(
            status,
            "bad-event",
            place.pop("detail"),
            title="The event was refused",
            **place,
            refused=[refused[0].document()],
        )
    return HttpProblem(
        status,
        "bad-events",
        f"All {len(refused)} events were refused; the first because {refused[0].detail}.",
        title="No event was accepted",
        refused=[each.document() for each in refused[:REFUSED_SHOWN]],
    )


def _answer(decoded: DecodedEvents, place: Appended, follows: int | None) -> Response:
    document: dict[str, Any] = {
        "partition": place.partition,
        "offset": place.offset,
        "count": place.count,
        "stamp": place.stamp,
        "duplicate": place.duplicate,
    }
    if follows is not None:
        document["follows"] = follows  # Who keeps requests under way knows by this that order is kept.
    if not decoded.refused:
        return json_response(document)
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
    return json_response(document, 207)
