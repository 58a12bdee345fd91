"""Messages out: pull, ack and nack; `event_stream` has the streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from fieldfare.delivery.delivery import Delivery, Session, TooManyEarlyAcks
from fieldfare.delivery.keys import PARTITION_SHIFT, key_of, offset_of, position_of
from fieldfare.gateway.problems import Problem
from fieldfare.gateway.records import PIECE_BYTES, write_pulled
from fieldfare.gateway.requests import read_json
from fieldfare.gateway.subscription_routes import json_response
from fieldfare.model import Position, Subscription, positions_text
from fieldfare.storage.event_log import MAX_RECORD_EVENTS

if TYPE_CHECKING:
    from fieldfare.gateway.app import Gateway

DEADLINE_MAX_S = 86_400.0
PARTS = 3
"""What one message takes in the list that its text is written to."""

FIRST_AT_ONCE = 16
SENT_AT_ONCE = 500
PULLED_MAX_BYTES = 8 << 20

BODY_MAX_BYTES = 1 << 20
POSITIONS_MAX = 20_000
SETTLED_AT_ONCE = 250
"""After so many positions of one request others have their turn."""


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


def find_delivery(request: Request) -> tuple[Gateway, Subscription, Delivery]:
    """The delivery that a request is about; Problem 404 when there is no such subscription.

    Asked for when the body has been read: between this and what is done to the delivery nothing is awaited,
    or it might be another one's by then, or forgotten with its subscription.
    """
    gateway: Gateway = request.app.state.gateway
    subscription = gateway.subscriptions.get(request.path_params["space"], request.path_params["id"])
    return gateway, subscription, gateway.pump.delivery_of(subscription)


def _check_subscription(request: Request) -> int:
    """Problem 404 before a body is read; the number of bytes that one may have."""
    gateway: Gateway = request.app.state.gateway
    gateway.subscriptions.get(request.path_params["space"], request.path_params["id"])
    return min(BODY_MAX_BYTES, gateway.settings.body_max_bytes)


def parse_key(gateway: Gateway, text: str) -> int:
    """The key of a position as text; ValueError for one that no message can have."""
    position = Position.parse(text)
    key = key_of(position)
    if position.index >= MAX_RECORD_EVENTS:
        raise ValueError(f"no record has {position.index + 1} events, so nothing is at {position}")
    partition, ends = position.partition, gateway.writer.log_ends
    if partition >= len(ends):
        raise ValueError(f"the log's last partition is {len(ends) - 1}; {position} names another")
    if position.offset >= ends[partition] and (
        position.offset >= (end := gateway.log.partitions[partition].end())
    ):
        raise ValueError(f"{position} lies beyond the log's end, {Position(partition, end, 0)}")
    return key


async def parse_key_up_to(gateway: Gateway, text: str) -> int:
    """The same for all up to a position: what was not matched yet nobody has been given, let alone done."""
    key, tail = parse_key(gateway, text), gateway.tail
    partition = key >> PARTITION_SHIFT
    if offset_of(key) >= tail.tips[partition]:
        await tail.catch_up()
    if offset_of(key) >= (tip := tail.tips[partition]):
        raise ValueError(
            f"{text} has not been matched yet, let alone delivered: {Position(partition, tip, 0)} is next"
        )
    return key


async def _parse_keys(gateway: Gateway, texts: Sequence[str], pointer: str) -> list[int]:
    """The keys of positions; Problem 400 names the one that is none, or that nothing can have been at."""
    if len(texts) > POSITIONS_MAX:
        detail = f"The request has {len(texts)} positions; at most {POSITIONS_MAX} are taken in one request."
        raise Problem(413, "too-many-positions", detail, pointer=pointer, max_positions=POSITIONS_MAX)
    keys = []
    for index, text in enumerate(texts):
        if index and index % SETTLED_AT_ONCE == 0:
            await asyncio.sleep(0)
        try:
            keys.append(parse_key(gateway, text))
        except ValueError as error:
            raise bad_position(error, f"{pointer}/{index}") from None
    return keys


def bad_position(error: ValueError, pointer: str) -> Problem:
    return Problem(400, "bad-position", f"{error}.", pointer=pointer)


async def ack(request: Request) -> Response:
    """Settle messages for good; the cursor is saved before the answer goes out."""
    body = await read_json(request, _ack_body, _check_subscription(request))
    if (body.positions is None) == (body.up_to is None):
        raise Problem(400, "bad-request", "Send either positions or up_to.")
    gateway: Gateway = request.app.state.gateway
    keys = await _parse_keys(gateway, body.positions or [], "/positions")
    try:
        up_to = None if body.up_to is None else await parse_key_up_to(gateway, body.up_to)
    except ValueError as error:
        raise bad_position(error, "/up_to") from None
    gateway, subscription, delivery = find_delivery(request)
    if up_to is not None:
        gateway.metrics.acked.inc(delivery.ack_up_to(up_to))
    for start in range(0, len(keys), SETTLED_AT_ONCE):
        if start:
            await asyncio.sleep(0)
            # Not another one than before in so short a time, but it may have been deleted.
            gateway, subscription, delivery = find_delivery(request)
        try:
            gateway.metrics.acked.inc(delivery.ack(keys[start : start + SETTLED_AT_ONCE]))
        except TooManyEarlyAcks:
            detail = (
                "Too many positions were acked that were not delivered since the gateway's start: pull them."
            )
            raise Problem(429, "overloaded", detail, headers={"Retry-After": "1"}, why="acks") from None
    gateway.pump.wake(delivery)
    # Saved even when nothing is new: the ack that made it so may still be on its way to the disk.
    await gateway.pump.save(delivery)
    if delivery.deleted:
        raise deleted(subscription)
    return json_response({"cursor": positions_text(map(position_of, delivery.cursor_keys))})


async def nack(request: Request) -> Response:
    """Ask for messages again, at once."""
    body = await read_json(request, _nack_body, _check_subscription(request))
    keys = await _parse_keys(request.app.state.gateway, body.positions, "/positions")
    gateway, _, delivery = find_delivery(request)
    count = 0
    for start in range(0, len(keys), SETTLED_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        count += delivery.nack(keys[start : start + SETTLED_AT_ONCE])
    gateway.pump.wake(delivery)
    return json_response({"returned": count})


async def pull(request: Request) -> Response:
    """Up to ``max`` messages; when there is none, wait for one as long as ``wait_s``."""
    body = await read_json(request, _pull_body, _check_subscription(request))
    gateway, subscription, delivery = find_delivery(request)
    settings = gateway.settings
    limit = min(body.max, settings.window_max)
    lease_s = body.ack_deadline_s or settings.ack_deadline_s
    session = gateway.pump.puller(delivery)
    until_s = time.monotonic() + min(body.wait_s, settings.wait_max_s)
    parts: list[bytes] = []
    async with Disconnect(request.receive) as gone:
        while not gone.happened:
            parts = await _pulled(gateway, delivery, session, limit, lease_s, gone)
            left_s = until_s - time.monotonic()
            if parts or gateway.pump.closing or delivery.deleted:
                break
            if left_s <= 0:
                break
            with gateway.pump.waiter(delivery, session, gone.future) as woken:
                await woken(left_s)
    if delivery.deleted:
        raise deleted(subscription)
    gateway.metrics.given(len(parts) // PARTS)
    content = b"".join((b'{"messages":[', *parts, b"]}"))
    return Response(content, media_type="application/json")


def deleted(subscription: Subscription) -> Problem:
    """What those hear who were at a subscription when it went."""
    return Problem(404, "unknown-subscription", f"The subscription {subscription.id!r} was deleted.")


async def _pulled(
    gateway: Gateway, delivery: Delivery, session: Session, limit: int, lease_s: float, gone: Disconnect
) -> list[bytes]:
    """What one pull gets, in steps, so that large events end it before memory does.

    Whatever ends it early, a message that was taken is in the answer, or is given again at once.
    """
    parts: list[bytes] = []
    taken: list[int] = []
    size_bytes, step = 0, FIRST_AT_ONCE
    try:
        while size_bytes < PULLED_MAX_BYTES and (left := limit - len(parts) // PARTS) > 0:
            await gateway.pump.read_on(delivery)
            keys = delivery.take(session, min(left, step), time.monotonic(), lease_s)
            if not keys:
                break
            gateway.pump.wake(delivery)  # others who wait must hear when these leases end
            taken += keys
            before, before_bytes, at = len(parts), size_bytes, 0
            while at < len(keys) and size_bytes < PULLED_MAX_BYTES:
                done = await compose(gateway, delivery, keys[at:], write_pulled, parts)
                at += done
                size_bytes += sum(map(len, parts[before:]))
                before = len(parts)
            delivery.nack(keys[at:])
            step = next_step(size_bytes - before_bytes, len(keys))
            await asyncio.sleep(0)
            if gone.happened or delivery.deleted:
                delivery.nack(taken)
                return []
    except BaseException:
        delivery.nack(taken)
        raise
    return parts


async def compose(
    gateway: Gateway,
    delivery: Delivery,
    keys: Sequence[int],
    write: Callable[[list[bytes], int, int, bytes], None],
    parts: list[bytes],
) -> int:
    """Write the first of some messages that were taken; how many of them this has dealt with."""
    done, gone = await gateway.records.compose(keys, write, parts)
    if gone:
        delivery.ack(gone)
        gateway.pump.skip_trimmed(delivery)
    return done


def next_step(size_bytes: int, count: int) -> int:
    """How many messages to take at once, from the size of the last."""
    return max(1, min(SENT_AT_ONCE, PIECE_BYTES * count // max(size_bytes, 1)))


class Disconnect:
    """Notices that the client has gone, while its request is being answered."""

    def __init__(self, receive: Callable[[], Awaitable[Message]]) -> None:
        self._receive = receive
        self.future: asyncio.Future[None] = asyncio.ensure_future(self._watch())

    @property
    def happened(self) -> bool:
        return self.future.done()

    async def __aenter__(self) -> Disconnect:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.future.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
