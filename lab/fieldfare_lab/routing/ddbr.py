"""D-DBR, dynamic destination-based routing (Ji et al. 2013, section II).

An advertisement goes to all brokers, a subscription to the brokers with intersecting advertisements, an event
to the brokers with matching subscriptions. Nothing is stored in between; an event is matched at its source
and at its destinations only, and the topology does not matter to the matching tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fieldfare_lab.routing.strategy import Entry


@dataclass(frozen=True, slots=True)
class Ddbr:
    """D-DBR: one cluster without edges."""

    clusters: tuple[str, ...] = ("",)
    is_direct: bool = False
    uses_covering: bool = False

    def group(self, peer: str, group: str) -> str:
        return group

    def own(self, neighbours: Iterable[str]) -> list[Entry]:
        return [("", ())]

    def passed_on(
        self, origin: str, source: str, group: str, path: tuple[str, ...], neighbours: Iterable[str]
    ) -> list[Entry]:
        return []

    def is_other_way(self, path: tuple[str, ...]) -> bool:
        return False

    def is_forged(self, origin: str, source: str) -> bool:
        return origin != source
