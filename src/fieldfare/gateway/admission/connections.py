"""One HTTP connection: uvicorn's protocol, made safe against requests that no honest client sends.

What a route sees is a request whose head is complete and within its bounds. Everything before that is here:
requests that cannot be parsed, heads without end, bodies that trickle, connections that are only held, and
offers to speak another protocol, which a server may ignore but must not lose the request over.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import Any, NoReturn, cast

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from fieldfare.gateway.admission.handshakes import SURPLUS_MAX, Handshake, make_way
from fieldfare.gateway.admission.sockets import SAID_MAX_BYTES, Allowance, Socket, opens_socket
from fieldfare.gateway.admission.tls import Certificates
from fieldfare.gateway.admission.unread import WRITTEN_AHEAD_BYTES, Unread
from fieldfare.gateway.problems import MEDIA_TYPE, HttpProblem
from fieldfare.gateway.settings import GatewaySettings

PIPELINED_MAX = 32
"""Requests that may wait on one connection for the answer to an earlier one."""

PIECE_BYTES = 8 << 10
PIECE_OF_FEW_BYTES = 64 << 10
FEW_PARTS = 16
PARTS_AT_ONCE = 500
"""So much is parsed at once, so that no other connection waits long: 8 KiB may be a thousand chunks and more.
After a piece of few parts the next is larger."""

LINGER_S = 2.0
"""A refused client may go on sending so long: closing at once would reset the connection under the answer."""

FILES_KEPT = 200
"""Open files that are for the gateway itself: databases, blocks, its own listening socket."""

_OF_AN_OFFER = frozenset((b"upgrade", b"http2-settings"))


def server_config(
    app: ASGIApp, settings: GatewaySettings, tls: Certificates | None = None, **more: Any
) -> uvicorn.Config:
    """How uvicorn runs the gateway, in its own process and in tests."""
    connected = connection_class(settings)

    def entered(**given: Any) -> asyncio.Protocol:
        connection = connected(**given)
        return connection if tls is None else Handshake(connection, tls.context, settings.head_timeout_s)

    return uvicorn.Config(
        app,
        http=cast(Any, entered),
        ws=cast(Any, Socket),
        ws_max_size=SAID_MAX_BYTES,
        ws_ping_interval=settings.heartbeat_s,
        ws_ping_timeout=settings.send_timeout_s,
        ws_per_message_deflate=False,  # memory for each of ten thousand sockets, and what is sent is small
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        proxy_headers=False,  # nothing here looks at a client's address
        timeout_keep_alive=cast(Any, settings.keep_alive_s),
        **more,
    )


def connection_class(settings: GatewaySettings) -> type[Connection]:
    """The protocol class of one server, with its limits and the connections that are idle."""
    most = min(settings.connections_max, _open_files_most() - FILES_KEPT)
    allowance = Allowance(settings.bodies_max_bytes)
    members = {"settings": settings, "connections_max": max(most, 1), "idle": {}, "allowance": allowance}
    return type("GatewayConnection", (Connection,), members)


def _open_files_most() -> int:
    """The open files this process may have, after asking for as many as it may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # some systems have a lower bound of their own
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


