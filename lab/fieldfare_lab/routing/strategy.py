"""Differences of the protocols: the receivers of an advertisement, and which messages are forged.

Everything else follows from it: a subscription goes back along the way of the advertisements that it
intersects, and a record along the way of the subscriptions that it matches. A broker that passes an
advertisement on puts itself in the place of the routing source, so that subscriptions come to it, and it
matches records against them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

Entry = tuple[str, tuple[str, ...]]
"""A group that an advertisement enters, and its path there."""


class Strategy(Protocol):
    """A routing protocol, as one broker follows it.

    Attributes
    ----------
    clusters
        The clusters whose topology the broker keeps; none in FBR.
    is_direct
        Whether a destination is always a neighbour.
    uses_covering
        Whether a subscription that a wider one covers is not stored at the next hop.
    """

    @property
    def clusters(self) -> tuple[str, ...]: ...
    @property
    def is_direct(self) -> bool: ...
    @property
    def uses_covering(self) -> bool: ...

    def group(self, peer: str, group: str) -> str:
        """Return the group in which a message that came from a neighbour is processed."""

    def own(self, neighbours: Iterable[str]) -> list[Entry]:
        """Return the groups that a local advertisement enters."""

    def passed_on(
        self, origin: str, source: str, group: str, path: tuple[str, ...], neighbours: Iterable[str]
    ) -> list[Entry]:
        """Return the groups into which this broker passes an advertisement that came in a group."""

    def is_other_way(self, path: tuple[str, ...]) -> bool:
        """Return whether an advertisement also comes another way, so that this copy is ignored."""

    def is_forged(self, origin: str, source: str) -> bool:
        """Return whether an origin's content cannot come from a routing source."""
