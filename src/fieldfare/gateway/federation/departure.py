"""This broker leaves the sites in good order, for planned decommissioning.

    staying ──▶ closing ──▶ withdrawn ──▶ left
       ◀──────────┴─────────────┘ cancelled

From the start, no events, filters or moving subscriptions are accepted, and others send nothing through this
broker: its row says that paths end here. Once no subscription is moving and no event is delayed, all others
are told that it has no filters. When that counts everywhere, all that they send to it has come; when nothing
waits here any more, for others or for subscribers here, it says that it was removed.

`closing` is in the broker's own row, `withdrawn` in the state of each other broker, and `left` in the own row
again: a kill at any place delays the departure, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from fieldfare.gateway.change_gate import ChangeGate
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.documents import DepartureDocument
from fieldfare.gateway.federation.interest import InterestSender
from fieldfare.gateway.federation.links import Links
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.gateway.federation.topology import NO_PATH
from fieldfare.gateway.problems import HttpProblem
from fieldfare.storage.sqlite.links import LinkStore

STEP_S = 0.05
"""Minimum seconds between two looks at what a departure waits for."""

SETTLED_S = 0.5
"""Seconds for which nothing may have waited here before the end: longer than sums of backlogs are kept
(`backlogs.SUMS_S`), so that the last look sees new ones."""

HELD_S = 3.0
"""Maximum seconds that batches of neighbours wait while the last entries leave; then they go on for as long.
It is well below the time after which a neighbour gives a request up."""

PASSING = ("outbox_entries", "inbox_bytes", "receiving")
"""Counts that are above 0 for a moment only, and rise again while neighbours send."""

logger = logging.getLogger("fieldfare.gateway.federation")


class Drained(Protocol):
    def __call__(self, *, is_over: bool = False) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartureParts:
    """The parts of a broker that its departure uses.

    Attributes
    ----------
    next_revision
        Gives the registry a new revision.
    local
        Returns the numbers of what waits at this site, by name.
    drained
        The broker takes no load from others, or does again if its departure `is_over`.
    """

    clusters: Clusters
    store: LinkStore
    correspondence: Correspondence
    links: Links
    interest: InterestSender
    moves: Moves
    gate: ChangeGate
    next_revision: Callable[[], Awaitable[object]]
    local: Callable[[], Awaitable[dict[str, int]]]
    drained: Drained


class Departure:
    """The departure of one broker. Used on the event loop only."""

    def __init__(self, parts: DepartureParts) -> None:
        self._parts = parts
        self._clusters = parts.clusters
        self._lock = asyncio.Lock()
        self._next_s = 0.0
        self._settled_s: float | None = None
        self._held_s: float | None = None
        self._counts: dict[str, int] = {}
        self._sites: list[str] = []
        if self._clusters.is_leaving or self._clusters.has_left:
            known = map(parts.correspondence.get, self._clusters.brokers)
            parts.interest.is_withdrawn = any(each.withdrawn for each in known)
            self._close()

    @property
    def state(self) -> str:
        """How far the departure is: see the module."""
        if self._clusters.has_left:
            return "left"
        if not self._clusters.is_leaving:
            return "staying"
        return "withdrawn" if self._parts.interest.is_withdrawn else "closing"

    @property
    def is_due(self) -> bool:
        """Whether the broker is leaving, and what it waits for was not looked at for `STEP_S` seconds."""
        return self._clusters.is_leaving and not self._clusters.has_left and time.monotonic() >= self._next_s

    def document(self) -> DepartureDocument:
        """Return how far the departure is, and what it waits for."""
        links = self._parts.links
        untold = (
            [name for name, peer in links.peers.items() if not peer.is_told] if self.state == "left" else []
        )
        untold = [name for name in untold if name not in self._clusters.removed]
        is_under_way = self.state in ("closing", "withdrawn")
        return DepartureDocument(
            broker=self._clusters.name,
            state=self.state,
            waits_for=dict(self._counts) if is_under_way else {},
            sites=list(self._sites) if is_under_way else [],
            untold=untold,
        )

    # For operators

    async def begin(self, *, is_forced: bool) -> None:
        """Begin to leave; nothing happens if that has begun.

        Raises
        ------
        HttpProblem
            This broker joins two clusters, or others would be parted and it is not forced.
        """
        async with self._lock:
            if self.state != "staying":
                return
            if self._clusters.is_edge:
                name = self._clusters.name
                detail = f"The broker {name!r} connects clusters, which could then not reach each other."
                hint = (
                    "Connect them through another broker, stop this one, and use `fieldfare brokers remove`."
                )
                raise HttpProblem(409, "cannot-leave", detail, hint=hint)
            parted = self._clusters.parted_by_leaving()
            if parted and not is_forced:
                names = ", ".join(parted)
                detail = (
                    f"Without {self._clusters.name!r} there is no path between {names} and other brokers."
                )
                hint = (
                    "Link them in another way first. With force, events that they have for each other wait."
                )
                raise HttpProblem(409, "cut-vertex", detail, hint=hint, parted=parted)
            self._close()
            try:
                await self._parts.links.set_leaving(is_leaving=True)
            except BaseException:
                self._clusters.set_leaving(is_leaving=False)
                self._open()
                raise
            logger.warning("the broker %s is leaving", self._clusters.name)

    async def cancel(self) -> None:
        """Stay after all: subscriptions count again at all others, from one place on.

        Raises
        ------
        HttpProblem
            The broker has left.
        """
        async with self._lock:
            if self.state == "left":
                detail = f"The broker {self._clusters.name!r} has left: all others refuse its name for good."
                hint = "Start it with another name and an empty links.db."
                raise HttpProblem(409, "has-left", detail, hint=hint)
            if self.state == "staying":
                return
            self._release()
            # First: as of the revision that follows, none may be told that there are no filters.
            was_withdrawn, self._parts.interest.is_withdrawn = self._parts.interest.is_withdrawn, False
            if was_withdrawn:
                await self._parts.next_revision()
            try:
                await self._parts.links.set_leaving(is_leaving=False)
            except BaseException:
                self._clusters.set_leaving(is_leaving=True)
                raise
            self._open()
            logger.warning("the broker %s stays", self._clusters.name)

    def _close(self) -> None:
        name, is_over = self._clusters.name, self._clusters.has_left
        doing = "has left its sites" if is_over else "is leaving its sites"
        self._parts.gate.refusal = f"The broker {name!r} {doing}, and accepts no new events and filters."
        self._parts.moves.refuse(arrivals=True, departures=self._parts.interest.is_withdrawn)
        self._parts.drained()

    def _open(self) -> None:
        self._parts.gate.refusal = ""
        self._parts.moves.refuse(arrivals=False, departures=False)
        self._parts.drained(is_over=True)

    # Steps

    async def step(self) -> bool:
        """Do what has become possible; return whether anything was."""
        async with self._lock:
            self._next_s = time.monotonic() + STEP_S
            if self.state not in ("closing", "withdrawn"):
                return False
            await self._look()
            if not self._parts.interest.is_withdrawn:
                return await self._withdraw()
            known = map(self._parts.correspondence.get, self._clusters.brokers)
            if not all(each.withdrawn for each in known):
                await self._parts.next_revision()
                return True
            return await self._leave()

    async def _withdraw(self) -> bool:
        """Tell all others that there are no filters here, if nothing is moving and no event is delayed."""
        moves = self._parts.moves
        if moves.open or self._counts.get("delayed_records"):
            return False
        moves.refuse(arrivals=True, departures=True)
        await self._parts.next_revision()
        self._parts.interest.is_withdrawn = True
        return True

    async def _leave(self) -> bool:
        """Leave if nothing waits; before the last look, neighbours wait with what they send."""
        now_s = time.monotonic()
        if self._sites or self._counts.keys() - set(PASSING):
            self._release()
            return False
        if self._settled_s is None:
            self._settled_s = now_s
        if now_s - self._settled_s < SETTLED_S:
            return False
        if self._held_s is None:
            self._held_s = now_s
            self._parts.links.hold(is_held=True)
        elif not self._counts:
            await self._parts.links.leave()
            self._close()
            logger.warning("the broker %s has left", self._clusters.name)
            return True
        elif now_s - self._held_s > HELD_S:
            self._release()
        return False

    def _release(self) -> None:
        self._settled_s = self._held_s = None
        self._parts.links.hold(is_held=False)

    async def _look(self) -> None:
        """Count what waits here: each kind before those that it turns into."""
        counts = {"receiving": self._parts.links.receiving, "moves": self._parts.moves.open}
        counts |= await self._parts.local()
        stored, self._sites = await asyncio.to_thread(self._stored)
        self._counts = {name: count for name, count in (counts | stored).items() if count}

    def _stored(self) -> tuple[dict[str, int], list[str]]:
        """Return what waits in the file of links, and the sites that have not heard or confirmed all."""
        store = self._parts.store
        receipts, sites = store.receipts(), []
        for name in self._clusters.brokers:
            state = self._parts.correspondence.get(name)
            events, messages = receipts.get(name, (state.events, state.messages))
            is_confirmed = events >= state.events and messages >= state.messages
            if not (state.withdrawn and state.counts_through >= state.withdrawn and is_confirmed):
                sites.append(name)
        # A former neighbour's outbox has only numbers, without entries: see `LinkStore.take_back`.
        ways = (NO_PATH, *self._parts.links.peers)
        inbox_bytes = store.inbound_bytes()
        counts = {
            "inbox_bytes": inbox_bytes,
            "outbox_entries": sum(each.entries for name, each in store.outboxes().items() if name in ways),
            "kept_entries": store.kept_totals()[0],
        }
        return counts, sites
