"""Acks, nacks, deadline extensions and terminations of delivered messages, for HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from starlette.requests import HTTPConnection

from fieldfare.delivery.delivery import Delivery, TooManyEarlyAcks
from fieldfare.delivery.keys import position_of
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.member_types import CursorText, DeadlineSeconds, PositionText
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.deliveries import DeliveryFinder
from fieldfare.gateway.routes.positions import POSITIONS_MAX, SETTLED_BATCH_SIZE, Positions
from fieldfare.model import DEADLINE_MAX_S, Subscription, positions_text

REASON_MAX = 200
"""Maximum characters kept of the reason why a message is terminated; the rest is cut off."""

TERMINATED = "given up by a reader"

UNSAVED_MAX = 2_000
"""Maximum acks of messages that may be dead letters, per subscription, before their removal is saved; the
request waits for it. Saving takes time proportional to their number, and delays all spaces' cursors.
"""


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    positions: list[str] | None = None
    up_to: str | None = None


SomePositions = Annotated[list[PositionText], f"Positions of the messages, at most {POSITIONS_MAX:,}."]


class NackBody(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to redeliver."""

    positions: SomePositions
    delay_s: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=DEADLINE_MAX_S)] | None,
        "Seconds until the messages are redelivered; null: the subscription's `retry_delays_s` apply.",
    ] = None


class ExtendBody(msgspec.Struct, forbid_unknown_fields=True):
    """Messages whose ack deadline is extended."""

    positions: SomePositions
    ack_deadline_s: Annotated[
        DeadlineSeconds | None,
        "New deadline, in seconds from now; null: the subscription's `ack_deadline_s`, or else the"
        " service's.",
    ] = None


class TerminateBody(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that become dead letters."""

    positions: SomePositions
    reason: Annotated[
        str, "The reason, shown in the list of dead letters; only the first 200 characters are kept."
    ] = ""


class CursorDocument(msgspec.Struct):
    cursor: Annotated[CursorText, "The subscription's cursor after the change."]


class NackedDocument(msgspec.Struct):
    returned: Annotated[int, "Number of messages that were in flight and will be redelivered."]


class ExtendedDocument(msgspec.Struct):
    extended: Annotated[int, "Number of messages that were in flight and have a new deadline."]


class TerminatedDocument(msgspec.Struct):
    """How many messages became dead letters."""

    terminated: Annotated[
        int, "Number of messages that were delivered, were not acknowledged, and are dead letters now."
    ]


@dataclass(frozen=True, slots=True)
class Settling:
    """Handler of client commands for the delivery of the subscription that a request names.

    Each method returns its response's document once the change is durable; error pointers refer to the body.
    """

    finder: DeliveryFinder
    deliveries: DeliveryService
    positions: Positions
    metrics: Metrics
    ack_deadline_s: float

    async def ack(self, request: HTTPConnection, body: AckBody) -> CursorDocument:
        """Settle messages for good; the cursor is saved before this returns."""
        if (body.positions is None) == (body.up_to is None):
            raise HttpProblem(400, "bad-request", "Send exactly one of positions and up_to.")
        began_ms = self.deliveries.tracer.ack_begins()
        keys = await self.positions.keys(body.positions or [], "/positions")
        up_to = None if body.up_to is None else await self.positions.key_up_to(body.up_to, pointer="/up_to")
        subscription, delivery = await self.finder.find(request)
        if up_to is not None:
            subscription, delivery = await self.settle_up_to(request, up_to)
        for start in range(0, len(keys), SETTLED_BATCH_SIZE):
            if start:
                await asyncio.sleep(0)
                if len(delivery.tries.settled) >= UNSAVED_MAX:
                    await self.finder.save(subscription, delivery)
                # The delivery is too recently used to be dropped, but may have been deleted.
                subscription, delivery = await self.finder.find(request)
            try:
                self.metrics.acked.inc(delivery.ack(keys[start : start + SETTLED_BATCH_SIZE]))
            except TooManyEarlyAcks:
                self.deliveries.wake(delivery)  # the request's earlier positions are settled
                detail = (
                    "Too many acks are for messages that were not delivered since the gateway's start: pull"
                    " the messages, then ack them."
                )
                headers = {"Retry-After": "1"}
                raise HttpProblem(429, "overloaded", detail, headers=headers, why="acks") from None
        self.deliveries.wake(delivery)
        # Save even if nothing changed: an earlier ack's save may still be in progress.
        cursor_keys = await self.finder.save(subscription, delivery)
        self.deliveries.tracer.acked(keys, delivery.number, began_ms)
        if up_to is not None:
            self.deliveries.tracer.acked_up_to(up_to, delivery.number, began_ms)
        return CursorDocument(positions_text(map(position_of, cursor_keys)))

    async def nack(self, request: HTTPConnection, body: NackBody) -> NackedDocument:
        """Return messages for redelivery: after ``delay_s``, or as the subscription's settings say."""

        def nack(delivery: Delivery, keys: list[int]) -> int:
            return delivery.nack(keys, time.monotonic(), body.delay_s)

        return NackedDocument(await self._each(request, body.positions, nack))

    async def extend(self, request: HTTPConnection, body: ExtendBody) -> ExtendedDocument:
        """Extend the ack deadline of messages, counted from now."""

        def extend(delivery: Delivery, keys: list[int]) -> int:
            asked_s = body.ack_deadline_s or delivery.settings.ack_deadline_s or self.ack_deadline_s
            extended = delivery.extend(keys, time.monotonic(), asked_s)
            if extended:
                self.finder.mark_used(delivery, asked_s)
            return extended

        return ExtendedDocument(await self._each(request, body.positions, extend))

    async def terminate(self, request: HTTPConnection, body: TerminateBody) -> TerminatedDocument:
        """Turn messages into dead letters, so that they are not delivered again."""
        shown = "".join(char if char.isprintable() else " " for char in body.reason[:REASON_MAX])
        reason = shown.strip() or TERMINATED
        _, delivery = await self.finder.find(request)
        if delivery.is_full:
            detail = "The list of dead letters is full: retry or clear dead letters first."
            raise HttpProblem(409, "too-many-dead-letters", detail)

        def terminate(delivery: Delivery, keys: list[int]) -> int:
            return delivery.terminate(keys, reason)

        return TerminatedDocument(await self._each(request, body.positions, terminate))

    async def settle_up_to(self, request: HTTPConnection, key: int) -> tuple[Subscription, Delivery]:
        """Settle every match of a partition up to a key, in stages; return the delivery as it is then."""
        subscription, delivery = await self.finder.find(request)
        for stage in delivery.stages(key):
            self.metrics.acked.inc(delivery.ack_up_to(stage))
            await asyncio.sleep(0)
            subscription, delivery = await self.finder.find(request)
        return subscription, delivery

    async def _each(
        self, request: HTTPConnection, positions: Sequence[str], verb: Callable[[Delivery, list[int]], int]
    ) -> int:
        """Apply a function to messages in batches; return how many messages it changed."""
        keys = await self.positions.keys(positions, "/positions")
        subscription, delivery = await self.finder.find(request)
        count = 0
        for start in range(0, len(keys), SETTLED_BATCH_SIZE):
            if start:
                await asyncio.sleep(0)
                # The delivery is too recently used to be dropped, but may have been deleted.
                subscription, delivery = await self.finder.find(request)
            count += verb(delivery, keys[start : start + SETTLED_BATCH_SIZE])
        self.deliveries.wake(delivery)
        if delivery.is_urgent:  # dead letters are durable before the response
            await self.finder.save(subscription, delivery)
        return count
