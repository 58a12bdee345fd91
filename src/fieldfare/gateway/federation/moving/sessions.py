"""The moves of one broker: messages in, steps, and what operators ask for and see."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fieldfare.gateway.admission.callers import Caller, Right
from fieldfare.gateway.federation.documents import SubscriptionMoveDocument
from fieldfare.gateway.federation.inbox import Inbox
from fieldfare.gateway.federation.moving.arriving import Arriving
from fieldfare.gateway.federation.moving.book import Book, Key, MoveParts
from fieldfare.gateway.federation.moving.leaving import Leaving
from fieldfare.gateway.federation.wire import (
    Accepted,
    Cancelled,
    Ended,
    HandOver,
    Offer,
    Refused,
)
from fieldfare.gateway.federation.wire import Move as Message
from fieldfare.gateway.peers import DDBR
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.model import Subscription, space_name
from fieldfare.storage.moves import Move

STEP_S = 0.05
"""Minimum seconds between two looks at moves under way."""

_UNDER_WAY = ("offered", "cancelled", "ending", "ended", "arriving", "accepted", "counting", "ready")


class Moves:
    """All moves of one broker."""

    def __init__(self, parts: MoveParts, inbox: Inbox, settings: GatewaySettings) -> None:
        self._parts = parts
        self._routing = settings.routing
        self._book = Book(parts)
        urls = {name: each.url for name, each in settings.broker_settings.neighbours().items()}
        self._leaving = Leaving(self._book, inbox, urls)
        self._arriving = Arriving(self._book, settings.public_url or "", settings.filter_max_bytes)
        self._callers: dict[bytes, tuple[str, Caller]] = {}
        self._digests: dict[Key, bytes] = {}
        """The digests of the valid tokens; a subscription has at most one."""
        self._next_s = 0.0
        self._is_refusing = False
        inbox.on_move = self._receive
        self._leaving.resend()
        self._arriving.repeat()
        for move in self._book.in_state("here", "cancelled"):
            self._drop_if_gone(move)
        for space in {move.space for move in self._book.moves.values()}:
            if not parts.subscriptions.is_there(space):
                parts.store.forget_space(space, self._forget_space(space))
        for move in list(self._book.moves.values()):
            self._admit(move.digest)
        parts.deliveries.call_on_change(self._changed)

    @property
    def is_due(self) -> bool:
        """Whether moves are under way, and have not been looked at for `STEP_S` seconds."""
        return time.monotonic() >= self._next_s and (self.is_under_way or bool(self._book.unsent))

    async def step(self) -> bool:
        """Do what has become possible; return whether anything was."""
        self._next_s = time.monotonic() + STEP_S
        if self._book.unsent:
            await asyncio.to_thread(self._book.send_unsent)
        has_left = await self._leaving.step()
        return await self._arriving.step() or has_left

    async def _receive(self, message: Message) -> None:
        step, source, session = message.step, message.source, message.session
        move = self._book.of_session(session)
        if move is not None and move.peer != source:
            return
        self._next_s = 0.0
        match step:
            case Offer():
                await self._arriving.offered(source, session, step)
                self._admit(step.digest)
            case Accepted():
                await self._leaving.accepted(move, source, session, step)
            case Refused():
                await self._leaving.refused(move, step)
            case Ended():
                await self._arriving.ended(move, step)
            case HandOver():
                await self._arriving.handed_over(move, source, session, step)
            case Cancelled():
                await self._arriving.cancelled(move, source, session)
                if move is not None and move.earlier is not None:
                    self._admit(move.earlier.digest)
            case _:
                await self._leaving.taken(move)

    def repeat(self) -> None:
        """Send the last message of each session again: it may be gone with a broker between."""
        self._leaving.repeat()
        self._arriving.repeat()

    async def peer_removed(self, name: str) -> None:
        """End the moves from and to a broker that is gone for good; it can be repeated."""
        for move in [each for each in self._book.moves.values() if each.peer == name]:
            if move.state in ("arriving", "accepted", "counting", "ready"):
                await self._arriving.peer_removed(move)
            elif move.state != "here":
                await self._leaving.peer_removed(move)

    def _drop_if_gone(self, move: Move) -> None:
        """Forget the token of a subscription that has arrived and was deleted since."""
        standing = self._parts.registry.get(*move.key)
        if standing is None or standing.number != move.number:
            left = None if move.state == "here" else replace(move, digest=b"")
            self._book.run_now(move.key, partial(self._book.store, move.key, left))

    async def space_removed(self, space: str) -> None:
        """Forget the moves of a space that was deleted."""
        but = self._forget_space(space)
        await self._parts.writer.change(lambda _: self._parts.store.forget_space(space, but))

    def _forget_space(self, space: str) -> list[str]:
        """Forget the moves of a space here, and return the ids of those that other brokers must confirm."""
        kept = []
        for key, move in list(self._book.moves.items()):
            if key[0] != space:
                continue
            if move.state == "cancelled" or (move.state == "moved" and not move.is_told):
                kept.append(key[1])
            else:
                self._book.forget(key)
                self._revoke(key)
        return kept

    # For operators

    async def begin(self, subscription: Subscription, to: str) -> SubscriptionMoveDocument:
        """Begin to move a subscription to another broker; return its state, or raise a problem."""
        clusters = self._parts.clusters
        if self._routing != DDBR:
            detail = f"Subscriptions move only between brokers with --routing {DDBR}, not {self._routing}."
            raise HttpProblem(409, "cannot-move", detail)
        if self._parts.subscriptions.encryption(subscription.space) is not None:
            detail = "A subscription of an encrypted space cannot move: no other broker can match it."
            raise HttpProblem(409, "cannot-move", detail)
        if self._is_refusing:
            detail = f"The broker {clusters.name!r} is leaving its sites: nothing moves any more."
            raise HttpProblem(409, "cannot-move", detail)
        if to not in clusters.brokers or clusters.path(to) is None:
            others = ", ".join(clusters.brokers) or "none"
            detail = f"The broker {to[:128]!r} cannot be reached; the others are: {others}."
            raise HttpProblem(409, "unknown-broker", detail, pointer="/to")
        await self._leaving.offer(subscription, to)
        found = self.state(subscription.space, subscription.id)
        assert found is not None
        return found

    def state(self, space: str, id: str) -> SubscriptionMoveDocument | None:
        """Return the state of a subscription's move as clients see it; None if it has not moved."""
        move, reason = self._book.moves.get((space, id)), self._leaving.reasons.get((space, id))
        if move is None or move.state == "here":
            return None if reason is None else SubscriptionMoveDocument("refused", reason=reason)
        reason = self._book.retries.reason(move.session) or reason
        return SubscriptionMoveDocument(move.state, move.peer, reason or None)

    def call_on_step(self, stepped: Callable[[Move | None, Move | None], None]) -> None:
        """Call a function after each step with the move before and after it; None: there is none."""
        self._book.on_step = stepped

    def refuse(self, *, arrivals: bool, departures: bool) -> None:
        """Refuse further moves to this broker, and from it, or no longer: it is leaving, or stays."""
        self._arriving.is_refusing = arrivals
        self._is_refusing = departures

    @property
    def open(self) -> int:
        """Number of moves that are under way, or whose end another broker has not confirmed."""
        moves = list(self._book.moves.values())
        return sum(each.state in _UNDER_WAY or (each.state == "moved" and not each.is_told) for each in moves)

    @property
    def is_under_way(self) -> bool:
        """Whether a subscription is moving."""
        return any(each.state in _UNDER_WAY for each in self._book.moves.values())

    def may_move(self, space: str, id: str) -> bool:
        """Return whether a subscription is here and not moving."""
        move = self._book.moves.get((space, id))
        return move is None or move.state == "here"

    def counts(self) -> dict[str, int]:
        """Return the number of moves in each state."""
        found: dict[str, int] = {}
        for move in list(self._book.moves.values()):  # A copy: it is also called on threads.
            found[move.state] = found.get(move.state, 0) + 1
        return found

    def close(self) -> None:
        """Close the store."""
        self._parts.store.close()

    # Tokens

    def find_caller(self, key: bytes) -> Caller | None:
        """Return the caller with the token of a subscription that moved here; None if it is not valid."""
        space, caller = self._callers.get(hashlib.sha256(key).digest(), ("", None))
        # The space may be gone, and another one have its name.
        return caller if self._parts.subscriptions.is_there(space) else None

    def _admit(self, digest: bytes) -> None:
        move = next(
            (each for each in self._book.moves.values() if hmac.compare_digest(each.digest, digest)), None
        )
        if move is not None and digest and self._digests.get(move.key) != digest:
            self._revoke(move.key)
            name = space_name(move.space)
            caller = Caller(f"moved {move.id}", {name: (Right.SUBSCRIBE,)}, only=move.id)
            self._callers[digest] = move.space, caller
            self._digests[move.key] = digest

    def _revoke(self, key: Key) -> None:
        _, caller = self._callers.pop(self._digests.pop(key, b""), ("", None))
        if caller is not None:
            caller.end()

    def _changed(self, number: int, subscription: Subscription | None) -> None:
        """Revoke the token of a subscription that was deleted here; one that moves on keeps it."""
        if subscription is not None:
            return
        for key, move in list(self._book.moves.items()):
            if move.number == number and move.state in ("here", "offered", "cancelled"):
                self._revoke(key)
                if move.state == "here":
                    self._book.moves.pop(key)
