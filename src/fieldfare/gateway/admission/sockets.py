"""One WebSocket: uvicorn's protocol, hardened against what no honest client sends.

`Connection` parses the head of the opening request once; anything but a complete and valid offer stays an
HTTP request and is answered as one. Each frame costs memory and time, however small it is: frames are parsed
in batches, and incomplete messages have a time limit, and a memory limit over all sockets.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from fieldfare.gateway.admission.unread import WriteWatch
from fieldfare.gateway.settings import GatewaySettings

SOCKET = "/websocket"
"""End of the paths that accept a WebSocket; on other paths the offer is ignored."""

VERSION = b"13"

SAID_MAX_BYTES = 1 << 20
"""Maximum bytes of a frame, and of a message, from a client."""

PIECE_BYTES = 1 << 10
FRAMES_BATCH_SIZE = 100
"""Maximum frames, parsed in pieces of `PIECE_BYTES`, before others get a turn: 1 KiB may hold 170 frames."""

FRAGMENTS_MAX = 1_000
"""Maximum fragments of an incomplete message; more are joined, as even empty ones take memory."""

UNCOUNTED_BYTES = 64 << 10
"""Bytes of an incomplete message that a socket may hold even if all sockets together hold too much."""

LINGER_S = 2.0
"""Seconds that a client has to read the reason when its connection is ended."""

_PATH = re.compile(rb"/v1/spaces/[^/]+/subscriptions/[^/]+" + SOCKET.encode())
_OPENING = (
    b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: %s\r\n"
    b"Sec-WebSocket-Key: %s\r\n\r\n"
)

_quiet = logging.getLogger("fieldfare.gateway.sockets")
_quiet.setLevel(logging.WARNING)

Headers = Sequence[tuple[bytes, bytes]]


def opens_socket(path: bytes, headers: Headers) -> bool:
    """Return whether a GET with an upgrade offer is a valid WebSocket offer on a path that accepts one.

    A request with a body is not: where it ends is for HTTP to decide.
    """
    versions = _values(headers, b"sec-websocket-version")
    return (
        _PATH.fullmatch(path) is not None
        and [offer.lower() for offer in _values(headers, b"upgrade")] == [b"websocket"]
        and versions == [VERSION]
        and _key(headers) is not None
        and not _values(headers, b"transfer-encoding")
        and all(length == b"0" for length in _values(headers, b"content-length"))
    )


def _values(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def _key(headers: Headers) -> bytes | None:
    """Return the valid Sec-WebSocket-Key, or None."""
    keys = _values(headers, b"sec-websocket-key")
    try:
        return keys[0] if len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == 16 else None
    except binascii.Error:
        return None


class Allowance:
    """The memory of incomplete messages on all sockets of one server: its limit, and the bytes held.

    Parameters
    ----------
    most_bytes
        Limit in bytes: one socket holds little, but ten thousand may hold a mebibyte each.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket, from the response to its opening request on.

    Parameters
    ----------
    settings
        The settings, with the time limits for receiving a message and for sending.
    allowance
        The memory of incomplete messages, shared by all sockets.
    """

    def __init__(self, *args: Any, settings: GatewaySettings, allowance: Allowance) -> None:
        super().__init__(*args)
        self.logger = self.conn.logger = _quiet  # the default logs two lines per socket
        self._settings = settings
        self._allowance = allowance
        self._held_bytes = 0
        self._path = self._query = b""
        self._headers: Headers = ()
        self._waiting = b""
        self._is_going_on = False
        self._frames_parsed = 0
        self._pong = b""
        self._arrival: asyncio.TimerHandle | None = None
        self._unread = WriteWatch(settings.send_timeout_s)
        self._ending: asyncio.TimerHandle | None = None

    def open(self, path: bytes, query: bytes, headers: Headers) -> None:
        """Answer the opening request, for which `opens_socket` is true."""
        self._path, self._query, self._headers = path, query, headers
        super().data_received(_OPENING % (VERSION, _key(headers)))

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        protocols = b",".join(_values(self._headers, b"sec-websocket-protocol")).decode("latin-1")
        self.scope["path"] = self.root_path + unquote(self._path.decode("ascii"))
        self.scope["raw_path"] = self.root_path.encode("ascii") + self._path
        self.scope["query_string"] = self._query
        self.scope["headers"] = list(self._headers)
        self.scope["subprotocols"] = [token.strip() for token in protocols.split(",")] if protocols else []

    # From the transport

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._arrival, self._ending):
            if timer is not None:
                timer.cancel()
        self._unread.stop()
        self._waiting = b""
        self._allowance.held_bytes -= self._held_bytes
        self._held_bytes = 0
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close because the gateway stops. Uvicorn's 1012 would ask clients to reconnect at once."""
        if self.close_sent or not self.handshake_complete or self.transport.is_closing():
            super().shutdown()
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": CloseCode.GOING_AWAY})
        self.conn.send_close(CloseCode.GOING_AWAY, "the gateway is stopping")
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.loop.call_later(LINGER_S, self.transport.close)

    def data_received(self, data: bytes) -> None:
        if not self.handshake_complete:
            self.transport.abort()  # a client waits for the response before it sends frames (RFC 6455, 4.1)
            return
        if not self._waiting and len(data) <= PIECE_BYTES:
            super().data_received(data)
            self._watch_arrival()
            return
        self._waiting += data
        if not self._is_going_on:
            self._go_on()

    def _go_on(self) -> None:
        """Parse input in pieces; after many frames, let other connections and the application run."""
        self._is_going_on = False
        at = self._frames_parsed = 0
        while at < len(self._waiting) and self._frames_parsed <= FRAMES_BATCH_SIZE:
            super().data_received(self._waiting[at : at + PIECE_BYTES])
            at += PIECE_BYTES
            if self.transport.is_closing():
                self._waiting = b""
                return
        self._waiting = self._waiting[at:]
        if self._waiting:
            self.transport.pause_reading()
            if not self.read_paused:
                self._schedule_resume()
        elif not self.read_paused:
            self.transport.resume_reading()
        self._watch_arrival()

    def _schedule_resume(self) -> None:
        if not self._is_going_on:
            self._is_going_on = True
            self.loop.call_soon(self._go_on)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.start(self.transport)

    def resume_writing(self) -> None:
        self._unread.stop()
        super().resume_writing()
        if self._pong:
            self.transport.write(self._pong)
            self._pong = b""

    # From the parser

    def handle_events(self) -> None:
        self._frames_parsed += len(self.conn.events)
        super().handle_events()

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        if len(self.frames) > FRAGMENTS_MAX:
            self.frames = [b"".join(self.frames)]

    def handle_ping(self) -> None:
        """Send pongs while the client reads; otherwise keep the last, which is enough (RFC 6455, 5.5.3)."""
        answers = self.conn.data_to_send()
        if self.writable.is_set():
            self.transport.write(b"".join(answers))
        elif answers:
            self._pong = answers[-1]

    def send_receive_event_to_app(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError as error:  # uvicorn would log a traceback for each
                self._cut_off(CloseCode.INVALID_DATA, f"{error.reason} at byte {error.start}")
                return
        super().send_receive_event_to_app()

    # From the application

    async def receive(self) -> Any:
        message = await super().receive()
        if self._waiting and not self.read_paused:
            self.transport.pause_reading()
            self._schedule_resume()
        return message

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        is_refusal = message["type"].startswith("websocket.http.response")
        if self.disconnected or self.close_sent or self.transport.is_closing():
            if not is_refusal:
                raise ClientDisconnected
            return  # the client no longer reads
        await super().send(message)
        if is_refusal and self.close_sent:
            self.handshake_complete = True  # there is no handshake to wait for: the request is answered
        elif message["type"] == "websocket.close" and not self._is_going_on:
            self._go_on()  # drop the remaining input, and find the client's own close that may be behind it

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if not self.disconnected:  # otherwise unsent data may wait forever for a client that does not read
            self._ending = self.loop.call_later(self._settings.send_timeout_s, self.transport.abort)

    # Time and bounds

    def keepalive_timeout(self) -> None:
        if not self.writable.is_set() and self.ping_timeout:  # the ping waits behind what `_unread` watches
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def _watch_arrival(self) -> None:
        """Count the bytes of incomplete messages, and limit the time until they are complete."""
        part_bytes = len(self.conn.reader.buffer) + (self.conn.current_size or 0)
        held_bytes = part_bytes + len(self._waiting)
        self._allowance.held_bytes += held_bytes - self._held_bytes
        self._held_bytes = held_bytes
        if held_bytes > UNCOUNTED_BYTES and self._allowance.held_bytes > self._allowance.most_bytes:
            self._cut_off(
                CloseCode.TRY_AGAIN_LATER,
                "too many bytes are being received on all WebSockets: try again later",
            )
        elif self._arrival is None and (part_bytes or self.conn.current_size is not None):
            self._arrival = self.loop.call_later(self._settings.body_timeout_s, self._too_slow)

    def _too_slow(self) -> None:
        self._arrival = None
        if self._waiting or self.read_paused:
            self._watch_arrival()  # the gateway itself has paused reading
        else:
            limit_s = self._settings.body_timeout_s
            self._cut_off(CloseCode.POLICY_VIOLATION, f"a message was not complete within {limit_s:g} s")

    def _cut_off(self, code: CloseCode, reason: str) -> None:
        if not (self.close_sent or self.transport.is_closing()):
            self.conn.fail(code, reason)
            self.handle_parser_exception()
