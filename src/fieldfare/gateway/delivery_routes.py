"""Messages out: pull, stream (server-sent events), ack and nack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fieldfare.gateway.delivery import Delivery, Session, position_of
from fieldfare.gateway.problems import Problem
from fieldfare.gateway.pump import keys_of
from fieldfare.gateway.records import write_pulled, write_sse
from fieldfare.gateway.requests import query_int, query_seconds, read_json
from fieldfare.gateway.subscription_routes import json_response
from fieldfare.model import Position, Subscription

if TYPE_CHECKING:
    from fieldfare.gateway.app import Gateway

DEADLINE_MAX_S = 86_400.0
PARTS = 3
"""What one message takes in the list that its text is written to."""

FIRST_AT_ONCE = 16
SENT_AT_ONCE = 500
SENT_AT_ONCE_BYTES = 256 << 10
PULLED_MAX_BYTES = 8 << 20


class PullBody(msgspec.Struct, forbid_unknown_fields=True):
    max: Annotated[int, msgspec.Meta(ge=1)] = 100
    wait_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    ack_deadline_s: Annotated[float, msgspec.Meta(gt=0, le=DEADLINE_MAX_S)] | None = None


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    positions: list[str] | None = None
    up_to: str | None = None


class NackBody(msgspec.Struct, forbid_unknown_fields=True):
    positions: list[str]


_pull_body = msgspec.json.Decoder(PullBody)
_ack_body = msgspec.json.Decoder(AckBody)
_nack_body = msgspec.json.Decoder(NackBody)


def _delivery_of(request: Request) -> tuple[Gateway, Subscription, Delivery]:
    gateway: Gateway = request.app.state.gateway
    subscription = gateway.subscriptions.get(request.path_params["space"], request.path_params["id"])
    return gateway, subscription, gateway.pump.delivery_of(subscription)


def _keys(texts: list[str], pointer: str, log_end: int) -> list[int]:
    """The keys of positions as texts; Problem 400 names the one that is none, or lies beyond the log."""
    keys = []
    for index, text in enumerate(texts):
        try:
            position = Position.parse(text)
            keys += keys_of([position])
            if position.offset >= log_end:
                raise ValueError(f"{position} lies beyond the log's end, 0-{log_end}-0")
        except ValueError as error:
            place = f"{pointer}/{index}" if pointer == "/positions" else pointer
            raise Problem(400, "bad-position", f"{error}.", pointer=place) from None
    return keys


async def ack(request: Request) -> Response:
    """Settle messages for good; the cursor is saved before the answer goes out."""
    gateway, _, delivery = _delivery_of(request)
    body = await read_json(request, _ack_body, gateway.settings.body_max_bytes)
    if (body.positions is None) == (body.up_to is None):
        raise Problem(400, "bad-request", "Send either positions or up_to.")
    end = gateway.log.end()
    if body.up_to is not None:
        count = 1
        changed = delivery.ack_up_to(_keys([body.up_to], "/up_to", end)[0])
    else:
        keys = _keys(body.positions or [], "/positions", end)
        count = len(keys)
        changed = delivery.ack(keys)
    if changed:
        gateway.metrics.acked.inc(count)
        gateway.pump.wake(delivery)
    # Saved even when nothing is new: the ack that made it so may still be on its way to the disk.
    await gateway.pump.save(delivery)
    return json_response({"cursor": str(position_of(delivery.cursor_key))})


async def nack(request: Request) -> Response:
    """Ask for messages again, at once."""
    gateway, _, delivery = _delivery_of(request)
    body = await read_json(request, _nack_body, gateway.settings.body_max_bytes)
    count = delivery.nack(_keys(body.positions, "/positions", gateway.log.end()))
    gateway.pump.wake(delivery)
    return json_response({"returned": count})


async def pull(request: Request) -> Response:
    """Up to ``max`` messages; when there is none, wait for one as long as ``wait_s``."""
    gateway, subscription, delivery = _delivery_of(request)
    body = await read_json(request, _pull_body, gateway.settings.body_max_bytes)
    settings = gateway.settings
    limit = min(body.max, settings.window_max)
    lease_s = body.ack_deadline_s or settings.ack_deadline_s
    session = gateway.pump.puller(delivery)
    until_s = time.monotonic() + min(body.wait_s, settings.wait_max_s)
    parts: list[bytes] = []
    async with _Disconnect(request.receive) as gone:
        while not gone.happened:
            parts = _pulled(gateway, delivery, session, limit, lease_s)
            left_s = until_s - time.monotonic()
            if parts or gateway.pump.closing or delivery.deleted:
                break
            if gateway.pump.read_on(delivery) or delivery.has_message(session):
                await asyncio.sleep(0)  # much to read that does not match: let others have their turn
                continue
            if left_s <= 0:
                break
            await gateway.pump.wait(delivery, session, left_s, gone.future)
    if delivery.deleted:
        raise Problem(404, "unknown-subscription", f"The subscription {subscription.id!r} was deleted.")
    gateway.metrics.given(len(parts) // PARTS)
    content = b"".join((b'{"messages":[', *parts, b"]}"))
    return Response(content, media_type="application/json")


def _pulled(
    gateway: Gateway, delivery: Delivery, session: Session, limit: int, lease_s: float
) -> list[bytes]:
    """What one pull gets, in steps, so that large events end it before memory does."""
    parts: list[bytes] = []
    size_bytes, step = 0, FIRST_AT_ONCE
    while size_bytes < PULLED_MAX_BYTES and (left := limit - len(parts) // PARTS) > 0:
        gateway.pump.read_on(delivery)
        keys = delivery.take(session, min(left, step), time.monotonic(), lease_s)
        if not keys:
            break
        before = len(parts)
        delivery.ack(gateway.records.compose(keys, write_pulled, parts))
        added_bytes = sum(map(len, parts[before:]))
        size_bytes += added_bytes
        step = _next_step(added_bytes, len(keys))
    return parts


def _next_step(size_bytes: int, count: int) -> int:
    """How many messages to take at once, from the size of the last."""
    return max(1, min(SENT_AT_ONCE, SENT_AT_ONCE_BYTES * count // max(size_bytes, 1)))


async def stream(request: Request) -> Response:
    """The subscription's messages as server-sent events, from its cursor on."""
    gateway, subscription, delivery = _delivery_of(request)
    settings = gateway.settings
    window = query_int(request, "window", settings.window_default, 1, settings.window_max)
    lease_s = query_seconds(request, "ack_deadline_s", settings.ack_deadline_s, DEADLINE_MAX_S)
    return EventStream(gateway, subscription, delivery, window, lease_s)


