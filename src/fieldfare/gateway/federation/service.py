"""This site as a broker among others: the loop that moves entries, and its state for operators."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

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
from fieldfare.gateway.federation.links import OUTBOXES_MAX_BYTES, LinkRates, Links
from fieldfare.gateway.federation.moving.book import MoveParts
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.gateway.federation.topology import NO_PATH
from fieldfare.gateway.federation.wire import Lost, Row, decode_entry, decode_rows
from fieldfare.gateway.peers import DDBR, FBR, LINK, MERC, BrokerSettings
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.appender import Appender
from fieldfare.gateway.publishing.events import Limits
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.writer import Writer, WriterClosed
from fieldfare.model import Offsets, Subscription
from fieldfare.storage import open_brokers, open_links, open_moves
from fieldfare.storage.brokers import BrokerStore
from fieldfare.storage.errors import FormatError, StorageError
from fieldfare.storage.event_log import EventReader
from fieldfare.storage.links import LinkStore, Outbox, Part
from fieldfare.storage.match_log import MatchLog
from fieldfare.storage.registry import Registry

POLL_S = 0.01
"""Seconds between looks for changes of filters and for matches, while nothing was received."""

RETRY_S = 1.0
OUTBOXES_LOOK = 100
"""Steps between two looks at the size of the outboxes."""

REROUTED_BATCH_SIZE = 1_000

logger = logging.getLogger("fieldfare.gateway.federation")


class Federation:
    """One broker: its links, its inbox, its forwarder. The loop runs one step at a time."""

    def __init__(
        self,
        clusters: Clusters,
        store: LinkStore,
        brokers: BrokerStore,
        correspondence: Correspondence,
        links: Links,
        inbox: Inbox,
        interest: InterestSender,
        forwarder: Forwarder,
        writer: Writer,
        moves: Moves,
        balancer: Balancer,
    ) -> None:
        self._clusters = clusters
        self._store = store
        self._brokers = brokers
        self._correspondence = correspondence
        self.links = links
        self._inbox = inbox
        self._interest = interest
        self._forwarder = forwarder
        self._writer = writer
        self.moves = moves
        self.balancer = balancer
        links.on_change = self.wake
        self._wake = asyncio.Event()
        self._moving: asyncio.Task[None] | None = None
        self._is_closing = False
        self._has_news = True
        self._published = -1
        self._is_full = False
        self._steps = 0

    def start(self) -> None:
        """Start sending, receiving and moving, on the running event loop."""
        self.links.start()
        self.balancer.start()
        self._moving = asyncio.create_task(self._move())

    async def close(self) -> None:
        """Stop after the step under way, which uses the files; the rest is moved after the next start."""
        await self.balancer.close()
        await self.links.close()
        self._is_closing = True
        self.wake()
        if self._moving is not None:
            await asyncio.gather(self._moving, return_exceptions=True)
        await asyncio.to_thread(self._store.close)
        await asyncio.to_thread(self._brokers.close)
        await asyncio.to_thread(self.moves.close)

    def wake(self) -> None:
        """Move what was received, and what a new topology makes possible."""
        self._has_news = True
        self._wake.set()

    async def _move(self) -> None:
        while not self._is_closing:
            self._wake.clear()
            pause_s = POLL_S
            try:
                if await self._step():
                    continue
            except WriterClosed:
                return
            except Exception as error:
                self._has_news = True
                self.links.is_held = False  # A full disk has room again only once entries are sent.
                # Catch all errors: if this task ended, other brokers' events would wait for the next start.
                is_known = isinstance(error, StorageError | OSError)
                logger.error("exchange with other brokers waits: %s", error, exc_info=not is_known)
                pause_s = RETRY_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause_s)

    async def _step(self) -> bool:
        """Move what there is to move; return whether there was anything."""
        stamp = self._writer.stamp
        is_idle = stamp == self._published and not self._forwarder.is_behind
        if is_idle and not (self._has_news or self._forwarder.has_counts_due or self.moves.is_due):
            return False
        has_news, self._has_news = self._has_news, False
        await self._forget_removed()
        has_moved = await self._inbox.step() if has_news else False
        # After the inbox: what is in the log then is known with its stamps.
        has_sent = await self.moves.step() if self.moves.is_due else False
        # Answers that messages of moves got in the inbox's step.
        has_sent |= has_moved
        if self.links.must_reroute:
            self.links.must_reroute = False
            try:
                await asyncio.to_thread(self._reroute)
            except BaseException:
                self.links.must_reroute = True
                raise
            self.links.is_held = self.links.must_reroute
            has_sent = True
        has_sent |= await asyncio.to_thread(self._publish_and_forward, stamp)
        self._published = stamp
        if has_sent:
            self.links.poke()
        return has_moved or has_sent

    async def _forget_removed(self) -> None:
        """Forget what is kept for brokers that were removed. A kill in between: the next start repeats it."""
        for name in self._clusters.removed:
            state = self._correspondence.get(name)
            if state.is_removed:
                continue
            await self.moves.peer_removed(name)
            await self._writer.change(partial(self._forget_broker, name))
            stored = await asyncio.to_thread(self._brokers.brokers)
            self._correspondence.brokers = {each.name: each for each in stored}
            state = replace(state, is_removed=True, ahead=None, pending=None)
            await asyncio.to_thread(self._store.forget, state)
            self._correspondence.put([state])
            self.links.must_reroute = True

    def _forget_broker(self, name: str, ends: Offsets) -> int:
        return self._brokers.forget_broker(name, ends, time.time_ns() // 1_000_000)

    def _publish_and_forward(self, stamp: int) -> bool:
        has_sent = self._interest.publish(stamp)
        if self._is_full or self._steps % OUTBOXES_LOOK == 0:
            self._is_full = self._store.used_bytes() > OUTBOXES_MAX_BYTES
        self._steps += 1
        return has_sent if self._is_full else self._forwarder.step() or has_sent

    def _reroute(self) -> None:
        """Give entries that were never sent another way, where theirs is cut and there is one."""
        cut = [name for name in self.links.peers if not self._clusters.is_up(name)]
        after = 0
        while found := self._store.unsent((NO_PATH, *cut), after, REROUTED_BATCH_SIZE):
            after = found[-1][0]
            rerouted: list[tuple[int, list[Part]]] = []
            for id, peer, stored in found:
                entry = decode_entry(stored)
                if isinstance(entry, Lost):
                    continue
                ways = [(hop or peer, part) for hop, part in self._clusters.split(entry, entry.destinations)]
                if ways != [(peer, stored)]:  # None where all destinations were removed.
                    rerouted.append((id, ways))
            if rerouted:
                self._store.reroute(rerouted)
            if len(found) < REROUTED_BATCH_SIZE:
                break

    # For maintenance

    @property
    def cursors(self) -> Offsets:
        """The offsets up to which records are forwarded: the log keeps later ones."""
        return self._forwarder.cursors

    def history_floor(self) -> int | None:
        """Return the revision from which on the registry's history is needed for other brokers."""
        bounds = [each for each in (self._store.floor(), self._store.published()) if each is not None]
        return min(bounds, default=None)

    def forget(self, before: int) -> None:
        """Forget what no record with a stamp of at least `before` needs."""
        self._brokers.forget_runs(before)
        self._correspondence.forget_runs(before)

    # For operators

    async def balance(self, *, is_drain: bool) -> dict[str, Any]:
        """Begin to balance this broker's load, or to drain it: see `Balancer.begin`."""
        begun = await self.balancer.begin(is_drain=is_drain)
        self.links.poke()
        return begun

    async def move(self, subscription: Subscription, to: str) -> dict[str, Any]:
        """Begin to move a subscription to another broker: see `Moves.begin`."""
        state = await self.moves.begin(subscription, to)
        self.links.poke()
        return state

    async def remove(self, name: str) -> None:
        """Remove another broker from these sites for good.

        Raises
        ------
        HttpProblem
            It is this broker, it is not known here, or it can be reached.
        """
        if name in self._clusters.removed:
            return
        if name == self._clusters.name or self._clusters.cluster_of(name) is None:
            detail = f"{name!r:.80} is not another broker that {self._clusters.name!r} knows."
            raise HttpProblem(404, "unknown-broker", detail, hint="`fieldfare brokers` shows them.")
        if self._clusters.path(name) is not None:
            detail = f"The broker {name!r} can be reached: what it has for others would be lost."
            hint = "Stop it; `fieldfare brokers` shows when there is no path to it."
            raise HttpProblem(409, "broker-reachable", detail, hint=hint)
        await self.links.remove(name)
        logger.warning("the broker %s was removed", name)

    def document(self) -> dict[str, Any]:
        """Return the state of this broker for `GET /v1/brokers`; it reads files: call it on a thread."""
        outboxes = self._store.outboxes()
        rows = {row.name: row for row in self._clusters.rows}
        return {
            "broker": self._clusters.name,
            "routing": self.links.routing,
            "clusters": [name for name in self._clusters.names if name],
            "links": [self._link(name, outboxes) for name in self.links.peers],
            "brokers": [self._broker(name, rows) for name in sorted({*rows, *self._correspondence.names})],
            "without_path": outboxes[NO_PATH].entries if NO_PATH in outboxes else 0,
            "inbox_bytes": self._store.inbound_bytes(),
            "dropped_events": self._inbox.dropped_events,
            "refused_filters": self._inbox.refused_filters,
            "forwarded_to": list(self._forwarder.cursors),
            "moves": self.moves.counts(),
        }

    def _link(self, name: str, outboxes: Mapping[str, Outbox]) -> dict[str, Any]:
        peer, fill = self.links.peers[name], outboxes.get(name, Outbox(0, 0, 0))
        return {
            "peer": name,
            "url": peer.url,
            "cluster": self._clusters.cluster_of_peer(name) or None,
            "is_up": self._clusters.is_up(name),
            "trouble": peer.trouble or None,
            "outbox_entries": fill.entries,
            "outbox_bytes": fill.bytes,
            "unacknowledged": fill.sent,
            "received_to": self._store.watermark(name),
            "sent_requests": peer.requests,
            "sent_entries": peer.entries,
            "sent_bytes": peer.bytes,
            "withheld_events": peer.withheld,
        }

    def _broker(self, name: str, rows: Mapping[str, Any]) -> dict[str, Any]:
        known, state = self._correspondence.brokers.get(name), self._correspondence.get(name)
        row = rows.get(name)
        found: dict[str, Any] = {"name": name, "links": list(row.links) if row else []}
        found["is_removed"] = name in self._clusters.removed
        if name == self._clusters.name:
            return found
        return found | {
            "cluster": self._clusters.cluster_of(name) or None,
            "next_hop": self._clusters.path(name),
            "filters": 0 if known is None else self._brokers.count_filters(known.number),
            "destination": None if known is None else known.number,
            "events_sent": state.events,
            "events_received": state.received,
            "told_revision": state.through,
            "counts_through": state.counts_through,
            "sent_twice": state.repeats,
        }


