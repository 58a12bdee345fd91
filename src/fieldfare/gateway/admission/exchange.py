"""One request and its response, by the request's HTTP version and by what the client can still send."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from fieldfare.gateway.problems import HttpProblem

VERSIONS = ("1.0", "1.1")


class Exchange(RequestResponseCycle):
    """A request cycle of uvicorn, extended: uvicorn treats each request as HTTP/1.1, and each end of input as
    a lost connection.

    Attributes
    ----------
    half_closed
        Whether the client has closed its side for writing: it may still read the response.
    """

    half_closed = False
    _is_read = False
    _is_delimited = True

    async def send(self, message: Any) -> None:
        """Send a part of the response. HTTP/1.0 has no chunks: closing the connection ends the response."""
        if message["type"] == "http.response.start" and self.scope["http_version"] == "1.0":
            names = {name.lower() for name, _ in message.get("headers", ())}
            if b"content-length" not in names:
                self.chunked_encoding = self._is_delimited = False
        elif not self._is_delimited and self.scope["method"] != "HEAD":
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)

    async def receive(self) -> Any:
        """Return the next part of the body, then a disconnect once the client is gone or can send nothing
        more.

        ``half_closed`` in the disconnect tells that the client may still read.
        """
        if not (self.half_closed and self._is_read):
            message: Any = await super().receive()
            if message["type"] != "http.request" or not self._is_read:
                self._is_read |= not message.get("more_body", False)
                return message
        return {"type": "http.disconnect", "half_closed": not self.disconnected}


def check_version(version: str, headers: list[tuple[bytes, bytes]]) -> None:
    """Raise HttpProblem for an unsupported version, or for chunks in HTTP/1.0 (RFC 9112, 6.1)."""
    if version not in VERSIONS:
        detail = f"HTTP/{version} is not supported: use HTTP/1.1."
        raise HttpProblem(505, "http-version", detail)
    if version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers):
        detail = "HTTP/1.0 does not allow Transfer-Encoding: send Content-Length, or use HTTP/1.1."
        raise HttpProblem(400, "bad-http", detail)


def origin_form(target: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return a request's target as path and query; the host of an absolute target replaces the Host header.

    See RFC 9112, 3.2.2: proxies send targets like ``http://host/path``, and the Host header is ignored.
    """
    scheme, found, rest = target.partition(b"://")
    if not found or target.startswith(b"/"):
        return target
    with suppress(httptools.HttpParserInvalidURLError):
        httptools.parse_url(target)
        return _origin_form(scheme, rest, headers)
    raise HttpProblem(400, "bad-http", "The request's target is not a valid URL.")


def _origin_form(scheme: bytes, rest: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    end = next((at for at, byte in enumerate(rest) if byte in b"/?#"), len(rest))
    authority, path = rest[:end], rest[end:]
    if scheme.lower() not in (b"http", b"https") or not authority or b"@" in authority:
        detail = "The request's target must be an http or https URL with a host and without a user."
        raise HttpProblem(400, "bad-http", detail)
    for at, (name, _) in enumerate(headers):
        if name == b"host":
            headers[at] = (b"host", authority)
            break  # a second one is refused later
    return path if path.startswith(b"/") else b"/" + path
