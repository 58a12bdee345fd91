"""The records that were set aside because matching them failed: who they are, and another try."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import islice, starmap
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.callers import Caller, Right, caller_of
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.requests import json_response
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.writer import Writer, WriterOverloaded
from fieldfare.model import Position, space_name
from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.event_log import EventLog, NewRecord, Record
from fieldfare.storage.quarantine import Quarantine, SetAside, brief

_NO_HEADER = "\u26a0"
"""No publisher can name itself with this: headers are Latin-1."""
LISTED_MAX = 1_000
"""A list holds the oldest so many."""


@dataclass(frozen=True, slots=True)
class QuarantineRoutes:
    """Records that were set aside."""

    subscriptions: Subscriptions
    quarantine: Quarantine
    log: EventLog
    writer: Writer
    load: Load
    metrics: Metrics

    async def list_quarantine(self, request: Request) -> Response:
        """What was set aside and why, oldest first, of the spaces that who asks manages."""
        caller = caller_of(request)

        def read() -> Response:
            found = starmap(self.quarantine.get, self.quarantine.places())
            own = (each for each in found if each is not None and self._may(caller, each))
            return json_response({"quarantine": list(map(_document, islice(own, LISTED_MAX)))})

        return await asyncio.to_thread(read)

    async def retry(self, request: Request) -> Response:
        """Publish a record's events again: at a new position, for the subscriptions as they stand now.

        Its old position lies behind the cursors of those who were not given it. The new record carries a
        producer of its own, so that a retry which is repeated, also after a crash, appends it once.
        """
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
        if not self.subscriptions.is_there(record.space):
            raise HttpProblem(404, "not-set-aside", f"The space of the record at {text[:80]} was deleted.")
        now_ms = time.time_ns() // 1_000_000
        producer = f"{_NO_HEADER}quarantine/{place[0]}-{place[1]}-0"
        again = NewRecord(record.space, record.payload, record.count, producer, 0, now_ms)
        try:
            made = await self.writer.append(again)
        except WriterOverloaded:
            raise self.load.overloaded("queue", "Events come faster than the disk takes them.") from None
        if not made.duplicate:
            self.metrics.appended(record.count, len(record.payload))
        await asyncio.to_thread(self.quarantine.remove, *place)
        document = {"partition": made.partition, "offset": made.offset, "count": made.count}
        return json_response(document | {"stamp": made.stamp, "duplicate": made.duplicate})

    def _may(self, caller: Caller, record: SetAside) -> bool:
        """Whether somebody manages a record's space. What is left of one that was deleted only admins see."""
        is_own = caller.may(Right.MANAGE, space_name(record.space))
        return caller.is_admin or (is_own and self.subscriptions.is_there(record.space))

    def _read(self, partition: int, offset: int) -> Record:
        return next(iter(self.log.partitions[partition].read(offset, offset + 1)))


def _document(record: SetAside) -> dict[str, Any]:
    return {
        "position": str(Position(record.partition, record.offset, 0)),
        "space": space_name(record.space),
        "events": record.events,
        # Whoever may list them may not read the events of every space.
        "error": brief(record.error),
        "set_aside_ms": record.set_aside_ms,
    }
