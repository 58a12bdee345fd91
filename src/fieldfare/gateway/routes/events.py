"""``POST /v1/spaces/{space}/events``: append CloudEvents to the log, from any of their HTTP forms."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.bodies import Bodies, drain
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.admission.matching_time import MatchingTime
from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.admission.request_guard import header
from fieldfare.gateway.federation.advertisements import Advertisements
from fieldfare.gateway.in_order import RecordOutOfOrder
from fieldfare.gateway.member_types import PositionText
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.openapi.schemas import EVENT
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    content,
    integer,
    operation,
    parameter,
    ref,
    string,
)
from fieldfare.gateway.problems import HttpProblem, RefusedDocument
from fieldfare.gateway.publishing.appender import Appender
from fieldfare.gateway.publishing.decoding import BATCH, decode_body, kind_of
from fieldfare.gateway.publishing.delayed import Delayed, DelayedFull
from fieldfare.gateway.publishing.encrypted import encrypted_only
from fieldfare.gateway.publishing.events import CLAIM_CHECK, BatchTooLong, DecodedEvents, Limits
from fieldfare.gateway.routes.delayed import (
    DUE_PARAMETERS,
    AcceptedDocument,
    KeptDocument,
    due_of,
    kept_document,
)
from fieldfare.gateway.routes.requests import json_response
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.tracing import Marks, Tracer
from fieldfare.gateway.writer import WriterOverloaded
from fieldfare.model import space_name
from fieldfare.storage.delayed import StoredDelayed
from fieldfare.storage.event_log import FIRST, Appended, NewRecord

ANSWER_INLINE_EVENTS = 1_000

REFUSED_SHOWN = 1_000

_PASSING = frozenset((429, 503, 507))
"""Statuses after which a client retries the request."""

_TOO_LARGE = f"Send fewer events at once. {CLAIM_CHECK}"


class AppendedDocument(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The record of a request's events."""

    partition: Annotated[int, "Partition of the log."]
    offset: Annotated[
        int | None,
        "Offset of the record in the partition: event i of the accepted ones is at the position"
        " partition-offset-i. null if the request was an empty batch, which appends nothing.",
    ]
    count: Annotated[int, "Number of events of the record."]
    stamp: Annotated[
        int | None,
        "Revision of the registry whose subscriptions the events are matched against; null for an empty"
        " batch.",
    ]
    duplicate: Annotated[
        bool,
        "Whether this repeats an earlier request: nothing was appended, and the response names the"
        " record of that request.",
    ]
    follows: Annotated[int | None, "The request's Fieldfare-Follows; missing if it had none."] = None


class AcceptedEventDocument(AcceptedDocument):
    position: PositionText


class _WithRefused(AppendedDocument, omit_defaults=True, kw_only=True):
    accepted: Annotated[list[AcceptedEventDocument], "The accepted events."]
    refused: Annotated[list[RefusedDocument], "The refused events."]


class PartlyAppendedDocument(_WithRefused, omit_defaults=True):
    """The record of a request's accepted events, and its refused events."""

    type: Annotated[str, "Kind of the response: `urn:fieldfare:problem:some-events-refused`."]
    title: Annotated[str, "Short description, the same for all responses of this kind."]
    status: Annotated[int, "HTTP status of the response."]
    detail: Annotated[str, "How many events were accepted and refused, as a sentence."]


