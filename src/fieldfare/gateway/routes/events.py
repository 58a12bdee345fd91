"""``POST /v1/spaces/{space}/events``: append CloudEvents to the log, from any of their HTTP forms."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.bodies import Bodies, drain
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.admission.matching_time import MatchingTime
from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.in_order import RecordOutOfOrder
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
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.appender import Appender
from fieldfare.gateway.publishing.decoding import decode_body
from fieldfare.gateway.publishing.encrypted import encrypted_only
from fieldfare.gateway.publishing.events import CLAIM_CHECK, BatchTooLong, DecodedEvents, Limits
from fieldfare.gateway.publishing.request_head import BATCH, PublishHead, read_head
from fieldfare.gateway.routes.delayed import DUE_PARAMETERS, KeptDocument
from fieldfare.gateway.routes.event_answers import (
    AppendedDocument,
    PartlyAppendedDocument,
    answer_to,
    empty_batch_answer,
    nothing_taken,
    out_of_order,
    sequence_used,
)
from fieldfare.gateway.routes.event_store import EventStore
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.tracing import Tracer
from fieldfare.gateway.writer import WriterOverloaded
from fieldfare.storage.event_log import Appended, NewRecord

ANSWER_INLINE_EVENTS = 1_000

_PASSING = frozenset((429, 503, 507))
"""Statuses after which a client retries the request."""

_TOO_LARGE = f"Send fewer events at once. {CLAIM_CHECK}"


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
    """The route that publishes events."""

    subscriptions: Subscriptions
    appender: Appender
    bodies: Bodies
    load: Load
    quotas: Quotas
    matching_time: MatchingTime
    metrics: Metrics
    tracer: Tracer
    store: EventStore
    limits: Limits
    delay_max_s: float

    @operation(_RESPONSES, "404", takes={"required": True, "content": _BODIES}, parameters=_HEADERS)
    async def publish(self, request: Request) -> Response:
        """Publish events.

        Accepts CloudEvents 1.0 in structured, batch or binary mode, JSON lines, or an Arrow stream. The
        events of one request are appended to the log as one record, which is on disk before the response.
        """
        name = request.path_params["space"]
        with ExitStack() as inside:
            try:
                inside.enter_context(self.subscriptions.gate.entered())
                space = self.subscriptions.check_space(name)
                head = read_head(request, time.time_ns() // 1_000_000, self.delay_max_s)
                self.load.check()
                self.quotas.check(space, time.monotonic())
                self.quotas.check_room(space, "stored_event_bytes")
                self.quotas.check_room(space, "stored_match_bytes")
            except HttpProblem as refused:
                await self.quotas.delay_refusal(refused)
                await drain(request, 0)
                raise
            try:
                return await self._publish(request, space, head)
            except HttpProblem as refused:
                # Note a request that is refused for good.
                if head.producer is not None and head.sequence is not None and refused.status not in _PASSING:
                    self.appender.writer.refused(space, head.producer, head.sequence)
                raise

    async def _publish(self, request: Request, space: str, head: PublishHead) -> Response:
        name, marks = request.path_params["space"], self.tracer.received()
        decoded = await self._read(request, space, head)
        if marks is not None:
            self.tracer.decoded(marks)
        if self.subscriptions.check_space(name) != space:  # deleted and created again meanwhile
            raise HttpProblem(404, "unknown-space", f"The space {name!r} was deleted.")
        if not decoded.count:
            if head.kind == BATCH and not decoded.refused and head.sequence is None:
                return empty_batch_answer()
            raise nothing_taken(decoded, is_numbered=head.sequence is not None)
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
            head.producer,
            head.sequence,
            now_ms,
            follows=head.follows,
        )
        try:
            storing, expecting = self.quotas.storing, self.matching_time.expecting
            with storing(space, size_bytes) as stored, expecting(space, size_bytes) as expected:
                place = await self.store.store(name, decoded, record, head.due_ms, marks)
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
                raise out_of_order(record, error) from None
            raise
        if place.differs:
            raise sequence_used(record)
        if decoded.refused and decoded.count + len(decoded.refused) > ANSWER_INLINE_EVENTS:
            return await asyncio.to_thread(answer_to, decoded, place, head.follows)
        return answer_to(decoded, place, head.follows)

    async def _read(self, request: Request, space: str, head: PublishHead) -> DecodedEvents:
        """Return the events of a request, and charge the quotas for what is refused.

        Refused events cost as much work as others, and otherwise no quota would limit them.
        """
        refused = wasted_bytes = 0
        try:
            body = await self.bodies.read(request, way_out=_TOO_LARGE)
            wasted_bytes = len(body)
            decoded = await decode_body(
                head.kind, request.headers, body, self.limits, self.bodies.body_max_bytes
            )
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
                wasted_bytes = self.bodies.held_by(request.scope)
                wasted_bytes += problem.place.get(unpacked, 0) if head.is_packed else 0
            raise
        finally:
            if refused or wasted_bytes:
                now_s = time.monotonic()
                self.quotas.spend(space, now_s, events_per_s=refused, bytes_per_s=wasted_bytes)
