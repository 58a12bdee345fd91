"""MERC: match at edge and route intra-cluster (Ji et al. 2013, section III).

Brokers form clusters; within one, routing is D-DBR, and a broker knows the brokers of its clusters only. An
edge broker belongs to several clusters. A message that reaches it from one of them gets the edge broker as
its routing source and goes on: an advertisement to all brokers of the other clusters, a subscription to those
with intersecting advertisements, a record to those with matching subscriptions. The origin stays.

The paper leaves open what several edges between two clusters do. Here clusters form a tree without loops, and
for each pair of neighbouring clusters and each origin there is one designated edge: the routing source, if it
belongs to both clusters; otherwise the one that rendezvous hashing chooses among the configured edges.
Subscriptions and records follow the advertisements, so nothing comes twice. Messages for a designated edge
that has crashed wait for its return: its state is durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from fieldfare_lab.routing.strategy import Entry


@dataclass(frozen=True, slots=True)
class ClusterTree:
    """The clusters of a system, as configured alike at all its brokers.

    Parameters
    ----------
    pairs
        The pairs of clusters between which messages pass; a tree.
    edges
        The clusters of each edge broker. Those of one broker are connected in the tree.

    Raises
    ------
    ValueError
        The pairs have a loop, or are not connected; a pair has no edge broker; an edge broker's clusters are
        not connected.
    """

    pairs: tuple[tuple[str, str], ...]
    edges: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        clusters = {cluster for pair in self.pairs for cluster in pair}
        reached = self._connected(clusters, min(clusters, default=""))
        if reached != clusters or len(self.pairs) != max(0, len(clusters) - 1):
            raise ValueError(
                f"The pairs {self.pairs} are not a tree of clusters. Remove loops, join the parts."
            )
        for pair in self.pairs:
            if not self.between(*pair):
                raise ValueError(
                    f"No edge broker belongs to both {pair[0]!r} and {pair[1]!r}. Configure one."
                )
        for name, own in self.edges.items():
            if len(own) > 1 and self._connected(set(own), own[0]) != set(own):
                raise ValueError(
                    f"The clusters {own} of {name!r} are not neighbours in the tree of clusters."
                )

    def neighbours(self, cluster: str) -> list[str]:
        """Return the clusters next to one in the tree."""
        return sorted({each for pair in self.pairs if cluster in pair for each in pair} - {cluster})

    def between(self, a: str, b: str) -> list[str]:
        """Return the edge brokers that belong to two clusters."""
        return sorted(name for name, own in self.edges.items() if a in own and b in own)

    def designated(self, a: str, b: str, origin: str, source: str) -> str:
        """Return the edge broker that passes an origin's messages from cluster `a` to cluster `b`.

        `source` is their routing source in `a`.
        """
        candidates = self.between(a, b)
        if source in candidates:
            return source

        def weight(name: str) -> bytes:
            return blake2b(repr((sorted((a, b)), origin, name)).encode(), digest_size=8).digest()

        return max(candidates, key=weight)

    def _connected(self, clusters: set[str], start: str) -> set[str]:
        reached, waiting = set(), [start]
        while waiting:
            cluster = waiting.pop()
            if cluster in clusters and cluster not in reached:
                reached.add(cluster)
                waiting.extend(self.neighbours(cluster))
        return reached


@dataclass(frozen=True, slots=True)
class Merc:
    """MERC, as one broker follows it.

    Parameters
    ----------
    me
        The broker's name.
    clusters
        The clusters that it belongs to: one, or for an edge broker several.
    tree
        The clusters of the system.

    Raises
    ------
    ValueError
        The broker belongs to several clusters, and is not an edge broker of them in `tree`.
    """

    me: str
    clusters: tuple[str, ...]
    tree: ClusterTree
    is_direct: bool = False
    uses_covering: bool = False

    def __post_init__(self) -> None:
        if len(self.clusters) > 1 and set(self.tree.edges.get(self.me, ())) != set(self.clusters):
            raise ValueError(f"{self.me!r} is not configured as an edge broker of {self.clusters}.")

    def group(self, peer: str, group: str) -> str:
        return group

    def own(self, neighbours: Iterable[str]) -> list[Entry]:
        return [(cluster, self.clusters[: i + 1]) for i, cluster in enumerate(self.clusters)]

    def passed_on(
        self, origin: str, source: str, group: str, path: tuple[str, ...], neighbours: Iterable[str]
    ) -> list[Entry]:
        entries: list[Entry] = []
        waiting = [(group, path, source)]
        while waiting:
            cluster, path, source = waiting.pop()
            for beyond in self.tree.neighbours(cluster):
                if beyond in path or beyond not in self.clusters:
                    continue
                designated = self.tree.designated(cluster, beyond, origin, source)
                if designated == self.me:
                    entries.append((beyond, (*path, beyond)))
                waiting.append((beyond, (*path, beyond), designated))
        return sorted(entries)

    def is_other_way(self, path: tuple[str, ...]) -> bool:
        return any(cluster in self.clusters for cluster in path[:-1])

    def is_forged(self, origin: str, source: str) -> bool:
        return origin != source and source not in self.tree.edges
