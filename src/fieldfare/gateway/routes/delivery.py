"""Administration of a delivery: seek to another position; list, retry and clear dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.delivery.attempts import RETRIED_MAX
from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.keys import INDEX_BITS, key_of, position_of
from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.delivery.backlogs import Backlogs
from fieldfare.gateway.delivery.records import RecordCache
from fieldfare.gateway.member_types import CursorText, EventOrNull, NextPage, PositionText
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import answer, json_body, operation, page_limit, parameter
from fieldfare.gateway.places import LogPlaces
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.acks import CursorDocument
from fieldfare.gateway.routes.deliveries import DeliveryFinder, deleted
from fieldfare.gateway.routes.positions import Positions
from fieldfare.gateway.routes.requests import BODY_MAX_BYTES, json_response, query_int, query_text
from fieldfare.gateway.writer import Writer
from fieldfare.model import Backlog, DeadLetter, Position, Subscription, positions_text
from fieldfare.storage.errors import EventLogError
from fieldfare.storage.event_log import EventReader, starts_of
from fieldfare.storage.registry import DeadLetterStore

RETRIED_BATCH_SIZE = 1_000
"""Maximum dead letters retried by one request; without named positions the rest stay, else Problem 413."""

PAGE_BYTES = 4 << 20
PAGE_READ_BYTES = 64 << 20
"""Bytes of events, or of the records read for them, after which a page ends before its limit."""


class SeekBody(msgspec.Struct, forbid_unknown_fields=True):
    """A place to move the cursor to."""

    to: Annotated[
        str,
        "`earliest` (the oldest event in the log), `latest` (its end), a position, a cursor, or a time"
        " of publishing (RFC 3339, with a time zone).",
    ]


class RetryBody(msgspec.Struct, forbid_unknown_fields=True):
    """Dead letters to redeliver."""

    positions: Annotated[
        list[PositionText] | None,
        "Positions of the dead letters, at most 1,000. null: the first 1,000 of the list.",
    ] = None


class DeadLetterDocument(msgspec.Struct):
    """A dead letter."""

    position: PositionText
    attempts: Annotated[int, "Number of times that the message was delivered."]
    reason: Annotated[str, "Why it became a dead letter, as a phrase."]
    dead_ms: Annotated[int, "Time at which it became a dead letter, in milliseconds since 1970."]
    event: Annotated[EventOrNull, "The event; null if retention has removed it."]


class DeadLettersDocument(msgspec.Struct):
    dead_letters: Annotated[list[DeadLetterDocument], "The dead letters of the page."]
    next: NextPage
    total: Annotated[int, "Number of dead letters of all pages."]


class RetriedDocument(msgspec.Struct):
    retried: Annotated[int, "Number of dead letters that are redelivered."]
    gone: Annotated[int, "Number of named dead letters whose events retention has removed."]
    left: Annotated[int, "Number of dead letters that remain in the list."]


class RemovedDocument(msgspec.Struct):
    removed: Annotated[int, "Number of dead letters deleted."]


_BACKLOG = described(Backlog)
_BACKLOG["properties"]["cursor"] = Annotated[CursorText, "Everything before this cursor is settled."]


@dataclass(frozen=True, slots=True)
class DeliveryRoutes:
    """Routes below ``.../subscriptions/{id}``: ``seek``, ``dead-letters``."""

    finder: DeliveryFinder
    places: LogPlaces
    positions: Positions
    bodies: Bodies
    log: EventReader
    letters: DeadLetterStore
    writer: Writer
    records: RecordCache
    load: Load
    backlogs: Backlogs

    @operation(
        answer(
            "The backlog.",
            _BACKLOG,
            {
                "pending": 1204,
                "is_exact": True,
                "in_flight": 100,
                "redeliveries": 0,
                "dead_letters": 2,
                "readers": 1,
                "cursor": "0-6-0",
                "oldest_s": 12.5,
            },
        ),
        "404",
    )
    async def get_backlog(self, request: Request) -> Response:
        """Count the messages that a subscription owes its readers.

        Events that are not matched yet are not counted: see `lag_events` in `/v1/stats`.
        """
        found = await self.backlogs.count((await self.finder.look(request))[1])
        return json_response(asdict(found) | {"cursor": positions_text(found.cursor)})

    @operation(
        answer("The new cursor, which is on disk.", CursorDocument, {"cursor": "0-6-0"}),
        "400 404",
        takes=json_body(SeekBody, {"to": "latest"}),
    )
    async def seek(self, request: Request) -> Response:
        """Move the cursor to another place in the log.

        Matches before the place are settled. Matches from the place on are delivered, also those that were
        acknowledged before.
        """
        await self.finder.check(request)
        body = await self.bodies.read_json(request, SeekBody, BODY_MAX_BYTES)
        keys = await asyncio.to_thread(self.places.keys, body.to, "to")
        subscription, delivery = await self.finder.find(request)
        self.finder.deliveries.seek(delivery, keys)
        cursor_keys = await self.finder.save(subscription, delivery)
        await self.backlogs.count(delivery)  # lists show what is pending from there on
        return json_response(CursorDocument(positions_text(map(position_of, cursor_keys))))

    @operation(
        answer("A page of the dead letters.", DeadLettersDocument),
        "400 404",
        parameters=[
            parameter("after", PositionText, "Return only dead letters after this position; default: all."),
            page_limit(1000, "Maximum dead letters of the page; a page also ends at 4 MiB of events."),
        ],
    )
    async def list_dead_letters(self, request: Request) -> Response:
        """List the dead letters, sorted by position."""
        limit = query_int(request, "limit", 100, 1, 1_000)
        after = self._after(request)
        subscription, delivery = await self._settled(request, for_letters=True)
        total = await self._count(delivery)
        return await asyncio.to_thread(self._page, subscription.number, after, limit, total)

    async def _count(self, delivery: Delivery) -> int:
        """Count the stored dead letters, and correct the delivery's own estimate."""
        tries, before = delivery.tries, delivery.tries.listed
        counts = await asyncio.to_thread(self.letters.count_letters, [delivery.number])
        count = counts.get(delivery.number, 0)
        tries.listed = count + max(0, tries.listed - before)  # some may have been saved since
        self.backlogs.note(delivery)
        return count

    def _after(self, request: Request) -> Position | None:
        text = query_text(request, "after")
        try:
            return None if text is None else position_of(key_of(Position.parse(text)))
        except ValueError as error:
            raise HttpProblem(400, "bad-position", f"{error}.", parameter="after") from None

    def _page(self, number: int, after: Position | None, limit: int, total: int) -> Response:
        letters = self.letters.letters(number, after, limit + 1)
        documents: list[DeadLetterDocument] = []
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
        after_page = None if is_last else documents[-1].position
        return json_response(DeadLettersDocument(documents, after_page, total))

    def _line(self, letter: DeadLetter) -> bytes | None:
        """Return a dead letter's event as JSON; None if it is removed or unreadable."""
        key = key_of(letter.position)
        try:
            lines = self.records.lines(key >> INDEX_BITS, [letter.position.index])
        except EventLogError:
            return None
        return lines[0] if lines else None

    @operation(
        {
            "200": answer(
                "The dead letters are redelivered.", RetriedDocument, {"retried": 0, "gone": 0, "left": 0}
            ),
            "429": f"More than {RETRIED_MAX:,} dead letters would be in redelivery. Retry after the seconds"
            " in Retry-After.",
        },
        "400 404",
        takes=json_body(RetryBody, {}, required=False),
    )
    async def retry_dead_letters(self, request: Request) -> Response:
        """Redeliver dead letters, with attempts counted from 1."""
        await self.finder.check(request)
        body = await self.bodies.read_json(request, RetryBody, BODY_MAX_BYTES)
        named = None
        if body.positions is not None:
            keys = await self.positions.keys(body.positions, "/positions", RETRIED_BATCH_SIZE)
            named = [position_of(key) for key in dict.fromkeys(keys)]
        subscription, delivery = await self._settled(request)
        with self.finder.deliveries.pulled(delivery):
            places, gone = await asyncio.to_thread(self._retriable, subscription.number, named)
            if len(delivery.tries.retried) + len(places) > RETRIED_MAX:
                detail = (
                    f"{len(delivery.tries.retried):,} dead letters are being redelivered, the maximum is"
                    f" {RETRIED_MAX:,}: receive and ack these first."
                )
                raise self.load.overloaded("retries", detail)
            number, retry = subscription.number, self.letters.retry_letters
            retried = await self.writer.change(lambda ends: retry(number, places), subscription.space)
            if delivery.deleted:
                raise deleted(subscription)
            delivery.retry(map(key_of, retried))
            self.finder.deliveries.wake(delivery)
        left = await self._count(delivery)
        return json_response(RetriedDocument(len(retried), gone, left))

    def _retriable(self, number: int, named: Sequence[Position] | None) -> tuple[list[Position], int]:
        """Return the named dead letters, or the first of all, that have events, and how many have none."""
        starts = starts_of(self.log)
        if named is not None:
            there = [place for place in named if place.offset >= starts[place.partition]]
            return there, len(named) - len(there)
        found: list[Position] = []
        for partition, start in enumerate(starts):
            after = (
                Position(partition, start - 1, (1 << INDEX_BITS) - 1) if start else Position(partition, 0, -1)
            )
            letters = self.letters.letters(number, after, RETRIED_BATCH_SIZE - len(found))
            found += [each.position for each in letters if each.position.partition == partition]
        return found, 0

    @operation(answer("The dead letters were deleted.", RemovedDocument, {"removed": 0}), "404")
    async def clear_dead_letters(self, request: Request) -> Response:
        """Delete all dead letters of the subscription."""
        subscription, delivery = await self._settled(request, for_letters=True)
        number, clear = subscription.number, self.letters.clear_letters
        removed = await self.writer.change(lambda ends: clear(number), subscription.space)
        await self._count(delivery)
        return json_response(RemovedDocument(removed))

    async def _settled(self, request: Request, *, for_letters: bool = False) -> tuple[Subscription, Delivery]:
        """Return the delivery of a request, after saving all dead letters.

        It is saved in any case: an earlier snapshot that is still being saved could write dead letters again
        that are retried or cleared now. Snapshots are saved in the order of submission.
        """
        subscription, delivery = await self.finder.find(request, for_letters=for_letters)
        self.finder.deliveries.expire(delivery)
        await self.finder.save(subscription, delivery)
        return subscription, delivery


def _document(letter: DeadLetter, line: bytes | None) -> DeadLetterDocument:
    event = None if line is None else msgspec.Raw(line)
    return DeadLetterDocument(str(letter.position), letter.attempts, letter.reason, letter.dead_ms, event)
