"""One HTTP connection: uvicorn's protocol, hardened against requests that no honest client sends.

Routes see only requests whose head is complete and within its bounds. Everything before that is handled here:
requests that cannot be parsed, heads without end, bodies that trickle, idle connections, and upgrade offers,
which a server may ignore without losing the request.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import Any, NoReturn, cast
from urllib.parse import unquote

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from fieldfare.gateway.admission.evictable import Evictable, address_of
from fieldfare.gateway.admission.exchange import Exchange, check_version, origin_form
from fieldfare.gateway.admission.forwarded import TrustedProxies
from fieldfare.gateway.admission.handshakes import SURPLUS_MAX, Handshake
from fieldfare.gateway.admission.request_ids import HEADER, SCOPE_KEY, request_id
from fieldfare.gateway.admission.sockets import SAID_MAX_BYTES, Allowance, Socket, opens_socket
from fieldfare.gateway.admission.tls import Certificates
from fieldfare.gateway.admission.unread import WRITTEN_AHEAD_BYTES, WriteWatch
from fieldfare.gateway.problems import MEDIA_TYPE, HttpProblem, response_to
from fieldfare.gateway.settings import GatewaySettings

PIPELINED_MAX = 32
"""Maximum pipelined requests that wait on one connection for an earlier response; more get a 429."""

PIECE_BYTES = 8 << 10
PIECE_OF_FEW_BYTES = 64 << 10
FEW_PARTS = 16
PARTS_BATCH_SIZE = 500
"""Bytes parsed in one step, and the parts after which other connections get a turn: 8 KiB may hold over a
thousand chunks. After a piece with at most `FEW_PARTS` parts, the next one has `PIECE_OF_FEW_BYTES`.
"""

LINGER_S = 2.0
"""Seconds that a refused client may keep sending: a close at once would reset the unread response."""

FILES_KEPT = 200
"""Open files reserved for the gateway itself: databases, blocks, its listening socket."""

_OF_AN_OFFER = frozenset((b"upgrade", b"http2-settings"))


def server_config(
    app: ASGIApp, settings: GatewaySettings, tls: Certificates | None = None, **more: Any
) -> uvicorn.Config:
    """Return the uvicorn configuration of the gateway, for its own process and for tests."""
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
        ws_per_message_deflate=False,  # memory per socket for little gain: messages are small
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        proxy_headers=False,  # `TrustedProxies` reads them
        timeout_keep_alive=cast(Any, settings.keep_alive_s),
        **more,
    )


def connection_class(settings: GatewaySettings) -> type[Connection]:
    """Return the protocol class of one server, with its limits and its evictable connections."""
    most = min(settings.connections_max, _open_files_most() - FILES_KEPT)
    allowance = Allowance(settings.bodies_max_bytes)
    members = {
        "settings": settings,
        "connections_max": max(most, 1),
        "evictable": Evictable(),
        "allowance": allowance,
        "proxies": TrustedProxies(settings.trusted_proxies),
    }
    return type("GatewayConnection", (Connection,), members)


def _open_files_most() -> int:
    """Return the maximum open files of this process, after raising the limit as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # some systems have a lower bound of their own
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


