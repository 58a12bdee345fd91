"""The client's address of a request that a proxy passes on: only trusted proxies are believed."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from fieldfare.gateway.admission.evictable import address_of

HEADER = b"x-forwarded-for"
HOPS_MAX = 16
"""Maximum addresses of a header that are read, from its end; the rest is ignored."""


class TrustedProxies:
    """The proxies whose ``X-Forwarded-For`` is believed.

    Parameters
    ----------
    networks
        The networks of the proxies' addresses, such as ``127.0.0.1`` or ``10.2.0.0/16``.
    """

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def trusts(self, peer: object) -> bool:
        """Return whether a socket's peer is a trusted proxy."""
        if not self._networks or not isinstance(peer, tuple) or not peer:
            return False
        return self._has(str(peer[0]))

    def client_address(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the address that a trusted proxy's request counts for; None if the proxy names none.

        Every proxy appends the address from which it got the request. The last address that belongs to no
        trusted proxy is the client's: a client can have written those before it.
        """
        said = b",".join(value for name, value in headers if name == HEADER)
        for each in reversed(said.rsplit(b",", HOPS_MAX)[-HOPS_MAX:]):
            text = each.decode("latin-1").strip()
            try:
                ipaddress.ip_address(text)
            except ValueError:
                return None
            if not self._has(text):
                return address_of((text,))
        return None

    def _has(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)
