"""This site as a broker among others: the loop that moves entries, and its state for operators."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as replace_members

from fieldfare.filters import Filter
from fieldfare.gateway.federation.advertisements import Advertisements
from fieldfare.gateway.federation.balancing.balancer import Balancer
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.custody import REROUTED_BATCH_SIZE, Custody, again
from fieldfare.gateway.federation.departure import Departure
from fieldfare.gateway.federation.documents import (
    AdvertisementDocument,
    BalancingDocument,
    BrokerDocument,
    BrokersDocument,
    DepartureDocument,
    SubscriptionMoveDocument,
    shown_advertisements,
)
from fieldfare.gateway.federation.forwarder import Forwarder
from fieldfare.gateway.federation.heeding import Heeding
from fieldfare.gateway.federation.inbox import Inbox, missing
from fieldfare.gateway.federation.interest import InterestSender
from fieldfare.gateway.federation.links import OUTBOXES_MAX_BYTES, Links
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.gateway.federation.receipts import marked_again
from fieldfare.gateway.federation.topology import NO_PATH
from fieldfare.gateway.federation.wire import Lost, decode_entry
from fieldfare.gateway.problems import WriterClosed
from fieldfare.gateway.writer import Writer
from fieldfare.model import Offsets, Subscription, space_name
from fieldfare.storage.errors import StorageError
from fieldfare.storage.links import Part
from fieldfare.storage.registry import SubscriptionHistory
from fieldfare.storage.sqlite.links import LinkStore

if TYPE_CHECKING:  # a relay need not load SQLAlchemy
    from fieldfare.storage.sql.brokers import BrokerStore

POLL_S = 0.01
"""Seconds between looks for changes of filters, while nothing was received and no block of matches found."""

COUNTING_LOOK_S = 0.02
"""Seconds between two looks at which sites a subscription counts, while a request waits for all."""

RETRY_S = 1.0
OUTBOXES_LOOK = 100
"""Steps between two looks at the size of the outboxes."""

CONFIRMED_S = 1.0
"""Minimum seconds between two looks at receipts."""

COUNTING_S = 0.5
"""Seconds after which no count of held-back filters is begun for a document."""

AGAIN_S = 30.0
"""Seconds after which entries that are not confirmed are sent a second time after a removal."""

logger = logging.getLogger("fieldfare.gateway.federation")


class Federation:
    """One broker: its links, its inbox, its forwarder. The loop runs one step at a time."""

    def __init__(
        self,
        *,
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
        departure: Departure,
        advertisements: Advertisements,
        heeding: Heeding,
        filters: SubscriptionHistory,
    ) -> None:
        self._clusters = clusters
        self._store = store
        self._brokers = brokers
        self._correspondence = correspondence
        self.links = links
        self.custody = Custody(clusters, store, links)
        self._inbox = inbox
        self._interest = interest
        self._forwarder = forwarder
        self._writer = writer
        self.moves = moves
        self.balancer = balancer
        self.departure = departure
        self.advertisements = advertisements
        self._heeding = heeding
        self._filters = filters
        links.on_change = self.wake
        self._wake = asyncio.Event()
        self._moving: asyncio.Task[None] | None = None
        self._is_closing = self._ends_waits = False
        self._has_news = True
        self._has_matches = False
        self._published = -1
        self._is_full = False
        self._steps = 0
        self._confirmed_s = 0.0
        self._again_s = math.inf

    def start(self) -> None:
        """Start sending, receiving and moving, on the running event loop."""
        self.custody.start()
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
        self.advertisements.close()
        await asyncio.to_thread(self._store.close)
        await asyncio.to_thread(self._brokers.close)
        await asyncio.to_thread(self.moves.close)

    def wake(self) -> None:
        """Move what was received, and what a new topology makes possible."""
        self._has_news = True
        self._wake.set()

    def matched(self, _: object) -> None:
        """Forward the events of a block of matches that the gateway has found.

        It may be found before the writer has noted that the log has these records.
        """
        self._has_matches = True
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
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _confirm(self) -> None:
        """Drop the copies of entries that their destinations have."""
        self._confirmed_s = time.monotonic() + CONFIRMED_S
        taken = self.links.receipts.take()
        try:
            await asyncio.to_thread(self._store.confirm, taken)
        except BaseException:
            self.links.receipts.put_back(taken)
            raise

    async def _step(self) -> bool:
        """Move what there is to move; return whether there was anything."""
        if self._clusters.has_left:
            return False
        if self.links.receipts.is_fresh and time.monotonic() >= self._confirmed_s:
            await self._confirm()
        if time.monotonic() >= self._again_s:
            self._again_s = math.inf
            await asyncio.to_thread(self._send_again, "a broker was removed some time ago")
            self.links.poke()
        stamp = self._writer.stamp
        is_behind = self._has_matches or self._forwarder.is_behind
        self._has_matches = False
        is_idle = stamp == self._published and not is_behind
        has_news = self._has_news or self._inbox.is_due
        is_due = self._forwarder.has_counts_due or self.moves.is_due or self.departure.is_due
        is_due = is_due or self.advertisements.is_due
        if is_idle and not (has_news or is_due):
            return False
        self._has_news = False
        await self._forget_removed()
        has_moved = await self._inbox.step() if has_news else False
        # After the inbox: what is in the log then is known with its stamps.
        has_sent = await self.moves.step() if self.moves.is_due else False
        # Answers that messages of moves got in the inbox's step.
        has_sent |= has_moved
        if self.departure.is_due:
            has_sent |= await self.departure.step()
        has_sent |= await self.advertisements.settle()
        has_sent |= await self.custody.reroute()
        # Read after the inbox: filters that came with a confirmation go along with what it allows to confirm.
        stamp = self._writer.stamp
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
            await self.custody.finish_requests(name)
            # Before the last step: after a kill in between, the next start sends all of it again.
            await asyncio.to_thread(self._send_again, f"the broker {name} was removed")
            await asyncio.to_thread(self._store.forget, state, again)
            self._heeding.forget(name)
            self._correspondence.put([state])
            self.links.must_reroute = True
            # An answer that was under way may have moved an entry to the copies only now.
            self._again_s = time.monotonic() + AGAIN_S

    def _send_again(self, reason: str) -> None:
        """Send what a broker between may have had: entries that are not confirmed, counts, moves."""
        through, count = self._store.kept_through(), 0
        while found := self._store.kept(through, REROUTED_BATCH_SIZE):
            ways: list[tuple[int, list[Part]]] = []
            for each in found:
                entry = decode_entry(each.entry)
                if isinstance(entry, Lost):
                    ways.append((each.id, []))
                    continue
                to = tuple(one for one in entry.destinations if one.name in each.owed_to)
                ways.append((each.id, self._clusters.split(marked_again(entry), to)))
            self._store.send_again(ways)
            count += len(found)
        self._forwarder.tell_again()
        self.moves.repeat()
        if count:
            logger.warning("%s: %d entries that were not confirmed are sent again", reason, count)

    def _forget_broker(self, name: str, ends: Offsets) -> int:
        return self._brokers.forget_broker(name, ends, time.time_ns() // 1_000_000)

    def _publish_and_forward(self, stamp: int) -> bool:
        has_sent = self._interest.publish(stamp)
        if self._is_full or self._steps % OUTBOXES_LOOK == 0:
            self._is_full = self._store.used_bytes() > OUTBOXES_MAX_BYTES
        self._steps += 1
        return has_sent if self._is_full else self._forwarder.step() or has_sent

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

    async def balance(self, *, is_drain: bool) -> BalancingDocument:
        """Begin to balance this broker's load, or to drain it: see `Balancer.begin`."""
        begun = await self.balancer.begin(is_drain=is_drain)
        self.links.poke()
        return begun

    async def move(self, subscription: Subscription, to: str) -> SubscriptionMoveDocument:
        """Begin to move a subscription to another broker: see `Moves.begin`."""
        state = await self.moves.begin(subscription, to)
        self.links.poke()
        return state

    async def leave(self, *, is_forced: bool) -> DepartureDocument:
        """Begin to leave the sites: see `Departure.begin`."""
        await self.departure.begin(is_forced=is_forced)
        return self.departure.document()

    async def stay(self) -> DepartureDocument:
        """Cancel leaving: see `Departure.cancel`."""
        await self.departure.cancel()
        self.wake()
        return self.departure.document()

    async def advertise(self, space: str, filter: Filter | None) -> AdvertisementDocument:
        """State what is published here in a space: see `Advertisements.state`."""
        await self.advertisements.state(space, filter)
        self.wake()
        return self.advertisements.document(space)

    async def space_removed(self, key: str) -> None:
        """Forget the moves and the advertisement of a space that was deleted."""
        await self.moves.space_removed(key)
        await self.advertisements.forget(space_name(key))

    def document(self, space: str | None = None) -> BrokersDocument:
        """Return the state of this broker for `GET /v1/brokers`; it reads files: call it on a thread.

        Parameters
        ----------
        space
            Show only the advertisements of this space; None: of all spaces, as `ADVERTISED_MAX_BYTES` allows.
        """
        outboxes = self._store.outboxes()
        kept_entries, kept_bytes = self._store.kept_totals()
        rows = {row.name: row for row in self._clusters.rows}
        revision, until_s = self._filters.revision(), time.monotonic() + COUNTING_S
        counts = self._brokers.count_filters()
        return BrokersDocument(
            broker=self._clusters.name,
            routing=self.links.routing,
            state=self.departure.state,
            clusters=[name for name in self._clusters.names if name],
            links=self.custody.links_document(outboxes),
            brokers=[
                self._with_advertisements(self._broker(name, rows, counts, revision, until_s), space)
                for name in sorted({*rows, *self._correspondence.names})
            ],
            without_path=outboxes[NO_PATH].entries if NO_PATH in outboxes else 0,
            kept_entries=kept_entries,
            kept_bytes=kept_bytes,
            not_kept_entries=self.links.not_kept,
            inbox_bytes=self._store.inbound_bytes(),
            dropped_events=self._inbox.dropped_events,
            refused_filters=self._inbox.refused_filters,
            failed_moves=self._inbox.failed_moves,
            forwarded_to=list(self._forwarder.cursors),
            moves=self.moves.counts(),
        )

    async def wait_for_counting(self, revision: int, wait_s: float) -> dict[str, bool]:
        """Return `counts_at` once the revision counts everywhere, or `wait_s` or all requests are over."""
        until_s = time.monotonic() + wait_s
        while not all((sites := self.counts_at(revision)).values()):
            if self._ends_waits or time.monotonic() >= until_s:
                break
            await asyncio.sleep(COUNTING_LOOK_S)
        return sites

    def stop_requests(self) -> None:
        """End the waits for sites at which a subscription does not count yet."""
        self._ends_waits = True

    def counts_at(self, revision: int) -> dict[str, bool]:
        """Return by broker whether subscriptions of a revision here count for all that it publishes now."""
        return {
            name: self._correspondence.get(name).counts_through >= revision for name in self._clusters.brokers
        }

    def _broker(
        self, name: str, rows: Mapping[str, Any], counts: Mapping[int, int], revision: int, until_s: float
    ) -> BrokerDocument:
        known, state = self._correspondence.brokers.get(name), self._correspondence.get(name)
        row = rows.get(name)
        found = BrokerDocument(
            name=name,
            links=list(row.links) if row else [],
            is_removed=name in self._clusters.removed,
            is_leaving=bool(row and row.is_leaving),
            is_relay=bool(row and row.is_relay),
            next_hop=self._clusters.path(name),
        )
        if name == self._clusters.name or found.is_relay:
            return found
        return replace_members(
            found,
            cluster=self._clusters.cluster_of(name) or None,
            held_back_filters=self._heeding.count_held_back(
                name,
                revision,
                lambda: self._interest.concerning(name, self._filters.versions(revision, revision)),
                until_s,
            ),
            filters=0 if known is None else counts.get(known.number, 0),
            destination=None if known is None else known.number,
            events_sent=state.events,
            events_received=state.received,
            told_revision=state.through,
            counts_through=state.counts_through,
            missing_entries=0 if state.is_removed else missing(state),
            waits_for_filters=name in self._inbox.without_filters and not state.is_removed,
            sent_twice=state.repeats,
        )

    def _with_advertisements(self, broker: BrokerDocument, space: str | None) -> BrokerDocument:
        """Return a broker with what it publishes; a relay publishes nothing."""
        if broker.is_relay:
            return broker
        is_this = broker.name == self._clusters.name
        texts = self.advertisements.texts() if is_this else self._heeding.texts(broker.name)
        shown, left_out = shown_advertisements(texts, space)
        return replace_members(broker, advertised=shown, advertised_left_out=left_out)
