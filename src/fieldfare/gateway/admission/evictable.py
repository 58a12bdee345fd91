"""Connections that may be closed when a new one needs their place: those without a complete request.

Idle connections and unfinished requests cost a client nothing but a held socket. A client that opens many of
them must lose its own, not those of others: the address with the most gives way, its oldest first.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Protocol

IPV6_PREFIX_BITS = 64
"""IPv6 addresses that differ behind this prefix count as one: a single machine may use them all."""


class Connected(Protocol):
    """A connection that can be closed."""

    def evict_connection(self) -> None:
        """Close: another connection needs the place."""


class Evictable:
    """A queue of connections for each address, and the addresses by the lengths of their queues.

    Every operation takes constant time: a flood may come from as many addresses as there are connections.
    """

    def __init__(self) -> None:
        self._address_of: dict[Connected, str] = {}
        self._queues: dict[str, dict[Connected, None]] = {}
        self._ranks: dict[int, dict[str, None]] = {}
        """Addresses by the length of their queues."""
        self._longest = 0

    def __len__(self) -> int:
        return len(self._address_of)

    def __contains__(self, connection: object) -> bool:
        return connection in self._address_of

    def add(self, connection: Connected, address: str) -> None:
        """Append a connection to its address's queue, as the youngest."""
        self.discard(connection)
        self._address_of[connection] = address
        queue = self._queues.setdefault(address, {})
        queue[connection] = None
        self._rank(address, len(queue) - 1, len(queue))
        self._longest = max(self._longest, len(queue))

    def discard(self, connection: Connected) -> None:
        """Remove a connection: its request is complete, or it is closed."""
        address = self._address_of.pop(connection, None)
        if address is None:
            return
        queue = self._queues[address]
        del queue[connection]
        self._rank(address, len(queue) + 1, len(queue))
        if not queue:
            del self._queues[address]
        if self._longest not in self._ranks:
            self._longest -= 1

    def _rank(self, address: str, before: int, now: int) -> None:
        if before:
            del self._ranks[before][address]
            if not self._ranks[before]:
                del self._ranks[before]
        if now:
            self._ranks.setdefault(now, {})[address] = None

    def evict_one_connection(self, connections: set[Any], connections_max: int) -> bool:
        """Close one connection if there are too many; False if none can be closed for the new one."""
        if len(connections) <= connections_max:
            return True
        if not self._address_of:
            return False
        address = next(iter(self._ranks[self._longest]))
        oldest = next(iter(self._queues[address]))
        self.discard(oldest)
        oldest.evict_connection()
        return True


def address_of(peer: Any) -> str:
    """The address that a socket's peer name counts for; empty for sockets without addresses."""
    if not isinstance(peer, tuple) or not peer:
        return ""
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return str(peer[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), IPV6_PREFIX_BITS), strict=False))
