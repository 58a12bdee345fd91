"""One WebSocket: uvicorn's protocol, made safe against what no honest client says.

The head of the request that opens it is parsed once, by `Connection`; what is not a whole and right offer
stays an HTTP request, and is answered as one. Behind it every frame costs memory and time, however small it
is: frames are parsed some at a time, and what has come of a message waits neither for ever nor beside any
number of others.
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

from fieldfare.gateway.admission.unread import Unread
from fieldfare.gateway.settings import GatewaySettings

SOCKET = "/websocket"
"""How the paths end at which a WebSocket may be opened: elsewhere the offer is ignored."""

VERSION = b"13"

SAID_MAX_BYTES = 1 << 20
"""The most that a client says in one frame, or message, of a WebSocket."""

PIECE_BYTES = 1 << 10
FRAMES_AT_ONCE = 100
"""So much is parsed at once, so that no other connection waits long: 1 KiB may be 170 frames."""

FRAGMENTS_MAX = 1_000
"""More parts of a message are put together before it is whole: empty ones take memory, too."""

UNCOUNTED_BYTES = 64 << 10
"""So much of a message may have come whatever others hold."""

LINGER_S = 2.0
"""A client that is cut off may still read why for so long."""

_PATH = re.compile(rb"/v1/spaces/[^/]+/subscriptions/[^/]+" + SOCKET.encode())
_OPENING = (
    b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: %s\r\n"
    b"Sec-WebSocket-Key: %s\r\n\r\n"
)

_quiet = logging.getLogger("fieldfare.gateway.sockets")
_quiet.setLevel(logging.WARNING)

Headers = Sequence[tuple[bytes, bytes]]


def opens_socket(path: bytes, headers: Headers) -> bool:
    """Whether a GET that offers to upgrade is a right offer of a WebSocket, where there is one.

    One that has a body is not: where such a request ends is HTTP's to say.
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
    """What the answer proves with that it is one to this request; None where that is not as it must be."""
    keys = _values(headers, b"sec-websocket-key")
    try:
        return keys[0] if len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == 16 else None
    except binascii.Error:
        return None


class Allowance:
    """What all sockets of one server may hold of messages that have not come whole, and what they do hold.

    Parameters
    ----------
    most_bytes
        One holds little, but ten thousand hold a mebibyte each.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket, from the answer to its opening request on.

    Parameters
    ----------
    settings
        How long a client may take to say something, and to read what is said to it.
    allowance
        Is shared by all.
    """

    def __init__(self, *args: Any, settings: GatewaySettings, allowance: Allowance) -> None:
        super().__init__(*args)
        self.logger = self.conn.logger = _quiet  # it would write two lines for each socket
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
        self._unread = Unread(settings.send_timeout_s)
        self._ending: asyncio.TimerHandle | None = None

    def open(self, path: bytes, query: bytes, headers: Headers) -> None:
        """Answer a request that `opens_socket`."""
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
        self._unread.end()
        self._waiting = b""
        self._allowance.held_bytes -= self._held_bytes
        self._held_bytes = 0
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.handshake_complete:
            self.transport.abort()  # a client waits for the answer before it says more (RFC 6455, 4.1)
            return
        if not self._waiting and len(data) <= PIECE_BYTES:
            super().data_received(data)
            self._watch_arrival()
            return
        self._waiting += data
        if not self._is_going_on:
            self._go_on()

    def _go_on(self) -> None:
        """Parse what has come piece by piece; after many frames others, and the application, have a turn."""
        self._is_going_on = False
        at = self._frames_parsed = 0
        while at < len(self._waiting) and self._frames_parsed <= FRAMES_AT_ONCE:
            super().data_received(self._waiting[at : at + PIECE_BYTES])
            at += PIECE_BYTES
            if self.transport.is_closing():
                self._waiting = b""
                return
        self._waiting = self._waiting[at:]
        if self._waiting:
            self.transport.pause_reading()
            if not self.read_paused:
                self._go_on_soon()
        elif not self.read_paused:
            self.transport.resume_reading()
        self._watch_arrival()

    def _go_on_soon(self) -> None:
        if not self._is_going_on:
            self._is_going_on = True
            self.loop.call_soon(self._go_on)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.begin(self.transport)

    def resume_writing(self) -> None:
        self._unread.end()
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
        """Answer, where the client reads answers; where it does not, the last ping's is enough (5.5.3)."""
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
            except UnicodeDecodeError as error:  # uvicorn would write a traceback for each
                self._cut_off(CloseCode.INVALID_DATA, f"{error.reason} at byte {error.start}")
                return
        super().send_receive_event_to_app()

    # From the application

    async def receive(self) -> Any:
        message = await super().receive()
        if self._waiting and not self.read_paused:
            self.transport.pause_reading()
            self._go_on_soon()
        return message

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        is_refusal = message["type"].startswith("websocket.http.response")
        if self.disconnected or self.close_sent or self.transport.is_closing():
            if not is_refusal:
                raise ClientDisconnected
            return  # nobody reads it
        await super().send(message)
        if is_refusal and self.close_sent:
            self.handshake_complete = True  # there will be none: it is answered
        elif message["type"] == "websocket.close" and not self._is_going_on:
            self._go_on()  # what still waits is dropped, and the client's own close may be behind it

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if not self.disconnected:  # what is still to be sent may lie there for ever, when nobody reads it
            self._ending = self.loop.call_later(self._settings.send_timeout_s, self.transport.abort)

    # Time and bounds

    def keepalive_timeout(self) -> None:
        if not self.writable.is_set() and self.ping_timeout:  # it waits behind what `_unread` watches
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def _watch_arrival(self) -> None:
        """What has come of a message that is not whole is counted, and has a time to become so."""
        part_bytes = len(self.conn.reader.buffer) + (self.conn.current_size or 0)
        held_bytes = part_bytes + len(self._waiting)
        self._allowance.held_bytes += held_bytes - self._held_bytes
        self._held_bytes = held_bytes
        if held_bytes > UNCOUNTED_BYTES and self._allowance.held_bytes > self._allowance.most_bytes:
            self._cut_off(CloseCode.TRY_AGAIN_LATER, "too much is being said on all sockets")
        elif self._arrival is None and (part_bytes or self.conn.current_size is not None):
            self._arrival = self.loop.call_later(self._settings.body_timeout_s, self._too_slow)

    def _too_slow(self) -> None:
        self._arrival = None
        if self._waiting or self.read_paused:
            self._watch_arrival()  # it is the gateway that does not read
        else:
            limit_s = self._settings.body_timeout_s
            self._cut_off(CloseCode.POLICY_VIOLATION, f"a message did not come within {limit_s:g} s")

    def _cut_off(self, code: CloseCode, reason: str) -> None:
        if not (self.close_sent or self.transport.is_closing()):
            self.conn.fail(code, reason)
            self.handle_parser_exception()
