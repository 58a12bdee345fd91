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
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.gateway.delivery.pump import Pump, Waiter
from fieldfare.gateway.delivery.records import write_sse
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.transports.beats import Beats
from fieldfare.gateway.transports.steps import FIRST_AT_ONCE, PARTS, Disconnect, next_step

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

SOUGHT = b"event: sought\ndata: {}\n\n"
"""The delivery was set to another place: what comes now may have come, and been acked, before."""

TURN_MAX_S = 0.002
"""A stream that is always ready lets others have their turn this often."""


@dataclass(eq=False)
class EventStream:
    """One open stream: sends what its session is given until somebody ends it.

    Parameters
    ----------
    pump, metrics
        Who brings messages, and who counts them.
    delivery
        What is sent.
    window, lease_s
        How many messages may be unacked, and for how long each: so long as the subscription's settings say
        where they say it, unless the client has named ``asked_s``.
    is_auto
        Whether the stream acknowledges them itself.
    beats
        Say when the stream has been silent for too long.
    """

    pump: Pump
    metrics: Metrics
    delivery: Delivery
    window: int
    lease_s: float
    asked_s: float | None
    is_auto: bool
    beats: Beats
    sent: deque[int] = field(default_factory=deque, init=False)
    """With ack=auto: what was sent and is not settled."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump, is_auto = self.pump, self.is_auto
        # An automatic stream never waits for acks: when its window is full it makes room itself.
        window = 2 * self.window if is_auto else self.window
        # Before anything is awaited: a delivery that nobody uses is forgotten, and read again by others.
        session = pump.open_stream(self.delivery, window, alone=is_auto)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            async with Disconnect(receive) as gone:
                with pump.waiter(self.delivery, session, gone.future) as waiter:
                    await self._send_all(session, send, gone, waiter)
        except OSError:
            pass  # the client went away in the middle of a message
        finally:
            self.beats.ended(self)
            pump.close_stream(self.delivery, session)

    async def _send_all(self, session: Session, send: Send, gone: Disconnect, waiter: Waiter) -> None:
        delivery, pump, beats = self.delivery, self.pump, self.beats
        self._send = send
        # A comment at once lets the client know that the stream is open.
        await _send_part(send, b": fieldfare\n\n")
        beats.sent(self)
        turn_s = time.monotonic()
        step = FIRST_AT_ONCE
        round = delivery.round
        while not (gone.happened or pump.closing or delivery.deleted or session.ended):
            now_s = time.monotonic()
            if now_s - turn_s > TURN_MAX_S:
                await asyncio.sleep(0)  # a client that reads as fast as this writes is not alone here
                turn_s = time.monotonic()
                continue
            if delivery.round != round:
                round = delivery.round
                self.sent.clear()  # what was sent before settles nothing of what is to be sent again
                await _send_part(send, SOUGHT)
                continue
            lease_s = self.asked_s or delivery.settings.ack_deadline_s or self.lease_s
            keys = delivery.take(session, step, now_s, lease_s)
            if keys:
                pump.wake(delivery)  # others who wait must hear when these leases end
                step = next_step(await self._send_messages(keys, session, send, gone), len(keys))
                beats.sent(self)
            else:
                await waiter.woken()
                turn_s = time.monotonic()
        if delivery.deleted:
            await _send_part(send, b"event: deleted\ndata: {}\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def beat(self) -> None:
        """Send a comment, unless the client has not read what was sent before.

        Not by the stream's own task: to wake ten thousand of them costs more than all that they say.
        """
        sending = _send_part(self._send, b":\n\n")
        with suppress(StopIteration, OSError):
            sending.send(None)
            sending.close()  # it would wait until there is room

    async def _send_messages(self, keys: list[int], session: Session, send: Send, gone: Disconnect) -> int:
        """Send messages in pieces; their bytes. What is not sent when the stream ends comes again."""
        size_bytes = at = 0
        round = self.delivery.round
        while at < len(keys) and not (gone.happened or session.ended or self.delivery.round != round):
            parts: list[bytes] = []
            done = await self.pump.compose(self.delivery, keys[at:], write_sse, parts)
            if session.ended or self.delivery.round != round:
                break
            if parts:
                body = b"".join(parts)
                size_bytes += len(body)
                self.metrics.given(len(parts) // PARTS)
                await _send_part(send, body)
            if self.is_auto and not session.ended and self.delivery.round == round:
                self._settle_oldest(keys[at : at + done])
            at += done
        self.delivery.give_back(session, keys[at:])
        return size_bytes

    def _settle_oldest(self, sent: list[int]) -> None:
        """With ack=auto: what has a whole window of younger ones behind it needs no acknowledgement."""
        self.sent += sent
        surplus = len(self.sent) - self.window
        if surplus > 0:
            settled = self.delivery.ack([self.sent.popleft() for _ in range(surplus)])
            self.metrics.acked.inc(settled)


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