class Connection(HttpToolsProtocol):
    """An HTTP connection. Its newest request is absent, in its head, in its body, or complete.

    Attributes
    ----------
    settings, connections_max, evictable, allowance, proxies
        Shared by the server's connections: the settings, the maximum number of connections, the connections
        without a complete request, the memory limit of WebSockets, and the proxies that name their clients.
    """

    settings: GatewaySettings
    connections_max: int
    evictable: Evictable
    allowance: Allowance
    proxies: TrustedProxies

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
        self._begins_here = False  # a request has begun in the piece that is parsed
        self._in_head = False
        self._open = False  # a request has begun to arrive and is not complete
        self._body_begun = False
        self._pieces = 0
        self._waiting = b""
        self._running: RequestResponseCycle | None = None
        self._why: HttpProblem | None = None
        self._ended = False  # further input is dropped
        self._surplus = False
        self._arrival: asyncio.TimerHandle | None = None
        self._unread = WriteWatch(self.settings.send_timeout_s)
        self.handshake: Handshake | None = None

    # From the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self.handshake is not None:
            self.handshake.finish()
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITTEN_AHEAD_BYTES)
        peer = transport.get_extra_info("peername")
        self._peer = self._address = address_of(peer)
        self._is_proxied = self.proxies.trusts(peer)
        if not self.evictable.evict_one_connection(self.connections, self.connections_max):
            self._surplus = True
            if len(self.connections) > self.connections_max + SURPLUS_MAX:
                transport.abort()
                return
        self.evictable.add(self, self._address)
        self._arrival = self.loop.call_later(self.settings.head_timeout_s, self._too_slow)

    def evict_connection(self) -> None:
        """Close without a complete request, at once: another connection needs the place."""
        if self._open and not self._ended and not self.transport.get_write_buffer_size():
            detail = "There are too many connections, and this request was incomplete: send it again."
            self._fail(HttpProblem(503, "connections", detail, headers={"Retry-After": "1"}))
        self._ended = True
        if self.transport.get_write_buffer_size() and self.scheme == "http":
            self._close()
        else:
            self.transport.abort()  # a TLS close would wait until the client has confirmed it

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Handle the end of the client's input.

        Return whether the connection stays open for pending responses; with TLS it cannot.
        """
        if self.scheme == "https" or self.transport.is_closing():
            return None
        if self._open and not self._ended:
            self._fail(
                HttpProblem(
                    400, "incomplete", "The connection ended before the request was complete: send it again."
                )
            )
        if self._running is None or self._running.disconnected:
            self._close()
        waiting = [exchange for exchange, _ in self.pipeline]
        for exchange in (*waiting, self._running):
            if isinstance(exchange, Exchange):
                exchange.half_closed = True
                exchange.message_event.set()
        last = waiting[0] if waiting else self._running
        if last is not None:
            last.keep_alive = False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.evictable.discard(self)
        if self._arrival is not None:
            self._arrival.cancel()
        self._unread.stop()
        self._ended = True
        self._unset_keepalive_if_required()
        running = self._running
        if running is not None and running is not self.cycle:  # uvicorn handles only the newest request
            running.disconnected = True
            running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if self._waiting or len(data) > PIECE_BYTES:
            self._feed_large(self._waiting + data if self._waiting else data)
        else:
            self._feed(data)
        self._watch_unfinished()

    def _feed_large(self, data: bytes) -> None:
        """Parse input in pieces; after a piece with very many parts, let other connections run."""
        self._pieces = at = 0
        self._waiting = b""
        view = memoryview(data)
        size = PIECE_BYTES
        while at < len(data) and not self._ended:
            if self._pieces > PARTS_BATCH_SIZE:
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
            self._watch_unfinished()
            if not self._waiting and not self.flow.read_paused:
                self.transport.resume_reading()

    def _feed(self, data: bytes | memoryview) -> None:
        pieces, self._begins_here = self._pieces, False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            rest = bytes(data[offer.args[0] :])
            try:
                self.url = origin_form(self.url, self.headers)
            except HttpProblem as problem:
                self._fail(problem)
                return
            if self._is_socket():
                self._open_socket(rest)
            else:
                self._refuse_offer(rest)
            return
        except httptools.HttpParserError as error:
            said = str(error).strip() or "it cannot be parsed"
            detail = f"The request is not valid HTTP/1.1: {said[:200]}."
            is_version = said == "Invalid HTTP version"
            status, name = (505, "http-version") if is_version else (400, "bad-http")
            self._fail(self._why or HttpProblem(status, name, detail))
            return
        if self._begins_here:
            self._head_bytes = 1  # earlier requests' bytes do not count; a complete head is measured
        elif self._open and (self._in_head or pieces == self._pieces):
            # Only part of the head, of trailers, or of a chunk's line, which the parser keeps in memory.
            self._head_bytes += len(data)
            if self._head_bytes > self._head_max_bytes:
                self._fail(self._head_too_large())

    def _is_socket(self) -> bool:
        """Return whether the request is an acceptable WebSocket offer, and no other request is pending."""
        is_free = self._running is None and not self.pipeline and not self._surplus
        is_get = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"
        try:
            return is_free and is_get and opens_socket(httptools.parse_url(self.url).path, self.headers)
        except httptools.HttpParserInvalidURLError:
            return False

    def _open_socket(self, rest: bytes) -> None:
        """Switch to WebSocket: another protocol handles the connection from here on."""
        if rest:
            detail = "Data came before the WebSocket was open: wait for the response to the handshake."
            self._fail(HttpProblem(400, "bad-http", detail))
            return
        self._ended = True
        if self._arrival is not None:
            self._arrival.cancel()
        self._unread.stop()
        self.connections.discard(self)
        self.evictable.discard(self)
        url = httptools.parse_url(self.url)
        socket = Socket(
            self.config, self.server_state, self.app_state, settings=self.settings, allowance=self.allowance
        )
        socket.connection_made(self.transport)
        self.transport.set_protocol(socket)
        socket.open(url.path, url.query or b"", self.headers)

    def _refuse_offer(self, rest: bytes) -> None:
        """Handle a request that offers an upgrade as the plain HTTP/1.1 request that it also is.

        The parser abandons the body after such an offer (Java's HttpClient and ``curl --http2`` make one with
        every first request), so a new parser gets the head without the offer.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            self._fail(
                HttpProblem(405, "wrong-method", "CONNECT is not supported: this service is not a proxy.")
            )
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
        self._unset_keepalive_if_required()
        self._address = self._peer
        if self in self.evictable:
            self.evictable.add(self, self._address)  # its age counts from here
        self._open = self._in_head = self._begins_here = True
        self._body_begun = False
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: unused here, and it must not pass for a header
        self._pieces += 1
        if len(self.headers) >= self._headers_max:
            detail = f"The request has more than {self._headers_max} headers, the maximum."
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
        if len(self.pipeline) >= PIPELINED_MAX:
            detail = f"More than {PIPELINED_MAX} pipelined requests wait: read the responses first."
            self._stop(HttpProblem(429, "pipelined", detail))
        if self._is_proxied:
            self._address = self.proxies.client_address(self.headers) or self._peer
            if self in self.evictable:
                self.evictable.add(self, self._address)
        self._begin()
        self._in_head = False
        if not self.pipeline:
            self._running = self.cycle
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _begin(self) -> None:
        """Start the response to the request, now or after earlier ones, by the rules of its HTTP version."""
        version = self.parser.get_http_version()
        try:
            check_version(version, self.headers)
            url = httptools.parse_url(origin_form(self.url, self.headers))
        except HttpProblem as problem:
            self._stop(problem)
        path = url.path.decode("ascii")
        id = request_id(self.headers)
        request: Any = {
            "method": self.parser.get_method().decode("ascii"),
            "http_version": version,
            "path": self.root_path + unquote(path),
            "raw_path": self.root_path.encode("ascii") + url.path,
            "query_string": url.query or b"",
            SCOPE_KEY: id.decode(),
        }
        self.scope |= request
        before, app = self.cycle, _full if self._surplus else self.app
        self.cycle = Exchange(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=[*self.server_state.default_headers, (HEADER, id)],
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue and version == "1.1",
            keep_alive=version == "1.1" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, app))

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        self._head_bytes = 0  # what came before was a chunk's line
        self._body_begun = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._open = False
        self.evictable.discard(self)
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        super().on_message_complete()
        if self._running is None:  # it was answered before its body was complete
            self.evictable.add(self, self._peer)

    # From the answers

    def on_response_complete(self) -> None:
        self._running = self.pipeline[-1][0] if self.pipeline else None
        if self._open and self.expect_100_continue and not self._body_begun and self._running is None:
            self._close()  # the body that was not requested may or may not still arrive
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
        if self._running is None and not self._open:
            self.evictable.add(self, self._peer)
        else:
            self._watch_unfinished()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _close(self) -> None:
        """Close once the client has read all data; one that reads nothing must not hold its place forever."""
        if not self.transport.is_closing():  # with TLS a second close would end more than it should
            self.transport.close()
        if self in self.connections and self.transport.get_write_buffer_size():
            self._unread.start(self.transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.start(self.transport)

    def resume_writing(self) -> None:
        if not self.transport.is_closing():
            self._unread.stop()
        super().resume_writing()

    # Time and bounds

    def _watch_unfinished(self) -> None:
        """After a read: give an unfinished request a deadline, and make its connection evictable."""
        if self._open and not self._ended and self._arrival is None:
            self._watch_arrival()
        is_first = self._running is None or self._running is self.cycle
        is_unfinished = (self._open or self._ended) and is_first and self in self.connections
        if is_unfinished and self not in self.evictable:
            self.evictable.add(self, self._address)

    def _watch_arrival(self) -> None:
        """Start the deadline of an unfinished request; complete requests have none."""
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
            self._watch_arrival()  # the gateway itself has paused reading
        elif self._in_head:
            limit_s = self.settings.head_timeout_s
            detail = f"The request's headers were not complete within {limit_s:g} s: send it again."
            self._fail(HttpProblem(408, "too-slow", detail))
        else:
            limit_s = self.settings.body_timeout_s
            self._fail(
                HttpProblem(
                    408,
                    "too-slow",
                    f"The request's body was not complete within {limit_s:g} s: send it again.",
                )
            )

    def _head_too_large(self) -> HttpProblem:
        detail = f"The request line and headers have more than {self._head_max_bytes} bytes, the maximum."
        return HttpProblem(431, "head-too-large", detail, max_bytes=self._head_max_bytes)

    def _stop(self, problem: HttpProblem) -> NoReturn:
        """Stop the parser from one of its callbacks."""
        self._why = problem
        raise ValueError(problem.name)

    def _fail(self, problem: HttpProblem) -> None:
        """Answer the newest request with a problem; afterwards the connection is unusable."""
        self._ended = True
        own = self.cycle if self._open and not self._in_head else None
        if own is not None and own.response_complete:
            self._close()  # it is answered, and any input behind it is useless
            return
        if own is not None and self.pipeline and self.pipeline[0][0] is own:
            self.pipeline.popleft()
            own = None
        running = self._running
        if running is not None and running is not own:
            # Earlier requests get their responses, and the last of these closes the connection.
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
    detail = "The maximum number of connections is reached: try again later."
    headers = {"Retry-After": "1", "Connection": "close"}
    await response_to(scope, HttpProblem(503, "connections", detail, headers=headers))(scope, receive, send)
