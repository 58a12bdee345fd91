"""``/console``: the files of the web console.

They hold nothing of a client, so that they need no key; what they show comes from the API, with the key that
a person types in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from fieldfare.gateway import console
from fieldfare.gateway.problems import HttpProblem

PATH = "/console"

_FOLDER = Path(console.__file__).parent
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script';"
        " trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}
"""Headers of all files. The policy allows no script, style or request but the service's own, and no text that
becomes a script or markup."""


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    headers: Mapping[str, str]


class ConsoleRoute(BaseRoute):
    """The route of the console's page and the files below it, which are read once."""

    def __init__(self) -> None:
        paths = [path for path in _FOLDER.rglob("*") if path.suffix in _TYPES]
        self._files = {path.relative_to(_FOLDER).as_posix(): _file(path) for path in paths}
        self._files[""] = self._files["index.html"]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope.get("path", "")
        if scope["type"] == "http" and (path == PATH or path.startswith(f"{PATH}/")):
            return Match.FULL, {"endpoint": self.console}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self.console(Request(scope)))(scope, receive, send)

    async def console(self, request: Request) -> Response:
        """Return a file of the console."""
        if request.method not in ("GET", "HEAD"):
            raise HttpProblem(
                405, "wrong-method", "The console's files can only be read.", headers={"Allow": "GET, HEAD"}
            )
        file = self._files.get(request.url.path.removeprefix(PATH).removeprefix("/"))
        if file is None:
            raise HttpProblem(404, "unknown-route", f"The console is at {PATH}, and has no such file.")
        if request.headers.get("if-none-match") == file.headers["ETag"]:
            return Response(status_code=304, headers=file.headers)
        content = b"" if request.method == "HEAD" else file.content
        return Response(content, headers={**file.headers, "Content-Length": str(len(file.content))})


def _file(path: Path) -> _File:
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return _File(content, {"Content-Type": _TYPES[path.suffix], "ETag": tag, **_HEADERS})