_BODIES: Json = {
    **content(ref("Event"), EVENT, "application/cloudevents+json"),
    **content(array(ref("Event")), [EVENT], "application/cloudevents-batch+json"),
    **content(string("CloudEvents as JSON, one on each line."), None, "application/x-ndjson"),
    **content(
        string(
            "An Arrow IPC stream: each row is an event, each column an attribute of the events.",
            format="binary",
        ),
        None,
        "application/vnd.apache.arrow.stream",
    ),
    **content(
        {
            "description": "Data of one event in CloudEvents' binary mode; headers ce-* have the attributes.",
        },
        None,
        "*/*",
    ),
}
_HEADERS = [
    parameter(
        "Fieldfare-Producer",
        string(maxLength=128),
        "Name of the producer. With Fieldfare-Sequence, a repeated request appends nothing again.",
        "header",
    ),
    parameter(
        "Fieldfare-Sequence",
        integer(minimum=0),
        "The producer's number of this request: higher for each new request, the same for a repeat. Required"
        " with Fieldfare-Producer.",
        "header",
    ),
    parameter(
        "Fieldfare-Follows",
        integer(minimum=-1),
        "Sequence number of the producer's previous request, -1 if there is none. This request is appended"
        " only after that one, for which it waits briefly. Default: any order.",
        "header",
    ),
    parameter(
        "Content-Encoding",
        string(enum=["identity", "gzip", "zstd"]),
        "Compression of the body. All routes with a request body accept these.",
        "header",
    ),
    *DUE_PARAMETERS,
]
_RESPONSES: Json = {
    "200": answer(
        "All events were appended.",
        AppendedDocument,
        {"partition": 0, "offset": 5, "count": 1, "stamp": 1, "duplicate": False},
    ),
    "202": answer(
        "The events are stored and are appended to the log at their time. Refused events are listed.",
        KeptDocument,
        {
            "id": "12",
            "due": "2030-01-01T12:00:00.000Z",
            "due_ms": 1893499200000,
            "count": 1,
            "duplicate": False,
        },
    ),
    "207": answer("Some events were refused; the others were appended.", PartlyAppendedDocument),
    "400": "The request or all of its events are invalid. Nothing was appended.",
    "409": "The sequence number does not fit, and nothing was appended: the producer has used it for other"
    " events, or a higher one; or the request that this one follows is not the producer's newest, which the"
    " member `newest` names.",
    "429": "The service is overloaded, or the space has used up a rate quota. Retry after the seconds in"
    " Retry-After.",
    "507": "The space's stored events or matches have reached their quota: wait until retention has removed"
    " some.",
}


