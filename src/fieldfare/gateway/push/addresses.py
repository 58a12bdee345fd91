"""Which addresses the service calls, and connections to no others.

A URL is parsed once, by one strict parser. Its host name is resolved once per connection, the result is
checked, and the connection is made to exactly that IP address. So it does not matter how a private address is
written, what the name resolves to the second time, or how another parser would read the URL.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

import httpcore

from fieldfare.gateway.fair_limiter import FairExecutor
from fieldfare.gateway.fair_queue import SharedCapacity
from fieldfare.gateway.push.streams import BoundedStream

URL_MAX_CHARS = 2_000
DEFAULT_PORTS = {"https": 443, "http": 80}
TRIED_ADDRESSES = 3
"""Maximum IP addresses tried per host name; further ones are ignored."""

ASKS_MAX, ASKS_PERIOD_S = 30, 60.0
"""Maximum permission requests without permission, per period in seconds, to one host or IP address; more are
refused. A space that has made fewer than its fair share of them may exceed it: all spaces together make at
most 111.
"""

ASKED_PLACES_MAX = 10_000
"""Maximum hosts and IP addresses with counted requests; beyond it, the least recently asked are forgotten."""

RESOLVERS = 64
"""Threads that resolve names; a name whose servers do not answer blocks one for long. One space uses at most
a quarter of them; its other lookups wait.
"""

caller: ContextVar[str] = ContextVar("caller", default="")
"""The space of a task's request; the connection is made, and the name resolved, in the same task."""

asking: ContextVar[Asking | None] = ContextVar("asking", default=None)
"""The permission request that a task makes to a server which has never given permission, if any."""

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host name and port to IP addresses."""

_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(/[!-~]*)?")
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


class NotAllowed(Exception):
    """A URL or IP address may not be called; the message may be shown to the user who configured it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL. Raise ValueError if it is invalid."""
        if len(url) > URL_MAX_CHARS:
            raise ValueError(f"the address has {len(url):,} characters; the maximum is {URL_MAX_CHARS:,}")
        found = _URL.fullmatch(url)
        if found is None or "#" in url or "\\" in url:
            raise ValueError(f"the address {_fault_of(url)}; an example is https://example.com/path")
        scheme, host, port, path = found.groups()
        number = int(port) if port else DEFAULT_PORTS[scheme]
        if not 0 < number < 65_536:
            raise ValueError(f"the port is {number}; it must be from 1 to 65,535")
        return cls(scheme, _host_of(host.lower()), number, path or "/")

    @property
    def authority(self) -> str:
        """Return host and port as in a request's Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def url(self) -> httpcore.URL:
        """Return the URL as a URL of httpcore."""
        return httpcore.URL(scheme=self.scheme, host=self.host, port=self.port, target=self.path)


