"""The clusters of a broker, each with a topology of its own.

A broker in several clusters is an *edge broker*. Towards the brokers of one cluster it stands for all that is
in its others: they send it the events that are wanted there, and it sends them on under its own name. So
each broker knows the brokers of its own clusters only. Clusters and edge brokers form a tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fieldfare.gateway.federation.topology import Topology
from fieldfare.gateway.federation.wire import Destination, Entry, Row
from fieldfare.routing.checking import RefusedError
from fieldfare.storage.links import Part


class Clusters:
    """All topologies of one broker. Changed on one thread, read on several.

    Parameters
    ----------
    name, identity
        The broker.
    clusters
        Its clusters.
    peers
        The cluster of each neighbour.
    version, rows
        The version of its own rows, and the rows of all brokers, as stored last.
    is_relay
        Whether this broker only passes entries on.
    """

    def __init__(
        self,
        name: str,
        identity: str,
        clusters: Iterable[str],
        peers: Mapping[str, str],
        version: int,
        rows: Sequence[Row],
        *,
        is_relay: bool = False,
    ) -> None:
        self.name = name
        self._topologies = {
            cluster: Topology(
                cluster,
                name,
                identity,
                [peer for peer, its in peers.items() if its == cluster],
                version,
                [row for row in rows if row.cluster == cluster],
                is_relay=is_relay,
            )
            for cluster in clusters
        }
        self._of_peer = {peer: self._topologies[cluster] for peer, cluster in peers.items()}
        self._of_name: dict[str, str] = {}
        self._brokers: list[str] = []
        self.is_relay = is_relay
        self._refresh()

    @property
    def names(self) -> list[str]:
        """The clusters of this broker."""
        return list(self._topologies)

    @property
    def is_edge(self) -> bool:
        """Whether this broker is in several clusters."""
        return len(self._topologies) > 1

    @property
    def version(self) -> int:
        """The version of this broker's newest row."""
        return max(each.version for each in self._topologies.values())

    @property
    def brokers(self) -> list[str]:
        """The names of all other brokers of these clusters that were ever heard of and are not removed.

        Relays are not among them: nothing is for them.
        """
        return self._brokers

    @property
    def heeding(self) -> frozenset[str]:
        """The names of the brokers that can be told what others publish."""
        return frozenset[str]().union(*(each.heeding for each in self._topologies.values()))

    @property
    def removed(self) -> frozenset[str]:
        """The names of the other brokers that were removed for good."""
        return frozenset[str]().union(*(each.removed for each in self._topologies.values()))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all brokers of all these clusters."""
        return tuple(row for each in self._topologies.values() for row in each.rows)

    @property
    def is_leaving(self) -> bool:
        """Whether this broker is leaving: others send nothing through it."""
        return any(each.is_leaving for each in self._topologies.values())

    def set_leaving(self, *, is_leaving: bool) -> None:
        """Say whether this broker is leaving."""
        for each in self._topologies.values():
            each.set_leaving(is_leaving=is_leaving)

    @property
    def has_left(self) -> bool:
        """Whether this broker has left for good."""
        return any(each.has_left for each in self._topologies.values())

    def leave(self) -> None:
        """Leave for good."""
        for each in self._topologies.values():
            each.leave()

    @property
    def rows_after_leaving(self) -> tuple[Row, ...]:
        """All rows as they are once this broker has left."""
        mine = {"links": (), "is_removed": True, "is_leaving": False}
        return tuple(
            msgspec.structs.replace(row, **mine) if row.name == self.name else row for row in self.rows
        )

    def parted_by_leaving(self) -> list[str]:
        """Return brokers that some of the others reach through this one only."""
        return [name for each in self._topologies.values() for name in each.parted_by_leaving()]

    def cluster_of(self, name: str) -> str | None:
        """Return the cluster of another broker; None if it is not known."""
        return self._of_name.get(name)

    def members(self, cluster: str | None) -> list[str]:
        """Return the other brokers of a cluster."""
        return [name for name, its in self._of_name.items() if its == cluster]

    def cluster_of_peer(self, peer: str) -> str:
        """Return the cluster of the link to a neighbour."""
        return self._of_peer[peer].cluster

    def digest(self, peer: str) -> str:
        """Return a digest of the topology of a neighbour's cluster."""
        return self._of_peer[peer].digest

    def rows_for(self, peer: str) -> tuple[Row, ...]:
        """Return the rows of a neighbour's cluster."""
        return self._of_peer[peer].rows

    def is_up(self, peer: str) -> bool:
        """Return whether the link to a neighbour is up."""
        return self._of_peer[peer].is_up(peer)

    def set_up(self, peer: str, *, is_up: bool) -> bool:
        """Note whether the link to a neighbour is up; return whether that is a change."""
        has_changed = self._of_peer[peer].set_up(peer, is_up=is_up)
        if has_changed:
            self._refresh()
        return has_changed

    def remove(self, name: str) -> None:
        """Remove another broker for good."""
        self._topologies[self._of_name[name]].remove(name)
        self._refresh()

    def merge(self, peer: str, rows: Sequence[Row]) -> bool:
        """Add rows from a neighbour that are newer than the known ones; return whether there were any.

        Raises
        ------
        RefusedError
            See `Topology.merge`; or a row is of another cluster, or of a broker that is in another, too.
        """
        topology = self._of_peer[peer]
        for row in rows:
            if row.cluster != topology.cluster:
                raise RefusedError(f"The row of {row.name!r} is of the cluster {row.cluster!r}.")
            if row.name != self.name and self._of_name.get(row.name, row.cluster) != row.cluster:
                raise RefusedError(
                    f"The broker {row.name!r} is in the clusters {row.cluster!r} and"
                    f" {self._of_name[row.name]!r}, and so is this one: two brokers may share only one"
                    " cluster."
                )
        is_new = topology.merge(rows, peer, self._elsewhere(topology))
        return self._refresh() or is_new

    def _elsewhere(self, topology: Topology) -> dict[str, str]:
        """Return a cluster of this broker, its others, and those beyond them, each with the way there.

        Clusters without a link that is up do not count: of a ring, the last link is refused, and no other.
        """
        here = f"over this broker, {self.name!r}"
        found = {topology.cluster: here} if topology.cluster else {}
        for other in self._topologies.values():
            if other is not topology and other.has_links:
                found[other.cluster] = here
                for name, clusters in other.beyond().items():
                    found |= dict.fromkeys(clusters, f"over the broker {name!r}")
        return found

    def _refresh(self) -> bool:
        """Renew what follows from all rows; return whether a row of this broker has changed."""
        self._of_name = {
            name: topology.cluster for topology in self._topologies.values() for name in topology.brokers
        }
        relays = frozenset[str]().union(*(each.relays for each in self._topologies.values()))
        self._brokers = sorted(self._of_name.keys() - relays)
        has_changed = False
        for topology in self._topologies.values():
            beyond = set(self._elsewhere(topology)) - {topology.cluster}
            has_changed |= topology.set_beyond(beyond)
        return has_changed

    def path(self, name: str) -> str | None:
        """Return the neighbour that is the next hop to a broker; None if there is no path."""
        cluster = self._of_name.get(name)
        return None if cluster is None else self._topologies[cluster].path(name)

    def are_linked(self, one: str, other: str) -> bool:
        """Return whether a broker says that its link to another one is up."""
        return any(each.are_linked(one, other) for each in self._topologies.values())

    def split(self, entry: Entry, destinations: Sequence[Destination]) -> list[Part]:
        """Return one copy of an entry for each next hop, with its part of the destinations."""
        first = next(iter(self._topologies))
        by_cluster: dict[str, list[Destination]] = {}
        for each in destinations:
            # Of a removed broker no cluster is known any more: another one's topology would let it wait.
            if each.name in self._of_name or each.name not in self.removed:
                by_cluster.setdefault(self._of_name.get(each.name, first), []).append(each)
        return [
            part
            for cluster, some in by_cluster.items()
            for part in self._topologies[cluster].split(entry, some)
        ]