@dataclass(frozen=True, slots=True)
class EventRoutes:
    """The route that publishes events; `advertisements` is None in a service without other sites."""

    subscriptions: Subscriptions
    appender: Appender
    bodies: Bodies
    load: Load
    quotas: Quotas
    matching_time: MatchingTime
    metrics: Metrics
    tracer: Tracer
    delayed: Delayed
    limits: Limits
    delay_max_s: float
    advertisements: Advertisements | None

    @operation(_RESPONSES, "404", takes={"required": True, "content": _BODIES}, parameters=_HEADERS)
    async def publish(self, request: Request) -> Response:
        """Publish events.

        Accepts CloudEvents 1.0 in structured, batch or binary mode, JSON lines, or an Arrow stream. The
        events of one request are appended to the log as one record, which is on disk before the response.
        """
        gate = self.subscriptions.gate
        if gate.refusal:
            await drain(request, 0)
        with gate.entered():
            return await self._checked(request)

    async def _checked(self, request: Request) -> Response:
        """Publish the events of a request that may be accepted, and note where one is refused for good."""
        name = request.path_params["space"]
        try:
            space = self.subscriptions.check_space(name)
            sender = _sender_of(request)
            due_ms = due_of(request, time.time_ns() // 1_000_000, self.delay_max_s)
            if due_ms is not None and sender.follows is not None:
                detail = (
                    "Delayed events cannot have the header Fieldfare-Follows: leave it out, or publish"
                    " without a delay."
                )
                raise HttpProblem(400, "bad-header", detail)
            self.load.check()
            self.quotas.check(space, time.monotonic())
            self.quotas.check_room(space, "stored_event_bytes")
            self.quotas.check_room(space, "stored_match_bytes")
            kind = kind_of(request)
        except HttpProblem as refused:
            await self.quotas.delay_refusal(refused)
            await drain(request, 0)
            raise
        try:
            return await self._publish(request, space, sender, kind, due_ms)
        except HttpProblem as refused:
            if sender.producer is not None and sender.sequence is not None and refused.status not in _PASSING:
                self.appender.writer.refused(space, sender.producer, sender.sequence)
            raise

    async def _publish(
        self, request: Request, space: str, sender: _Sender, kind: str, due_ms: int | None
    ) -> Response:
        name, marks = request.path_params["space"], self.tracer.received()
        decoded = await self._read(request, space, kind)
        if marks is not None:
            self.tracer.decoded(marks)
        if self.subscriptions.check_space(name) != space:  # deleted and created again meanwhile
            raise HttpProblem(404, "unknown-space", f"The space {name!r} was deleted.")
        if not decoded.count:
            if kind == BATCH and not decoded.refused and sender.sequence is None:
                return json_response(
                    AppendedDocument(partition=0, offset=None, count=0, stamp=None, duplicate=False)
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
            storing, expecting = self.quotas.storing, self.matching_time.expecting
            with storing(space, size_bytes) as stored, expecting(space, size_bytes) as expected:
                place = await self._store(name, decoded, record, due_ms, marks)
                stored.is_kept = not place.duplicate
                if place.duplicate:
                    self.metrics.duplicates.inc()
                elif isinstance(place, Appended):
                    expected.place = place.partition, place.offset
        except WriterOverloaded:
            self.quotas.give_back(space, time.monotonic(), **spent)
            raise self.load.overloaded(
                "queue", "Events arrive faster than the disk can store them."
            ) from None
        except Exception as error:
            is_told_at_once = isinstance(error, RecordOutOfOrder) and not error.has_waited
            # A request that came too early, or found no room, is not charged, as it will be sent again. One
            # refused at once as out of order is: else repeating it would make the service work for free. So
            # is one whose events are not advertised.
            is_told_at_once |= isinstance(error, HttpProblem) and error.status == 400
            if not is_told_at_once:
                self.quotas.give_back(space, time.monotonic(), **spent)
            if isinstance(error, RecordOutOfOrder):
                raise _out_of_order(record, error) from None
            raise
        if place.differs:
            raise _sequence_used(record)
        if isinstance(place, StoredDelayed):
            return json_response(kept_document(place, decoded), 202)
        if decoded.refused and decoded.count + len(decoded.refused) > ANSWER_INLINE_EVENTS:
            return await asyncio.to_thread(_answer, decoded, place, sender.follows)
        return _answer(decoded, place, sender.follows)

    async def _store(
        self, name: str, decoded: DecodedEvents, record: NewRecord, due_ms: int | None, marks: Marks | None
    ) -> Appended | StoredDelayed:
        """Append a record, or store it until its due time, if its space advertises its events."""

        async def append() -> Appended | StoredDelayed:
            if due_ms is None:
                return await self.appender.append(record, marks=marks)
            return await self._store_delayed(record, due_ms)

        return await (
            append() if self.advertisements is None else self.advertisements.publish(name, decoded, append)
        )

    async def _store_delayed(self, record: NewRecord, due_ms: int) -> StoredDelayed:
        """Store a record until its due time."""
        try:
            return await self.delayed.store(record, due_ms)
        except DelayedFull as full:
            detail = (
                f"The delay queue is full: delayed events take {full.max_bytes} bytes, the maximum of all"
                " spaces together (FIELDFARE_DELAYED_MAX_BYTES)."
            )
            raise self.load.overloaded("delayed", detail) from None

    async def _read(self, request: Request, space: str, kind: str) -> DecodedEvents:
        """Return the events of a request, and charge the quotas for what is refused.

        Refused events cost as much work as others, and otherwise no quota would limit them.
        """
        refused = wasted_bytes = 0
        try:
            body = await self.bodies.read(request, way_out=_TOO_LARGE)
            wasted_bytes = len(body)
            decoded = await decode_body(kind, request.headers, body, self.limits, self.bodies.body_max_bytes)
            encryption = self.subscriptions.encryption(space)
            if encryption is not None:
                decoded = await encrypted_only(decoded, encryption)
            if refused := len(decoded.refused):
                self.metrics.refused.inc(refused)
            if decoded.count:
                wasted_bytes = max(0, wasted_bytes - len(decoded.payload)) if refused else 0
            return decoded
        except BatchTooLong as error:
            refused, limit = error.count, self.limits.batch_max_events
            detail = f"The batch has {error.count} events or more; the maximum in one request is {limit}."
            raise HttpProblem(413, "batch-too-long", detail, max_events=limit) from None
        except HttpProblem as problem:
            if problem.status in (400, 413) and not wasted_bytes:
                # Charge what was received, and what was unpacked until the refusal.
                unpacked = "unpacked_bytes" if problem.status == 400 else "max_bytes"
                is_packed = header(request, b"content-encoding") is not None
                wasted_bytes = self.bodies.held_by(request.scope)
                wasted_bytes += problem.place.get(unpacked, 0) if is_packed else 0
            raise
        finally:
            if refused or wasted_bytes:
                now_s = time.monotonic()
                self.quotas.spend(space, now_s, events_per_s=refused, bytes_per_s=wasted_bytes)


def _sequence_used(record: NewRecord) -> HttpProblem:
    detail = (
        f"The producer {record.producer!r} has already used the sequence number {record.sequence} for other"
        f" events in the space {space_name(record.space)!r}. Nothing was appended. Use a new number for new"
        " events, and the same body for a repeat."
    )
    return HttpProblem(409, "sequence-used", detail)


def _out_of_order(record: NewRecord, error: RecordOutOfOrder) -> HttpProblem:
    assert record.sequence is not None
    newest = error.newest
    if newest > record.sequence:
        detail = (
            f"The producer {record.producer!r} has sent the sequence number {record.sequence} after {newest}"
            f" in the space {space_name(record.space)!r}. Nothing was appended. Use a number above {newest}."
        )
        return HttpProblem(409, "sequence-passed", detail, newest=newest)
    known = "no request of this producer is known" if newest == FIRST else f"the newest one is {newest}"
    later = ", which is delayed and cannot be followed" if error.is_behind_later else ""
    detail = (
        f"Request {record.sequence} of the producer {record.producer!r} must follow request"
        f" {record.follows}{later}, but {known} in the space {space_name(record.space)!r}. Nothing was"
        " appended. Send the missing requests first."
    )
    return HttpProblem(409, "out-of-order", detail, newest=newest)


@dataclass(frozen=True, slots=True)
class _Sender:
    """The producer, the sequence number of its request, and the sequence number that the request follows."""

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
            400, "bad-header", "Send both Fieldfare-Producer and Fieldfare-Sequence, or neither."
        )
    if not 1 <= len(producer) <= 128:
        raise HttpProblem(400, "bad-header", "Fieldfare-Producer must have 1 to 128 characters.")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) <= 18):
        raise HttpProblem(
            400, "bad-header", "Fieldfare-Sequence must be a whole number of at most 18 digits."
        )
    if follows is None:
        return _Sender(producer, int(sequence))
    if follows != str(FIRST) and not (follows.isascii() and follows.isdigit() and len(follows) <= 18):
        raise HttpProblem(
            400,
            "bad-header",
            f"Fieldfare-Follows must be a sequence number, or {FIRST} for the first request.",
        )
    if int(follows) >= int(sequence):
        raise HttpProblem(400, "bad-header", "Fieldfare-Follows must be less than Fieldfare-Sequence.")
    return _Sender(producer, int(sequence), int(follows))


