"""The clusters and links of a broker or a relay, from its settings and its file."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fieldfare.gateway.admission.keyring import read_peer_key
from fieldfare.gateway.admission.tls import caller_context
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.link_filters import read_link_filters
from fieldfare.gateway.federation.link_rates import LinkRates
from fieldfare.gateway.federation.links import Links
from fieldfare.gateway.federation.receipts import Receipts
from fieldfare.gateway.federation.wire import Row, decode_rows
from fieldfare.gateway.peers import DDBR, FBR, LINK, MERC, BrokerSettings
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.storage.errors import FormatError
from fieldfare.storage.sqlite.links import LinkStore


def links_of(
    settings: GatewaySettings, clusters: Clusters, store: LinkStore, correspondence: Correspondence
) -> Links:
    """Return the links to the neighbours that the settings name."""
    key = None if settings.peer_key_file is None else read_peer_key(settings.peer_key_file)
    own = settings.broker_settings
    return Links(
        clusters,
        store,
        routing=own.routing,
        peers={name: each.url for name, each in own.neighbours().items()},
        key=key,
        tls=caller_context(settings.peer_ca_file),
        receipts=Receipts(clusters, correspondence),
        rates=LinkRates(settings.peer_bytes_per_s, settings.peer_catch_up_bytes_per_s),
        filters=read_link_filters(settings.peer_filter_file, own.neighbours()),
    )


def clusters_of(own: BrokerSettings, store: LinkStore, root: object, *, is_relay: bool = False) -> Clusters:
    """Return the clusters of a broker, with the topology as it is stored.

    Raises
    ------
    FormatError
        The links were made with another routing protocol.
    """
    version, stored = store.row()
    rows = decode_rows(stored)
    _check_routing(own, rows, root)
    return Clusters(
        str(own.name),
        store.identity,
        own.all_clusters(),
        {name: each.cluster for name, each in own.neighbours().items()},
        max(version, time.time_ns() // 1_000_000),
        rows,
        is_relay=is_relay,
    )


def _check_routing(own: BrokerSettings, rows: Sequence[Row], root: object) -> None:
    """Raise FormatError if the links were made with another routing protocol.

    Other brokers' filters, and events that wait, are those of that protocol.
    """
    made = {MERC if row.cluster and LINK not in row.cluster else FBR if row.cluster else DDBR for row in rows}
    if any(row.name == own.name for row in rows) and made != {own.routing}:
        raise FormatError(
            f"{root}: its links were made with --routing {', '.join(sorted(made))}, not {own.routing}: give"
            " the broker a new name, and move links.db away"
        )
