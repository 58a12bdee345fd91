"""The service's address, the proxy and TLS settings of a connection, and the errors of failed connections."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from fieldfare.client.credentials import AsyncGiveKey, choose_key, is_loopback
from fieldfare.client.errors import (
    ClientClosed,
    ConnectionFailed,
    FieldfareError,
    ServiceNotTrusted,
    UnexpectedAnswer,
)
from fieldfare.model import DEFAULT_SPACE

Loaded = TypeVar("Loaded")

DEFAULT_URL = "http://127.0.0.1:7737"

PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")

Certificate = str | Path | tuple[str | Path, str | Path]
"""A file with a certificate and its private key, or a file for each."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that the environment names.

    Attributes
    ----------
    url
        Its address; may hold a password, so no message contains it.
    setting
        The environment variable that names it.
    """

    url: str = field(repr=False)
    setting: str

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname}{port} ({self.setting})"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A service's address and the settings of connections to it.

    Attributes
    ----------
    url
        The address: scheme and host in lower case, no slash at the end.
    timeout_s
        Maximum time to wait for the answer to a call, in seconds.
    key
        The API key, or a callable that returns it.
    tls
        The context that verifies the service's certificate; False for http.
    proxy
        The proxy between client and service; None for a service on this machine, or if none is configured.
    """

    url: str
    timeout_s: float
    key: str | AsyncGiveKey | None = field(repr=False)
    tls: ssl.SSLContext | bool
    proxy: Proxy | None

    @classmethod
    def chosen(
        cls,
        url: str | None,
        timeout_s: float,
        key: str | AsyncGiveKey | None,
        ca_file: str | Path | None,
        certificate: Certificate | None,
    ) -> Endpoint:
        """Return the endpoint for a client's arguments and the environment; ValueError if one is invalid."""
        chosen = choose_url(url)
        key = choose_key(key, chosen)
        proxy = choose_proxy(chosen)
        if proxy is not None and key is not None and not chosen.startswith("https:"):
            raise ValueError(
                f"the API key for {chosen} would be sent in clear text to the proxy {proxy}\n"
                f"hint: use https, or {_without_proxy(chosen)}"
            )
        return cls(chosen, timeout_s, key, choose_tls(chosen, ca_file, certificate), proxy)

    def moved_to(self, url: str, token: str) -> Endpoint:
        """Return the endpoint of another service that continues this one; ValueError for no valid address."""
        chosen = choose_url(url)
        tls = self.tls
        if isinstance(tls, bool) or not chosen.startswith("https:"):
            tls = choose_tls(chosen, None, None)
        return Endpoint(chosen, self.timeout_s, token or None, tls, choose_proxy(chosen))

    def explain_answer(self, error: FieldfareError) -> FieldfareError:
        """Return the error with the proxy's name added, if something other than the service answered."""
        if self.proxy is not None and isinstance(error, UnexpectedAnswer):
            return UnexpectedAnswer(f"{error}\nhint: the request went through the proxy {self.proxy}")
        return error

    def translate(self, error: Exception) -> FieldfareError:
        """Return the error to raise for an httpx exception."""
        tls_error = next((each for each in _causes(error) if isinstance(each, ssl.SSLError)), None)
        if tls_error is not None:
            return self._tls_failure(tls_error)
        if self.proxy is not None and isinstance(
            error, httpx.ProxyError | httpx.ConnectError | httpx.ConnectTimeout
        ):
            return ConnectionFailed(
                f"the proxy {self.proxy} did not connect to {self.url} ({_reason(error)})\n"
                f"hint: correct {self.proxy.setting}, or {_without_proxy(self.url)}",
                self.url,
            )
        if isinstance(error, httpx.ConnectError):
            return self._not_connected(error)
        if isinstance(error, httpx.TimeoutException):
            return ConnectionFailed(f"{self.url} did not answer in time ({type(error).__name__})", self.url)
        if isinstance(error, httpx.TransportError):
            hint = ""
            if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and self.tls is False:
                hint = "\nhint: if this happens on every call, the port may expect TLS: write https://"
            return ConnectionFailed(f"the connection to {self.url} broke ({_reason(error)}){hint}", self.url)
        if isinstance(error, RuntimeError) and "closed" in str(error):
            return ClientClosed("this client is closed")
        return FieldfareError(f"the request could not be made: {error}")

    def _not_connected(self, error: httpx.ConnectError) -> ConnectionFailed:
        if any(isinstance(each, socket.gaierror) for each in _causes(error)):
            return ConnectionFailed(
                f"the host of {self.url} was not found ({_reason(error)})\n"
                "hint: check the name in --url or FIELDFARE_URL, and the network",
                self.url,
            )
        return ConnectionFailed(
            f"nothing answers at {self.url} ({_reason(error)})\n"
            "hint: start a service with `fieldfare serve --data DIR`, or set FIELDFARE_URL to where one runs",
            self.url,
        )

    def _tls_failure(self, error: ssl.SSLError) -> ConnectionFailed:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ServiceNotTrusted(
                f"the certificate of {self.url} is not trusted: {error.verify_message}\n"
                "hint: name the file with the certificate's authority in --ca-file or FIELDFARE_CA_FILE, and "
                "use a host name that the certificate is for",
                self.url,
            )
        reason = (error.reason or str(error)).replace("_", " ").lower()
        if reason in (
            "wrong version number",
            "http request",
            "record layer failure",
            "packet length too long",
        ):
            return ConnectionFailed(
                f"{self.url} answers, but not with TLS ({reason})\n"
                "hint: write http:// if the service listens without TLS",
                self.url,
            )
        hint = ""
        if "certificate" in reason or "unknown ca" in reason:
            hint = "\nhint: the service asks for a certificate: see --certificate, FIELDFARE_CERTIFICATE"
        return ConnectionFailed(f"TLS with {self.url} failed ({reason}){hint}", self.url)


