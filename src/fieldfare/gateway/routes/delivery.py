"""What a person does to a delivery: set it to another place, look at what was given up, try that again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.keys import INDEX_BITS, key_of, position_of
from fieldfare.delivery.tries import RETRIED_MAX
from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.delivery.records import RecordCache
from fieldfare.gateway.places import LogPlaces
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.deliveries import DeliveryFinder, deleted
from fieldfare.gateway.routes.positions import Positions
from fieldfare.gateway.routes.requests import json_response, query_int, query_text
from fieldfare.gateway.writer import Writer
from fieldfare.model import DeadLetter, Position, Subscription, positions_text
from fieldfare.storage.errors import EventLogError
from fieldfare.storage.event_log import EventReader, starts_of
from fieldfare.storage.registry import Registry

RETRIED_AT_ONCE = 1_000
"""Messages given up that one request tries again."""

PAGE_BYTES = 4 << 20
PAGE_READ_BYTES = 64 << 20
"""A page with events of so many bytes, or of records of so many, ends before its limit."""

BODY_MAX_BYTES = 1 << 20


class SeekBody(msgspec.Struct, forbid_unknown_fields=True):
    to: str


class RetryBody(msgspec.Struct, forbid_unknown_fields=True):
    positions: list[str] | None = None


_seek_body = msgspec.json.Decoder(SeekBody)
_retry_body = msgspec.json.Decoder(RetryBody)


@dataclass(frozen=True, slots=True)
class DeliveryRoutes:
    """Below ``.../subscriptions/{id}``: ``seek``, ``dead-letters``."""

    deliveries: DeliveryFinder
    places: LogPlaces
    positions: Positions
    bodies: Bodies
    log: EventReader
    registry: Registry
    writer: Writer
    records: RecordCache
    load: Load

    async def seek(self, request: Request) -> Response:
        """Go on from another place: what lies before it is settled, what lies behind it comes (again)."""
        await self.deliveries.check(request)
        body = await self.bodies.read_json(request, _seek_body, BODY_MAX_BYTES)
        keys = await asyncio.to_thread(self.places.keys, body.to, "to")
        subscription, delivery = await self.deliveries.find(request)
        self.deliveries.pump.seek(delivery, keys)
        cursor_keys = await self.deliveries.save(subscription, delivery)
        return json_response({"cursor": positions_text(map(position_of, cursor_keys))})

    async def list_dead_letters(self, request: Request) -> Response:
        """A page of the messages that were given up."""
        limit = query_int(request, "limit", 100, 1, 1_000)
        after = self._after(request)
        subscription, delivery = await self._settled(request)
        total = await self._count(delivery)
        return await asyncio.to_thread(self._page, subscription.number, after, limit, total)

    async def _count(self, delivery: Delivery) -> int:
        """How many letters there are; the delivery, which only reckons, hears of it."""
        counts = await asyncio.to_thread(self.registry.count_letters, [delivery.number])
        delivery.tries.listed = counts.get(delivery.number, 0)
        return delivery.tries.listed

    def _after(self, request: Request) -> Position | None:
        text = query_text(request, "after")
        try:
            return None if text is None else position_of(key_of(Position.parse(text)))
        except ValueError as error:
            raise HttpProblem(400, "bad-position", f"{error}.", parameter="after") from None

    def _page(self, number: int, after: Position | None, limit: int, total: int) -> Response:
        letters = self.registry.letters(number, after, limit + 1)
        documents: list[dict[str, Any]] = []
        size_bytes = read_bytes = 0
        last = None
        for letter in letters[:limit]:
            line = self._line(letter)
            size_bytes += len(line or b"")
            documents.append(_document(letter, line))
            place, last = last, key_of(letter.position) >> INDEX_BITS
            read_bytes += self.records.size_bytes(last) if last != place else 0
            if size_bytes >= PAGE_BYTES or read_bytes >= PAGE_READ_BYTES:
                break
        is_last = len(documents) == len(letters)
        return json_response(
            {
                "dead_letters": documents,
                "next": None if is_last else documents[-1]["position"],
                "total": total,
            }
        )

    def _line(self, letter: DeadLetter) -> bytes | None:
        """The event of a message that was given up; None where it cannot be had any more."""
        key = key_of(letter.position)
        try:
            lines = self.records.lines(key >> INDEX_BITS, [letter.position.index])
        except EventLogError:
            return None
        return lines[0] if lines else None

    async def retry_dead_letters(self, request: Request) -> Response:
        """Give messages all the same that were given up, their attempts counted anew."""
        await self.deliveries.check(request)
        body = await self.bodies.read_json(request, _retry_body, BODY_MAX_BYTES)
        named = None
        if body.positions is not None:
            keys = await self.positions.keys(body.positions, "/positions", RETRIED_AT_ONCE)
            named = [position_of(key) for key in dict.fromkeys(keys)]
        subscription, delivery = await self._settled(request)
        with self.deliveries.pump.pulled(delivery):
            places, gone = await asyncio.to_thread(self._retriable, subscription.number, named)
            if len(delivery.tries.retried) + len(places) > RETRIED_MAX:
                detail = f"{len(delivery.tries.retried):,} messages are being tried again: take them first."
                raise self.load.overloaded("retries", detail)
            number, retry = subscription.number, self.registry.retry_letters
            retried = await self.writer.change(lambda ends: retry(number, places), subscription.space)
            if delivery.deleted:
                raise deleted(subscription)
            delivery.retry(map(key_of, retried))
            self.deliveries.pump.wake(delivery)
        left = await self._count(delivery)
        return json_response({"retried": len(retried), "gone": gone, "left": left})

    def _retriable(self, number: int, named: Sequence[Position] | None) -> tuple[list[Position], int]:
        """Those of the named ones, or the first of all, whose events are there; how many others are not."""
        starts = starts_of(self.log)
        if named is not None:
            there = [place for place in named if place.offset >= starts[place.partition]]
            return there, len(named) - len(there)
        found: list[Position] = []
        for partition, start in enumerate(starts):
            after = (
                Position(partition, start - 1, (1 << INDEX_BITS) - 1) if start else Position(partition, 0, -1)
            )
            letters = self.registry.letters(number, after, RETRIED_AT_ONCE - len(found))
            found += [each.position for each in letters if each.position.partition == partition]
        return found, 0

    async def clear_dead_letters(self, request: Request) -> Response:
        """Forget the messages that were given up."""
        subscription, delivery = await self._settled(request)
        number, clear = subscription.number, self.registry.clear_letters
        removed = await self.writer.change(lambda ends: clear(number), subscription.space)
        await self._count(delivery)
        return json_response({"removed": removed})

    async def _settled(self, request: Request) -> tuple[Subscription, Delivery]:
        """A delivery of which all that was given up by now is on disk.

        It is saved in any case: a mark taken earlier may be on its way still, and would write letters again
        that are retried or cleared now. One that is submitted later is saved later.
        """
        subscription, delivery = await self.deliveries.find(request)
        self.deliveries.pump.expire(delivery)
        await self.deliveries.save(subscription, delivery)
        return subscription, delivery


def _document(letter: DeadLetter, line: bytes | None) -> dict[str, Any]:
    return {
        "position": str(letter.position),
        "attempts": letter.attempts,
        "reason": letter.reason,
        "dead_ms": letter.dead_ms,
        "event": None if line is None else msgspec.Raw(line),
    }