def _nothing_taken(decoded: DecodedEvents, *, is_numbered: bool) -> HttpProblem:
    refused = decoded.refused
    if not refused:
        detail = "The request contains no event."
        if is_numbered:  # a success would suggest that it is in the log and can be followed
            detail += " An empty request cannot have a Fieldfare-Sequence: do not send it."
        return HttpProblem(400, "no-events", detail)
    status = 413 if all(each.too_large for each in refused) else 400
    if len(refused) == 1:
        only = refused[0].document()
        place = msgspec.structs.asdict(only)
        detail = place.pop("detail")
        return HttpProblem(
            status, "bad-event", detail, title="The event was refused", **place, refused=[only]
        )
    return HttpProblem(
        status,
        "bad-events",
        f"All {len(refused)} events were refused; the first because {refused[0].detail}.",
        title="No event was accepted",
        refused=[each.document() for each in refused[:REFUSED_SHOWN]],
    )


def _answer(decoded: DecodedEvents, place: Appended, follows: int | None) -> Response:
    appended: dict[str, Any] = {
        "partition": place.partition,
        "offset": place.offset,
        "count": place.count,
        "stamp": place.stamp,
        "duplicate": place.duplicate,
        "follows": follows,  # tells pipelining clients that their order is kept
    }
    if not decoded.refused:
        return json_response(AppendedDocument(**appended))
    document = PartlyAppendedDocument(
        "urn:fieldfare:problem:some-events-refused",
        "Some events were refused",
        207,
        f"{decoded.count} events were accepted, {len(decoded.refused)} refused.",
        **appended,
        accepted=[
            AcceptedEventDocument(index, f"{place.partition}-{place.offset}-{place_in_record}")
            for place_in_record, index in enumerate(decoded.accepted)
        ],
        refused=[each.document() for each in decoded.refused],
    )
    return json_response(document, 207)
