"""Opening the broker of a service: its files, and the parts that are made of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fieldfare.gateway.admission.keyring import read_peer_key
from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.admission.tls import caller_context
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.federation.balancing.balancer import Balancer
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.forwarder import Forwarder
from fieldfare.gateway.federation.inbox import Inbox
from fieldfare.gateway.federation.interest import InterestSender
from fieldfare.gateway.federation.link_filters import read_link_filters
from fieldfare.gateway.federation.link_rates import LinkRates
from fieldfare.gateway.federation.links import Links
from fieldfare.gateway.federation.moving.book import MoveParts
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.gateway.federation.receipts import Receipts
from fieldfare.gateway.federation.service import Federation
from fieldfare.gateway.federation.wire import Row, decode_rows
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.peers import DDBR, FBR, LINK, MERC, BrokerSettings
from fieldfare.gateway.publishing.appender import Appender
from fieldfare.gateway.publishing.events import Limits
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.writer import Writer
from fieldfare.storage import open_brokers, open_links, open_moves
from fieldfare.storage.errors import FormatError
from fieldfare.storage.event_log import EventReader
from fieldfare.storage.links import LinkStore
from fieldfare.storage.match_log import MatchLog
from fieldfare.storage.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """The parts of a gateway that its broker uses.

    Attributes
    ----------
    key_of_space
        Returns the key of a space that may get events of other brokers; None if there is none.
    """

    log: EventReader
    match_log: MatchLog
    registry: Registry
    writer: Writer
    appender: Appender
    key_of_space: Callable[[str], str | None]
    subscriptions: Subscriptions
    deliveries: DeliveryService
    quotas: Quotas
    metrics: Metrics


def open_federation(settings: GatewaySettings, parts: GatewayParts) -> Federation | None:
    """Return the broker of a service that is one, and open its files; None for other services.

    Raises
    ------
    UnusableFile
        The file with the key or the authorities for neighbours cannot be used.
    FormatError
        The log is in Kafka, which keeps no origins of records; the registry is older than the links; the
        links were made with another routing protocol; or a file of links' filters is not valid.
    """
    if settings.broker is None:
        return None
    if settings.folder.log is not None:
        raise FormatError(f"a broker needs its log in its data directory, not in {settings.folder.log}")
    writer, registry = parts.writer, parts.registry
    store, brokers = open_links(settings.folder.links_url), open_brokers(settings.folder.registry_url)
    if store.is_new:
        # The registry may know brokers by an earlier file: their messages begin again.
        brokers.forget_brokers(writer.log_ends, time.time_ns() // 1_000_000)
    clusters = _clusters_of(settings.broker_settings, store, settings.folder.root)
    _check_revision(store, registry.revision(), settings.folder.root)
    correspondence = Correspondence(store.correspondents(), brokers.brokers(), brokers.runs())
    inbox = Inbox(
        clusters=clusters,
        store=store,
        brokers=brokers,
        correspondence=correspondence,
        appender=parts.appender,
        charge=parts.quotas.charge,
        key_of_space=parts.key_of_space,
        limits=Limits(settings.event_max_bytes),  # Other bounds held where a request was accepted.
        filter_max_bytes=settings.filter_max_bytes,
    )
    move_parts = _move_parts_of(settings, parts, clusters, store, correspondence)
    links, moves = _links_of(settings, clusters, store, correspondence), Moves(move_parts, inbox, settings)
    return Federation(
        clusters=clusters,
        store=store,
        brokers=brokers,
        correspondence=correspondence,
        links=links,
        inbox=inbox,
        interest=InterestSender(registry, store, clusters, correspondence),
        forwarder=Forwarder(
            parts.log,
            parts.match_log,
            store,
            clusters,
            correspondence,
            writer.floor,
            lambda: writer.log_ends,
        ),
        writer=writer,
        moves=moves,
        balancer=Balancer(move_parts, moves, links.board, settings, parts.metrics.balancing),
    )


def _move_parts_of(
    settings: GatewaySettings,
    parts: GatewayParts,
    clusters: Clusters,
    store: LinkStore,
    correspondence: Correspondence,
) -> MoveParts:
    """Return the parts that moves of subscriptions use."""
    return MoveParts(
        clusters=clusters,
        links=store,
        store=open_moves(settings.folder.registry_url),
        registry=parts.registry,
        correspondence=correspondence,
        writer=parts.writer,
        subscriptions=parts.subscriptions,
        deliveries=parts.deliveries,
        quotas=parts.quotas,
        log=parts.log,
        match_log=parts.match_log,
    )


def _links_of(
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


def _check_revision(store: LinkStore, revision: int, root: object) -> None:
    """Raise FormatError if other brokers know later subscriptions than the registry has."""
    told = max((each.through for each in store.correspondents().values()), default=0)
    if told > revision:
        raise FormatError(
            f"{root}: other brokers know the subscriptions up to revision {told}, but the registry has"
            f" {revision}: it was put back from a copy. Give the broker a new name, and move links.db away"
        )


def _clusters_of(own: BrokerSettings, store: LinkStore, root: object) -> Clusters:
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
