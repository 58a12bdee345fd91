"""Where a record of another broker was published, and over whom it came, as the log keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from fieldfare.model import TRANSIT

HOPS_MAX = 100
"""Maximum clusters that an event crosses; one that has crossed more is dropped, since they form a ring."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a record.

    The text is ``BROKER/PARTITION-OFFSET/STAMP``. At an edge broker, which passes the record on to its other
    clusters, ``>VIA>HOPS>`` comes before it.

    Attributes
    ----------
    place
        The broker where it was published, and its place in that broker's log.
    via
        The broker of the cluster from which it came; empty where it is not passed on.
    hops
        Number of clusters that it has crossed.
    """

    place: str
    via: str = ""
    hops: int = 1

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Return the origin that `text` writes."""
        if not text.startswith(TRANSIT):
            return cls(text)
        via, hops, place = text[1:].split(TRANSIT, 2)
        return cls(place, via, int(hops))

    @classmethod
    def received(cls, source: str, place: str, beyond: str, *, is_edge: bool) -> Self:
        """Return the origin of what a broker has received.

        Parameters
        ----------
        source, place
            The broker that sent it, and its place there.
        beyond
            What that broker says of its origin, if it has passed it on.
        is_edge
            Whether it may be passed on from here.
        """
        hops, _, found = beyond.rpartition(TRANSIT)
        via = source if is_edge else ""
        return cls(found or f"{source}/{place}", via, int(hops or 0) + 1)

    @property
    def text(self) -> str:
        """The text that the log keeps."""
        return f"{TRANSIT}{self.via}{TRANSIT}{self.hops}{TRANSIT}{self.place}" if self.via else self.place

    @property
    def beyond(self) -> str:
        """The text that is sent to the next cluster."""
        return f"{self.hops}{TRANSIT}{self.place}"

    @property
    def broker(self) -> str:
        """The broker where it was published."""
        return self.place.partition("/")[0]