def open_federation(
    settings: GatewaySettings,
    log: EventReader,
    match_log: MatchLog,
    registry: Registry,
    writer: Writer,
    appender: Appender,
    key_of_space: Callable[[str], str | None],
    subscriptions: Subscriptions,
    deliveries: DeliveryService,
    quotas: Quotas,
) -> Federation | None:
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
    store, brokers = open_links(settings.folder.links_url), open_brokers(settings.folder.registry_url)
    if store.is_new:
        # The registry may know brokers by an earlier file: their messages begin again.
        brokers.forget_brokers(writer.log_ends, time.time_ns() // 1_000_000)
    own = settings.broker_settings
    clusters = _clusters_of(own, store, settings.folder.root)
    _check_revision(store, registry.revision(), settings.folder.root)
    correspondence = Correspondence(store.correspondents(), brokers.brokers(), brokers.runs())
    links = _links_of(settings, clusters, store)
    # Not `batch_max_events`: the request was accepted at another site.
    limits = Limits(settings.event_max_bytes)
    inbox = Inbox(
        clusters,
        store,
        brokers,
        correspondence,
        appender,
        quotas.charge,
        key_of_space,
        limits,
        settings.filter_max_bytes,
    )
    interest = InterestSender(registry, store, clusters, correspondence)
    forwarder = Forwarder(
        log, match_log, store, clusters, correspondence, writer.floor, lambda: writer.log_ends
    )
    moves = open_moves(settings.folder.registry_url)
    parts = MoveParts(
        *(clusters, store, moves, registry, correspondence, writer),
        *(subscriptions, deliveries, quotas, log, match_log),
    )
    sessions = Moves(parts, inbox, settings)
    return Federation(
        *(clusters, store, brokers, correspondence, links, inbox, interest, forwarder, writer),
        *(sessions, Balancer(parts, sessions, links.loads, settings)),
    )


def _links_of(settings: GatewaySettings, clusters: Clusters, store: LinkStore) -> Links:
    """Return the links to the neighbours that the settings name."""
    key = None if settings.peer_key_file is None else read_peer_key(settings.peer_key_file)
    own = settings.broker_settings
    return Links(
        clusters,
        store,
        own.routing,
        {name: each.url for name, each in own.neighbours().items()},
        key,
        caller_context(settings.peer_ca_file),
        LinkRates(settings.peer_bytes_per_s, settings.peer_catch_up_bytes_per_s),
        read_link_filters(settings.peer_filter_file, own.neighbours()),
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
