"""FBR, filter-based routing (Carzaniga et al. 2001; PADRES): the baseline of Ji et al. 2013.

Advertisements are flooded. The first copy from an origin decides the parent of a broker in the origin's tree,
so that overlays may have cycles; later copies over other links are ignored. Subscriptions go hop by hop up
the tree and are stored at each hop; events go down again and are matched at each hop.

The tree belongs to the advertising broker, not to the single advertisement: an event that matches two
advertisements of one broker would otherwise come along two trees, twice. A tree does not follow the topology:
at a link that is cut messages wait until it is up again.

With covering, a hop does not store a subscription that a stored one covers: see ``covering``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fieldfare_lab.routing.strategy import Entry


@dataclass(frozen=True, slots=True)
class Fbr:
    """FBR: a group for each neighbour.

    Parameters
    ----------
    uses_covering
        Whether a subscription that a wider one covers is not stored at the next hop: see ``covering``.
    """

    clusters: tuple[str, ...] = ()
    is_direct: bool = True
    uses_covering: bool = False

    def group(self, peer: str, group: str) -> str:
        return peer

    def own(self, neighbours: Iterable[str]) -> list[Entry]:
        return [(peer, ()) for peer in neighbours]

    def passed_on(
        self, origin: str, source: str, group: str, path: tuple[str, ...], neighbours: Iterable[str]
    ) -> list[Entry]:
        return [(peer, ()) for peer in neighbours if peer != source]

    def is_other_way(self, path: tuple[str, ...]) -> bool:
        return False

    def is_forged(self, origin: str, source: str) -> bool:
        return False
