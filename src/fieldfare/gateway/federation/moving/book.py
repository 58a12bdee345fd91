"""The moves of one broker, stored with the registry, and what clients may do meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.barriers import Barrier
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.retries import Retries
from fieldfare.gateway.federation.wire import Destination, Step
from fieldfare.gateway.federation.wire import Move as Message
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.writer import Writer
from fieldfare.model import Offsets, Subscription, space_name
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import EventReader
from fieldfare.storage.match_log import MatchLog
from fieldfare.storage.moves import Move, State
from fieldfare.storage.registry import Registry
from fieldfare.storage.sqlite.links import LinkStore

if TYPE_CHECKING:  # a relay need not load SQLAlchemy
    from fieldfare.storage.sql.moves import MoveStore

Key = tuple[str, str]
"""The key of a space, and the id of a subscription."""

logger = logging.getLogger("fieldfare.gateway.federation")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveParts:
    """The parts of a broker that moves use."""

    clusters: Clusters
    links: LinkStore
    store: MoveStore
    registry: Registry
    correspondence: Correspondence
    writer: Writer
    subscriptions: Subscriptions
    deliveries: DeliveryService
    quotas: Quotas
    log: EventReader
    match_log: MatchLog


@dataclass(slots=True)
class Progress:
    """A session under way, as far as only this process remembers it.

    Attributes
    ----------
    since_s
        When it was first looked at.
    nudged_s
        When the subscription's automatic streams were last ended.
    ends
        Where the log ended when the last of the records that it waits for had come.
    """

    since_s: float
    nudged_s: float = 0.0
    ends: Offsets | None = None


class Book:
    """The moves of one broker, by space and id."""

    def __init__(self, parts: MoveParts) -> None:
        self.parts = parts
        self.name = parts.clusters.name
        self.moves: dict[Key, Move] = {}
        self._progress: dict[str, Progress] = {}
        self.unsent: deque[Message] = deque()
        """Messages that could not be put into the outboxes."""
        self.retries = Retries()
        """Steps that have failed, by session."""
        self.on_step: Callable[[Move | None, Move | None], None] = lambda before, after: None
        """Called after each step with the move before and after it; None: there is none."""
        for move in parts.store.moves():
            self.moves[move.key] = move
            self._set_barrier(move.key, barrier_of(move))

    def of_session(self, session: str) -> Move | None:
        """Return the move of a session; None if there is none."""
        return next((each for each in self.moves.values() if each.session == session), None)

    def in_state(self, *states: State) -> list[Move]:
        """Return the moves in some states."""
        return [each for each in list(self.moves.values()) if each.state in states]

    def progress(self, session: str) -> Progress:
        """Return what this process remembers of a session, until its end."""
        return self._progress.setdefault(session, Progress(time.monotonic()))

    async def attempt(self, move: Move, step: Callable[[Move], Awaitable[bool]]) -> bool:
        """Do a step of a move if it is possible; return whether it was done."""
        what = f"the move of {move.id} in the space {move.space}"
        return await self.retries.attempt(move.session, what, lambda: step(move))

    def _put(self, key: Key, move: Move | None) -> None:
        """Set or forget a move, and forget what is remembered of a session that is over."""
        before = self.moves.get(key)
        if move is None:
            self.moves.pop(key, None)
        else:
            self.moves[key] = move
        is_over = move is None or move.state in ("moved", "here")
        if before is not None and (is_over or move is None or move.session != before.session):
            self._progress.pop(before.session, None)
            self.retries.forget(before.session)
        if before is not None or move is not None:
            self.on_step(before, move)

    async def run(
        self, key: Key, work: Callable[[Offsets, int], Move | None], ahead: Barrier | None = None
    ) -> Move | None:
        """Run a step on the thread of changes: ``work`` gets the ends of the log and the time, and stores it.

        Parameters
        ----------
        ahead
            A barrier that is there before the step begins, and goes if it fails.
        """
        before = self.parts.subscriptions.barriers.get(key)
        if ahead is not None:
            self._set_barrier(key, ahead)
        try:
            move = await self.parts.writer.change(lambda ends: work(ends, _now_ms()), key[0])
        except BaseException:
            self._set_barrier(key, before)
            raise
        self._put(key, move)
        self._set_barrier(key, None if move is None else barrier_of(move))
        self.parts.subscriptions.invalidate(*key)
        return move

    def store(self, key: Key, move: Move | None, ends: Offsets, now_ms: int) -> Move | None:
        """Store a move, or forget it, without a change of the subscription; runs on the thread of changes."""
        return self.parts.store.step(key, lambda _: move, (), ends, now_ms)

    async def keep(self, move: Move) -> None:
        """Store a move without a change of the subscription."""
        await self.run(move.key, partial(self.store, move.key, move))

    async def reload(self, key: Key) -> None:
        """Let the subscription be delivered as it is stored now."""
        subscription = await asyncio.to_thread(self.parts.registry.get, *key)
        if subscription is not None:
            await self.parts.subscriptions.absorb([subscription])
            self.parts.deliveries.configure(subscription)

    def run_now(self, key: Key, work: Callable[[Offsets, int], Move | None]) -> None:
        """Run a step before the service has started."""
        self._put(key, work(self.parts.writer.log_ends, _now_ms()))

    def forget(self, key: Key) -> None:
        """Forget a move that the store forgets, too."""
        self._put(key, None)
        self._set_barrier(key, None)

    def _set_barrier(self, key: Key, barrier: Barrier | None) -> None:
        if barrier is None:
            self.parts.subscriptions.barriers.pop(key, None)
        else:
            self.parts.subscriptions.barriers[key] = barrier

    def send(self, peer: str, session: str, step: Step) -> None:
        """Put a message for another broker into the outboxes; durable on return. Call it on a thread.

        If that fails, it is tried again by `send_unsent`, and after a start.
        """
        message = Message(self.name, (Destination(peer),), session, step)
        try:
            self._add(message)
        except (StorageError, OSError) as error:
            logger.error("a message for %s about a move waits: %s", peer, error)
            self.unsent.append(message)

    def send_unsent(self) -> None:
        """Try the messages again that could not be put into the outboxes. Call it on a thread."""
        while self.unsent:
            self._add(self.unsent[0])
            self.unsent.popleft()

    def _add(self, message: Message) -> None:
        self.parts.links.add(self.parts.clusters.split(message, message.destinations))

    def know(self, revision: int) -> bool:
        """Return whether this registry counts for all later records of all brokers, up to a revision."""
        known, clusters = self.parts.correspondence, self.parts.clusters
        return self.parts.writer.floor() >= revision and all(
            known.get(name).counts_through >= revision for name in clusters.brokers
        )

    def is_matched(self, ends: Offsets) -> bool:
        """Return whether the match log is complete up to these ends."""
        log, match_log = self.parts.log, self.parts.match_log
        return all(
            match_log.partition(number).end(log.partitions[number].start()) >= end
            for number, end in enumerate(ends)
            if log.partitions[number].start() < end
        )

    def count(self, space: str, before: Subscription | None, after: Subscription | None) -> None:
        """Count a subscription that was created, replaced or removed; on the thread of changes."""
        used = self.parts.quotas.used(space)
        used.subscriptions += (after is not None) - (before is not None)
        used.filter_cost += (after.cost if after else 0) - (before.cost if before else 0)


def barrier_of(move: Move) -> Barrier | None:
    """Return what a subscription refuses while it is moving, and afterwards."""
    if move.state in ("ending", "ended"):
        return Barrier(lambda: _moving(move), is_closed=False)
    if move.state == "moved":
        return Barrier(lambda: moved(move), is_closed=True, has_letters=True)
    if move.state in ("arriving", "accepted", "counting", "ready"):
        return Barrier(lambda: _arriving(move), is_closed=True)
    return None


def closing(move: Move) -> Barrier:
    """Return the barrier for the moment in which a broker hands a subscription over."""
    return Barrier(lambda: _soon(move), is_closed=True)


def moved(move: Move) -> HttpProblem:
    """Return the answer to requests for a subscription that is at another broker."""
    place = f"{move.url}/v1/spaces/{space_name(move.space)}/subscriptions/{move.id}"
    detail = f"The subscription {move.id!r} has moved to the broker {move.peer!r}: read it at {place}."
    hint = "Positions of this broker mean nothing there: all messages up to the move are settled."
    return HttpProblem(
        410, "moved", detail, headers={"Location": place}, hint=hint, id=move.id, broker=move.peer,
        url=move.url, token=move.token,
    )  # fmt: skip


def _moving(move: Move) -> HttpProblem:
    detail = (
        f"The subscription {move.id!r} is moving to the broker {move.peer!r}: change it there afterwards."
    )
    hint = "It has moved once all its messages here are settled; a seek to latest settles them at once."
    return HttpProblem(409, "moving", detail, hint=hint)


def _soon(move: Move) -> HttpProblem:
    detail = f"The subscription {move.id!r} is being handed over to the broker {move.peer!r}: try again."
    return HttpProblem(503, "moving", detail, headers={"Retry-After": "1"})


def _arriving(move: Move) -> HttpProblem:
    detail = (
        f"The subscription {move.id!r} is arriving from the broker {move.peer!r}, which still delivers its"
        " part: read it there, or try again."
    )
    return HttpProblem(503, "arriving", detail, headers={"Retry-After": "1"})


def with_settings(move: Move, subscription: Subscription) -> Move:
    """Return a move with the present settings, owner and labels of its subscription."""
    delivery = encoded(subscription.delivery.to_wire())
    return replace(move, delivery=delivery, owner=subscription.owner, labels=subscription.labels)


def encoded(settings: dict[str, Any]) -> bytes:
    """Return delivery settings, as a client sends them, as they are stored with a move."""
    return msgspec.json.encode(settings)


def decoded(settings: bytes) -> dict[str, Any]:
    """Return stored delivery settings."""
    found: dict[str, Any] = msgspec.json.decode(settings)
    return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