class EventStream(Response):
    """One open stream: sends what its session is given until somebody ends it."""

    def __init__(
        self,
        gateway: Gateway,
        subscription: Subscription,
        delivery: Delivery,
        window: int,
        lease_s: float,
    ) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._gateway = gateway
        self._subscription = subscription
        self._delivery = delivery
        self._window = window
        self._lease_s = lease_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = self._gateway.pump
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        session = pump.open_stream(self._delivery, self._window)
        try:
            async with _Disconnect(receive) as gone:
                await self._send_all(session, send, gone)
        except OSError:
            pass  # the client went away in the middle of a message
        finally:
            pump.close_stream(self._delivery, session)

    async def _send_all(self, session: Session, send: Send, gone: _Disconnect) -> None:
        gateway, delivery = self._gateway, self._delivery
        heartbeat_s = gateway.settings.heartbeat_s
        # A comment at once lets the client know that the stream is open.
        await _send_part(send, b": fieldfare\n\n")
        sent_s = time.monotonic()
        step = FIRST_AT_ONCE
        while not gone.happened and not gateway.pump.closing and not delivery.deleted:
            now_s = time.monotonic()
            keys = delivery.take(session, step, now_s, self._lease_s)
            if keys:
                parts: list[bytes] = []
                delivery.ack(gateway.records.compose(keys, write_sse, parts))
                gateway.metrics.given(len(parts) // PARTS)
                body = b"".join(parts)
                step = _next_step(len(body), len(keys))
                if body:
                    await _send_part(send, body)
                sent_s = now_s
            elif now_s - sent_s >= heartbeat_s:
                await _send_part(send, b":\n\n")
                sent_s = now_s
            else:
                left_s = sent_s + heartbeat_s - now_s
                await gateway.pump.wait(delivery, session, left_s, gone.future)
        if delivery.deleted:
            await _send_part(send, b"event: deleted\ndata: {}\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


class _Disconnect:
    """Notices that the client has gone, while its request is being answered."""

    def __init__(self, receive: Callable[[], Awaitable[Message]]) -> None:
        self._receive = receive
        self.future: asyncio.Future[None] = asyncio.ensure_future(self._watch())

    @property
    def happened(self) -> bool:
        return self.future.done()

    async def __aenter__(self) -> _Disconnect:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.future.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
