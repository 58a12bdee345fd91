"""Server-sent events: one open stream, and who acknowledges what it sends.

With ``ack=explicit`` the client does, message by message or up to one, and what it does not acknowledge
comes again. With ``ack=auto`` it need not say anything, as a browser's EventSource cannot: a message is
settled when the client comes back with a ``Last-Event-ID`` at or after it, or when a whole window of younger
ones was sent on the same stream. Until then it is kept for the next connection. A subscription has one such
stream: whoever comes back does so before the service has noticed that the old connection is dead, so the new
one ends the old.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from fieldfare.gateway.delivery.records import Write, write_sse
from fieldfare.gateway.transports.beats import Beats
from fieldfare.gateway.transports.outflow import Outflow
from fieldfare.gateway.transports.steps import Disconnect

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

SOUGHT = b"event: sought\ndata: {}\n\n"
"""The delivery was set to another place: what comes now may have come, and been acked, before."""


@dataclass(eq=False)
class EventStream:
    """The answer that is one open stream.

    Parameters
    ----------
    outflow
        What it sends.
    beats
        Say when the stream has been silent for too long.
    """

    outflow: Outflow
    beats: Beats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        with self.outflow.opened() as session:
            try:
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                async with Disconnect(receive) as gone:
                    # A comment at once lets the client know that the stream is open.
                    await self._send_part(b": fieldfare\n\n")
                    await self.outflow.run(session, self, gone)
                if self.outflow.delivery.deleted:
                    await self._send_part(b"event: deleted\ndata: {}\n\n")
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except OSError:
                pass  # the client went away in the middle of a message
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
        """Send a comment, unless the client has not read what was sent before.

        Not by the stream's own task: to wake ten thousand of them costs more than all that they say.
        """
        sending = _send_part(self._send, b":\n\n")
        with suppress(StopIteration, OSError):
            sending.send(None)
            sending.close()  # it would wait until there is room

    async def _send_part(self, body: bytes) -> None:
        await _send_part(self._send, body)
        self.beats.sent(self)


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
