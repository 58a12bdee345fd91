"""Routes for messages: pulls, streams, acks, nacks, deadline extensions and terminations."""

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
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.acks import AckBody, ExtendBody, NackBody, Settling, TerminateBody
from fieldfare.gateway.routes.client_commands import ClientCommands
from fieldfare.gateway.routes.deliveries import DeliveryFinder, deleted
from fieldfare.gateway.routes.positions import Positions
from fieldfare.gateway.routes.requests import BODY_MAX_BYTES, json_response, query_int, query_seconds
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.transports.event_stream import HEADERS, EventStream
from fieldfare.gateway.transports.heartbeats import Heartbeats
from fieldfare.gateway.transports.message_socket import MessageSocket, agreed
from fieldfare.gateway.transports.pull import Pull
from fieldfare.gateway.transports.stream_sender import StreamSender
from fieldfare.model import DEADLINE_MAX_S

ACK_MODES = ("explicit", "auto")


class PullBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request for messages.

    Attributes
    ----------
    max
        Maximum number of messages; a number above the service's maximum, 20,000, counts as that.
    wait_s
        Seconds to wait for a first message, if there is none; a time above the service's maximum, 60 s,
        counts as that.
    ack_deadline_s
        Seconds until a message without an ack is redelivered. None: the subscription's `ack_deadline_s`, or
        else the service's, 30 s.
    """

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
    """Routes for a subscription's messages."""

    finder: DeliveryFinder
    deliveries: DeliveryService
    positions: Positions
    settling: Settling
    bodies: Bodies
    metrics: Metrics
    beats: Heartbeats
    quotas: Quotas
    settings: GatewaySettings

    async def ack(self, request: Request) -> Response:
        """Settle messages for good; the cursor is saved before the response."""
        return json_response(await self.settling.ack(request, await self._read(request, _ack_body)))

    async def nack(self, request: Request) -> Response:
        """Return messages for redelivery: after ``delay_s``, or as the subscription's settings say."""
        return json_response(await self.settling.nack(request, await self._read(request, _nack_body)))

    async def extend(self, request: Request) -> Response:
        """Extend the ack deadline of messages, counted from now."""
        return json_response(await self.settling.extend(request, await self._read(request, _extend_body)))

    async def terminate(self, request: Request) -> Response:
        """Turn messages into dead letters, so that they are not delivered again."""
        body = await self._read(request, _terminate_body)
        return json_response(await self.settling.terminate(request, body))

    async def pull(self, request: Request) -> Response:
        """Return up to ``max`` messages; if there are none, wait up to ``wait_s`` seconds for one."""
        await self._check_connection(request)
        body = await self._read(request, _pull_body)
        subscription, delivery = await self.finder.find(request)
        limit = min(body.max, self.settings.window_max)
        lease_s = body.ack_deadline_s or delivery.settings.ack_deadline_s or self.settings.ack_deadline_s
        wait_s = min(body.wait_s, self.settings.wait_max_s)
        pull = Pull(self.deliveries, delivery, subscription.space, limit, lease_s)
        with self.quotas.connected(subscription.space):
            answer = await pull.answer(wait_s, request.receive)
        if delivery.deleted:
            await self.finder.check(request)  # it may have moved
            raise deleted(subscription)
        if answer.count:
            self.finder.mark_used(delivery, lease_s)
        self.metrics.count_delivered(answer.count)
        return answer

    async def stream(self, request: Request) -> EventStream:
        """Stream the subscription's messages as server-sent events, from its cursor on."""
        await self._check_connection(request)
        mode = request.query_params.get("ack", ACK_MODES[0])
        if mode not in ACK_MODES:
            detail = f"ack must be one of {', '.join(ACK_MODES)}."
            raise HttpProblem(400, "bad-parameter", detail, parameter="ack")
        is_auto = mode == "auto"
        if is_auto and "ack_deadline_s" in request.query_params:
            detail = "ack_deadline_s needs ack=explicit: with ack=auto, messages have no deadline."
            raise HttpProblem(400, "bad-parameter", detail, parameter="ack_deadline_s")
        window, asked_s = self._window(request)
        if is_auto:
            asked_s = math.inf
            await self._settle_last(request)
        return EventStream(await self._sender(request, window, asked_s, is_auto), self.beats)

    async def socket(self, websocket: WebSocket) -> None:
        """Stream messages as CloudEvents on a WebSocket, on which the client also sends commands."""
        await self._check_connection(websocket)
        window, asked_s = self._window(websocket)
        subprotocol = agreed(websocket.scope["subprotocols"])
        sender = await self._sender(websocket, window, asked_s)
        sayings = ClientCommands(self.settling, websocket, self.bodies)
        await MessageSocket(sender, sayings, websocket, subprotocol)()

    def _window(self, request: HTTPConnection) -> tuple[int, float | None]:
        """Return a stream's maximum of messages in flight, and its requested ack deadline in seconds."""
        window = query_int(request, "window", self.settings.window_default, 1, self.settings.window_max)
        return window, query_seconds(request, "ack_deadline_s", None, DEADLINE_MAX_S)

    async def _sender(
        self, request: HTTPConnection, window: int, asked_s: float | None, is_auto: bool = False
    ) -> StreamSender:
        subscription, delivery = await self.finder.find(request)
        lease_s = self.settings.ack_deadline_s
        connected = partial(self.quotas.connected, subscription.space)
        space = subscription.space
        return StreamSender(
            self.deliveries, self.metrics, delivery, space, window, lease_s, asked_s, is_auto, connected
        )

    async def _check_connection(self, request: HTTPConnection) -> None:
        """Raise a problem if the subscription is unknown, or its space has no connection left."""
        subscription = await self.finder.check(request)
        self.quotas.check_room(subscription.space, "connections")

    async def no_socket(self, request: Request) -> Response:
        """Refuse a request to the WebSocket's path that does not open a WebSocket, with Problem 426."""
        await self.finder.check(request)
        headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        detail = "This path opens a WebSocket: send GET with HTTP/1.1, the headers of RFC 6455, and no body."
        raise HttpProblem(426, "upgrade-required", detail, headers=headers)

    async def head_of_stream(self, request: Request) -> Response:
        """Respond with the headers of a stream."""
        await self.finder.check(request)
        response = Response()
        response.raw_headers = HEADERS
        return response

    async def _settle_last(self, request: Request) -> None:
        """Settle the messages up to the last event id that a reconnecting client sends, with ack=auto."""
        last, place = request.headers.get("last-event-id", ""), {"header": "Last-Event-ID"}
        if not last:  # the header comes first: it is newer than the parameter of the page's URL
            last, place = request.query_params.get("last_event_id", ""), {"parameter": "last_event_id"}
        if last:
            up_to = await self.positions.key_up_to(last, **place)
            _, delivery = await self.settling.settle_up_to(request, up_to)
            self.deliveries.wake(delivery)

    async def _read(self, request: Request, decoder: msgspec.json.Decoder[Any]) -> Any:
        """Read a body; raise Problem 404 before that if the subscription is unknown."""
        await self.finder.check(request)
        return await self.bodies.read_json(request, decoder, BODY_MAX_BYTES)