def _fault_of(url: str) -> str:
    """Return which rule an invalid URL breaks and what to do, as the end of a sentence.

    The URL is not quoted, because it may contain a secret.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in DEFAULT_PORTS:
        return "does not begin with https:// or http:// (in lower case)"
    host = re.split(r"[/?#\\]", rest, maxsplit=1)[0]
    if "@" in host:
        return "contains a user name or password before @: remove them, and use `authorization`"
    if "#" in url:
        return "contains a fragment: remove # and the text after it"
    if "\\" in url:
        return "contains a backslash: write it as %5C in the path, or replace it by /"
    if (odd := re.search(r"[^!-~]", host)) is not None:
        return f"has the character {odd[0]!r} in its host name: write the name in ASCII, with xn-- (Punycode)"
    if (odd := re.search(r"[^!-~]", rest)) is not None:
        return f"contains the character {odd[0]!r}: percent-encode it, as in %20 for a space"
    if "?" in rest and "/" not in rest.partition("?")[0]:
        return "has no path before the question mark: write / there"
    return "has no valid host: write a name or an IP address (IPv6 in brackets), and perhaps : and a port"


def _host_of(host: str) -> str:
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError(f"{host} is not a valid IPv6 address") from None
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # Without this check, such a host is an IP address to some parsers and a name to others: 0x7f.1,
        # 2130706433, 017700000001.
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ValueError(
                f"{host} is not a valid IPv4 address: write four numbers from 0 to 255, separated by dots"
            ) from None
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{host[:80]} is not a valid host name")
    return host


@dataclass(frozen=True, slots=True)
class CallRules:
    """Which IP addresses may be called.

    Parameters
    ----------
    allow
        Networks that may be called although they are not public, also without TLS, and at any port.
    """

    allow: tuple[IPNetwork, ...] = ()

    def refusal(self, address: str, port: int, *, is_tls: bool) -> str | None:
        """Return why an IP address may not be called, or None. The text does not name it: what a name
        resolves to may be a secret.
        """
        ip = ipaddress.ip_address(address.partition("%")[0])
        inner = _embedded(ip)
        if any(each in network for network in self.allow for each in (ip, inner) if each is not None):
            return None
        if not is_public(ip) or (inner is not None and not is_public(inner)):
            return "its IP address is not public, and FIELDFARE_WEBHOOK_ALLOW does not allow it"
        if not is_tls:
            return "http without TLS is only allowed for networks in FIELDFARE_WEBHOOK_ALLOW: use https"
        if port != 443 and port < 1024:
            return f"port {port} is not allowed: use 443, or a port from 1024 on"
        return None

    def first_look(self, target: Target) -> str | None:
        """Return why a URL can never be called, as far as is known before its name is resolved, or None."""
        if target.scheme == "http" and not self.allow:
            return "http without TLS is only allowed for networks in FIELDFARE_WEBHOOK_ALLOW: use https"
        try:
            ipaddress.ip_address(target.host)
        except ValueError:
            return None
        return self.refusal(target.host, target.port, is_tls=target.scheme == "https")


_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            # Which of these Python considers global depends on its version.
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
    """Return whether an IP address is publicly routable."""
    if isinstance(ip, ipaddress.IPv6Address):
        inner = _embedded(ip)
        if inner is not None and (ip in _NAT64 or ip.ipv4_mapped is not None):
            return is_public(inner)
        if ip not in _PUBLIC_6:
            return False
    return ip.is_global and not any(ip in network for network in _NOT_PUBLIC)


def _embedded(ip: IPAddress) -> IPAddress | None:
    """Return the IPv4 address embedded in an IPv6 address, or None."""
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
    """Resolves names on threads of its own: storage must not wait for a subscriber's name servers."""

    def __init__(self) -> None:
        self._threads = FairExecutor(RESOLVERS, RESOLVERS // 4, "fieldfare-names")

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the IP addresses of a name. Raise OSError if there are none."""

        def ask() -> list[Any]:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

        found = await self._threads.run(caller.get(), ask)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def close(self) -> None:
        self._threads.close(wait=False)


class Asks:
    """A limit on permission requests to servers that have never given permission, by host and by IP address.

    Many names may resolve to one server, which never asked to be called by any of them. Granted requests do
    not count. Each space has a fair share: one space's requests do not use up those of the others.
    """

    def __init__(self) -> None:
        self._asked: OrderedDict[str, PlaceAsks] = OrderedDict()

    def check(self, place: str, space: str) -> None:
        """Count a request to a host or an IP address. Raise NotAllowed if too many went there in vain."""
        asked = self._asked.setdefault(place, PlaceAsks())
        self._asked.move_to_end(place)
        asked.expire(time.monotonic() - ASKS_PERIOD_S)
        if not asked.share.fits(space, 1):
            raise NotAllowed(
                f"its server gave no permission and was asked too often (at most {ASKS_MAX} requests in"
                f" {ASKS_PERIOD_S:g} s): it is asked again later"
            )
        asked.add(space)
        if len(self._asked) > ASKED_PLACES_MAX:
            self._asked.popitem(last=False)

    def forget(self, place: str, space: str) -> None:
        """Uncount a space's request that was granted."""
        if place in self._asked:
            self._asked[place].remove(space)


class PlaceAsks:
    """The recent permission requests to one host or IP address."""

    def __init__(self) -> None:
        self.share = SharedCapacity(ASKS_MAX)
        self._asked: deque[tuple[float, str]] = deque()
        """Times and spaces of the requests, oldest first."""

    def add(self, space: str) -> None:
        """Count a request that is made now."""
        self._asked.append((time.monotonic(), space))
        self.share.take(space, 1)

    def expire(self, before_s: float) -> None:
        """Uncount the requests made before a time."""
        while self._asked and self._asked[0][0] < before_s:
            self.share.give_back(self._asked.popleft()[1], 1)

    def remove(self, space: str) -> None:
        """Uncount a space's last request, if there is one."""
        for index in range(len(self._asked) - 1, -1, -1):
            if self._asked[index][1] == space:
                del self._asked[index]
                self.share.give_back(space, 1)
                return


class Asking:
    """One permission request of the calling space, and the hosts and IP addresses where it counts."""

    def __init__(self, asks: Asks) -> None:
        self._asks = asks
        self._space = caller.get()
        self._places: list[str] = []

    def check(self, place: str) -> None:
        """Count the request at a host or IP address, see `Asks.check`."""
        self._asks.check(place, self._space)
        self._places.append(place)

    def agreed(self) -> None:
        """Uncount the request everywhere: permission was granted."""
        for place in self._places:
            self._asks.forget(place, self._space)


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Network backend that connects only to IP addresses that may be called.

    Parameters
    ----------
    rules, resolve
        The call rules, and the name resolver.
    is_tls
        Whether connections use TLS.
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
            raise NotAllowed(next(filter(None, refusals.values()), "its name has no IP address"))
        failed: Exception | None = None
        ceiling = asking.get()
        for address in allowed[:TRIED_ADDRESSES]:
            if ceiling is not None:
                ceiling.check(address)
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
        raise NotAllowed("Unix sockets are not allowed")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
