"""Quarantined records, which were set aside because matching them failed: list and retry."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import islice, starmap
from typing import Annotated

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.callers import Caller, Right, caller_of
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.federation.advertisements import Advertisements
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.openapi.words import answer, operation
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.events import DecodedEvents
from fieldfare.gateway.routes.event_answers import AppendedDocument
from fieldfare.gateway.routes.requests import json_response
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.writer import Writer, WriterOverloaded
from fieldfare.model import Position, space_name
from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.event_log import Appended, EventLog, NewRecord, Record
from fieldfare.storage.quarantine import Quarantine, QuarantinedRecord, brief

_NO_HEADER = "\u26a0"
"""A character that no publisher's name can contain, as headers are Latin-1."""
LISTED_MAX = 1_000
"""Maximum records in a list; it holds the oldest."""


class QuarantinedDocument(Struct):
    """A quarantined record."""

    position: Annotated[str, "Position of the record: that of its first event."]
    space: Annotated[str, "Name of the record's space."]
    events: Annotated[int, "Number of its events, none of which was delivered."]
    error: Annotated[str, "Why it could not be matched; contains no text of the events."]
    set_aside_ms: Annotated[int, "Time at which it was set aside, in milliseconds since 1970."]


class QuarantineDocument(Struct):
    quarantine: Annotated[list[QuarantinedDocument], "The records, oldest first."]


@dataclass(frozen=True, slots=True)
class QuarantineRoutes:
    """Routes for quarantined records."""

    subscriptions: Subscriptions
    quarantine: Quarantine
    log: EventLog
    writer: Writer
    load: Load
    metrics: Metrics
    advertisements: Advertisements | None

    @operation(
        answer("The oldest 1,000 records of the spaces that the caller manages.", QuarantineDocument),
        name="listQuarantine",
    )
    async def list_quarantine(self, request: Request) -> Response:
        """List the quarantined records, which were set aside because matching them failed."""
        caller = caller_of(request)

        def read() -> Response:
            found = starmap(self.quarantine.get, self.quarantine.places())
            own = (each for each in found if each is not None and self._may(caller, each))
            return json_response(QuarantineDocument(list(map(_document, islice(own, LISTED_MAX)))))

        return await asyncio.to_thread(read)

    @operation(
        {
            "200": answer("The events were appended at this place.", AppendedDocument),
            "404": "There is no quarantined record at this position, or retention has removed it.",
            "429": "The service is overloaded. Retry after the seconds in Retry-After.",
        },
        "400",
        name="retryQuarantined",
    )
    async def retry(self, request: Request) -> Response:
        """Publish the events of a quarantined record again.

        The events get a new position, and are matched against the subscriptions as they are now. A repeated
        retry appends nothing more.
        """
        # The cursors of the subscriptions that missed the record are already past its old position. The new
        # record has a producer of its own, so that a repeated retry, even after a crash, appends it only
        # once.
        text = request.path_params["position"]
        try:
            position = Position.parse(text)
        except ValueError as error:
            raise HttpProblem(400, "bad-position", f"{error}.") from None
        place = position.partition, position.offset
        is_there = position.partition < len(self.log.partitions)
        found = await asyncio.to_thread(self.quarantine.get, *place) if is_there else None
        if found is None or not self._may(caller_of(request), found):
            raise HttpProblem(404, "not-set-aside", f"No record is set aside at {text[:80]}.")
        self.load.check()
        try:
            record = await asyncio.to_thread(self._read, *place)
        except TrimmedError:
            await asyncio.to_thread(self.quarantine.remove, *place)
            detail = f"Retention has removed the record at {text[:80]}."
            raise HttpProblem(404, "not-set-aside", detail) from None
        if record is None:
            detail = f"The record at {text[:80]} cannot be read any more: see the notices of /readyz."
            raise HttpProblem(404, "not-set-aside", detail)
        if not self.subscriptions.is_there(record.space):
            raise HttpProblem(404, "not-set-aside", f"The space of the record at {text[:80]} was deleted.")
        now_ms = time.time_ns() // 1_000_000
        producer = f"{_NO_HEADER}quarantine/{place[0]}-{place[1]}-0"
        again = NewRecord(record.space, record.payload, record.count, producer, 0, now_ms)
        try:
            with self.subscriptions.gate.entered():
                made = await self._append(again)
        except WriterOverloaded:
            raise self.load.overloaded(
                "queue", "Events arrive faster than the disk can store them."
            ) from None
        if not made.duplicate:
            self.metrics.appended(record.count, len(record.payload))
        await asyncio.to_thread(self.quarantine.remove, *place)
        return json_response(
            AppendedDocument(
                partition=made.partition,
                offset=made.offset,
                count=made.count,
                stamp=made.stamp,
                duplicate=made.duplicate,
            )
        )

    async def _append(self, record: NewRecord) -> Appended:
        """Append a record, if its space still advertises its events."""
        if self.advertisements is None:
            return await self.writer.append(record)
        events = DecodedEvents(bytes(record.payload), range(record.count))
        name = space_name(record.space)
        return await self.advertisements.publish(name, events, lambda: self.writer.append(record))

    def _may(self, caller: Caller, record: QuarantinedRecord) -> bool:
        """Whether a caller manages a record's space; only admins see the records of a deleted space."""
        is_own = caller.may(Right.MANAGE, space_name(record.space))
        return caller.is_admin or (is_own and self.subscriptions.is_there(record.space))

    def _read(self, partition: int, offset: int) -> Record | None:
        return next(iter(self.log.partitions[partition].read(offset, offset + 1)), None)


def _document(record: QuarantinedRecord) -> QuarantinedDocument:
    return QuarantinedDocument(
        position=str(Position(record.partition, record.offset, 0)),
        space=space_name(record.space),
        events=record.events,
        # Shortened: a caller that may list the record need not have the right to read its events.
        error=brief(record.error),
        set_aside_ms=record.set_aside_ms,
    )
