"""Server-sent events: one open stream, and who acknowledges what it sends.

With ``ack=explicit`` the client does, message by message or up to one, and what it does not acknowledge
comes again. With ``ack=auto`` it need not say anything, as a browser's EventSource cannot: a message is
settled when the client comes back with a ``Last-Event-ID`` at or after it, or when a whole window of younger
ones was sent on the same stream. Until then it is kept for the next connection. A subscription has one such
stream: whoever comes back does so before the service has noticed that the old connection is dead, so the new
one ends the old.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.gateway.delivery_routes import (
    DEADLINE_MAX_S,
    FIRST_AT_ONCE,
    PARTS,
    Disconnect,
    compose,
    find_delivery,
    next_step,
    parse_key_up_to,
)
from fieldfare.gateway.problems import Problem
from fieldfare.gateway.pump import Pump
from fieldfare.gateway.records import write_sse
from fieldfare.gateway.requests import query_int, query_seconds

ACK_MODES = ("explicit", "auto")

TURN_MAX_S = 0.005
"""A stream that is always ready lets others have their turn this often."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """What a client asked of its stream."""

    window: int
    lease_s: float
    is_auto: bool
    last_event_id: str = ""
    place: dict[str, Any] = field(default_factory=dict)
    """Where `last_event_id` was found, for a problem about it."""


def _read_settings(request: Request) -> _Settings:
    settings = request.app.state.gateway.settings
    window = query_int(request, "window", settings.window_default, 1, settings.window_max)
    mode = request.query_params.get("ack", ACK_MODES[0])
    if mode not in ACK_MODES:
        detail = f"ack must be one of {', '.join(ACK_MODES)}."
        raise Problem(400, "bad-parameter", detail, parameter="ack")
    if mode == "explicit":
        lease_s = query_seconds(request, "ack_deadline_s", settings.ack_deadline_s, DEADLINE_MAX_S)
        return _Settings(window, lease_s, is_auto=False)
    if "ack_deadline_s" in request.query_params:
        detail = "ack_deadline_s goes with ack=explicit: with ack=auto no message has a deadline."
        raise Problem(400, "bad-parameter", detail, parameter="ack_deadline_s")
    header = request.headers.get("last-event-id", "")
    if header:  # what the connection before this one ended with is newer than what the page was loaded with
        return _Settings(window, math.inf, True, header, {"header": "Last-Event-ID"})
    given = request.query_params.get("last_event_id", "")
    return _Settings(window, math.inf, True, given, {"parameter": "last_event_id"})


async def stream(request: Request) -> Response:
    """The subscription's messages as server-sent events, from its cursor on."""
    gateway, _, delivery = find_delivery(request)
    wanted = _read_settings(request)
    if wanted.last_event_id:
        try:
            up_to = await parse_key_up_to(gateway, wanted.last_event_id)
        except ValueError as error:
            raise Problem(400, "bad-position", f"{error}.", **wanted.place) from None
        gateway, _, delivery = find_delivery(request)
        gateway.metrics.acked.inc(delivery.ack_up_to(up_to))
        gateway.pump.wake(delivery)
    return EventStream(request, delivery, wanted)


class EventStream(Response):
    """One open stream: sends what its session is given until somebody ends it."""

    def __init__(self, request: Request, delivery: Delivery, wanted: _Settings) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._gateway = request.app.state.gateway
        self._delivery = delivery
        self._wanted = wanted
        self._sent: deque[int] = deque()
        """With ack=auto: what was sent and is not settled."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump: Pump = self._gateway.pump
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        wanted = self._wanted
        # An automatic stream never waits for acks: when its window is full it makes room itself.
        window = 2 * wanted.window if wanted.is_auto else wanted.window
        session = pump.open_stream(self._delivery, window, alone=wanted.is_auto)
        try:
            async with Disconnect(receive) as gone:
                with pump.waiter(self._delivery, session, gone.future) as woken:
                    await self._send_all(session, send, gone, woken)
        except OSError:
            pass  # the client went away in the middle of a message
        finally:
            pump.close_stream(self._delivery, session)

    async def _send_all(
        self, session: Session, send: Send, gone: Disconnect, woken: Callable[[float], Awaitable[bool]]
    ) -> None:
        delivery, pump = self._delivery, self._gateway.pump
        heartbeat_s = self._gateway.settings.heartbeat_s
        # A comment at once lets the client know that the stream is open.
        await _send_part(send, b": fieldfare\n\n")
        turn_s = sent_s = time.monotonic()
        step = FIRST_AT_ONCE
        while not (gone.happened or pump.closing or delivery.deleted or session.ended):
            now_s = time.monotonic()
            if now_s - turn_s > TURN_MAX_S:
                await asyncio.sleep(0)  # a client that reads as fast as this writes is not alone here
                turn_s = time.monotonic()
                continue
            keys = delivery.take(session, step, now_s, self._wanted.lease_s)
            if keys:
                pump.wake(delivery)  # others who wait must hear when these leases end
                step = next_step(await self._send_messages(keys, session, send, gone), len(keys))
                sent_s = now_s
            else:
                while not await woken(sent_s + heartbeat_s - time.monotonic()):
                    await _send_part(send, b":\n\n")
                    sent_s = time.monotonic()
                turn_s = time.monotonic()
        if delivery.deleted:
            await _send_part(send, b"event: deleted\ndata: {}\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_messages(self, keys: list[int], session: Session, send: Send, gone: Disconnect) -> int:
        """Send messages in pieces; their bytes. What is not sent when the stream ends comes again."""
        size_bytes = at = 0
        while at < len(keys) and not (gone.happened or session.ended):
            parts: list[bytes] = []
            done = await compose(self._gateway, self._delivery, keys[at:], write_sse, parts)
            if session.ended:
                break
            if parts:
                body = b"".join(parts)
                size_bytes += len(body)
                self._gateway.metrics.given(len(parts) // PARTS)
                await _send_part(send, body)
            if self._wanted.is_auto and not session.ended:
                self._settle_oldest(keys[at : at + done])
            at += done
        return size_bytes

    def _settle_oldest(self, sent: list[int]) -> None:
        """With ack=auto: what has a whole window of younger ones behind it needs no acknowledgement."""
        self._sent += sent
        surplus = len(self._sent) - self._wanted.window
        if surplus > 0:
            settled = self._delivery.ack([self._sent.popleft() for _ in range(surplus)])
            self._gateway.metrics.acked.inc(settled)


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
