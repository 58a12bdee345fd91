"""From the inbox into this broker: events into the log, other brokers' filters into the registry.

An entry is removed from the inbox after it is processed. Each step can be repeated: the log recognises a
record by the inbox entry's id, and the registry a message by its sequence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from fieldfare.arrow_events.stream import is_arrow
from fieldfare.filters import Filter
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.heeding import Heeding, parted
from fieldfare.gateway.federation.origins import HOPS_MAX, Origin
from fieldfare.gateway.federation.retries import Retries
from fieldfare.gateway.federation.wire import (
    Counts,
    Destination,
    Entry,
    Events,
    Interest,
    Lost,
    Move,
    decode_entry,
)
from fieldfare.gateway.filter_texts import compile_checked
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.appender import Appender
from fieldfare.gateway.publishing.arrow_bodies import decode_arrow
from fieldfare.gateway.publishing.events import (
    DecodedEvents,
    Limits,
    decode_lines,
    decode_lines_fast,
)
from fieldfare.storage.brokers import RemoteFilter, Run
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.links import Correspondent, Inbound
from fieldfare.storage.sqlite.links import LinkStore

if TYPE_CHECKING:  # a relay need not load SQLAlchemy
    from fieldfare.storage.sql.brokers import BrokerStore

TAKEN_BATCH_SIZE = 200
"""Entries processed at a time; far fewer than the sequences of a producer that the log remembers."""

AHEAD_MAX = 100_000
"""Maximum sequences of a broker that are remembered because earlier ones are missing."""

TABLE_MAX_BYTES = 64 << 20
"""Maximum bytes of an entry with an Arrow table; twice as many when lists are counted by their items. It is
above the default limit of a request, which bounded the table where it was published."""

FILTERS_MAX = 2_000_000
"""Maximum filters of another broker; further ones are refused."""

logger = logging.getLogger("fieldfare.gateway.federation")


class Inbox:
    """Processes entries for this broker.

    Parameters
    ----------
    clusters
        The broker's clusters.
    charge
        Charges the quotas of a space: see `Quotas.charge`.
    key_of_space
        Returns the key of a space that may get events of other brokers; None if there is none.
    next_revision
        Gives the registry a new revision.
    """

    def __init__(
        self,
        clusters: Clusters,
        store: LinkStore,
        brokers: BrokerStore,
        correspondence: Correspondence,
        appender: Appender,
        charge: Callable[..., None],
        key_of_space: Callable[[str], str | None],
        limits: Limits,
        filter_max_bytes: int,
        heeding: Heeding,
        next_revision: Callable[[], Awaitable[object]],
    ) -> None:
        self._me = clusters.name
        self._clusters = clusters
        self._store = store
        self._brokers = brokers
        self._correspondence = correspondence
        self._appender = appender
        self._charge = charge
        self._key_of_space = key_of_space
        self._limits = limits
        self._filter_max_bytes = filter_max_bytes
        self._heeding = heeding
        self._next_revision = next_revision
        self._producer = f"link {store.identity}"
        self._filters_held: dict[str, int] = {}
        """At least the number of filters of each broker; it is counted again where it reaches the maximum."""
        self.bounds: Sequence[int] = ()
        """Revisions of this registry, ascending, that moves wait for: the greatest stamp of each origin is
        kept apart for records below each of them and for those from it on."""
        self.on_move: Callable[[Move], Awaitable[None]] | None = None
        """Called with each message of a move; durable when it returns."""
        self._failed = Retries()
        """Messages of moves that could not be processed, by the entry's id: they stay in the inbox."""
        self.dropped_events = 0
        """Events of other brokers that were not appended: they are not valid, or have no space here."""
        self.without_filters: set[str] = set()
        """Brokers of which a message with filters has come, and an earlier one has not."""
        self.refused_filters = 0
        """Filters of other brokers that were refused."""

    async def step(self) -> bool:
        """Process entries that wait; return whether any was processed.

        A message with filters may arrive before an earlier one, and wait for it: once that is applied, all
        that wait are looked at again.
        """
        has_processed = False
        while True:
            after = processed = waiting = 0
            while found := await asyncio.to_thread(self._store.inbound, TAKEN_BATCH_SIZE, after):
                after = found[-1].id
                count = await self._process(found)
                processed += count
                waiting += len(found) - count
            has_processed |= processed > 0
            if not (processed and waiting):
                return has_processed

    async def _process(self, found: Sequence[Inbound]) -> int:
        """Process entries, and return how many; those that wait for an earlier one stay."""
        entries = await asyncio.to_thread(lambda: [self._decoded(each) for each in found])
        checked = await asyncio.to_thread(
            lambda: [self._checked(entry) if isinstance(entry, Events) else None for entry in entries]
        )
        # Each is handed to the writer before the next one starts: a site's events stay in order.
        repeats = self._repeats(entries)
        records = [
            self._append(each, entry, decoded)
            for place, (each, entry, decoded) in enumerate(zip(found, entries, checked, strict=True))
            if isinstance(entry, Events) and place not in repeats
        ]
        done = [each.id for each in found if each.kind == "events"]
        for outcome in await asyncio.gather(*records, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        changed: dict[str, Correspondent] = {}
        for each, entry in zip(found, entries, strict=True):
            if isinstance(entry, Lost):
                done.append(each.id)
                continue
            state = changed.get(entry.source) or self._correspondence.get(entry.source)
            if isinstance(entry, Events):
                changed[entry.source] = self._with_events(state, entry)
            elif isinstance(entry, Counts):
                changed[entry.source] = counted(state, entry)
                done.append(each.id)
            elif isinstance(entry, Move):
                if state.is_removed or await self._hand_to_moves(each.id, entry):
                    done.append(each.id)
            elif state.is_removed or await self._apply(entry):
                # After the filters that it needs: from here on, what it allows may be published.
                changed[entry.source] = confirmed(state, entry)
                done.append(each.id)
                self.without_filters.discard(entry.source)
            else:
                self.without_filters.add(entry.source)
        done = sorted(set(done))
        if done:
            await asyncio.to_thread(self._store.processed, done, list(changed.values()))
            self._correspondence.put(changed.values())
        return len(done)

    def _decoded(self, each: Inbound) -> Entry:
        return decode_entry(each.entry)

    @property
    def is_due(self) -> bool:
        """Whether a message that could not be processed is to be tried again."""
        return self._failed.is_due

    @property
    def failed_moves(self) -> int:
        """Number of messages of moves that could not be processed, and are tried again."""
        return len(self._failed)

    async def _hand_to_moves(self, id: int, entry: Move) -> bool:
        """Process a message of a move; return False if it cannot be processed now."""

        async def work() -> bool:
            if self.on_move is not None:
                await self.on_move(entry)
            return True

        what = f"a message of {entry.source} ({type(entry.step).__name__}) about a move"
        return await self._failed.attempt(id, what, work)

    # Events

    def _repeats(self, entries: Sequence[Entry]) -> set[int]:
        """Return the places of the entries with events that were received before, or before in the list."""
        found, seen = set[int](), set[tuple[str, int]]()
        for place, entry in enumerate(entries):
            if not isinstance(entry, Events):
                continue
            known, mine = self._correspondence.get(entry.source), self._mine(entry)
            key = entry.source, mine.sequence
            if mine.sequence <= known.received or mine.sequence in (known.ahead or {}) or key in seen:
                found.add(place)
            seen.add(key)
        return found

    def _mine(self, entry: Events) -> Destination:
        return next(each for each in entry.destinations if each.name == self._me)

    def _with_events(self, state: Correspondent, entry: Events) -> Correspondent:
        mine = self._mine(entry)
        ahead = dict(state.ahead or {})
        if mine.sequence <= state.received or mine.sequence in ahead:
            # The copy may have overtaken the entry.
            if entry.is_again or mine.sequence <= state.again:
                return state
            logger.error("%s sent entry %d a second time; it is ignored", entry.source, mine.sequence)
            return replace(state, repeats=state.repeats + 1)
        if entry.is_again:
            state = replace(state, again=max(state.again, mine.sequence))
        if len(ahead) < AHEAD_MAX:
            ahead[mine.sequence] = mine.revision
        stamps = state.stamps
        if not state.is_removed:  # Else its record meets the subscriptions as they stand now: see `_append`.
            stamps = greatest_stamps(stamps, mine.revision, entry.stamp, self.bounds)
        return settled(replace(state, ahead=ahead, stamps=stamps))

    async def _append(self, each: Inbound, entry: Events, decoded: DecodedEvents | None) -> None:
        mine = self._mine(entry)
        known = self._correspondence.get(entry.source)
        place = f"{entry.partition}-{entry.offset}/{entry.stamp}"
        origin = Origin.received(entry.source, place, entry.origin, is_edge=self._clusters.is_edge)
        if origin.broker == self._me or origin.hops > HOPS_MAX:
            logger.error("events of %s came back over %s: a ring of clusters", origin.place, entry.source)
            self.dropped_events += entry.count
            return
        key = self._key_of_space(entry.space)
        if key is None or decoded is None or not decoded.count:
            self.dropped_events += entry.count
            return
        self.dropped_events += entry.count - decoded.count
        # For a removed broker no history is kept: what it had sent meets the subscriptions as they stand now.
        floor = self._appender.writer.stamp if known.is_removed else known.floor
        record = NewRecord(
            key,
            decoded.payload,
            decoded.count,
            self._producer,
            each.id,
            time.time_ns() // 1_000_000,
            max(mine.revision, floor),
            origin=origin.text,
        )
        appended = await self._appender.append(record, is_due=True)
        if not appended.duplicate:
            spent = {"events_per_s": decoded.count, "bytes_per_s": len(decoded.payload)}
            self._charge(key, time.monotonic(), **spent)

    def _checked(self, entry: Events) -> DecodedEvents | None:
        """Return the valid events of an entry; None if it has none."""
        try:
            if is_arrow(entry.payload):
                return decode_arrow(entry.payload, self._limits, TABLE_MAX_BYTES)
            fast = decode_lines_fast(entry.payload, self._limits)
            return decode_lines(entry.payload, self._limits) if fast is None else fast
        except (HttpProblem, ValueError) as error:
            logger.error("an entry of %s has no valid events: %s", entry.source, error)
            return None

    # Filters

    async def _apply(self, entry: Interest) -> bool:
        """Apply a message with filters; return False if an earlier one is missing."""
        broker = self._correspondence.brokers.get(entry.source)
        applied = 0 if broker is None else broker.sequence
        if entry.sequence <= applied:
            return True
        if entry.sequence > applied + 1:
            return False
        filters, theirs, is_all = await asyncio.to_thread(self._taken, entry), entry.theirs, entry.is_all
        last = None if broker is None else self._correspondence.last_run(broker.number)
        if theirs is not None and last is not None and theirs < last.theirs:
            logger.error("%s named revision %d after %d; ignored", entry.source, theirs, last.theirs)
            filters, theirs, is_all = [], None, False
        may_hold_back = self._correspondence.get(entry.source).advertised > 0
        is_first = last is None and theirs is not None
        if may_hold_back and (is_first or any(each.filter is None for each in filters)):
            # A filter that is held back changes nothing here. Without a revision of its own, events that were
            # published before what is advertised now would count for it, and were not matched with it.
            await self._next_revision()
        now_ms = time.time_ns() // 1_000_000
        revision = await self._appender.writer.change(
            lambda ends: self._brokers.apply_filters(
                entry.source, entry.sequence, filters, theirs, ends, now_ms, is_all=is_all
            )
        )
        stored = await asyncio.to_thread(self._brokers.brokers)
        self._correspondence.brokers = {each.name: each for each in stored}
        if theirs is not None:
            number = self._correspondence.brokers[entry.source].number
            self._correspondence.add_run(Run(number, revision, theirs))
        return True

    def _taken(self, entry: Interest) -> list[RemoteFilter]:
        """Store the advertisements of a message, and return the changes of filters that can be applied.

        After a kill, the message is looked at again.
        """
        filters, stated, _ = parted(entry.source, entry.filters)
        self._heeding.take(stated, self._correspondence.get(entry.source).heeded)
        return self._compiled(msgspec.structs.replace(entry, filters=tuple(filters)))

    def _compiled(self, entry: Interest) -> list[RemoteFilter]:
        """Return the changes of a message that can be applied, compiled."""
        if self._filters_held.get(entry.source, FILTERS_MAX) >= FILTERS_MAX:
            known = self._correspondence.brokers.get(entry.source)
            count = 0 if known is None else self._brokers.count_filters().get(known.number, 0)
            self._filters_held[entry.source] = count
        found = []
        for each in entry.filters:
            if each.filter is None:
                found.append(RemoteFilter(each.space, each.number, None))
                continue
            compiled = compile_checked(each.filter, each.dialect, self._filter_max_bytes)
            if not isinstance(compiled, Filter) or self._filters_held[entry.source] >= FILTERS_MAX:
                self.refused_filters += 1
                # A filter that it replaces must not stay in its place.
                found.append(RemoteFilter(each.space, each.number, None))
                continue
            self._filters_held[entry.source] += 1
            found.append(
                RemoteFilter(
                    each.space, each.number, each.filter, each.dialect, compiled.compiled, compiled.cost
                )
            )
        return found


def greatest_stamps(
    stamps: Mapping[int, int], revision: int, stamp: int, bounds: Sequence[int]
) -> dict[int, int]:
    """Return the greatest stamps by the last bound at or before a revision, with one record more."""
    found: dict[int, int] = {}
    for at, known in (*stamps.items(), (revision, stamp)):
        bound = max((each for each in bounds if each <= at), default=0)
        found[bound] = max(found.get(bound, 0), known)
    return found


def counted(state: Correspondent, entry: Counts) -> Correspondent:
    """Return a state with a `counts` entry; one that was overtaken by a later one changes nothing."""
    if state.pending is not None and state.pending[1] >= entry.theirs:
        return state
    return settled(replace(state, pending=(entry.after, entry.theirs)))


def confirmed(state: Correspondent, entry: Interest) -> Correspondent:
    """Return a state with what a message with filters confirms, at most what its source was told."""
    _, _, version = parted(entry.source, entry.filters)
    return replace(state, confirmed=max(state.confirmed, min(version, state.advertised)))


def missing(state: Correspondent) -> int:
    """Return the number of a broker's entries with events that have not arrived, although later ones have."""
    ahead = state.ahead or {}
    last = max([state.received, *ahead, *([] if state.pending is None else [state.pending[0]])])
    return last - state.received - len(ahead)


def settled(state: Correspondent) -> Correspondent:
    """Return a state after all that follows without a gap from what was received.

    Only a `counts` entry raises the floor: an edge broker also passes on records with lower revisions.
    """
    ahead, received, floor = dict(state.ahead or {}), state.received, state.floor
    while ahead.pop(received + 1, None) is not None:
        received += 1
    counts_through, pending = state.counts_through, state.pending
    if pending is not None and received >= pending[0]:
        floor, counts_through = max(floor, pending[1]), max(counts_through, pending[1])
        pending = None
    return replace(
        state,
        ahead=ahead or None,
        received=received,
        floor=floor,
        counts_through=counts_through,
        pending=pending,
    )