class Connection(HttpToolsProtocol):
    """The states of a connection's newest request: none, in its head, in its body, complete.

    Attributes
    ----------
    settings, connections_max, idle, allowance
        Of the server: its knobs, the most connections, those without a request, the longest idle first, and
        what WebSockets may hold.
    """

    settings: GatewaySettings
    connections_max: int
    idle: dict[Any, None]
    allowance: Allowance

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_max_bytes = self.settings.head_max_bytes
        self._headers_max = self.settings.headers_max
        self._head_bytes = 0
        self._in_head = False
        self._open = False  # a request has begun to arrive and is not complete
        self._body_begun = False
        self._pieces = 0
        self._waiting = b""
        self._running: RequestResponseCycle | None = None
        self._why: HttpProblem | None = None
        self._ended = False  # what still comes is dropped
        self._surplus = False
        self._arrival: asyncio.TimerHandle | None = None
        self._unread = Unread(self.settings.send_timeout_s)
        self.handshake: Handshake | None = None

    # From the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self.handshake is not None:
            self.handshake.leave()
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITTEN_AHEAD_BYTES)
        if not make_way(self.connections, self.connections_max, self.idle):
            self._surplus = True
            if len(self.connections) > self.connections_max + SURPLUS_MAX:
                transport.abort()
                return
        self.idle[self] = None
        self._arrival = self.loop.call_later(self.settings.head_timeout_s, self._too_slow)

    def give_way(self) -> None:
        """End, without a request: others need the connection's place."""
        if self.transport.get_write_buffer_size():
            self._close()
        else:
            self.transport.abort()  # with TLS a close waits until the client has said that it has heard

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        if self._arrival is not None:
            self._arrival.cancel()
        self._unread.end()
        self._ended = True
        self._unset_keepalive_if_required()
        running = self._running
        if running is not None and running is not self.cycle:  # uvicorn looks at the newest only
            running.disconnected = True
            running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._unset_keepalive_if_required()
        self.idle.pop(self, None)
        if self._waiting or len(data) > PIECE_BYTES:
            self._feed_large(self._waiting + data if self._waiting else data)
        else:
            self._feed(data)
        if self._open and self._arrival is None:
            self._watch_arrival()

    def _feed_large(self, data: bytes) -> None:
        """Parse what has come piece by piece; after a piece of very many parts let others have their turn."""
        self._pieces = at = 0
        self._waiting = b""
        view = memoryview(data)
        size = PIECE_BYTES
        while at < len(data) and not self._ended:
            if self._pieces > PARTS_AT_ONCE:
                self._waiting = data[at:]
                self.transport.pause_reading()
                self.loop.call_soon(self._go_on)
                return
            before = self._pieces
            self._feed(view[at : at + size])
            at += size
            size = PIECE_OF_FEW_BYTES if self._pieces - before <= FEW_PARTS else PIECE_BYTES

    def _go_on(self) -> None:
        if not self._ended:
            self._feed_large(self._waiting)
            if self._open and self._arrival is None:
                self._watch_arrival()
            if not self._waiting and not self.flow.read_paused:
                self.transport.resume_reading()

    def _feed(self, data: bytes | memoryview) -> None:
        begun, pieces = self._open, self._pieces
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            rest = bytes(data[offer.args[0] :])
            if self._is_socket():
                self._open_socket(rest)
            else:
                self._refuse_offer(rest)
            return
        except httptools.HttpParserError as error:
            said = str(error).strip() or "it cannot be parsed"
            detail = f"This is no HTTP/1.1 request that can be read: {said[:200]}."
            self._fail(self._why or HttpProblem(400, "bad-http", detail))
            return
        if begun and self._open and (self._in_head or pieces == self._pieces):
            # Only a part of the head, of trailers, or of a chunk's line, which the parser keeps in memory.
            self._head_bytes += len(data)
            if self._head_bytes > self._head_max_bytes:
                self._fail(self._head_too_large())

    def _is_socket(self) -> bool:
        """Whether it is an offer to go on as a WebSocket, where there is one, and nothing is in its way."""
        is_free = self._running is None and not self.pipeline and not self._surplus
        is_get = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"
        try:
            return is_free and is_get and opens_socket(httptools.parse_url(self.url).path, self.headers)
        except httptools.HttpParserInvalidURLError:
            return False

    def _open_socket(self, rest: bytes) -> None:
        """Go on as a WebSocket: another protocol has the connection from here on."""
        if rest:
            detail = "Who opens a WebSocket waits for the answer before it says more."
            self._fail(HttpProblem(400, "bad-http", detail))
            return
        self._ended = True
        if self._arrival is not None:
            self._arrival.cancel()
        self._unread.end()
        self.connections.discard(self)
        url = httptools.parse_url(self.url)
        socket = Socket(
            self.config, self.server_state, self.app_state, settings=self.settings, allowance=self.allowance
        )
        socket.connection_made(self.transport)
        self.transport.set_protocol(socket)
        socket.open(url.path, url.query or b"", self.headers)

    def _refuse_offer(self, rest: bytes) -> None:
        """Take a request that offers to upgrade as the HTTP/1.1 request that it also is.

        The parser gives the body up after such an offer (Java's HttpClient and ``curl --http2`` make one with
        every first request), so a new one gets the head without it.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            self._fail(HttpProblem(405, "wrong-method", "This is no proxy: it does not take CONNECT."))
            return
        head = [method, b" ", self.url, b" HTTP/", version.encode(), b"\r\n"]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() not in _OF_AN_OFFER)
            if name not in _OF_AN_OFFER:
                head += [name, b": ", value.replace(b"\r", b" ").replace(b"\n", b" "), b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"".join((*head, b"\r\n", rest)))

    # From the parser

    def on_message_begin(self) -> None:
        self._open = self._in_head = True
        self._body_begun = False
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: nothing here has a use for one, and it must not pass for a header
        self._pieces += 1
        if len(self.headers) >= self._headers_max:
            detail = f"A request has at most {self._headers_max} headers."
            self._stop(HttpProblem(431, "head-too-large", detail, max_headers=self._headers_max))
        name = name.lower()
        value = value.strip(b" \t")
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self._head_bytes or self._head_max_bytes < PIECE_OF_FEW_BYTES:
            size_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size_bytes > self._head_max_bytes:
                self._stop(self._head_too_large())
            self._head_bytes = 0
        self._in_head = False
        if len(self.pipeline) >= PIPELINED_MAX:
            detail = f"At most {PIPELINED_MAX} requests may wait on one connection for an earlier answer."
            self._in_head = True
            self._stop(HttpProblem(429, "pipelined", detail))
        if self._surplus:
            served, self.app = self.app, _full
            super().on_headers_complete()
            self.app = served
        else:
            super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        self._body_begun = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._open = False
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        super().on_message_complete()

    # From the answers

    def on_response_complete(self) -> None:
        self._running = self.pipeline[-1][0] if self.pipeline else None
        if self._open and self.expect_100_continue and not self._body_begun and self._running is None:
            self._close()  # nobody knows whether the body that was not asked for still comes
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
        if self._running is None and not self._open:
            self.idle[self] = None

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _close(self) -> None:
        """End when what is written is taken; who takes nothing of it would hold his place for ever."""
        if not self.transport.is_closing():  # with TLS a second time would end more than it should
            self.transport.close()
        if self in self.connections and self.transport.get_write_buffer_size():
            self._unread.begin(self.transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.begin(self.transport)

    def resume_writing(self) -> None:
        if not self.transport.is_closing():
            self._unread.end()
        super().resume_writing()

    # Time and bounds

    def _watch_arrival(self) -> None:
        """After a read that did not complete its request: only such requests are watched at all."""
        if not self._ended:
            limit_s = self.settings.head_timeout_s if self._in_head else self.settings.body_timeout_s
            self._arrival = self.loop.call_later(limit_s, self._too_slow)

    def _too_slow(self) -> None:
        self._arrival = None
        if self._ended or self.transport.is_closing():
            return
        if not self._open:
            self._close()
        elif self._waiting or self.flow.read_paused:
            self._watch_arrival()  # it is the gateway that does not read
        elif self._in_head:
            limit_s = self.settings.head_timeout_s
            detail = f"The request's head did not come within {limit_s:g} s."
            self._fail(HttpProblem(408, "too-slow", detail))
        else:
            limit_s = self.settings.body_timeout_s
            self._fail(HttpProblem(408, "too-slow", f"The request's body did not come within {limit_s:g} s."))

    def _head_too_large(self) -> HttpProblem:
        detail = f"A request's line and headers may have {self._head_max_bytes} bytes."
        return HttpProblem(431, "head-too-large", detail, max_bytes=self._head_max_bytes)

    def _stop(self, problem: HttpProblem) -> NoReturn:
        """Stop the parser from one of its callbacks."""
        self._why = problem
        raise ValueError(problem.name)

    def _fail(self, problem: HttpProblem) -> None:
        """Answer the newest request with a problem, after which the connection cannot be used any more."""
        self._ended = True
        own = self.cycle if self._open and not self._in_head else None
        if own is not None and self.pipeline and self.pipeline[0][0] is own:
            self.pipeline.popleft()
            own = None
        running = self._running
        if running is not None and running is not own:
            # Earlier requests get their answers, and the last of them closes the connection.
            last = self.pipeline[0][0] if self.pipeline else running
            last.keep_alive = False
            return
        if running is not None:
            started = running.response_started
            running.disconnected = True
            running.message_event.set()
            if started:
                self._close()
                return
        self._answer(problem)

    def _answer(self, problem: HttpProblem) -> None:
        response = problem.response()
        headers = [
            *self.server_state.default_headers,
            *((name, value) for name, value in response.raw_headers if name != b"content-type"),
            (b"content-type", MEDIA_TYPE.encode()),
            (b"connection", b"close"),
        ]
        lines = [b"%s: %s\r\n" % header for header in headers]
        self.transport.write(b"".join((STATUS_LINE[problem.status], *lines, b"\r\n", bytes(response.body))))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self._close)


async def _full(scope: Any, receive: Any, send: Callable[..., Any]) -> None:
    detail = "The gateway has as many connections as it may have."
    headers = {"Retry-After": "1", "Connection": "close"}
    await HttpProblem(503, "connections", detail, headers=headers).response()(scope, receive, send)
