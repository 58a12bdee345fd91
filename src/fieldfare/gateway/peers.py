"""The neighbours of a broker and the clusters that it shares with them, as settings name them.

Brokers of one cluster know one another, and events go between them by destination. D-DBR is one cluster of
all brokers, MERC has several, joined by edge brokers, and with FBR each link is a cluster of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from fieldfare.gateway.names import NAME

DDBR, FBR, MERC = "ddbr", "fbr", "merc"
"""The routing protocols: by destination, by filter, and by cluster."""

LINK = "+"
"""Between the names of both ends, in the name of a cluster that is a link; no other name contains it."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A neighbour's URL, and the cluster to which the link to it belongs."""

    url: str
    cluster: str


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings that make a service a broker.

    Parameters
    ----------
    name
        The broker's name; None for a service without links.
    peers
        The neighbours, as ``NAME=URL`` or, at a broker of several clusters, ``CLUSTER/NAME=URL``.
    routing
        The routing protocol.
    clusters
        The broker's clusters; for MERC only.
    """

    name: str | None
    peers: Sequence[str] = ()
    routing: str = DDBR
    clusters: Sequence[str] = ()

    def neighbours(self) -> dict[str, Neighbour]:
        """Return the neighbours by name. Raise ValueError if one is not valid."""
        found: dict[str, Neighbour] = {}
        for peer in self.peers:
            place, _, url = peer.partition("=")
            cluster, slash, name = place.rpartition("/")
            parts = urlsplit(url)
            is_plain = not (parts.query or parts.fragment or parts.username)
            is_url = parts.scheme in ("http", "https") and parts.hostname and is_plain
            if not (NAME.fullmatch(name) and is_url):
                raise ValueError(
                    f"{peer!r} is not a neighbour: write NAME=URL, such as berlin=https://berlin.example.com:7737"
                )
            if name in found:
                raise ValueError(f"the neighbour {name!r} is named twice")
            found[name] = Neighbour(url.rstrip("/"), self._cluster_of(name, cluster, has_any=bool(slash)))
        return found

    def _cluster_of(self, name: str, cluster: str, *, has_any: bool) -> str:
        if self.routing != MERC:
            if has_any:
                raise ValueError(f"the neighbour {name!r} has a cluster, which needs --routing merc")
            return LINK.join(sorted((str(self.name), name))) if self.routing == FBR else ""
        if not has_any and len(self.clusters) == 1:
            return self.clusters[0]
        if cluster not in self.clusters:
            raise ValueError(
                f"the neighbour {name!r} needs one of this broker's clusters, as in --peer"
                f" {next(iter(self.clusters), 'north')}/{name}=URL; they are {', '.join(self.clusters)}"
            )
        return cluster

    def all_clusters(self) -> list[str]:
        """Return the clusters to which this broker belongs."""
        if self.routing == MERC:
            return list(self.clusters)
        return sorted({each.cluster for each in self.neighbours().values()}) or [""]

    def check(self, body_max_bytes: int, event_max_bytes: int, *, balances: bool = False) -> None:
        """Raise ValueError if a service with these limits, or one that `balances`, cannot be this broker."""
        needed = max(BATCH_MAX_BYTES, event_max_bytes + (1 << 20))
        if self.name is not None and body_max_bytes < needed:
            raise ValueError(
                f"a broker takes batches of {needed} bytes: set FIELDFARE_BODY_MAX_BYTES to that, or more"
            )
        options = {"--peer": self.peers, "--cluster": self.clusters, "--routing": self.routing != DDBR}
        options["--balance"] = balances
        for option, value in options.items():
            if self.name is None and value:
                raise ValueError(f"{option} needs --broker, the name of this service among its neighbours")
        if balances and self.routing != DDBR:
            raise ValueError(
                f"--balance needs --routing {DDBR}: subscriptions do not move between brokers with --routing"
                f" {self.routing}"
            )
        if (self.routing == MERC) != bool(self.clusters):
            raise ValueError("--routing merc needs --cluster NAME, and --cluster needs --routing merc")
        for cluster in self.clusters:
            if not NAME.fullmatch(cluster):
                raise ValueError(
                    f"{cluster!r} is not a valid name of a cluster: use letters, digits and _ . : @ ~ -"
                )
        if len(set(self.clusters)) != len(self.clusters):
            raise ValueError("a cluster of this broker is named twice")
        if self.name in self.neighbours():
            raise ValueError(f"the broker {self.name!r} cannot be a neighbour of itself")


BATCH_MAX_BYTES = 3 << 20
"""Maximum bytes of a batch of entries, unless one event is larger: see `federation.wire`."""
