"""Sending calls with httpx."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NoReturn

import httpx

from fieldfare.client.credentials import Bearer
from fieldfare.client.endpoint import Endpoint
from fieldfare.client.errors import FieldfareError, UnexpectedAnswer
from fieldfare.client.protocol import Answer, ApiCall, Result, read_error

STREAM_SILENCE_S = 35.0
"""Seconds without data after which a stream is reconnected; the service sends heartbeats every 10 s."""

STREAM_HEADERS = {"accept": "text/event-stream", "accept-encoding": "identity", "cache-control": "no-store"}


@functools.cache
def _without_tls() -> ssl.SSLContext:
    """Return the TLS context of pools that speak plain HTTP: httpx would make one for each."""
    return httpx.create_ssl_context(verify=False)


def _make_options(endpoint: Endpoint) -> dict[str, object]:
    key, proxy = endpoint.key, endpoint.proxy
    return {
        "base_url": endpoint.url,
        "headers": {"authorization": f"Bearer {key}"} if isinstance(key, str) else {},
        "auth": Bearer(key, endpoint.url) if callable(key) else None,
        "timeout": httpx.Timeout(endpoint.timeout_s),
        # Each pull that waits holds a connection, so the pool must not bound their number. httpcore counts
        # those in use as kept ones, too: with a bound, each request beside many pulls would open one.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=None),
        "verify": endpoint.tls or _without_tls(),
        "proxy": None if proxy is None else proxy.url,
        "trust_env": False,  # The endpoint has chosen the proxy; httpx would use one for loopback, too.
    }


def make_http(endpoint: Endpoint) -> httpx.Client:
    """Return the httpx client of a `Client`."""
    return httpx.Client(**_make_options(endpoint))  # type: ignore[arg-type]


def make_async_http(endpoint: Endpoint) -> httpx.AsyncClient:
    """Return the httpx client of an `AsyncClient`."""
    return httpx.AsyncClient(**_make_options(endpoint))  # type: ignore[arg-type]


Compression = Literal["gzip", "zstd"]

PACKED_FROM_BYTES = 1_400
"""Minimum size of a body to compress, in bytes: a smaller one fits into one packet anyway."""

PAYS_BELOW = 0.9
PLAIN_BELOW = 0.01
"""A body is sent compressed if that shrinks it to between these two shares. One that shrinks to less is sent
as it is, as the service would take it for a compression bomb."""


def choose_packing(compression: Compression | None) -> Callable[[ApiCall[Result]], ApiCall[Result]] | None:
    """Return a function that compresses a call's body if that pays; None without compression.

    Raises
    ------
    ValueError
        The encoding is unknown.
    ImportError
        The package that the encoding needs is not installed.
    """
    if compression is None:
        return None
    from fieldfare.encodings import ENCODINGS, can_pack, pack

    if compression not in ENCODINGS:
        raise ValueError(f"compression must be one of {', '.join(ENCODINGS)}, not {compression!r}")
    if not can_pack(compression):
        raise ImportError(f"compression {compression!r} needs Python 3.14, or pip install 'fieldfare[zstd]'")

    def packed(call: ApiCall[Result]) -> ApiCall[Result]:
        assert call.content is not None
        content = pack(call.content, compression)
        if not PLAIN_BELOW < len(content) / len(call.content) < PAYS_BELOW:
            return call
        return replace(call, content=content, headers=(*call.headers, ("content-encoding", compression)))

    return packed


def make_request(
    http: httpx.Client | httpx.AsyncClient, call: ApiCall[Result], timeout_s: float
) -> httpx.Request:
    """Return the httpx request for a call."""
    return http.build_request(
        call.method,
        call.path,
        content=call.content,
        headers=list(call.headers),
        timeout=httpx.Timeout(timeout_s, read=timeout_s + call.extra_wait_s),
    )


def read_answer(call: ApiCall[Result], response: httpx.Response, endpoint: Endpoint) -> Result:
    """Return the result of a call from its httpx response."""
    try:
        return call.interpret(Answer(response.status_code, response.headers, response.content))
    except UnexpectedAnswer as error:
        raise endpoint.explain_answer(error) from None


def check_stream(response: httpx.Response, endpoint: Endpoint) -> None:
    """Raise the error of a stream whose status is not 200; its body must have been read."""
    if response.status_code != 200:
        answer = Answer(response.status_code, response.headers, response.content)
        raise endpoint.explain_answer(read_error(answer))


def raise_translated(error: Exception, endpoint: Endpoint) -> NoReturn:
    """Raise the client's error for an httpx exception; chain the exception only if it adds information."""
    found = endpoint.translate(error)
    raise found from (error if type(found) is FieldfareError else None)


HTTP_ERRORS = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, RuntimeError)
"""Exceptions of httpx; RuntimeError is raised when its client is closed."""
