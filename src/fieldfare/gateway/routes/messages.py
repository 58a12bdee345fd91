"""Messages out: pulls, streams, and what clients say of what they were given."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.delivery.delivery import Delivery, TooManyEarlyAcks
from fieldfare.delivery.keys import position_of
from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.delivery_settings import DEADLINE_MAX_S
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.deliveries import DeliveryFinder, deleted
from fieldfare.gateway.routes.positions import SETTLED_AT_ONCE, Positions
from fieldfare.gateway.routes.requests import json_response, query_int, query_seconds
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.transports.beats import Beats
from fieldfare.gateway.transports.event_stream import HEADERS, EventStream
from fieldfare.gateway.transports.pull import pull_messages
from fieldfare.model import Subscription, positions_text

BODY_MAX_BYTES = 1 << 20
REASON_MAX = 200
"""Of a reason why a message is given up so many characters are kept."""

TERMINATED = "given up by a reader"
ACK_MODES = ("explicit", "auto")


class PullBody(msgspec.Struct, forbid_unknown_fields=True):
    max: Annotated[int, msgspec.Meta(ge=1)] = 100
    wait_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    ack_deadline_s: Annotated[float, msgspec.Meta(gt=0, le=DEADLINE_MAX_S)] | None = None


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


_pull_body = msgspec.json.Decoder(PullBody)
_ack_body = msgspec.json.Decoder(AckBody)
_nack_body = msgspec.json.Decoder(NackBody)
_extend_body = msgspec.json.Decoder(ExtendBody)
_terminate_body = msgspec.json.Decoder(TerminateBody)


@dataclass(frozen=True, slots=True)
class MessageRoutes:
    """A subscription's messages."""

    deliveries: DeliveryFinder
    pump: Pump
    positions: Positions
    bodies: Bodies
    metrics: Metrics
    beats: Beats
    settings: GatewaySettings

    async def ack(self, request: Request) -> Response:
        """Settle messages for good; the cursor is saved before the answer goes out."""
        body = await self._read(request, _ack_body)
        if (body.positions is None) == (body.up_to is None):
            raise HttpProblem(400, "bad-request", "Send either positions or up_to.")
        keys = await self.positions.keys(body.positions or [], "/positions")
        up_to = None if body.up_to is None else await self.positions.key_up_to(body.up_to, pointer="/up_to")
        subscription, delivery = await self.deliveries.find(request)
        if up_to is not None:
            subscription, delivery = await self._settle_up_to(request, up_to)
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
        return json_response({"cursor": positions_text(map(position_of, cursor_keys))})

    async def nack(self, request: Request) -> Response:
        """Ask for messages again: after ``delay_s``, or as the subscription's settings say."""
        body = await self._read(request, _nack_body)

        def nack(delivery: Delivery, keys: list[int]) -> int:
            return delivery.nack(keys, time.monotonic(), body.delay_s)

        *_, count = await self._each(request, body.positions, nack)
        return json_response({"returned": count})

    async def extend(self, request: Request) -> Response:
        """Have messages for longer: their deadline begins anew."""
        body = await self._read(request, _extend_body)

        def extend(delivery: Delivery, keys: list[int]) -> int:
            asked_s = body.ack_deadline_s or delivery.settings.ack_deadline_s
            return delivery.extend(keys, time.monotonic(), asked_s or self.settings.ack_deadline_s)

        *_, count = await self._each(request, body.positions, extend)
        return json_response({"extended": count})

    async def terminate(self, request: Request) -> Response:
        """Give messages up: nobody is given them again."""
        body = await self._read(request, _terminate_body)
        shown = "".join(char if char.isprintable() else " " for char in body.reason[:REASON_MAX])
        reason = shown.strip() or TERMINATED
        *_, count = await self._each(
            request, body.positions, lambda delivery, keys: delivery.terminate(keys, reason)
        )
        return json_response({"terminated": count})

    async def pull(self, request: Request) -> Response:
        """Up to ``max`` messages; when there is none, wait for one as long as ``wait_s``."""
        body = await self._read(request, _pull_body)
        subscription, delivery = await self.deliveries.find(request)
        limit = min(body.max, self.settings.window_max)
        lease_s = body.ack_deadline_s or delivery.settings.ack_deadline_s or self.settings.ack_deadline_s
        wait_s = min(body.wait_s, self.settings.wait_max_s)
        answer = await pull_messages(self.pump, delivery, limit, lease_s, wait_s, request.receive)
        if delivery.deleted:
            raise deleted(subscription)
        self.metrics.given(answer.count)
        return answer

    async def stream(self, request: Request) -> EventStream:
        """The subscription's messages as server-sent events, from its cursor on."""
        _, delivery = await self.deliveries.find(request)
        window = query_int(request, "window", self.settings.window_default, 1, self.settings.window_max)
        mode = request.query_params.get("ack", ACK_MODES[0])
        if mode not in ACK_MODES:
            detail = f"ack must be one of {', '.join(ACK_MODES)}."
            raise HttpProblem(400, "bad-parameter", detail, parameter="ack")
        is_auto = mode == "auto"
        lease_s, asked_s = self.settings.ack_deadline_s, None
        if not is_auto:
            asked_s = query_seconds(request, "ack_deadline_s", None, DEADLINE_MAX_S)
        elif "ack_deadline_s" in request.query_params:
            detail = "ack_deadline_s goes with ack=explicit: with ack=auto no message has a deadline."
            raise HttpProblem(400, "bad-parameter", detail, parameter="ack_deadline_s")
        else:
            asked_s = math.inf
            await self._settle_last(request)
            _, delivery = await self.deliveries.find(request)
        return EventStream(self.pump, self.metrics, delivery, window, lease_s, asked_s, is_auto, self.beats)

    async def head_of_stream(self, request: Request) -> Response:
        """What a stream's answer would begin with."""
        await self.deliveries.check(request)
        response = Response()
        response.raw_headers = HEADERS
        return response

    async def _settle_last(self, request: Request) -> None:
        """With ack=auto: a client that comes back says up to where it was sent messages."""
        last, place = request.headers.get("last-event-id", ""), {"header": "Last-Event-ID"}
        if not last:  # what the connection before ended with is newer than what the page was loaded with
            last, place = request.query_params.get("last_event_id", ""), {"parameter": "last_event_id"}
        if last:
            up_to = await self.positions.key_up_to(last, **place)
            _, delivery = await self._settle_up_to(request, up_to)
            self.pump.wake(delivery)

    async def _settle_up_to(self, request: Request, key: int) -> tuple[Subscription, Delivery]:
        subscription, delivery = await self.deliveries.find(request)
        for stage in delivery.stages(key):
            self.metrics.acked.inc(delivery.ack_up_to(stage))
            await asyncio.sleep(0)
            subscription, delivery = await self.deliveries.find(request)
        return subscription, delivery

    async def _read(self, request: Request, decoder: msgspec.json.Decoder[Any]) -> Any:
        """A body, after Problem 404 for a subscription that there is not."""
        await self.deliveries.check(request)
        return await self.bodies.read_json(request, decoder, BODY_MAX_BYTES)

    async def _each(
        self, request: Request, positions: Sequence[str], verb: Callable[[Delivery, list[int]], int]
    ) -> tuple[Subscription, Delivery, int]:
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
        return subscription, delivery, count
