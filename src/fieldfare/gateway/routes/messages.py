"""Routes for messages: pulls, streams, acks, nacks, deadline extensions and terminations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar, get_type_hints

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.delivery.records import PulledDocument
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.member_types import DeadlineSeconds, PositionText
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.openapi.schemas import EVENT
from fieldfare.gateway.openapi.words import (
    Handler,
    answer,
    integer,
    json_body,
    number,
    operation,
    parameter,
    string,
    taken,
)
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.acks import (
    AckBody,
    CursorDocument,
    ExtendBody,
    ExtendedDocument,
    NackBody,
    NackedDocument,
    Settling,
    SomePositions,
    TerminateBody,
    TerminatedDocument,
)
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

Body = TypeVar("Body")


class PullBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request for messages."""

    max: Annotated[
        int,
        msgspec.Meta(ge=1),
        "Maximum number of messages; a number above the service's maximum, 20,000, counts as that.",
    ] = 100
    wait_s: Annotated[
        float,
        msgspec.Meta(ge=0),
        "Seconds to wait for a first message, if there is none; a time above the service's maximum, 60"
        " s, counts as that.",
    ] = 0.0
    ack_deadline_s: Annotated[
        DeadlineSeconds | None,
        "Seconds until a message without an ack is redelivered. null: the subscription's"
        " `ack_deadline_s`, or else the service's, 30 s.",
    ] = None


_UpTo = Annotated[
    PositionText,
    "Acknowledge all messages of the partition up to and including this position: partition-offset-index.",
]
_ACKED = {"oneOf": [taken({"positions": SomePositions}), taken({"up_to": _UpTo})]}
_OF_STREAM = [
    parameter(
        "window",
        integer(minimum=1, maximum=20000, default=1000),
        "Maximum messages of this stream in flight: sent and not acknowledged.",
    ),
    parameter(
        "ack_deadline_s",
        number(exclusiveMinimum=0, maximum=DEADLINE_MAX_S),
        "Seconds until a message without an ack is redelivered. Default: the subscription's `ack_deadline_s`,"
        " or else the service's, 30 s.",
    ),
]
_OF_EVENT_STREAM = [
    *_OF_STREAM,
    parameter(
        "ack",
        string(enum=list(ACK_MODES), default=ACK_MODES[0]),
        "`explicit`: the client acknowledges each message. `auto`: the client sends no acks; a message counts"
        " as acknowledged when the client reconnects with a Last-Event-ID at or after it, or when `window`"
        " later messages were sent. With `auto`, messages have no deadline, `ack_deadline_s` must be missing,"
        " and a subscription can have one such stream only.",
    ),
    parameter(
        "last_event_id",
        PositionText,
        "With ack=auto: acknowledge all messages up to this position first.",
    ),
    parameter(
        "Last-Event-ID",
        PositionText,
        "Like `last_event_id`, as EventSource sends it; takes precedence over it.",
        "header",
    ),
]


def _changes(request: type, counted: type, problems: str = "400 404") -> Callable[[Handler], Handler]:
    """Describe an operation on some messages, and its answer: how many it changed."""
    return operation(
        answer(
            "The number of messages changed; messages in another state are ignored.",
            counted,
            dict.fromkeys(get_type_hints(counted), 0),
        ),
        problems,
        takes=json_body(request, {"positions": []}),
    )


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

    @operation(
        answer(
            "The acknowledgements are on disk: none of these messages is delivered again.",
            CursorDocument,
            {"cursor": "0-6-0"},
        ),
        "400 404",
        takes=json_body(_ACKED, {"positions": []}),
    )
    async def ack(self, request: Request) -> Response:
        """Acknowledge messages: single ones, or all up to a position."""
        return json_response(await self.settling.ack(request, await self._read(request, AckBody)))

    @_changes(NackBody, NackedDocument)
    async def nack(self, request: Request) -> Response:
        """Request redelivery of messages."""
        return json_response(await self.settling.nack(request, await self._read(request, NackBody)))

    @_changes(ExtendBody, ExtendedDocument)
    async def extend(self, request: Request) -> Response:
        """Extend the ack deadline of messages."""
        return json_response(await self.settling.extend(request, await self._read(request, ExtendBody)))

    @_changes(TerminateBody, TerminatedDocument, "400 404 409")
    async def terminate(self, request: Request) -> Response:
        """Turn messages into dead letters, which are not redelivered."""
        body = await self._read(request, TerminateBody)
        return json_response(await self.settling.terminate(request, body))

    @operation(
        {
            "200": answer(
                "The messages, in order of delivery; none if there were none until `wait_s` was over.",
                PulledDocument,
                {"messages": [{"position": "0-5-0", "attempt": 1, "event": EVENT}]},
            ),
            "429": "The space has used up its quota of delivered bytes per second, or of connections. Retry"
            " after the seconds in Retry-After.",
        },
        "400 404",
        takes=json_body(PullBody, {"max": 100, "wait_s": 0, "ack_deadline_s": 30}, required=False),
    )
    async def pull(self, request: Request) -> Response:
        """Receive messages."""
        await self._check_connection(request)
        body = await self._read(request, PullBody)
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

    @operation(
        answer("The stream, which the server keeps open.", string(), media="text/event-stream"),
        "400 404",
        parameters=_OF_EVENT_STREAM,
    )
    async def stream(self, request: Request) -> EventStream:
        """Receive messages as server-sent events.

        `id` is the message's position, `data` the event as JSON; the field `attempt` has the number of the
        delivery, if it is not the first. At most `window` messages are in flight. Comments are sent while
        there are no messages. The event `sought` says that the cursor was moved; `deleted` that the
        subscription was deleted, and `moved` that it is at another broker, which end the stream.
        """
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

    @operation(
        {"101": "The WebSocket is open.", "426": "The request does not open a WebSocket."},
        "400 404",
        parameters=_OF_STREAM,
    )
    async def socket(self, websocket: WebSocket) -> None:
        """Receive and acknowledge messages on a WebSocket.

        Uses CloudEvents' subprotocol `cloudevents.json`: each text frame is an event, in both directions. A
        message has the extension attributes `fieldfareposition` and `fieldfareattempt`. The client sends
        events of the types `fieldfare.ack`, `fieldfare.nack`, `fieldfare.extend` and `fieldfare.terminate`,
        whose data are the bodies of the routes with these names; the service responds to each with an event
        `fieldfare.done` or `fieldfare.problem`.
        """
        await self._check_connection(websocket)
        window, asked_s = self._window(websocket)
        subprotocol = agreed(websocket.scope["subprotocols"])
        sender = await self._sender(websocket, window, asked_s)
        sayings = ClientCommands(self.settling, websocket, self.bodies)
        await MessageSocket(sender, sayings, websocket, subprotocol)()

    def _window(self, request: HTTPConnection) -> tuple[int, float | None]:
        """Return a stream's maximum of messages in flight, and its requested ack deadline in seconds."""
        most = self.settings.window_max
        window = query_int(request, "window", min(self.settings.window_default, most), 1, most)
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

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        """Read a body; raise Problem 404 before that if the subscription is unknown."""
        await self.finder.check(request)
        return await self.bodies.read_json(request, kind, BODY_MAX_BYTES)
