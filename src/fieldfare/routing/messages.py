"""The row of a broker in its cluster's link state, and bounds for what brokers send each other."""

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
