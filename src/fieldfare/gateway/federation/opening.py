"""Opening the broker of a service: its files, and the parts that are made of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from fieldfare.filters import compile_filter
from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.delivery.backlogs import Backlogs
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.federation.advertisements import Advertisements
from fieldfare.gateway.federation.balancing.balancer import Balancer
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.departure import Departure, DepartureParts
from fieldfare.gateway.federation.forwarder import Forwarder
from fieldfare.gateway.federation.heeding import Heeding
from fieldfare.gateway.federation.inbox import Inbox
from fieldfare.gateway.federation.interest import InterestSender
from fieldfare.gateway.federation.linking import clusters_of, links_of
from fieldfare.gateway.federation.moving.book import MoveParts
from fieldfare.gateway.federation.moving.leaving import NOTHING
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.gateway.federation.service import Federation
from fieldfare.gateway.federation.unions import Unions
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.appender import Appender
from fieldfare.gateway.publishing.events import Limits
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.writer import Writer
from fieldfare.model import Offsets
from fieldfare.storage import open_brokers, open_links, open_moves
from fieldfare.storage.brokers import RemoteFilter
from fieldfare.storage.errors import FormatError, StorageError
from fieldfare.storage.event_log import EventReader
from fieldfare.storage.match_log import MatchLog
from fieldfare.storage.registry import Registry
from fieldfare.storage.sql.brokers import BrokerStore
from fieldfare.storage.sqlite.links import LinkStore


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """The parts of a gateway that its broker uses.

    Attributes
    ----------
    key_of_space
        Returns the key of a space that may get events of other brokers; None if there is none.
    delayed_records
        Returns the number of records that wait for their time.
    delayed_ids
        Returns the lowest and the greatest id of a space's delayed records; None without any.
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
    backlogs: Backlogs
    delayed_records: Callable[[], int]
    delayed_ids: Callable[[str], tuple[int, int] | None]


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
    clusters = clusters_of(settings.broker_settings, store, settings.folder.root)
    _check_revision(store, registry.revision(), settings.folder.root)
    correspondence = Correspondence(store.correspondents(), brokers.brokers(), brokers.runs())
    heeding = Heeding(store)

    async def next_revision() -> None:
        await writer.change(partial(_next_revision, brokers))

    inbox = _inbox_of(settings, parts, clusters, store, brokers, correspondence, heeding, next_revision)
    move_parts = _move_parts_of(settings, parts, clusters, store, correspondence)
    links, moves = links_of(settings, clusters, store, correspondence), Moves(move_parts, inbox, settings)
    forwarder = _forwarder_of(parts, store, clusters, correspondence)
    unions = Unions(store, clusters, correspondence, heeding)
    ids = partial(_delayed_ids, parts)
    advertisements = Advertisements(store, clusters, correspondence, unions, ids)
    interest = InterestSender(registry, store, clusters, correspondence, advertisements, heeding)
    balancer = Balancer(move_parts, moves, links.board, settings, parts.metrics.balancing)
    departure = Departure(
        DepartureParts(
            clusters=clusters,
            store=store,
            correspondence=correspondence,
            links=links,
            interest=interest,
            moves=moves,
            gate=parts.subscriptions.gate,
            next_revision=next_revision,
            local=partial(_local_work, parts, forwarder),
            drained=balancer.edge.drained,
        )
    )
    return Federation(
        clusters=clusters,
        store=store,
        brokers=brokers,
        correspondence=correspondence,
        links=links,
        inbox=inbox,
        interest=interest,
        forwarder=forwarder,
        writer=writer,
        moves=moves,
        balancer=balancer,
        departure=departure,
        advertisements=advertisements,
        heeding=heeding,
        filters=registry,
    )


def _forwarder_of(
    parts: GatewayParts, store: LinkStore, clusters: Clusters, correspondence: Correspondence
) -> Forwarder:
    writer, log = parts.writer, parts.log
    return Forwarder(
        log, parts.match_log, store, clusters, correspondence, writer.floor, lambda: writer.log_ends
    )


def _delayed_ids(parts: GatewayParts, space: str) -> tuple[int, int] | None:
    key = parts.key_of_space(space)
    return None if key is None else parts.delayed_ids(key)


def _inbox_of(
    settings: GatewaySettings,
    parts: GatewayParts,
    clusters: Clusters,
    store: LinkStore,
    brokers: BrokerStore,
    correspondence: Correspondence,
    heeding: Heeding,
    next_revision: Callable[[], Awaitable[object]],
) -> Inbox:
    return Inbox(
        clusters=clusters,
        store=store,
        brokers=brokers,
        correspondence=correspondence,
        appender=parts.appender,
        charge=parts.quotas.charge,
        key_of_space=parts.key_of_space,
        limits=Limits(settings.event_max_bytes),  # Other bounds held where a request was accepted.
        filter_max_bytes=settings.filter_max_bytes,
        heeding=heeding,
        next_revision=next_revision,
    )


def _next_revision(brokers: BrokerStore, ends: Offsets) -> int:
    filter = compile_filter(NOTHING)
    nothing = RemoteFilter("default", 0, NOTHING, "sql", filter.compiled, filter.cost)
    return brokers.next_revision(nothing, ends, time.time_ns() // 1_000_000)


async def _local_work(parts: GatewayParts, forwarder: Forwarder) -> dict[str, int]:
    """Return what waits at this site itself: in the order in which it goes on from one to the next."""
    found = {"requests": parts.subscriptions.gate.inside, "delayed_records": parts.delayed_records()}
    found["unmatched_records"] = sum(
        end - cursor for end, cursor in zip(parts.writer.log_ends, forwarder.cursors, strict=True)
    )
    try:
        uncounted = await parts.backlogs.uncounted()  # Before the sums, which may be those of a moment ago.
        sums = (await parts.backlogs.sums()).values()
    except (HttpProblem, StorageError):  # It has started a moment ago, and counts; or a cursor is corrupt.
        return found | {"uncounted_backlogs": 1}
    found["uncounted_backlogs"] = uncounted
    found["subscriptions"] = sum(each.behind for each in sums)
    found["messages"] = sum(each.pending for each in sums)
    return found


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


def _check_revision(store: LinkStore, revision: int, root: object) -> None:
    """Raise FormatError if other brokers know later subscriptions than the registry has."""
    told = max((each.through for each in store.correspondents().values()), default=0)
    if told > revision:
        raise FormatError(
            f"{root}: other brokers know the subscriptions up to revision {told}, but the registry has"
            f" {revision}: it was restored from a copy. Give the broker a new name, and move links.db away"
        )
