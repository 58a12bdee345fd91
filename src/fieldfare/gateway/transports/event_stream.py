"""Server-sent events: one open stream, acknowledged by the client or automatically.

With ``ack=explicit``, the client acknowledges messages one by one or up to a position; unacknowledged ones
are redelivered. With ``ack=auto``, the client sends no acks, as a browser's EventSource cannot: a message is
acknowledged when the client reconnects with a ``Last-Event-ID`` at or after it, or when a full window of
later messages has been sent on the stream. Until then it is kept for the next connection. A subscription has
at most one automatic stream, and a new one ends the old one: clients reconnect before the service has noticed
that the old connection is dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from starlette.types import Receive, Scope, Send

from fieldfare.gateway.delivery.records import Write, write_sse
from fieldfare.gateway.transports.heartbeats import Heartbeats
from fieldfare.gateway.transports.steps import Disconnect
from fieldfare.gateway.transports.stream_sender import StreamSender

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

SOUGHT = b"event: sought\ndata: {}\n\n"
"""The event sent after a seek: messages from here on may have been delivered, and acked, before."""


@dataclass(eq=False)
class EventStream:
    """The response of one open stream.

    Parameters
    ----------
    sender
        Sends the stream's messages.
    beats
        Triggers a heartbeat when the stream has been silent for too long.
    """

    sender: StreamSender
    beats: Heartbeats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        with self.sender.opened() as session:
            try:
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                async with Disconnect(receive) as gone:
                    # An immediate comment tells the client that the stream is open.
                    await self._send_part(b": fieldfare\n\n")
                    await self.sender.run(session, self, gone)
                delivery = self.sender.delivery
                if delivery.deleted:
                    kind = b"moved" if delivery.moved else b"deleted"
                    data = msgspec.json.encode(delivery.moved)
                    await self._send_part(b"event: %b\ndata: %b\n\n" % (kind, data))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except OSError:
                pass  # the client disconnected in the middle of a message
            finally:
                self.beats.ended(self)

    @property
    def write(self) -> Write:
        return write_sse

    async def send_messages(self, parts: Sequence[bytes]) -> None:
        await self._send_part(b"".join(parts))

    async def send_sought(self) -> None:
        await self._send_part(SOUGHT)

    def beat(self) -> None:
        """Send a comment, unless the client has not read the data sent before.

        The stream's own task does not do this: waking ten thousand tasks costs more than the comments
        themselves.
        """
        sending = _send_part(self._send, b":\n\n")
        with suppress(StopIteration, OSError):
            sending.send(None)
            sending.close()  # it would wait for buffer space

    async def _send_part(self, body: bytes) -> None:
        await _send_part(self._send, body)
        self.beats.sent(self)


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
