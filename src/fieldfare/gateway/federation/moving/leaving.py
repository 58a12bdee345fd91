"""The broker that a subscription leaves: it delivers its part, and then hands the subscription over.

    offered ──accepted──▶ ending ──counts──▶ ended ──all settled──▶ moved
       └──cancelled

From the revision that ends it on, the subscription matches nothing here. Once that revision counts for all
later records of all brokers, the greatest stamp of each origin among the earlier ones is known: the switch
place.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.keys import keys_at
from fieldfare.filters import compile_filter
from fieldfare.gateway.federation.inbox import Inbox
from fieldfare.gateway.federation.moving.book import (
    Book,
    Key,
    barrier_of,
    closing,
    decoded,
    moved,
    with_settings,
)
from fieldfare.gateway.federation.wire import Accepted, Cancelled, Ended, HandOver, Offer, Refused
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.model import Offsets, Subscription, space_name
from fieldfare.storage.moves import Move, Results
from fieldfare.storage.registry import Put, Remove

OFFERED_S = 60.0
"""Seconds after which an offer that was not accepted is cancelled; the subscription stays."""

LEAVING_MAX = 1_000
"""Maximum subscriptions that leave at a time; more are refused."""

LOOKED_BATCH_SIZE = 50
"""Maximum subscriptions that one step checks for messages that are not settled."""

NUDGED_S = 5.0
"""Minimum seconds between two ends of the automatic streams of a subscription that leaves."""

TOKEN_PREFIX = "fm_"
NOTHING = "FALSE"
"""The filter of a subscription that matches nothing here any more."""

_REASONS_MAX = 1_000

logger = logging.getLogger("fieldfare.gateway.federation")


class Changed(Exception):
    """The subscription was changed or removed since it was offered."""


class Leaving:
    """The moves of subscriptions that leave this broker.

    Parameters
    ----------
    urls
        The address of each neighbour, for clients of brokers that name none.
    """

    def __init__(self, book: Book, inbox: Inbox, urls: Mapping[str, str]) -> None:
        self._book = book
        self._parts = book.parts
        self._inbox = inbox
        self._urls = urls
        self._looked = 0
        self.reasons: dict[Key, str] = {}
        """Why subscriptions have not moved."""
        self._set_bounds()

    def resend(self) -> None:
        """Send again what may not have been sent before a restart."""
        for move in self._book.in_state("offered"):
            # Whether it was offered is not known; it must not be accepted after it is cancelled.
            cancelled = replace(move, state="cancelled")
            self._book.run_now(move.key, partial(self._book.store, move.key, cancelled))
        self.repeat()
        for move in self._book.in_state("moved"):
            self._drop_rest(move)

    def repeat(self) -> None:
        """Send the last message of each session again; one of an offer that is lost is cancelled in time."""
        for move in self._book.in_state("cancelled"):
            self._book.send(move.peer, move.session, Cancelled())
        for move in self._book.in_state("ended"):
            self._book.send(move.peer, move.session, Ended(dict(move.bounds)))
        for move in self._book.in_state("moved"):
            if not move.is_told:
                self._hand_over(move)

    def _drop_rest(self, move: Move) -> None:
        """Remove a subscription that was kept for its dead letters, once it has none."""
        registry, key = self._parts.registry, move.key
        standing = registry.get(*key)
        if standing is not None and not registry.count_letters([standing.number]).get(standing.number):
            self._book.run_now(key, partial(self._leave_in, move, False))
            self._parts.subscriptions.count -= 1

    # The session, step by step

    async def offer(self, subscription: Subscription, to: str) -> Move:
        """Begin to move a subscription; raise a problem if it cannot."""
        key = subscription.space, subscription.id
        before = self._book.moves.get(key)
        if before is not None and before.state != "here":
            raise HttpProblem(409, "moving", f"The subscription {subscription.id!r} is moving already.")
        if len(self._book.in_state("offered", "cancelled", "ending", "ended")) >= LEAVING_MAX:
            detail = f"{LEAVING_MAX} subscriptions are moving, the maximum: try again later."
            raise HttpProblem(429, "overloaded", detail, headers={"Retry-After": "5"}, why="moves")
        token = TOKEN_PREFIX + secrets.token_hex(32)
        move = Move(
            *key,
            session=secrets.token_hex(16),
            peer=to,
            state="offered",
            number=subscription.number,
            revision=subscription.revision,
            token=token,
            digest=b"" if before is None else before.digest,
        )
        self._book.moves[key] = move
        self.reasons.pop(key, None)
        try:
            await self._book.keep(move)
        except BaseException:
            self._book.moves.pop(key, None)
            if before is not None:
                self._book.moves[key] = before
            raise
        offer = Offer(
            space_name(subscription.space),
            subscription.id,
            subscription.filter,
            subscription.dialect,
            subscription.delivery.to_wire(),
            hashlib.sha256(token.encode()).digest(),
            subscription.owner,
            dict(subscription.labels),
        )
        await asyncio.to_thread(self._book.send, to, move.session, offer)
        return move

    async def accepted(self, move: Move | None, source: str, session: str, answer: Accepted) -> None:
        """End the subscription here, if it counts at the other broker for all brokers that know it."""
        if move is None or move.state == "cancelled":
            await asyncio.to_thread(self._book.send, source, session, Cancelled())
            return
        if move.state != "offered" or move.peer != source:
            return
        url = answer.url or self._urls.get(move.peer, "")
        missing = set(self._parts.clusters.brokers) - {move.peer, *answer.brokers}
        if not url:
            await self.cancel(move, f"the broker {move.peer} has no address for clients: set its public URL")
        elif missing:
            await self.cancel(move, f"the broker {move.peer} does not know {', '.join(sorted(missing))} yet")
        else:
            await self._end(replace(move, url=url))

    async def _end(self, move: Move) -> None:
        ending = replace(move, state="ending")
        try:
            await self._book.run(move.key, partial(self._end_in, ending), barrier_of(ending))
        except Changed:
            await self.cancel(move, "it was changed meanwhile")
            return
        self._set_bounds()
        await self._book.reload(move.key)

    def _end_in(self, move: Move, ends: Offsets, now_ms: int) -> Move | None:
        """Replace the filter by one that matches nothing; runs on the thread of changes."""
        standing = self._parts.registry.get(*move.key)
        if standing is None or standing.revision != move.revision:
            raise Changed
        filter = compile_filter(NOTHING)
        put = Put(*move.key, NOTHING, "sql", filter.compiled, cost=filter.cost)

        def complete(results: Results) -> Move:
            (after,) = results
            assert isinstance(after, Subscription)
            self._book.count(move.space, standing, after)
            # Its settings of now are handed over if it is removed as unused before the end.
            text, dialect = standing.filter, standing.dialect
            return replace(with_settings(move, after), revision=after.revision, filter=text, dialect=dialect)

        return self._parts.store.step(move.key, complete, [put], ends, now_ms)

    def _set_bounds(self) -> None:
        self._inbox.bounds = sorted({each.revision for each in self._book.in_state("ending")})

    async def cancel(self, move: Move, reason: str) -> None:
        """Have the other broker forget an offer; the subscription stays here."""
        self._note(move.key, reason)
        await self._book.keep(replace(move, state="cancelled"))
        await asyncio.to_thread(self._book.send, move.peer, move.session, Cancelled())

    def _note(self, key: Key, reason: str) -> None:
        logger.warning("the subscription %s of the space %s does not move: %s", key[1], key[0], reason)
        self.reasons[key] = reason
        while len(self.reasons) > _REASONS_MAX:
            del self.reasons[next(iter(self.reasons))]

    async def refused(self, move: Move | None, answer: Refused) -> None:
        """The subscription does not move, and the other broker has forgotten it."""
        if move is None or move.state not in ("offered", "cancelled"):
            return
        key = move.key
        if move.state == "offered":
            self._note(key, answer.reason)

        def work(ends: Offsets, now_ms: int) -> Move | None:
            standing = self._parts.registry.get(*key)
            is_here = move.digest and standing is not None and standing.number == move.number
            before = replace(move, state="here") if is_here else None
            return self._book.store(key, before, ends, now_ms)

        await self._book.run(key, work)

    async def peer_removed(self, move: Move) -> None:
        """Keep a subscription here whose other broker is gone for good, with the filter that it had."""
        self._note(move.key, f"the broker {move.peer} was removed")
        await self._book.run(move.key, partial(self._keep_in, move))
        self._set_bounds()
        await self._book.reload(move.key)

    def _keep_in(self, move: Move, ends: Offsets, now_ms: int) -> Move | None:
        standing = self._parts.registry.get(*move.key)
        changes = []
        if standing is not None and move.filter:
            filter = compile_filter(move.filter, move.dialect)
            changes = [Put(*move.key, move.filter, move.dialect, filter.compiled, cost=filter.cost)]
        is_here = move.digest and standing is not None and standing.number == move.number
        here = replace(move, state="here", filter="", delivery=b"") if is_here else None

        def complete(results: Results) -> Move | None:
            for after in results:
                assert isinstance(after, Subscription)
                self._book.count(move.space, standing, after)
            return here

        return self._parts.store.step(move.key, complete, changes, ends, now_ms)

    async def taken(self, move: Move | None) -> None:
        """The other broker delivers the subscription now."""
        if move is not None and move.state == "moved" and not move.is_told:
            told = replace(move, is_told=True) if self._parts.subscriptions.is_there(move.space) else None
            await self._book.run(move.key, partial(self._book.store, move.key, told))

    async def step(self) -> bool:
        """Do what has become possible; return whether anything was."""
        has_moved, book = False, self._book
        for move in book.in_state("offered"):
            has_moved |= await book.attempt(move, self._cancel_if_late)
        for move in book.in_state("ending"):
            has_moved |= await book.attempt(move, self._announce_bounds)
        ended = book.in_state("ended")
        first, self._looked = self._looked % max(1, len(ended)), self._looked + LOOKED_BATCH_SIZE
        for move in (ended[first:] + ended[:first])[:LOOKED_BATCH_SIZE]:
            has_moved |= await book.attempt(move, self._leave_if_settled)
        return has_moved

    async def _cancel_if_late(self, move: Move) -> bool:
        """Cancel an offer that was not accepted in time; return whether that is so."""
        if time.monotonic() - self._book.progress(move.session).since_s <= OFFERED_S:
            return False
        await self.cancel(move, f"the broker {move.peer} has not accepted it in {OFFERED_S:g} s")
        return True

    async def _announce_bounds(self, move: Move) -> bool:
        """Tell the other broker the switch place of each origin: what is here up to it, and nothing later.

        Return whether the end here counts at all brokers, so that it could be told.
        """
        if not self._book.know(move.revision):
            return False
        known = self._parts.correspondence
        bounds = {self._book.name: move.revision - 1}
        for name in known.names:  # Also brokers that were removed meanwhile: their records are here, too.
            stamps = [stamp for at, stamp in known.get(name).stamps.items() if at < move.revision]
            if stamps:
                bounds[name] = max(stamps)
        await self._book.keep(replace(move, state="ended", bounds=bounds))
        self._set_bounds()
        await asyncio.to_thread(self._book.send, move.peer, move.session, Ended(bounds))
        return True

    async def _leave_if_settled(self, move: Move) -> bool:
        """Hand a subscription over if all of its messages here are settled; return whether that is so."""
        # A log that has grown since belongs to others: from the switch places on, nothing matches here.
        known = self._book.progress(move.session)
        ends = known.ends = known.ends or self._parts.writer.log_ends
        found = await self._loaded(move)
        if found is not None:
            await self._parts.deliveries.read_on(found)
            self._parts.deliveries.expire(found)
            if found.tries.letters:
                await self._parts.deliveries.save(found)
                return False
            if not is_settled(found, ends):
                self._nudge(move, found)
                return False
        # No await from the check to the barrier: a seek or a retry comes before both, or after both.
        key, letters = move.key, 0 if found is None else found.tries.listed
        left = await self._book.run(key, partial(self._leave_in, move, letters > 0), closing(move))
        assert left is not None
        problem = moved(left)
        news = {name: str(problem.place[name]) for name in ("broker", "url", "token")}
        self._parts.deliveries.deleted(move.number, moved=news)
        if found is not None and not letters:
            self._parts.subscriptions.count -= 1
        await asyncio.to_thread(self._hand_over, left)
        return True

    def _nudge(self, move: Move, delivery: Delivery) -> None:
        """Have a reader that settles messages when it connects again do so."""
        now_s, known = time.monotonic(), self._book.progress(move.session)
        if now_s - known.nudged_s > NUDGED_S:
            known.nudged_s = now_s
            self._parts.deliveries.end_automatic_stream(delivery)

    async def _loaded(self, move: Move) -> Delivery | None:
        """Return the delivery; None if the subscription was removed here, as unused."""
        subscriptions, deliveries = self._parts.subscriptions, self._parts.deliveries
        while True:
            subscription = await _standing(subscriptions, move)
            if subscription is None:
                return None
            delivery = deliveries.delivery_of(subscription)
            if delivery is not None:
                return delivery
            await deliveries.load(subscription)

    def _leave_in(self, move: Move, has_letters: bool, ends: Offsets, now_ms: int) -> Move | None:
        """Remove the subscription, unless it has dead letters here; runs on the thread of changes."""
        key = move.key
        standing = self._parts.registry.get(*key)
        left = replace(move if standing is None else with_settings(move, standing), state="moved")
        changes = [] if has_letters or standing is None else [Remove(*key)]

        def complete(results: Results) -> Move:
            if changes:
                self._book.count(move.space, standing, None)
            return left

        return self._parts.store.step(key, complete, changes, ends, now_ms)

    def _hand_over(self, move: Move) -> None:
        self._book.send(move.peer, move.session, Ended(dict(move.bounds)))
        self._book.send(
            move.peer, move.session, HandOver(decoded(move.delivery), move.owner, dict(move.labels))
        )


async def _standing(subscriptions: Subscriptions, move: Move) -> Subscription | None:
    try:
        return await subscriptions.get(space_name(move.space), move.id)
    except HttpProblem:
        return None


def is_settled(delivery: Delivery, ends: Offsets) -> bool:
    """Return whether no message before these ends is owed to a reader."""
    cursors = dict(zip(delivery.partitions, delivery.cursor_keys, strict=True))
    is_read = all(cursors.get(number, 0) >= key for number, key in enumerate(keys_at(ends)))
    return is_read and not delivery.tries.retried
