"""The broker at which a subscription arrives: it delivers what the other one does not.

    arriving ──counts──▶ accepted ──ended──▶ counting ──counts, matched──▶ ready ──handed over──▶ here

The subscription exists from the start, and so matches; clients can read it once it is `here`. Before that,
the matches up to the switch place of each origin are settled: the other broker has delivered them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import Any

from fieldfare.filters import Filter, compile_filter
from fieldfare.gateway.delivery_settings import BadSetting
from fieldfare.gateway.federation.moving.arrival_cursor import arrival_cursor
from fieldfare.gateway.federation.moving.book import (
    Book,
    Key,
    barrier_of,
    decoded,
    encoded,
    with_settings,
)
from fieldfare.gateway.federation.wire import Accepted, Ended, HandOver, Offer, Refused, Taken
from fieldfare.gateway.filter_texts import compile_checked
from fieldfare.gateway.labels import changed_labels, checked_owner
from fieldfare.gateway.subscription_store import HELD
from fieldfare.model import DeliverySettings, Offsets, Subscription
from fieldfare.storage.moves import Move, Results
from fieldfare.storage.registry import Configure, Put, Remove

ARRIVING_MAX = 1_000
"""Maximum subscriptions that arrive at a time; more are refused."""

logger = logging.getLogger("fieldfare.gateway.federation")


class Unacceptable(Exception):
    """The reason why a subscription cannot move here."""


class Arriving:
    """The moves of subscriptions that arrive at this broker.

    Parameters
    ----------
    url
        The address at which clients reach this broker; empty if it has none to tell.
    filter_max_bytes
        Maximum bytes of a filter.
    """

    def __init__(self, book: Book, url: str, filter_max_bytes: int) -> None:
        self._book = book
        self._parts = book.parts
        self._url = url
        self._filter_max_bytes = filter_max_bytes
        self.is_refusing = False
        """Whether no further subscription may come, because this broker is leaving."""

    def repeat(self) -> None:
        """Send the last message of each session again: it may not have been sent, or be lost."""
        for move in self._book.in_state("accepted"):
            self._accept(move)

    async def offered(self, source: str, session: str, offer: Offer) -> None:
        """Create the subscription that another broker offers, or refuse it."""
        if self._book.of_session(session) is not None:
            return  # a repeat: the answer is on its way, or will be
        try:
            await self._create(source, session, offer)
        except Unacceptable as refused:
            logger.warning("%s offers the subscription %s: %s", source, offer.id, refused)
            await asyncio.to_thread(self._book.send, source, session, Refused(str(refused)[:1_000]))

    async def _create(self, source: str, session: str, offer: Offer) -> None:
        put = await asyncio.to_thread(self._checked, offer)
        key = put.space, put.id
        if self.is_refusing:
            raise Unacceptable("the broker is leaving its sites")
        if len(self._book.in_state("arriving", "accepted", "counting", "ready")) >= ARRIVING_MAX:
            raise Unacceptable(f"{ARRIVING_MAX} subscriptions are arriving, the maximum")
        before = self._book.moves.get(key)
        if before is not None and before.state not in ("moved", "here"):
            raise Unacceptable("a subscription with this id is moving")
        move = Move(*key, session, source, "arriving", digest=offer.digest)
        if before is not None and before.state == "moved":
            move = replace(move, earlier=before)
        # The barrier first: a reader between the two would begin before what is settled here.
        replaced: list[Subscription] = []
        arrived = await self._book.run(key, partial(self._create_in, move, put, replaced), barrier_of(move))
        assert arrived is not None
        self._parts.subscriptions.count += 1 - len(replaced)

    def _checked(self, offer: Offer) -> Put:
        """Return the subscription, checked as a client's would be; it compiles the filter."""
        subscriptions = self._parts.subscriptions
        if not subscriptions.has_space(offer.space):
            raise Unacceptable(f"there is no space {offer.space!r}")
        key = subscriptions.check_space(offer.space)
        if subscriptions.encryption(key) is not None:
            raise Unacceptable("its space is encrypted")
        compiled = compile_checked(offer.filter, offer.dialect, self._filter_max_bytes)
        if not isinstance(compiled, Filter):
            raise Unacceptable(f"its filter is refused: {compiled.detail}")
        settings = self._settings(DeliverySettings(), offer.delivery)
        full = [
            name
            for name, more in zip(HELD, (1, compiled.cost), strict=True)
            if not self._parts.quotas.fits(key, name, more)
        ]
        if full:
            raise Unacceptable(self._parts.quotas.detail(key, full[0]))
        return Put(
            key,
            offer.id,
            compiled.text,
            offer.dialect,
            compiled.compiled,
            if_absent=True,
            delivery=settings,
            cost=compiled.cost,
            **_tags(offer.owner, offer.labels),
        )

    def _settings(self, before: DeliverySettings, given: dict[str, Any]) -> DeliverySettings:
        try:
            return self._parts.subscriptions.changed(before, given)
        except BadSetting as bad:
            raise Unacceptable(f"its setting {bad.pointer} is refused: {bad}") from None

    def _create_in(
        self, move: Move, put: Put, replaced: list[Subscription], ends: Offsets, now_ms: int
    ) -> Move | None:
        """Create the subscription; runs on the thread of changes.

        The rest of an earlier one, which was kept for its dead letters, is removed, and added to `replaced`.
        """
        key = put.space, put.id
        standing = self._parts.registry.get(*key)
        left = self._book.moves.get(key)
        changes: list[Put | Remove] = [put]
        if standing is not None and left is not None and left.state == "moved":
            if self._parts.registry.count_letters([standing.number]).get(standing.number):
                raise Unacceptable(
                    "dead letters of an earlier subscription with this id are here: clear them first"
                )
            changes.insert(0, Remove(*key))
        elif standing is not None:
            raise Unacceptable("a subscription with this id exists")

        def complete(results: Results) -> Move:
            created = results[-1]
            assert isinstance(created, Subscription)
            self._book.count(put.space, standing, created)
            replaced.extend([] if standing is None else [standing])
            return replace(move, number=created.number, revision=created.revision, begins=created.valid_from)

        return self._parts.store.step(key, complete, changes, ends, now_ms)

    async def ended(self, move: Move | None, answer: Ended) -> None:
        """Note the switch places, and count the records that come before them from here on."""
        if move is None or move.state not in ("arriving", "accepted"):
            return
        counting = replace(move, state="counting", bounds=dict(answer.bounds))
        await self._book.run(move.key, partial(self._begin_counting, counting))

    def _begin_counting(self, move: Move, ends: Offsets, now_ms: int) -> Move | None:
        """Store the filter once more: its revision counts for later records than the switch places."""
        key = move.key
        standing = self._parts.registry.get(*key)
        if standing is None:
            raise RuntimeError(f"the subscription {move.id!r} is arriving, and is not in the registry")
        # Without a bound: it is in effect, and the service may have another bound than when it came.
        compiled = compile_filter(standing.filter, standing.dialect)
        put = Put(*key, standing.filter, standing.dialect, compiled.compiled, cost=standing.cost)

        def complete(results: Results) -> Move:
            (after,) = results
            assert isinstance(after, Subscription)
            return replace(move, revision=after.revision)

        return self._parts.store.step(key, complete, [put], ends, now_ms)

    async def handed_over(self, move: Move | None, source: str, session: str, answer: HandOver) -> None:
        """Note that the other broker has delivered its part; the subscription is here once it is ready."""
        if move is None or move.state == "here":
            await asyncio.to_thread(self._book.send, source, session, Taken())
        elif not move.delivery and move.state in ("arriving", "accepted", "counting", "ready"):
            labels = tuple(answer.labels.items())
            delivery = encoded(answer.delivery)
            await self._book.keep(replace(move, delivery=delivery, owner=answer.owner, labels=labels))

    async def peer_removed(self, move: Move) -> None:
        """Deliver a subscription here whose other broker is gone for good.

        The messages that it may have delivered before it named the switch places are delivered again.
        """
        await self.ended(move, Ended({}))
        standing = await asyncio.to_thread(self._parts.registry.get, *move.key)
        now = self._book.moves[move.key]
        if standing is not None and not now.delivery:
            await self._book.keep(with_settings(now, standing))

    async def cancelled(self, move: Move | None, source: str, session: str) -> None:
        """Remove a subscription that does not come after all."""
        if move is not None and move.state not in ("arriving", "accepted"):
            return
        if move is not None:
            await self._book.run(move.key, partial(self._remove_in, move.key, move.earlier))
            self._parts.subscriptions.count -= 1
        await asyncio.to_thread(self._book.send, source, session, Refused("it was cancelled"))

    def _remove_in(self, key: Key, earlier: Move | None, ends: Offsets, now_ms: int) -> Move | None:
        standing = self._parts.registry.get(*key)

        def complete(results: Results) -> Move | None:
            if standing is not None:
                self._book.count(key[0], standing, None)
            return earlier

        return self._parts.store.step(key, complete, [Remove(*key)], ends, now_ms)

    async def step(self) -> bool:
        """Do what has become possible; return whether anything was."""
        has_moved, book = False, self._book
        for move in book.in_state("arriving"):
            has_moved |= await book.attempt(move, self._accept_if_counted)
        for move in book.in_state("counting"):
            has_moved |= await book.attempt(move, self._settle_earlier)
        for move in book.in_state("ready"):
            has_moved |= await book.attempt(move, self._open_if_handed_over)
        return has_moved

    async def _accept_if_counted(self, move: Move) -> bool:
        if not self._book.know(move.revision):
            return False
        await self._book.keep(replace(move, state="accepted"))
        await asyncio.to_thread(self._accept, move)
        return True

    def _accept(self, move: Move) -> None:
        brokers = tuple(self._parts.clusters.brokers)
        self._book.send(move.peer, move.session, Accepted(brokers, self._url))

    async def _settle_earlier(self, move: Move) -> bool:
        """Settle what the other broker delivers, once all of it is matched here."""
        if not self._book.know(move.revision):
            return False
        known = self._book.progress(move.session)
        ends = known.ends = known.ends or self._parts.writer.log_ends
        if not await asyncio.to_thread(self._book.is_matched, ends):
            return False
        parts, key = self._parts, move.key
        cursor = await asyncio.to_thread(
            arrival_cursor, parts.log, parts.match_log, move, self._book.name, ends
        )
        ready = replace(move, state="ready")
        await self._book.run(
            key, lambda ends, now: parts.store.step(key, lambda _: ready, (), ends, now, cursor)
        )
        return True

    async def _open_if_handed_over(self, move: Move) -> bool:
        """Let clients read the subscription, with the settings that it had last."""
        if not move.delivery:
            return False
        key = move.key
        here = replace(move, state="here", begins=(), bounds={}, delivery=b"", is_told=True, earlier=None)
        here = replace(here, owner="", labels=())

        def work(ends: Offsets, now_ms: int) -> Move | None:
            standing = self._parts.registry.get(*key)
            assert standing is not None
            try:
                settings = self._settings(DeliverySettings(), decoded(move.delivery))
                change = Configure(*key, settings, **_tags(move.owner, dict(move.labels)))
            except Unacceptable as refused:
                logger.error("the subscription %s keeps its earlier settings: %s", move.id, refused)
                change = Configure(*key)
            return self._parts.store.step(key, lambda _: here, [change], ends, now_ms)

        await self._book.run(key, work)
        await self._book.reload(key)
        await asyncio.to_thread(self._book.send, move.peer, move.session, Taken())
        return True


def _tags(owner: str, labels: dict[str, str]) -> dict[str, Any]:
    """Return owner and labels as arguments of a change; raise Unacceptable as a client's would be refused."""
    try:
        return {"owner": checked_owner(owner or None), "labels": changed_labels((), labels)}
    except BadSetting as bad:
        raise Unacceptable(f"its {bad.pointer[1:]} is refused: {bad}") from None