def choose_url(url: str | None) -> str:
    """Return the service's address: the argument, else FIELDFARE_URL, else http://127.0.0.1:7737."""
    source, given = "", url
    if not given:
        given = os.environ.get("FIELDFARE_URL")
        source = "FIELDFARE_URL: "
    if not given:
        return DEFAULT_URL
    text = given.strip()
    fault = _url_fault(text)
    if fault is not None:
        shown = "the given text" if "@" in text else repr(text)  # It may contain a password.
        raise ValueError(f"{source}a service's URL looks like {DEFAULT_URL}, not {shown}: {fault}")
    parts = urlsplit(text)
    return urlunsplit((parts.scheme, parts.netloc.lower(), parts.path.rstrip("/"), "", ""))


def _url_fault(text: str) -> str | None:
    """Return what is wrong with a URL; None if it is valid."""
    if any(char.isspace() or not char.isprintable() for char in text):
        return "it has a space or a control character"
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname or ""
        host.encode("idna")
        httpx.URL(text)
    except (ValueError, httpx.InvalidURL) as error:  # UnicodeError, too
        return f"host or port are not valid ({error})"
    if parts.scheme not in ("http", "https") or not host:
        return "it needs http:// or https:// and a host"
    if parts.username is not None or parts.password is not None:
        return "it has a user or a password; give an API key instead (FIELDFARE_API_KEY)"
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        return "it has a query or a fragment"
    if port == 0:
        return "the port is 0"
    return None


def choose_space(space: str | None) -> str:
    """Return the space: the argument, else FIELDFARE_SPACE, else "default"."""
    return space or os.environ.get("FIELDFARE_SPACE") or DEFAULT_SPACE


def choose_proxy(url: str) -> Proxy | None:
    """Return the environment's proxy for a URL; None for this machine, for NO_PROXY, and if none is set.

    Raises
    ------
    ValueError
        The proxy's address is invalid, or its scheme is not supported.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(host) or proxy_bypass(parts.netloc):
        return None
    proxies = getproxies()
    kind = parts.scheme if proxies.get(parts.scheme) else "all"
    address = proxies.get(kind)
    if not address:
        return None
    setting = f"{kind.upper()}_PROXY"
    address = address if "://" in address else f"http://{address}"
    try:
        proxy = urlsplit(address)
        is_usable = proxy.scheme in PROXY_SCHEMES and bool(proxy.hostname) and proxy.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        shown = f": {address!r}" if "@" not in address else ""
        raise ValueError(
            f"{setting} is not the address of a proxy that can be used{shown}\n"
            f"hint: allowed are {', '.join(f'{each}://' for each in PROXY_SCHEMES)}; or {_without_proxy(url)}"
        )
    return Proxy(address, setting)


def choose_tls(
    url: str, ca_file: str | Path | None, certificate: Certificate | None
) -> ssl.SSLContext | bool:
    """Return the TLS context, from the arguments, else from FIELDFARE_CA_FILE and FIELDFARE_CERTIFICATE.

    Without a file of authorities, the system's are trusted. ValueError names a file that is not valid.
    """
    if not url.startswith("https:"):
        return False  # Nothing to verify, and loading certificates is slow.
    ca_file = ca_file or os.environ.get("FIELDFARE_CA_FILE")
    certificate = certificate or os.environ.get("FIELDFARE_CERTIFICATE")
    if ca_file is None and certificate is None:
        return httpx.create_ssl_context()
    context = _loaded(lambda: ssl.create_default_context(cafile=ca_file), str(ca_file))
    if certificate:
        files = certificate if isinstance(certificate, tuple) else (certificate,)
        _loaded(lambda: context.load_cert_chain(*files), " and ".join(map(str, files)))
    return context


def _without_proxy(url: str) -> str:
    return f"add {urlsplit(url).hostname} to NO_PROXY to connect without the proxy"


def _loaded(load: Callable[[], Loaded], files: str) -> Loaded:
    try:
        return load()
    except OSError as error:  # ssl.SSLError is an OSError.
        reason = error.strerror if not isinstance(error, ssl.SSLError) else (error.reason or "no PEM")
        raise ValueError(f"{files} cannot be used for TLS: {reason}") from None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and its causes and contexts."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
