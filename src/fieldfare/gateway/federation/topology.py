"""The topology as one broker knows it: next hops, and which links are up.

The tables and the multicast are those of the machine (`routing.overlay`, `routing.multicast`); this class
translates between its messages and stored entries. Safe for several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import msgspec

from fieldfare.gateway.federation.wire import Destination, Entry, Lost, Row, encoder
from fieldfare.routing import Ddbr, new_state
from fieldfare.routing.checking import check_rows
from fieldfare.routing.links import Link
from fieldfare.routing.matching import RefusedError
from fieldfare.routing.messages import LinkRow, Routed, Settle
from fieldfare.routing.overlay import Overlay
from fieldfare.storage.links import Part

NO_PATH = ""
"""The outbox of entries whose destinations cannot be reached at present."""

LINKS_TOTAL_MAX = 10_000
"""Maximum links of all brokers together. All rows go along in one request, which must not be too large."""

_NOTHING = Settle(1)
"""Stands for an entry's content, which the multicast does not look at."""


class Topology:
    """One broker's topology.

    Parameters
    ----------
    name, identity
        The broker.
    peers
        The names of its neighbours.
    version, rows
        The version of its own row, and the rows of all brokers, as stored last.
    """

    def __init__(
        self, name: str, identity: str, peers: Iterable[str], version: int, rows: Iterable[Row]
    ) -> None:
        self._lock = threading.Lock()
        self.name = name
        self._state = new_state(name, identity, Ddbr())
        self._overlay = self._state.multicast.overlays.setdefault("", Overlay(name))
        self._state.multicast.links.update({peer: Link(peer, ("",)) for peer in peers})
        self._overlay.merge(_to_row(row) for row in rows if row.name != name)
        self.version = version
        self._write_own_row()

    def _write_own_row(self) -> None:
        self.version += 1
        links = tuple((link.peer, link.latency_ms) for link in self._links() if link.is_up)
        self._overlay.merge([LinkRow(self.name, self._state.identity, self.version, links)])

    def _links(self) -> list[Link]:
        return [link for _, link in sorted(self._state.multicast.links.items())]

    @property
    def digest(self) -> str:
        """A digest of all rows: two brokers with the same digest know the same topology."""
        with self._lock:
            return self._overlay.digest()

    @property
    def brokers(self) -> list[str]:
        """The names of all other brokers that have ever been heard of."""
        with self._lock:
            return [name for name in self._overlay.members() if name != self.name]

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all brokers, by name."""
        with self._lock:
            return tuple(
                Row(row.name, row.identity, row.version, tuple(peer for peer, _ in row.links))
                for _, row in sorted(self._overlay.rows.items())
            )

    def is_up(self, peer: str) -> bool:
        """Return whether the link to a neighbour is up."""
        return self._state.multicast.links[peer].is_up

    def set_up(self, peer: str, *, is_up: bool) -> bool:
        """Note whether the link to a neighbour is up; return whether that is a change."""
        with self._lock:
            link = self._state.multicast.links[peer]
            if link.is_up == is_up:
                return False
            link.is_up = is_up
            self._write_own_row()
            return True

    def merge(self, rows: Sequence[Row]) -> bool:
        """Add rows that are newer than the known ones; return whether there were any.

        Raises
        ------
        RefusedError
            No broker can have written a row, two brokers have the same name, or there are too many links.
        """
        given = [_to_row(row) for row in rows]
        with self._lock:
            clash = check_rows(given, self._overlay, self._state)
            if clash:
                raise RefusedError(
                    f"Two brokers have the name {min(clash)!r}: give one of them another name and an empty"
                    " data directory."
                )
            links = {name: len(row.links) for name, row in self._overlay.rows.items()}
            links |= {row.name: len(row.links) for row in given}
            if sum(links.values()) > LINKS_TOTAL_MAX:
                raise RefusedError(f"The brokers would have more than {LINKS_TOTAL_MAX} links.")
            newer = self._overlay.merge(row for row in given if row.name != self.name)
            # A row of its own that is newer was written before this broker's file was restored.
            mine = [row.version for row in given if row.name == self.name]
            if mine and max(mine) > self.version:
                self.version = max(mine)
                self._write_own_row()
                return True
            return bool(newer)

    def path(self, name: str) -> str | None:
        """Return the neighbour that is the next hop to a broker; None if there is no path."""
        with self._lock:
            hop = self._overlay.next_hop(self.name, name)
            return hop if hop in self._state.multicast.links else None

    def split(self, entry: Entry, destinations: Sequence[Destination]) -> list[Part]:
        """Return one copy of an entry for each next hop, with its part of the destinations."""
        if isinstance(entry, Lost) or not destinations:
            return []
        by_name = {each.name: each for each in destinations}
        with self._lock:
            multicast = self._state.multicast
            multicast.send(Routed("", entry.source, 0, tuple(by_name), _NOTHING))
            hops = [(link.peer, routed) for link in self._links() for routed in link.unsent]
            hops += [(NO_PATH, routed) for routed in multicast.waiting]
            multicast.waiting.clear()
            for link in self._links():
                link.unsent.clear()
        return [
            (
                hop,
                encoder.encode(
                    msgspec.structs.replace(
                        entry, destinations=tuple(by_name[name] for name in routed.destinations)
                    )
                ),
            )
            for hop, routed in hops
        ]


def _to_row(row: Row) -> LinkRow:
    return LinkRow(row.name, row.identity, row.version, tuple((peer, 1.0) for peer in row.links))
