"""Worlds of brokers in which the paper's sentences are checked."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "lab" / "routing"))

from explorer import CLUSTERS, clustered
from routing_support import Range, World

from fieldfare.effects import Received
from fieldfare_lab.routing import (
    Broker,
    Ddbr,
    Fbr,
)
from fieldfare_lab.routing.messages import (
    Content,
    Forward,
    LinkState,
    Routed,
    SetAdvertisement,
)


class Observed(World):
    """A world that notes what crosses each link."""

    crossed: list[tuple[str, str, Routed]]
    link_states: list[tuple[str, str, LinkState]]

    def observe(self) -> None:
        self.crossed, self.link_states = [], []
        self.write = self._note

    def _note(self, way: str, name: str, message: object) -> None:
        if way == "to" and isinstance(message, Received):
            if isinstance(message.message, Forward):
                self.crossed.append((message.sender, name, message.message.routed))
            elif isinstance(message.message, LinkState):
                self.link_states.append((message.sender, name, message.message))

    def broker(self, name: str) -> Broker:
        broker = self.sites[name].broker
        assert broker is not None
        return broker

    def contents(self, kind: type[Content], to: str | None = None) -> list[tuple[str, str, Routed]]:
        """(sender, receiver, routed) of contents of a type, and with this destination at their receiver."""
        return [
            each
            for each in self.crossed
            if isinstance(each[2].content, kind)
            and (to is None or (each[1] == to and to in each[2].destinations))
        ]

    def done(self) -> None:
        self.run(3)
        assert self.settle()


def world(protocol: str, edges: str, ads: dict[str, tuple[int, int]] | None = None) -> Observed:
    """Links such as ``A-B B-C``, and what brokers advertise; others advertise what no event is."""
    pairs = [tuple(pair.split("-")) for pair in edges.split()]
    built = Observed(0, lambda _: Ddbr() if protocol == "ddbr" else Fbr())
    return _begun(built, pairs, ads or {}, lambda a, b: ("",))


def clusters(text: str = CLUSTERS[0], ads: dict[str, tuple[int, int]] | None = None) -> Observed:
    """Clusters and their links; the default is Figure 2."""
    edges, strategy, groups = clustered(text)
    return _begun(Observed(0, strategy), list(edges), ads or {}, groups)


def _begun(built: Observed, pairs: list, ads: dict[str, tuple[int, int]], groups) -> Observed:  # type: ignore
    for name in sorted({name for pair in pairs for name in pair}):
        built.add(name, [("ad", Range(*ads.get(name, (1000, 1000))))])
    for a, b in pairs:
        built.link(a, b, *groups(a, b))
    built.done()
    built.observe()
    return built


__all__ = ["Observed", "Range", "SetAdvertisement", "clusters", "world"]
