"""Messages out: pulls, streams, and what clients say of what they were given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.delivery_settings import DEADLINE_MAX_S
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.deliveries import DeliveryFinder, deleted
from fieldfare.gateway.routes.positions import Positions
from fieldfare.gateway.routes.requests import json_response, query_int, query_seconds
from fieldfare.gateway.routes.sayings import Sayings
from fieldfare.gateway.routes.settling import AckBody, ExtendBody, NackBody, Settling, TerminateBody
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.transports.beats import Beats
from fieldfare.gateway.transports.event_stream import HEADERS, EventStream
from fieldfare.gateway.transports.message_socket import MessageSocket, agreed
from fieldfare.gateway.transports.outflow import Outflow
from fieldfare.gateway.transports.pull import Pull

BODY_MAX_BYTES = 1 << 20
ACK_MODES = ("explicit", "auto")


class PullBody(msgspec.Struct, forbid_unknown_fields=True):
    max: Annotated[int, msgspec.Meta(ge=1)] = 100
    wait_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    ack_deadline_s: Annotated[float, msgspec.Meta(gt=0, le=DEADLINE_MAX_S)] | None = None


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
    settling: Settling
    bodies: Bodies
    metrics: Metrics
    beats: Beats
    quotas: Quotas
    settings: GatewaySettings

    async def ack(self, request: Request) -> Response:
        """Settle messages for good; the cursor is saved before the answer goes out."""
        return json_response(await self.settling.ack(request, await self._read(request, _ack_body)))

    async def nack(self, request: Request) -> Response:
        """Ask for messages again: after ``delay_s``, or as the subscription's settings say."""
        return json_response(await self.settling.nack(request, await self._read(request, _nack_body)))

    async def extend(self, request: Request) -> Response:
        """Have messages for longer: their deadline begins anew."""
        return json_response(await self.settling.extend(request, await self._read(request, _extend_body)))

    async def terminate(self, request: Request) -> Response:
        """Give messages up: nobody is given them again."""
        body = await self._read(request, _terminate_body)
        return json_response(await self.settling.terminate(request, body))

    async def pull(self, request: Request) -> Response:
        """Up to ``max`` messages; when there is none, wait for one as long as ``wait_s``."""
        await self._check_connection(request)
        body = await self._read(request, _pull_body)
        subscription, delivery = await self.deliveries.find(request)
        limit = min(body.max, self.settings.window_max)
        lease_s = body.ack_deadline_s or delivery.settings.ack_deadline_s or self.settings.ack_deadline_s
        wait_s = min(body.wait_s, self.settings.wait_max_s)
        pull = Pull(self.pump, delivery, subscription.space, limit, lease_s)
        with self.quotas.connected(subscription.space):
            answer = await pull.answer(wait_s, request.receive)
        if delivery.deleted:
            raise deleted(subscription)
        if answer.count:
            self.deliveries.held(delivery, lease_s)
        self.metrics.given(answer.count)
        return answer

    async def stream(self, request: Request) -> EventStream:
        """The subscription's messages as server-sent events, from its cursor on."""
        await self._check_connection(request)
        mode = request.query_params.get("ack", ACK_MODES[0])
        if mode not in ACK_MODES:
            detail = f"ack must be one of {', '.join(ACK_MODES)}."
            raise HttpProblem(400, "bad-parameter", detail, parameter="ack")
        is_auto = mode == "auto"
        if is_auto and "ack_deadline_s" in request.query_params:
            detail = "ack_deadline_s goes with ack=explicit: with ack=auto no message has a deadline."
            raise HttpProblem(400, "bad-parameter", detail, parameter="ack_deadline_s")
        window, asked_s = self._window(request)
        if is_auto:
            asked_s = math.inf
            await self._settle_last(request)
        return EventStream(await self._outflow(request, window, asked_s, is_auto), self.beats)

    async def socket(self, websocket: WebSocket) -> None:
        """The same as CloudEvents on a WebSocket, on which the client also says what it has done."""
        await self._check_connection(websocket)
        window, asked_s = self._window(websocket)
        subprotocol = agreed(websocket.scope["subprotocols"])
        outflow = await self._outflow(websocket, window, asked_s)
        sayings = Sayings(self.settling, websocket, self.bodies)
        await MessageSocket(outflow, sayings, websocket, subprotocol)()

    def _window(self, request: HTTPConnection) -> tuple[int, float | None]:
        """How many messages an open stream may hold unacked, and for how long each, if it says so."""
        window = query_int(request, "window", self.settings.window_default, 1, self.settings.window_max)
        return window, query_seconds(request, "ack_deadline_s", None, DEADLINE_MAX_S)

    async def _outflow(
        self, request: HTTPConnection, window: int, asked_s: float | None, is_auto: bool = False
    ) -> Outflow:
        subscription, delivery = await self.deliveries.find(request)
        lease_s = self.settings.ack_deadline_s
        connected = partial(self.quotas.connected, subscription.space)
        space = subscription.space
        return Outflow(self.pump, self.metrics, delivery, space, window, lease_s, asked_s, is_auto, connected)

    async def _check_connection(self, request: HTTPConnection) -> None:
        """Problem where there is no such subscription, or its space has as much open as it may."""
        subscription = await self.deliveries.check(request)
        self.quotas.check_room(subscription.space, "connections")

    async def no_socket(self, request: Request) -> Response:
        """What a request hears that does not open a WebSocket where there is one."""
        await self.deliveries.check(request)
        headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        detail = (
            "This is for opening a WebSocket: GET of HTTP/1.1 without a body, with the headers of RFC 6455."
        )
        raise HttpProblem(426, "upgrade-required", detail, headers=headers)

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
            _, delivery = await self.settling.settle_up_to(request, up_to)
            self.pump.wake(delivery)

    async def _read(self, request: Request, decoder: msgspec.json.Decoder[Any]) -> Any:
        """A body, after Problem 404 for a subscription that there is not."""
        await self.deliveries.check(request)
        return await self.bodies.read_json(request, decoder, BODY_MAX_BYTES)
