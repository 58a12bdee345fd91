"""What readers say of the messages that they were given, however they say it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from starlette.requests import HTTPConnection

from fieldfare.delivery.delivery import Delivery, TooManyEarlyAcks
from fieldfare.delivery.keys import position_of
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.delivery_settings import DEADLINE_MAX_S
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.deliveries import DeliveryFinder
from fieldfare.gateway.routes.positions import SETTLED_AT_ONCE, Positions
from fieldfare.model import Subscription, positions_text

REASON_MAX = 200
"""Of a reason why a message is given up so many characters are kept."""

TERMINATED = "given up by a reader"


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    positions: list[str] | None = None
    up_to: str | None = None


class NackBody(msgspec.Struct, forbid_unknown_fields=True):
    positions: list[str]
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=DEADLINE_MAX_S)] | None = None


class ExtendBody(msgspec.Struct, forbid_unknown_fields=True):
    positions: list[str]
    ack_deadline_s: Annotated[float, msgspec.Meta(gt=0, le=DEADLINE_MAX_S)] | None = None


class TerminateBody(msgspec.Struct, forbid_unknown_fields=True):
    positions: list[str]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Settling:
    """Does what is said, to the delivery of the subscription that a request is about.

    Each answers with what is to be told of it, when that is durable; places of errors are in the body.
    """

    deliveries: DeliveryFinder
    pump: Pump
    positions: Positions
    metrics: Metrics
    ack_deadline_s: float

    async def ack(self, request: HTTPConnection, body: AckBody) -> dict[str, Any]:
        """Settle messages for good; the cursor is saved before this returns."""
        if (body.positions is None) == (body.up_to is None):
            raise HttpProblem(400, "bad-request", "Send either positions or up_to.")
        keys = await self.positions.keys(body.positions or [], "/positions")
        up_to = None if body.up_to is None else await self.positions.key_up_to(body.up_to, pointer="/up_to")
        subscription, delivery = await self.deliveries.find(request)
        if up_to is not None:
            subscription, delivery = await self.settle_up_to(request, up_to)
        for start in range(0, len(keys), SETTLED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
                # Not another one than before in so short a time, but it may have been deleted.
                subscription, delivery = await self.deliveries.find(request)
            try:
                self.metrics.acked.inc(delivery.ack(keys[start : start + SETTLED_AT_ONCE]))
            except TooManyEarlyAcks:
                self.pump.wake(delivery)  # the others of the request are settled
                detail = (
                    "Too many positions were acked that were not delivered since the gateway's start: pull"
                    " them."
                )
                headers = {"Retry-After": "1"}
                raise HttpProblem(429, "overloaded", detail, headers=headers, why="acks") from None
        self.pump.wake(delivery)
        # Saved even when nothing is new: the ack that made it so may still be on its way to the disk.
        cursor_keys = await self.deliveries.save(subscription, delivery)
        return {"cursor": positions_text(map(position_of, cursor_keys))}

    async def nack(self, request: HTTPConnection, body: NackBody) -> dict[str, Any]:
        """Ask for messages again: after ``delay_s``, or as the subscription's settings say."""

        def nack(delivery: Delivery, keys: list[int]) -> int:
            return delivery.nack(keys, time.monotonic(), body.delay_s)

        return {"returned": await self._each(request, body.positions, nack)}

    async def extend(self, request: HTTPConnection, body: ExtendBody) -> dict[str, Any]:
        """Have messages for longer: their deadline begins anew."""

        def extend(delivery: Delivery, keys: list[int]) -> int:
            asked_s = body.ack_deadline_s or delivery.settings.ack_deadline_s or self.ack_deadline_s
            extended = delivery.extend(keys, time.monotonic(), asked_s)
            if extended:
                self.deliveries.held(delivery, asked_s)
            return extended

        return {"extended": await self._each(request, body.positions, extend)}

    async def terminate(self, request: HTTPConnection, body: TerminateBody) -> dict[str, Any]:
        """Give messages up: nobody is given them again."""
        shown = "".join(char if char.isprintable() else " " for char in body.reason[:REASON_MAX])
        reason = shown.strip() or TERMINATED
        _, delivery = await self.deliveries.find(request)
        if delivery.is_full:
            detail = "The list of dead letters is full: nothing is given up until it is retried or cleared."
            raise HttpProblem(409, "too-many-dead-letters", detail)

        def terminate(delivery: Delivery, keys: list[int]) -> int:
            return delivery.terminate(keys, reason)

        return {"terminated": await self._each(request, body.positions, terminate)}

    async def settle_up_to(self, request: HTTPConnection, key: int) -> tuple[Subscription, Delivery]:
        """Settle every match of a partition up to a key, in stages; the delivery as it is then."""
        subscription, delivery = await self.deliveries.find(request)
        for stage in delivery.stages(key):
            self.metrics.acked.inc(delivery.ack_up_to(stage))
            await asyncio.sleep(0)
            subscription, delivery = await self.deliveries.find(request)
        return subscription, delivery

    async def _each(
        self, request: HTTPConnection, positions: Sequence[str], verb: Callable[[Delivery, list[int]], int]
    ) -> int:
        """Do something to messages, some at a time; to how many it was done."""
        keys = await self.positions.keys(positions, "/positions")
        subscription, delivery = await self.deliveries.find(request)
        count = 0
        for start in range(0, len(keys), SETTLED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
                # Not another one than before in so short a time, but it may have been deleted.
                subscription, delivery = await self.deliveries.find(request)
            count += verb(delivery, keys[start : start + SETTLED_AT_ONCE])
        self.pump.wake(delivery)
        if delivery.is_urgent:  # what was given up is so when the answer comes
            await self.deliveries.save(subscription, delivery)
        return count
