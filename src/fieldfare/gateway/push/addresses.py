"""Which addresses the service calls, and connections to no others.

An address is read once, by one strict reader; its name is resolved once for each connection, what it is
resolved to is judged, and to exactly that the connection is made. So it does not matter how a private address
is written, what a name leads to the second time, or who else would read the same text differently.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

import httpcore

from fieldfare.gateway.push.streams import BoundedStream
from fieldfare.gateway.slots import Slots

URL_MAX_CHARS = 2_000
DEFAULT_PORTS = {"https": 443, "http": 80}
TRIED_ADDRESSES = 3
"""Of the addresses of a name so many are tried."""

RESOLVERS = 64
"""Threads on which names are resolved; a name whose servers do not answer holds one for long. Of one space a
quarter at most."""

caller: ContextVar[str] = ContextVar("caller", default="")
"""The space for which a task makes its request: a connection is made, and its name resolved, in that task."""

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The IP addresses of a name."""

_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(/[!-~]*)?")
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


class NotAllowed(Exception):
    """An address is not called; the text may be told to whoever named it."""


@dataclass(frozen=True, slots=True)
class Target:
    """An address, read."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read an address; ValueError says what is wrong with it."""
        if len(url) > URL_MAX_CHARS:
            raise ValueError(f"an address has at most {URL_MAX_CHARS:,} characters")
        found = _URL.fullmatch(url)
        if found is None or "#" in url or "\\" in url:
            raise ValueError(
                "an address looks like https://example.com/path: http or https, a name or an IP address,"
                " no user, no fragment, and nothing but ASCII (names of other letters as xn--...)"
            )
        scheme, host, port, path = found.groups()
        number = int(port) if port else DEFAULT_PORTS[scheme]
        if not 0 < number < 65_536:
            raise ValueError("a port is a number from 1 to 65,535")
        return cls(scheme, _host_of(host.lower()), number, path or "/")

    @property
    def authority(self) -> str:
        """Host and port as a request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def url(self) -> httpcore.URL:
        """The same for a request."""
        return httpcore.URL(scheme=self.scheme, host=self.host, port=self.port, target=self.path)


def _host_of(host: str) -> str:
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError("what stands in [] is no IPv6 address") from None
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # Else it is read as an IP address by some and as a name by others: 0x7f.1, 2130706433, 017700000001.
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ValueError("an IPv4 address is four numbers from 0 to 255 with dots between them") from None
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError("this is no name of a host")
    return host


@dataclass(frozen=True, slots=True)
class CallRules:
    """Which IP addresses may be called.

    Parameters
    ----------
    allow
        Networks whose addresses are called though they are not public, without TLS too, and at any port.
    """

    allow: tuple[IPNetwork, ...] = ()

    def refusal(self, address: str, port: int, *, is_tls: bool) -> str | None:
        """Why an IP address is not called, without naming it: what a name leads to may be a secret."""
        ip = ipaddress.ip_address(address.partition("%")[0])
        inner = _embedded(ip)
        if any(each in network for network in self.allow for each in (ip, inner) if each is not None):
            return None
        if not is_public(ip) or (inner is not None and not is_public(inner)):
            return "it leads to an address that is not public, and that this service may not call"
        if not is_tls:
            return "http without TLS is only for networks that this service may call so: use https"
        if port != 443 and port < 1024:
            return "of the ports below 1024 only 443 is called"
        return None

    def first_look(self, target: Target) -> str | None:
        """Why an address can never be called, as far as one can say without resolving its name."""
        if target.scheme == "http" and not self.allow:
            return "http without TLS is only for networks that this service may call so: use https"
        try:
            ipaddress.ip_address(target.host)
        except ValueError:
            return None
        return self.refusal(target.host, target.port, is_tls=target.scheme == "https")


_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            # Which of these Python calls global differs with its version.
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
            *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
            "168.63.129.16/32",  # Azure's own services for a machine, at an address that looks public
            *("2001::/23", "2001:db8::/32", "3fff::/20"),
        ),
    )
)
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")


def is_public(ip: IPAddress) -> bool:
    """Whether an address is one that anybody in the world may call."""
    if isinstance(ip, ipaddress.IPv6Address):
        inner = _embedded(ip)
        if inner is not None and (ip in _NAT64 or ip.ipv4_mapped is not None):
            return is_public(inner)
        if ip not in _PUBLIC_6:
            return False
    return ip.is_global and not any(ip in network for network in _NOT_PUBLIC)


def _embedded(ip: IPAddress) -> IPAddress | None:
    """The IPv4 address that an IPv6 address leads to by its form."""
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip in _NAT64 or (ip in _COMPATIBLE and int(ip) > 1):
        return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return None


class Names:
    """Resolves names, on threads of its own: storage must not wait for somebody's name servers."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="fieldfare-names")
        self._slots = Slots(RESOLVERS, RESOLVERS // 4)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The IP addresses of a name; OSError where there are none."""

        def ask() -> list[Any]:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

        loop, space = asyncio.get_running_loop(), caller.get()

        def done(asked: object) -> None:
            # When the thread is free, not when nobody waits any more.
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._slots.release, space)

        await self._slots.acquire(space)
        asked = self._threads.submit(ask)
        asked.add_done_callback(done)
        found = await asyncio.wrap_future(asked)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to what a name leads to now, if that may be called, and to nothing else.

    Parameters
    ----------
    rules, resolve
        What may be called, and what names lead to.
    is_tls
        Whether what is connected to is spoken to by TLS.
    """

    def __init__(self, rules: CallRules, resolve: Resolve, *, is_tls: bool) -> None:
        self._rules = rules
        self._resolve = resolve
        self._is_tls = is_tls
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout("its name was not resolved in time") from None
        except (OSError, UnicodeError):
            raise httpcore.ConnectError("its name cannot be resolved") from None
        refusals = {each: self._rules.refusal(each, port, is_tls=self._is_tls) for each in addresses}
        allowed = [each for each, refusal in refusals.items() if refusal is None]
        if not allowed:
            raise NotAllowed(next(filter(None, refusals.values()), "its name leads nowhere"))
        failed: Exception | None = None
        for address in allowed[:TRIED_ADDRESSES]:
            try:
                stream = await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
                return BoundedStream(stream)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        assert failed is not None
        raise failed

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise NotAllowed("no sockets of this machine are called")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
