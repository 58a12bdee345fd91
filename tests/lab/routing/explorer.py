"""A random explorer: histories of a few brokers in which everything happens at once, checked at the end.

    python tests/lab/routing/explorer.py PROTOCOL [FIRST_SEED] [COUNT]

explores one history for each seed and prints what is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))

from routing_support import VALUES, Range, World

from fieldfare_lab.routing import (
    Broker,
    BrokerSettings,
    ClusterTree,
    Ddbr,
    Fbr,
    Merc,
)
from fieldfare_lab.routing.strategy import Strategy

Edges = tuple[tuple[str, str], ...]
PROTOCOLS = ("ddbr", "fbr", "fbr-covering", "merc")
CLUSTERS = (
    # Figure 2.
    "A: A1-A2 A1-AB A2-AB; B: AB-B1 B1-B2 AB-B2; A/B",
    # Two edge brokers between two clusters.
    "A: A1-E A1-F E-F; B: E-B1 F-B1 E-F; A/B",
    # Three clusters in a line, and about one broker.
    "A: A1-E; B: E-B1 B1-F; C: F-C1; A/B B/C",
    "A: A1-X; B: X-B1; C: X-C1; A/B A/C",
    # An edge broker of three clusters beside one of two.
    "A: A1-X A1-Y; B: X-B1 Y-B1; C: X-C1 C1-C2; A/B A/C",
    "A: A1-E A1-F; B: E-G F-G E-H; C: G-C1 H-C1; A/B B/C",
)
"""Links of each cluster, and the pairs of clusters."""
SETTINGS = BrokerSettings(beat_s=0.5, resend_after_s=0.7, settle_after_s=0.4, list_names_max=0)


def topologies(brokers: int) -> Iterator[Edges]:
    """All connected topologies of some brokers, of equal ones one."""
    names = "ABCDEFG"[:brokers]
    pairs = list(combinations(names, 2))
    seen = set()
    for size in range(brokers - 1, len(pairs) + 1):
        for edges in combinations(pairs, size):
            degrees = tuple(sorted(sum(name in edge for edge in edges) for name in names))
            if is_connected(names, edges) and (size, degrees) not in seen:
                seen.add((size, degrees))
                yield edges


def is_connected(names: str, edges: Edges) -> bool:
    reached = {names[0]}
    for _ in names:
        reached |= {name for edge in edges for name in edge if reached & set(edge)}
    return reached == set(names)


def random_topology(rng: Random) -> Edges:
    names = "ABCDEFG"[: rng.randint(5, 7)]
    edges = {(names[rng.randrange(i)], names[i]) for i in range(1, len(names))}
    pairs = [pair for pair in combinations(names, 2) if pair not in edges]
    edges |= set(rng.sample(pairs, rng.randint(0, 3)))
    return tuple(sorted(edges))


class History:
    """One history: `explore` runs it, and returns what is wrong at its end."""

    def __init__(
        self,
        seed: int,
        edges: Edges,
        strategy: Callable[[str], Strategy],
        broker: type[Broker] = Broker,
        groups: Callable[[str, str], tuple[str, ...]] = lambda a, b: ("",),
        steps: int = 60,
        crashes: bool = True,
    ) -> None:
        self.rng = Random(seed)
        self.steps = steps
        self.names = sorted({name for edge in edges for name in edge})
        self.world = world = World(seed, strategy, SETTINGS, broker)
        world.delay_s = lambda: world.rng.choice((0.01, 0.05, 0.3)) * world.rng.random()
        world.loss = self.rng.choice((0.0, 0.0, 0.1, 0.3))
        world.crash_share = self.rng.choice((0.0, 0.002, 0.01)) if crashes else 0.0
        world.late_share = self.rng.choice((0.0, 0.5))
        self.later = {name for name in self.names[1:] if self.rng.random() < 0.2}
        self.edges, self.groups = edges, groups
        for name in self.names:
            if name not in self.later:
                self._join(name)

    def _join(self, name: str) -> None:
        ads = [("ad", self._range())] if self.rng.random() < 0.5 else []
        self.world.add(name, ads)
        for a, b in self.edges:
            if name in (a, b) and a in self.world.sites and b in self.world.sites:
                self.world.link(a, b, *self.groups(a, b))

    def _range(self) -> Range:
        low = self.rng.randrange(VALUES)
        return Range(low, min(VALUES - 1, low + self.rng.choice((5, 30, 90))))

    def explore(self) -> list[str]:
        world, rng = self.world, self.rng
        for _ in range(self.steps):
            self._act()
            world.run(rng.choice((0.0, 0.02, 0.2, 1.0)))
        for name in sorted(self.later):
            self._join(name)
        world.heal_all()
        if not world.settle():
            return ["it does not come to rest"]
        found = world.faults()
        # What the history left behind must also be right for what comes later.
        world.run(5)
        if not world.settle():
            return [*found, "it does not come to rest again"]
        for name in self.names:
            for event in range(0, VALUES, 7):
                world.publish(name, event)
        if not world.settle():
            return [*found, "the last records do not arrive"]
        refused = [str(each) for site in world.sites.values() for each in site.refused]
        unexpected = [
            each for each in refused if "No advertisement" not in each and "There is no" not in each
        ]
        return found + world.faults() + self._missing() + unexpected

    def _missing(self) -> list[str]:
        """Subscriptions whose last version an origin with an intersecting advertisement does not know."""
        found = []
        for name, site in self.world.sites.items():
            assert site.broker is not None
            for each in site.broker.state.subscriptions.subscriptions.values():
                for origin, other in self.world.sites.items():
                    assert other.broker is not None
                    ads = [ad for _, ad in other.broker.state.advertisements.values()]
                    wanted = each.filter is not None and any(ad.intersects(each.filter) for ad in ads)
                    there = each.origins.get(origin)
                    if wanted and (there is None or there.version != each.version):
                        found.append(f"{origin} does not know {each.id} of {name}")
        return found

    def _act(self) -> None:
        world, rng = self.world, self.rng
        present = sorted(world.sites)
        name = rng.choice(present)
        act = rng.choices(
            ("publish", "subscribe", "unsubscribe", "advertise", "cut", "heal", "crash", "start", "join"),
            (30, 12, 5, 3, 6, 8, 2, 4, 2),
        )[0]
        if act == "publish":
            for _ in range(rng.choice((1, 3, 10))):
                world.publish(name, rng.randrange(VALUES))
        elif act == "subscribe":
            wanted = self._range()
            world.subscribe(name, rng.choice(("s", "t")), wanted.low, wanted.high)
        elif act == "unsubscribe":
            world.unsubscribe(name, rng.choice(("s", "t")))
        elif act == "advertise":
            self._advertise(name)
        elif act in ("cut", "heal") and world.links:
            pair = rng.choice(sorted(map(sorted, world.links)))
            (world.cut if act == "cut" else world.heal)(pair[0], pair[1])
        elif act == "crash":
            world.crash(name)
        elif act == "start":
            world.start(name)
        elif act == "join" and self.later:
            joining = sorted(self.later)[0]
            self.later.discard(joining)
            self._join(joining)

    def _advertise(self, name: str) -> None:
        from fieldfare_lab.routing.messages import SetAdvertisement

        filter = self._range() if self.rng.random() < 0.7 else None
        self.world.command(name, SetAdvertisement(self.rng.choice(("ad", "other")), filter))


def clustered(text: str) -> tuple[Edges, Callable[[str], Strategy], Callable[[str, str], tuple[str, ...]]]:
    """The links, the strategy of each broker and the clusters of each link of a line of `CLUSTERS`."""
    *parts, pairs = text.split("; ")
    links: dict[tuple[str, str], tuple[str, ...]] = {}
    clusters: dict[str, tuple[str, ...]] = {}
    for part in parts:
        cluster, _, pairs_text = part.partition(": ")
        for pair in pairs_text.split():
            a, b = pair.split("-")
            links[a, b] = (*links.get((a, b), ()), cluster)
            for name in (a, b):
                if cluster not in clusters.get(name, ()):
                    clusters[name] = (*clusters.get(name, ()), cluster)
    edges = {name: own for name, own in clusters.items() if len(own) > 1}
    tree = ClusterTree(tuple((a, b) for a, b in (pair.split("/") for pair in pairs.split())), edges)
    return tuple(links), lambda name: Merc(name, clusters[name], tree), lambda a, b: links[a, b]


def history(seed: int, protocol: str, broker: type[Broker] = Broker) -> History:
    """The history of a seed: the small topologies in turn, then random ones."""
    small = [edges for brokers in (2, 3, 4) for edges in topologies(brokers)]
    if protocol == "merc":
        edges, strategy, groups = clustered(CLUSTERS[seed % len(CLUSTERS)])
        return History(seed, edges, strategy, broker, groups)
    rng = Random(seed)
    edges = small[seed % len(small)] if seed % 3 else random_topology(rng)
    alike: Strategy = Ddbr() if protocol == "ddbr" else Fbr(uses_covering=protocol == "fbr-covering")
    return History(seed, edges, lambda _: alike, broker)


if __name__ == "__main__":
    protocol, first, number = (*sys.argv[1:], "0", "100")[:3] if len(sys.argv) < 4 else sys.argv[1:4]
    delivered = 0
    for seed in range(int(first), int(first) + int(number)):
        explored = history(seed, protocol)
        wrong = explored.explore()
        delivered += sum(len(site.delivered) for site in explored.world.sites.values())
        if wrong:
            print(seed, explored.edges, wrong[:6])
    print(f"{number} histories, {delivered} deliveries")
