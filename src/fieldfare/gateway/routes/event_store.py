"""Store published events: in the log, or until their time, if their space advertises them."""

from __future__ import annotations

from dataclasses import dataclass

from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.federation.advertisements import Advertisements
from fieldfare.gateway.publishing.appender import Appender
from fieldfare.gateway.publishing.delayed import Delayed, DelayedFull
from fieldfare.gateway.publishing.events import DecodedEvents
from fieldfare.gateway.tracing import Marks
from fieldfare.storage.delayed import StoredDelayed
from fieldfare.storage.event_log import Appended, NewRecord


@dataclass(frozen=True, slots=True)
class EventStore:
    """Stores the records of publish requests; `advertisements` is None in a service without other sites."""

    appender: Appender
    delayed: Delayed
    load: Load
    advertisements: Advertisements | None

    async def store(
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
        try:
            return await self.delayed.store(record, due_ms)
        except DelayedFull as full:
            detail = (
                f"The delay queue is full: delayed events take {full.max_bytes} bytes, the maximum of all"
                " spaces together (FIELDFARE_DELAYED_MAX_BYTES)."
            )
            raise self.load.overloaded("delayed", detail) from None
