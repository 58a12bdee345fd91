"""Topology of one cluster: the TRT, and the SPRT made from it.

The TRT (topology routing table) holds one row for each broker: its links that are up. A row has a version and
only its own broker writes it; rows are flooded, and a link that comes up begins with an exchange of all rows.
A link counts if both its brokers list it.

The SPRT (shortest path routing table) holds the next hop for each (source, destination). Paths are those of
one tree for each source, which every broker computes alike from its TRT: so the paths to several destinations
meet in no broker again after they have parted, and a message crosses each link once. A broker that is not on
the source's path, because the topology changed meanwhile, follows its own tree. Either step comes one hop
nearer to the destination.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from heapq import heappop, heappush

from fieldfare.routing.messages import LinkRow


@dataclass(slots=True)
class Overlay:
    """One broker's knowledge of its cluster.

    Parameters
    ----------
    by_latency
        Whether the shortest path is the one of least latency. Default: of fewest hops.
    """

    me: str
    by_latency: bool = False
    rows: dict[str, LinkRow] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    _hops: dict[str, dict[str, str]] = field(default_factory=dict)
    _neighbours: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    _digest: str = ""

    def merge(self, rows: Iterable[LinkRow]) -> list[LinkRow]:
        """Add rows that are newer than the known ones; return them."""
        newer = []
        for row in rows:
            known = self.rows.get(row.name)
            if row.name in self.removed:
                continue
            if known is None or row.is_removed or row.version > known.version:
                self.rows[row.name] = row
                if row.is_removed:
                    self.removed.add(row.name)
                newer.append(row)
        if newer:
            self._hops.clear()
            self._neighbours.clear()
            self._digest = ""
        return newer

    def members(self) -> list[str]:
        """Return the names of the brokers that were not removed, in order."""
        return sorted(self.rows.keys() - self.removed)

    def digest(self) -> str:
        """Return a digest of the versions of all rows."""
        if not self._digest:
            text = repr(sorted((row.name, row.version, row.is_removed) for row in self.rows.values()))
            self._digest = blake2b(text.encode(), digest_size=16).hexdigest()
        return self._digest

    def neighbours(self, name: str) -> list[tuple[str, float]]:
        """Return (neighbour, latency in ms) for each link of a broker that both its ends list."""
        if name not in self._neighbours:
            row = self.rows.get(name)
            self._neighbours[name] = [
                (peer, latency_ms)
                for peer, latency_ms in (row.links if row and not row.is_removed else ())
                if (other := self.rows.get(peer))
                and not other.is_removed
                and any(back == name for back, _ in other.links)
            ]
        return self._neighbours[name]

    def next_hop(self, source: str, destination: str) -> str | None:
        """Return the neighbour to which a message goes next, or None where there is no path."""
        return self._from_here(source).get(destination) or self._from_here(self.me).get(destination)

    def _from_here(self, root: str) -> dict[str, str]:
        """Return the next hop from this broker to each destination below it in the tree of `root`."""
        if root not in self._hops:
            hops: dict[str, str] = {}
            for name, parent in self.tree(root).items():
                if parent == self.me:
                    hops[name] = name
                elif parent in hops:
                    hops[name] = hops[parent]
            self._hops[root] = hops
        return self._hops[root]

    def parted_by(self, name: str, among: Collection[str]) -> list[str]:
        """Return brokers `among` which the first of these could not reach if `name` passed nothing on."""
        others = sorted(self.tree(name).keys() & set(among))
        if not others:
            return []
        leaf = replace(self.rows[name], is_leaf=True)
        reached = Overlay(self.me, self.by_latency, {**self.rows, name: leaf}).tree(others[0])
        return [each for each in others[1:] if each not in reached]

    def tree(self, root: str) -> dict[str, str]:
        """Return the parent of each broker in the tree of shortest paths from `root`, nearest brokers first.

        Of several shortest paths the one over the least parent is taken. None leads through a leaf.
        """
        parents: dict[str, str] = {}
        waiting: list[tuple[float, str, str]] = [(0.0, "", root)]
        done: set[str] = set()
        while waiting:
            length, parent, name = heappop(waiting)
            if name in done:
                continue
            done.add(name)
            if name != root:
                parents[name] = parent
                if self.rows[name].is_leaf:
                    continue
            for peer, latency_ms in self.neighbours(name):
                if peer not in done:
                    heappush(waiting, (length + (latency_ms if self.by_latency else 1.0), name, peer))
        return parents
