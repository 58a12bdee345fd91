"""Carrying calls out over httpx: the only place that knows its exceptions."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn, TypeVar
from urllib.parse import urlsplit

import httpx

from fieldfare.client.credentials import AsyncGiveKey, Bearer
from fieldfare.client.errors import ClientClosed, ConnectionFailed, FieldfareError
from fieldfare.client.protocol import Answer, ApiCall, Result, read_error
from fieldfare.model import DEFAULT_SPACE

Loaded = TypeVar("Loaded")

DEFAULT_URL = "http://127.0.0.1:7737"

STREAM_SILENCE_S = 35.0
"""A stream that says nothing for so long is broken: the service sends a heartbeat every 10 seconds."""

STREAM_HEADERS = {"accept": "text/event-stream", "accept-encoding": "identity", "cache-control": "no-store"}


def choose_url(url: str | None) -> str:
    """The service's address: the argument, else FIELDFARE_URL, else this machine."""
    chosen = url or os.environ.get("FIELDFARE_URL") or DEFAULT_URL
    parts = urlsplit(chosen)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"a service's URL looks like {DEFAULT_URL}, not {chosen!r}")
    return chosen.rstrip("/")


def choose_space(space: str | None) -> str:
    """The space: the argument, else FIELDFARE_SPACE, else "default"."""
    return space or os.environ.get("FIELDFARE_SPACE") or DEFAULT_SPACE


Certificate = str | Path | tuple[str | Path, str | Path]
"""A file with a certificate and its key, or a file for each."""


def choose_tls(
    url: str, ca_file: str | Path | None, certificate: Certificate | None
) -> ssl.SSLContext | bool:
    """How the service is known: what is given, else FIELDFARE_CA_FILE and FIELDFARE_CERTIFICATE.

    Without a file with authorities those count that the system knows. ValueError names a file that is wrong.
    """
    if not url.startswith("https"):
        return False  # There is nothing to verify, and loading the certificates takes a while.
    ca_file = ca_file or os.environ.get("FIELDFARE_CA_FILE")
    certificate = certificate or os.environ.get("FIELDFARE_CERTIFICATE")
    if ca_file is None and certificate is None:
        return True
    context = _loaded(lambda: ssl.create_default_context(cafile=ca_file), str(ca_file))
    if certificate:
        files = certificate if isinstance(certificate, tuple) else (certificate,)
        _loaded(lambda: context.load_cert_chain(*files), " and ".join(map(str, files)))
    return context


def _loaded(load: Callable[[], Loaded], files: str) -> Loaded:
    try:
        return load()
    except OSError as error:  # That of TLS is one, too.
        reason = error.strerror if not isinstance(error, ssl.SSLError) else (error.reason or "no PEM")
        raise ValueError(f"{files} cannot be used for TLS: {reason}") from None


def _make_options(
    url: str, timeout_s: float, key: str | AsyncGiveKey | None, tls: ssl.SSLContext | bool
) -> dict[str, object]:
    return {
        "base_url": url,
        "headers": {"authorization": f"Bearer {key}"} if isinstance(key, str) else {},
        "auth": Bearer(key, url) if callable(key) else None,
        "timeout": httpx.Timeout(timeout_s),
        # Subscribers hold a connection each, so the pool must not be what bounds them.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=32),
        "verify": tls,
    }


def make_http(
    url: str, timeout_s: float, key: str | AsyncGiveKey | None, tls: ssl.SSLContext | bool
) -> httpx.Client:
    """The httpx client behind a `Client`."""
    return httpx.Client(**_make_options(url, timeout_s, key, tls))  # type: ignore[arg-type]


def make_async_http(
    url: str, timeout_s: float, key: str | AsyncGiveKey | None, tls: ssl.SSLContext | bool
) -> httpx.AsyncClient:
    """The httpx client behind an `AsyncClient`."""
    return httpx.AsyncClient(**_make_options(url, timeout_s, key, tls))  # type: ignore[arg-type]


Compression = Literal["gzip", "zstd"]

PACKED_FROM_BYTES = 1_400
"""Less fits into one packet as it is."""

PAYS_BELOW = 0.9
PLAIN_BELOW = 0.01
"""What packs to less than that is sent as it is, for the service would take it for an attack."""


def choose_packing(compression: Compression | None) -> Callable[[ApiCall[Result]], ApiCall[Result]] | None:
    """What packs the bodies of calls where that pays; None when none is to be packed.

    Raises
    ------
    ValueError
        No such encoding.
    ImportError
        The package that it needs is not installed.
    """
    if compression is None:
        return None
    from fieldfare.encodings import ENCODINGS, can_pack, pack

    if compression not in ENCODINGS:
        raise ValueError(f"compression is one of {', '.join(ENCODINGS)}, not {compression!r}")
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
    """A call as httpx sends it."""
    return http.build_request(
        call.method,
        call.path,
        content=call.content,
        headers=list(call.headers),
        timeout=httpx.Timeout(timeout_s, read=timeout_s + call.extra_wait_s),
    )


def read_answer(call: ApiCall[Result], response: httpx.Response) -> Result:
    """The result of a call from httpx's response."""
    return call.interpret(Answer(response.status_code, response.headers, response.content))


def check_stream(response: httpx.Response) -> None:
    """Raise what a stream's opening says, if it does not say 200; the body has been read."""
    if response.status_code != 200:
        raise read_error(Answer(response.status_code, response.headers, response.content))


def translate(error: Exception, url: str) -> FieldfareError:
    """What an exception of httpx means to the user."""
    if isinstance(error, httpx.ConnectError):
        return ConnectionFailed(
            f"nothing answers at {url} ({_reason(error)})\n"
            "hint: start a service with `fieldfare serve --data DIR`, or set FIELDFARE_URL to where one runs",
            url,
        )
    if isinstance(error, httpx.TimeoutException):
        return ConnectionFailed(f"{url} did not answer in time ({type(error).__name__})", url)
    if isinstance(error, httpx.TransportError):
        return ConnectionFailed(f"the connection to {url} broke ({_reason(error)})", url)
    if isinstance(error, RuntimeError) and "closed" in str(error):
        return ClientClosed("this client is closed")
    return FieldfareError(f"the request could not be made: {error}")


def raise_translated(error: Exception, url: str) -> NoReturn:
    """Raise what an exception of httpx means; the exception itself is shown only where it says more."""
    found = translate(error, url)
    raise found from (error if type(found) is FieldfareError else None)


HTTP_ERRORS = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, RuntimeError)
"""What httpx raises; it says RuntimeError when its client is closed."""


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
