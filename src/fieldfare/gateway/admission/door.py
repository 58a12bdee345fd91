"""Who may ask at all: the checks that every request meets before its route is looked up.

A service on loopback without passwords is open to every program of its machine, and must not be to every
web page that its user visits. Browsers say on whose behalf they ask (Origin, Sec-Fetch-Site); a page that has
its own name lead to this machine (DNS rebinding) still sends that name as Host.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from fieldfare.gateway.admission.callers import CALLER, UnknownSigner
from fieldfare.gateway.admission.keyring import Keyring
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.settings import ANY, GatewaySettings

if TYPE_CHECKING:
    from fieldfare.gateway.admission.token_keys import KeyWatch

HEADERS = "fieldfare.headers"
"""Where routes find a request's headers by name."""

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
    """A header that comes once; its name in lower case."""
    value: bytes | None = request.scope[HEADERS].get(name)
    return None if value is None else value.decode("latin-1")


class Door:
    """ASGI middleware: refuses requests of foreign pages, for other hosts, or with an ambiguous head."""

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
            detail = "Of transfer encodings only chunked is taken."
            raise HttpProblem(501, "transfer-encoding", detail, headers={"Connection": "close"})

    def _check_host(self, host: bytes | None, http_version: str) -> None:
        if host is None:
            if http_version == "1.0":
                return
            raise HttpProblem(400, "bad-header", "An HTTP/1.1 request has a Host header.")
        text = host.decode("latin-1")
        found = _HOST.fullmatch(text)
        if found is None:
            raise HttpProblem(400, "bad-header", f"The Host header {text[:80]!r} names no host.")
        name = found[1].lower().rstrip(".")
        if not (self._any_host or name in self._hosts or name.endswith(".localhost") or _is_address(name)):
            raise HttpProblem(
                421,
                "unknown-host",
                f"This service does not answer to the name {name[:80]}.",
                hint="Use its address, or name it in FIELDFARE_ALLOWED_HOSTS.",
            )
        if len(self._known_hosts) < 100:
            self._known_hosts.add(host)

    def _check_page(self, headers: dict[bytes, bytes]) -> None:
        """Problem 403 when a page of another origin asks, and is not among those that may."""
        origin = headers.get(b"origin", b"null").decode("latin-1").lower()
        if ANY in self._origins or origin in self._origins:
            return
        own = headers.get(b"host", b"").decode("latin-1").lower()
        if own and origin in (f"http://{own}", f"https://{own}"):
            return
        raise HttpProblem(
            403,
            "cross-origin",
            f"Pages of {origin[:80] if b'origin' in headers else 'other sites'} may not use this service.",
            hint="FIELDFARE_CORS_ORIGINS names the origins whose pages may.",
        )


class Identified:
    """ASGI middleware: finds out who asks, and refuses a key that lets nobody in.

    Behind what allows for pages of other origins: they are to see that their key is not valid.

    Parameters
    ----------
    app, keyring
    key_watch
        Looks, if there has not been a look lately, for the key that a token says it is signed with.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring, key_watch: KeyWatch | None) -> None:
        self._app = app
        self._keyring = keyring
        self._key_watch = key_watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            authorization = scope[HEADERS].get(b"authorization")
            try:
                try:
                    caller = self._keyring.find(authorization)
                except UnknownSigner:
                    if self._key_watch is not None:
                        await self._key_watch.look_again()
                    caller = self._keyring.find(authorization)
            except HttpProblem as problem:
                await problem.response()(scope, receive, send)
                return
            scope[CALLER] = caller
        await self._app(scope, receive, send)


def check_path(raw_path: bytes) -> None:
    """Problem 400 for a path that would be read differently by a proxy in front and by us."""
    for escape in _ESCAPE.finditer(raw_path):
        if escape[0] in _NO_CHARACTER:
            detail = (
                f"The path has {escape[0].decode()} in it, which stands for no character of a path's part."
            )
            raise HttpProblem(400, "bad-path", detail)
    try:
        _ESCAPE.sub(lambda escape: bytes([int(escape[0][1:], 16)]), raw_path).decode()
    except UnicodeDecodeError:
        raise HttpProblem(400, "bad-path", "The path is not percent-encoded UTF-8.") from None


def check_repeats(headers: list[tuple[bytes, bytes]]) -> None:
    """Problem 400 for a header that says one thing and comes twice: which one counts would be a guess."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and (name.startswith(b"ce-") or name.decode("latin-1") in _ONCE):
            shown = name.decode("latin-1")[:80]
            raise HttpProblem(400, "bad-header", f"The header {shown} comes more than once.")
        seen.add(name)


def _is_address(name: str) -> bool:
    """Addresses need no list: a name can be made to point here, an address cannot."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
