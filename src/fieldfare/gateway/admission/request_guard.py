"""Checks on every request before its route is looked up: host, origin, unambiguous head, credentials.

A service on loopback without passwords is open to every program of its machine, but must not be open to every
web page that its user visits. Browsers tell for which page they send a request (Origin, Sec-Fetch-Site); a
page that points its own name to this machine (DNS rebinding) still sends that name as Host.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from fieldfare.gateway.admission.callers import ANONYMOUS, CALLER, UnknownSigner
from fieldfare.gateway.admission.keyring import Keyring
from fieldfare.gateway.admission.request_ids import SCOPE_KEY
from fieldfare.gateway.admission.tickets import SUBSCRIPTION, Tickets, split_query
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.setting_values import ANY
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.runtimes.process.log_lines import REQUEST_ID

if TYPE_CHECKING:
    from fieldfare.gateway.admission.token_keys import KeyWatch

HEADERS = "fieldfare.headers"
"""Scope key of a request's headers, by name in lower case."""

_ONCE = (
    *("authorization", "content-type", "content-encoding", "host", "origin"),
    *("fieldfare-producer", "fieldfare-sequence", "fieldfare-follows"),
    *("fieldfare-deliver-after", "fieldfare-deliver-at"),
)
_NO_FOREIGN_PAGE = frozenset((None, b"none", b"same-origin"))
_ESCAPE = re.compile(rb"%(?:[0-9A-Fa-f]{2})?")
_NO_CHARACTER = frozenset((b"%", b"%2F", b"%2f", b"%00"))
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s]+)(?::\d{1,5})?")


def header(request: Request, name: bytes) -> str | None:
    """Return the value of a header that occurs at most once. ``name`` is in lower case."""
    value: bytes | None = request.scope[HEADERS].get(name)
    return None if value is None else value.decode("latin-1")


class RequestGuard:
    """ASGI middleware that refuses requests of foreign pages, for unknown hosts, or with ambiguous heads."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._app = app
        self._hosts = frozenset(
            name.lower()
            for name in (*settings.allowed_hosts, settings.host, socket.gethostname(), "localhost")
        )
        self._any_host = ANY in settings.allowed_hosts
        self._origins = frozenset(settings.cors_origins)
        self._known_hosts: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            REQUEST_ID.set(scope.get(SCOPE_KEY, ""))
            try:
                self._check(scope)
            except HttpProblem as problem:
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        if b"%" in scope.get("raw_path", b""):
            check_path(scope["raw_path"])
        headers: dict[bytes, bytes] = dict(scope["headers"])
        scope[HEADERS] = headers
        if len(headers) != len(scope["headers"]):
            check_repeats(scope["headers"])
        host = headers.get(b"host")
        if host not in self._known_hosts:
            self._check_host(host, scope["http_version"])
        site = headers.get(b"sec-fetch-site")
        if (b"origin" in headers or site not in _NO_FOREIGN_PAGE) and site != b"same-origin":
            self._check_page(headers)
        if headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            detail = "The Transfer-Encoding is not supported: use chunked, or send Content-Length."
            raise HttpProblem(501, "transfer-encoding", detail, headers={"Connection": "close"})

    def _check_host(self, host: bytes | None, http_version: str) -> None:
        if host is None:
            if http_version == "1.0":
                return
            raise HttpProblem(400, "bad-header", "The request has no Host header: HTTP/1.1 requires one.")
        text = host.decode("latin-1")
        found = _HOST.fullmatch(text)
        if found is None:
            raise HttpProblem(
                400, "bad-header", f"The Host header {text[:80]!r} is not a valid host name or address."
            )
        name = found[1].lower().rstrip(".")
        if not (self._any_host or name in self._hosts or name.endswith(".localhost") or _is_address(name)):
            raise HttpProblem(
                421,
                "unknown-host",
                f"The host name {name[:80]!r} is not allowed.",
                hint="Use the service's IP address, or add the name to FIELDFARE_ALLOWED_HOSTS.",
            )
        if len(self._known_hosts) < 100:
            self._known_hosts.add(host)

    def _check_page(self, headers: dict[bytes, bytes]) -> None:
        """Raise Problem 403 for a page of another origin that is not allowed."""
        origin = headers.get(b"origin", b"null").decode("latin-1").lower()
        if ANY in self._origins or origin in self._origins:
            return
        own = headers.get(b"host", b"").decode("latin-1").lower()
        if own and origin in (f"http://{own}", f"https://{own}"):
            return
        raise HttpProblem(
            403,
            "cross-origin",
            f"Pages of {origin[:80] if b'origin' in headers else 'other sites'} may not call this service.",
            hint="Add the origin to FIELDFARE_CORS_ORIGINS.",
        )


class Identified:
    """ASGI middleware that identifies the caller, and refuses invalid credentials.

    It runs behind the CORS middleware: pages of allowed origins can read that their key is not valid.

    Parameters
    ----------
    app, keyring, tickets
    key_watch
        Fetches the keys again, unless it did so recently, if a token names an unknown one.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring, key_watch: KeyWatch | None, tickets: Tickets) -> None:
        self._app = app
        self._keyring = keyring
        self._tickets = tickets
        self._key_watch = key_watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            authorization = scope[HEADERS].get(b"authorization")
            ticket, scope["query_string"] = split_query(scope["query_string"])
            try:
                try:
                    caller = self._keyring.find(authorization)
                except UnknownSigner:
                    if self._key_watch is not None:
                        await self._key_watch.look_again()
                    caller = self._keyring.find(authorization)
                if ticket is not None and caller is ANONYMOUS and scope.get("method", "GET") == "GET":
                    found = self._tickets.find(ticket, scope["path"])
                    caller, scope[SUBSCRIPTION] = found.caller, found.subscription
            except HttpProblem as problem:
                await problem.response()(scope, receive, send)
                return
            scope[CALLER] = caller
        await self._app(scope, receive, send)


def check_path(raw_path: bytes) -> None:
    """Raise Problem 400 for a path that a proxy in front and the service could read differently."""
    for escape in _ESCAPE.finditer(raw_path):
        if escape[0] in _NO_CHARACTER:
            detail = f"The path contains {escape[0].decode()}, which is not allowed in a path: remove it."
            raise HttpProblem(400, "bad-path", detail)
    try:
        _ESCAPE.sub(lambda escape: bytes([int(escape[0][1:], 16)]), raw_path).decode()
    except UnicodeDecodeError:
        raise HttpProblem(
            400, "bad-path", "The path is not valid percent-encoded UTF-8: encode it again."
        ) from None


def check_repeats(headers: list[tuple[bytes, bytes]]) -> None:
    """Raise Problem 400 for a repeated header that must be unique: choosing one value would be a guess."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and (name.startswith(b"ce-") or name.decode("latin-1") in _ONCE):
            shown = name.decode("latin-1")[:80]
            raise HttpProblem(400, "bad-header", f"The header {shown} is repeated: send it once.")
        seen.add(name)


def _is_address(name: str) -> bool:
    """Return whether a host is an IP address: allowed, since DNS can point a name here, but no address."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
