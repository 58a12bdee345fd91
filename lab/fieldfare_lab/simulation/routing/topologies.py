"""Overlays of brokers: lines, trees, and general topologies of clusters with cycles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Topology:
    """Brokers, links, and the clusters in which MERC arranges them.

    Attributes
    ----------
    clusters
        The members of each cluster; an edge broker is a member of several.
    links
        Each link with the clusters to which it belongs.
    tree
        The pairs of neighbouring clusters.
    """

    clusters: dict[str, tuple[str, ...]]
    links: dict[Pair, tuple[str, ...]]
    tree: tuple[Pair, ...]

    @property
    def brokers(self) -> list[str]:
        """The names of all brokers, in order."""
        return sorted({name for members in self.clusters.values() for name in members})

    @property
    def edges(self) -> list[str]:
        """The names of the edge brokers, in order."""
        return [name for name in self.brokers if len(self.clusters_of(name)) > 1]

    def clusters_of(self, broker: str) -> tuple[str, ...]:
        """Return the clusters of a broker."""
        return tuple([name for name, members in self.clusters.items() if broker in members])


def _topology(clusters: dict[str, tuple[str, ...]], pairs: list[Pair], tree: list[Pair]) -> Topology:
    groups = {
        pair: tuple([name for name, members in clusters.items() if set(pair) <= set(members)])
        for pair in pairs
    }
    return Topology(clusters, groups, tuple(tree))


def line(brokers: int, cluster_size: int = 4) -> Topology:
    """Return a line of brokers; the last broker of each cluster is the first of the next one."""
    names = [f"b{number:04}" for number in range(brokers)]
    if brokers <= cluster_size:
        cluster_size = (brokers + 2) // 2
    clusters = {
        f"c{first:04}": tuple(names[first : first + cluster_size])
        for first in range(0, brokers - 1, cluster_size - 1)
    }
    order = list(clusters)
    return _topology(clusters, list(pairwise(names)), list(pairwise(order)))


def clustered(
    brokers: int, rng: Random, cluster_size: int = 10, edges: int = 2, further_links: float = 0.5
) -> Topology:
    """Return a random general topology: a tree of clusters, each of which is a connected graph.

    Parameters
    ----------
    edges
        Edge brokers between two neighbouring clusters; with one and no further links, the overlay is a tree.
    further_links
        Links of a cluster beyond those that connect it, as a share of its members; they make cycles.
    """
    count = -(-brokers // cluster_size)
    names = [f"b{number:04}" for number in range(brokers)]
    members = [names[number * cluster_size : (number + 1) * cluster_size] for number in range(count)]
    own, tree = [list(each) for each in members], []
    for number in range(1, count):
        parent = rng.randrange(max(0, number - 3), number)
        tree.append((f"c{parent:04}", f"c{number:04}"))
        members[number] += rng.sample(own[parent], min(edges, len(own[parent])))
    return _linked(members, tree, further_links, rng)


def hierarchy(
    brokers: int, rng: Random, below: int = 9, edges: int = 2, further_links: float = 0.5
) -> Topology:
    """Return a random topology of two levels: a backbone whose brokers are edges of the clusters below it.

    Parameters
    ----------
    below
        Clusters below the backbone.
    edges
        Edge brokers of each of them; each broker of the backbone is one of them.
    further_links
        See `clustered`.
    """
    names = [f"b{number:04}" for number in range(brokers)]
    size = below * edges
    backbone, others = names[:size], names[size:]
    order = rng.sample(backbone, size)
    members = [
        backbone,
        *(others[n::below] + order[n * edges : (n + 1) * edges] for n in range(below)),
    ]
    tree = [("c0000", f"c{number:04}") for number in range(1, below + 1)]
    return _linked(members, tree, further_links, rng)


def _linked(members: list[list[str]], tree: list[Pair], further_links: float, rng: Random) -> Topology:
    """Connect the members of each cluster at random."""
    pairs: set[Pair] = set()
    for each in members:
        order = rng.sample(each, len(each))
        wanted = len(each) - 1 + int(further_links * len(each))
        found = {_pair(name, rng.choice(order[:place])) for place, name in enumerate(order) if place}
        while len(found) < min(wanted, len(each) * (len(each) - 1) // 2):
            found.add(_pair(*rng.sample(each, 2)))
        pairs |= found
    return _topology({f"c{n:04}": tuple(each) for n, each in enumerate(members)}, sorted(pairs), tree)


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a < b else (b, a)
