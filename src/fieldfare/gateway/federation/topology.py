"""The topology of one cluster as a broker knows it: next hops, and which links are up.

The tables are those of `routing.overlay`; this class translates between its rows and stored entries. Safe for
several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fieldfare.gateway.federation.wire import Destination, Entry, Lost, Row, encoder
from fieldfare.routing.checking import RefusedError, check_rows
from fieldfare.routing.messages import LinkRow
from fieldfare.routing.overlay import Overlay
from fieldfare.storage.links import Part

NO_PATH = ""
"""The outbox of entries whose destinations cannot be reached at present."""

LINKS_TOTAL_MAX = 10_000
"""Maximum links of all brokers together. All rows go along in one request, which must not be too large."""

LATENCY_MS = 1.0
"""Latency of every link in link-state rows: shortest paths are those of fewest hops."""

REMOVED_VERSION = 0
"""Version of the row of a removed broker, alike at all brokers, so that their digests agree."""


class Topology:
    """One broker's topology of one of its clusters.

    Parameters
    ----------
    cluster
        The cluster.
    name, identity
        The broker.
    peers
        The names of its neighbours in the cluster.
    version, rows
        The version of its own row, and the rows of all brokers, as stored last.
    is_relay
        Whether this broker only passes entries on.
    """

    def __init__(
        self,
        cluster: str,
        name: str,
        identity: str,
        peers: Iterable[str],
        version: int,
        rows: Sequence[Row],
        *,
        is_relay: bool = False,
    ) -> None:
        self._lock = threading.Lock()
        self.cluster = cluster
        self.name = name
        self._beyond = {row.name: row.beyond for row in rows if row.name != name}
        self._relays = {row.name for row in rows if row.is_relay and row.name != name}
        if is_relay:
            self._relays.add(name)
        self._heeding = {row.name for row in rows if row.heeds_advertisements and row.name != name}
        if not is_relay:
            self._heeding.add(name)
        self._identity = identity
        self._overlay = Overlay(name)
        self._is_up = dict.fromkeys(sorted(peers), False)
        """Whether the link to each neighbour is up."""
        # Among the stored rows its own one is of a removed broker only if this broker has left by itself.
        self._overlay.merge(_to_row(row) for row in rows if row.name != name or row.is_removed)
        self.is_leaving = any(row.name == name and row.is_leaving for row in rows)
        """Whether this broker is leaving, so that others send nothing through it."""
        self.version = version
        self._write_own_row()

    def _write_own_row(self) -> None:
        self.version += 1
        links = tuple((peer, LATENCY_MS) for peer, is_up in self._is_up.items() if is_up)
        row = LinkRow(self.name, self._identity, self.version, links, is_leaf=self.is_leaving)
        self._overlay.merge([row])

    @property
    def digest(self) -> str:
        """A digest of all rows: two brokers with the same digest know the same topology."""
        with self._lock:
            return self._overlay.digest()

    @property
    def brokers(self) -> list[str]:
        """The names of all other brokers that were ever heard of and are not removed."""
        with self._lock:
            return [name for name in self._overlay.members() if name != self.name]

    @property
    def relays(self) -> frozenset[str]:
        """The names of the brokers that only pass entries on."""
        with self._lock:
            return frozenset(self._relays)

    @property
    def heeding(self) -> frozenset[str]:
        """The names of the brokers that can be told what others publish."""
        with self._lock:
            return frozenset(self._heeding)

    @property
    def removed(self) -> frozenset[str]:
        """The names of the other brokers that were removed for good."""
        with self._lock:
            return frozenset(self._overlay.removed - {self.name})

    @property
    def has_left(self) -> bool:
        """Whether this broker has left for good."""
        with self._lock:
            return self.name in self._overlay.removed

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all brokers, by name."""
        with self._lock:
            return tuple(
                Row(
                    row.name,
                    row.identity,
                    row.version,
                    tuple(peer for peer, _ in row.links),
                    self.cluster,
                    self._beyond.get(row.name, ()),
                    row.is_removed,
                    row.is_leaf,
                    row.name in self._relays,
                    row.name in self._heeding,
                )
                for _, row in sorted(self._overlay.rows.items())
            )

    def is_up(self, peer: str) -> bool:
        """Return whether the link to a neighbour is up."""
        return self._is_up[peer]

    def set_up(self, peer: str, *, is_up: bool) -> bool:
        """Note whether the link to a neighbour is up; return whether that is a change."""
        with self._lock:
            if self._is_up[peer] == is_up or peer in self._overlay.removed:
                return False
            self._is_up[peer] = is_up
            self._write_own_row()
            return True

    def remove(self, name: str) -> None:
        """Remove another broker for good."""
        with self._lock:
            identity = self._overlay.rows[name].identity
            self._overlay.merge([_left(name, identity)])
            self._leave_removed()

    def set_leaving(self, *, is_leaving: bool) -> None:
        """Say whether this broker is leaving."""
        with self._lock:
            self.is_leaving = is_leaving
            self._write_own_row()

    def leave(self) -> None:
        """Leave for good: this broker's own row is that of a removed one."""
        with self._lock:
            self._overlay.merge([_left(self.name, self._identity)])

    def parted_by_leaving(self) -> list[str]:
        """Return brokers that some of the others reach through this one only."""
        with self._lock:
            return self._overlay.parted_by(self.name, self._overlay.rows.keys() - self._relays)

    def _leave_removed(self) -> None:
        """Take links to removed brokers down."""
        left = [peer for peer, is_up in self._is_up.items() if is_up and peer in self._overlay.removed]
        self._is_up |= dict.fromkeys(left, False)
        if left:
            self._write_own_row()

    def set_beyond(self, clusters: Iterable[str]) -> bool:
        """Set the clusters that are reached over this broker; return whether that is a change."""
        beyond = tuple(sorted(clusters))
        with self._lock:
            if self._beyond.get(self.name, ()) == beyond:
                return False
            self._beyond[self.name] = beyond
            self._write_own_row()
            return True

    @property
    def has_links(self) -> bool:
        """Whether another broker can be reached."""
        with self._lock:
            return bool(self._overlay.tree(self.name))

    def beyond(self) -> dict[str, tuple[str, ...]]:
        """Return the clusters that are reached over each other broker that can be reached here."""
        with self._lock:
            return self._reachable(self._overlay, self._beyond)

    def _reachable(
        self, overlay: Overlay, beyond: Mapping[str, tuple[str, ...]], peer: str | None = None
    ) -> dict[str, tuple[str, ...]]:
        names = {*overlay.tree(self.name), *(() if peer is None else (peer, *overlay.tree(peer)))}
        return {name: beyond[name] for name in sorted(names - {self.name}) if beyond.get(name)}

    def merge(self, rows: Sequence[Row], peer: str, elsewhere: Mapping[str, str]) -> bool:
        """Add rows that are newer than the known ones; return whether there were any.

        Parameters
        ----------
        peer
            The neighbour that has sent them.
        elsewhere
            The clusters of this broker, and those beyond them, each with a word about the way there.

        Raises
        ------
        RefusedError
            No broker can have written a row, two brokers have the same name, there are too many links, or
            the clusters form a ring.
        """
        given = [_to_row(row) for row in rows if row.name != self.name or not row.is_removed]
        with self._lock:
            clash = check_rows(given, self._overlay, self._identity)
            if clash:
                raise RefusedError(
                    f"Two brokers have the name {min(clash)!r}: give one of them another name and an empty"
                    " data directory."
                )
            links = {name: len(row.links) for name, row in self._overlay.rows.items()}
            links |= {row.name: len(row.links) for row in given}
            if sum(links.values()) > LINKS_TOTAL_MAX:
                raise RefusedError(f"The brokers would have more than {LINKS_TOTAL_MAX} links.")
            self._check_ring(rows, peer, elsewhere)
            newer = self._overlay.merge(row for row in given if row.name != self.name)
            written = {row.name: row for row in rows}
            self._beyond.update((row.name, written[row.name].beyond) for row in newer)
            for row in newer:
                (self._relays.add if written[row.name].is_relay else self._relays.discard)(row.name)
                heeds = written[row.name].heeds_advertisements
                (self._heeding.add if heeds else self._heeding.discard)(row.name)
            self._leave_removed()
            # A row of its own that is newer was written before this broker's file was restored.
            mine = [row.version for row in given if row.name == self.name]
            if mine and max(mine) > self.version:
                self.version = max(mine)
                self._write_own_row()
                return True
            return bool(newer)

    def _check_ring(self, rows: Sequence[Row], peer: str, elsewhere: Mapping[str, str]) -> None:
        known = {name: row.version for name, row in self._overlay.rows.items()}
        newer = [row for row in rows if row.name != self.name and row.version > known.get(row.name, -1)]
        if not newer or not any([*elsewhere, *self._beyond.values(), *(row.beyond for row in newer)]):
            return
        trial = Overlay(self.name, rows=dict(self._overlay.rows))
        trial.merge(map(_to_row, newer))
        beyond = self._reachable(trial, self._beyond | {row.name: row.beyond for row in newer}, peer)
        ways = dict(elsewhere)
        for name, clusters in beyond.items():
            for cluster in clusters:
                if cluster in ways:
                    raise RefusedError(
                        f"The cluster {cluster!r} would be reached over the broker {name!r} and"
                        f" {ways[cluster]}: clusters (with --routing fbr: links) must not form a ring."
                    )
                ways[cluster] = f"over the broker {name!r}"

    def path(self, name: str) -> str | None:
        """Return the neighbour that is the next hop to a broker; None if there is no path."""
        with self._lock:
            return self._next_hop(self.name, name) or None

    def _next_hop(self, source: str, name: str) -> str:
        hop = self._overlay.next_hop(source, name)
        return hop if hop in self._is_up else NO_PATH

    def are_linked(self, one: str, other: str) -> bool:
        """Return whether a broker says that its link to another one is up."""
        with self._lock:
            row = self._overlay.rows.get(one)
            return row is not None and any(peer == other for peer, _ in row.links)

    def split(self, entry: Entry, destinations: Sequence[Destination]) -> list[Part]:
        """Return one copy of an entry for each next hop, with its part of the destinations."""
        if isinstance(entry, Lost) or not destinations:
            return []
        parts: dict[str, list[Destination]] = {}
        with self._lock:
            for each in {each.name: each for each in destinations}.values():
                if each.name not in self._overlay.removed:
                    parts.setdefault(self._next_hop(entry.source, each.name), []).append(each)
        return [
            (hop, encoder.encode(msgspec.structs.replace(entry, destinations=tuple(parts[hop]))))
            for hop in (*self._is_up, NO_PATH)
            if hop in parts
        ]


def _to_row(row: Row) -> LinkRow:
    if row.is_removed:
        return _left(row.name, row.identity)
    links = tuple((peer, LATENCY_MS) for peer in row.links)
    return LinkRow(row.name, row.identity, row.version, links, is_leaf=row.is_leaving)


def _left(name: str, identity: str) -> LinkRow:
    """Return the row of a broker that was removed, or has left."""
    return LinkRow(name, identity, REMOVED_VERSION, (), is_removed=True)
