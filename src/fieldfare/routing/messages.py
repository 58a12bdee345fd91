"""Messages between brokers, as far as the multicasting layer knows them.

Ji et al. 2013: an advertisement, a subscription and an event are routed in the same way. Each is the
``content`` of a `Routed`, which names its routing source and its destinations; a `Forward` carries a `Routed`
over one link.
"""

from __future__ import annotations

from dataclasses import dataclass

NAME_LENGTH_MAX = 200
"""Maximum characters of a broker's, cluster's, subscription's or advertisement's name."""

BROKERS_MAX = 10_000
"""Maximum brokers of a cluster; further rows, and longer destination lists, are refused."""

LINKS_MAX = 1_000
"""Maximum links of a broker in a link-state row; a longer row is refused."""

REVISION_MAX = (1 << 63) - 1
"""Largest revision, version, offset or link number; a larger one is refused."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Close a session of the link from the source, which is cut, and answer how far it came."""

    session: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The session is closed: entries up to `watermark` were received, later ones are refused."""

    session: int
    watermark: int


@dataclass(frozen=True, slots=True)
class Routed:
    """A content with its routing source and destinations in one cluster.

    Attributes
    ----------
    group
        The cluster (MERC); empty in D-DBR; for FBR, see there.
    source
        The broker that matched it: the origin, or an edge broker that replaced the source.
    stamp
        The source's revision when it was sent.
    """

    group: str
    source: str
    stamp: int
    destinations: tuple[str, ...]
    content: object


@dataclass(frozen=True, slots=True)
class Forward:
    """One entry of a link's outbox.

    Attributes
    ----------
    bitmap
        The destinations, in place of names: see ``destinations``.
    """

    session: int
    number: int
    routed: Routed
    bitmap: bytes | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """Entries up to `number` are stored by the receiver."""

    session: int
    number: int


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A broker's links that are up, as it tells all others of its cluster.

    Attributes
    ----------
    identity
        Drawn once for a broker: two brokers of one name differ in it.
    links
        (neighbour, latency in ms) pairs in the neighbours' order.
    is_removed
        An operator removed the broker for good; no later row counts.
    is_leaf
        The broker passes nothing on: paths begin and end at it, and do not lead through it.
    """

    name: str
    identity: str
    version: int
    links: tuple[tuple[str, float], ...]
    is_removed: bool = False
    is_leaf: bool = False
