"""From the match log to the outboxes: events of this broker for other brokers, with their destination lists.

The forwarder reads the match log like a subscriber, for the destination numbers of all brokers together. The
entries of a block and the cursor behind them are stored in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from fieldfare.arrow_events.stream import is_arrow, read_events, write_events
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.topology import Topology
from fieldfare.gateway.federation.wire import Counts, Destination, Events
from fieldfare.model import Offsets, space_name
from fieldfare.storage.event_log import EventReader, Record
from fieldfare.storage.links import Correspondent, LinkStore, Part
from fieldfare.storage.match_log import MatchBlock, MatchLog

ENTRY_BYTES = 1 << 20
"""Bytes of events after which an entry ends; a larger event is sent alone."""

STEP_BYTES = 16 << 20
"""Bytes of entries that are stored in one transaction."""

Lists = dict[tuple[str, ...], list[int]]
"""The events of a record by their destinations: indexes, ascending."""


class Forwarder:
    """Puts the events that other brokers want into the outboxes.

    Parameters
    ----------
    floor
        Returns the lowest stamp that a record appended from now on can have.
    log_ends
        Returns the ends of the log's partitions.
    """

    def __init__(
        self,
        log: EventReader,
        match_log: MatchLog,
        store: LinkStore,
        topology: Topology,
        correspondence: Correspondence,
        floor: Callable[[], int],
        log_ends: Callable[[], Offsets],
    ) -> None:
        self._log = log
        self._match_log = match_log
        self._store = store
        self._topology = topology
        self._correspondence = correspondence
        self._floor = floor
        self._log_ends = log_ends
        self._due: dict[str, tuple[int, int, Offsets]] = {}
        found = [store.cursor(partition.number) for partition in log.partitions]
        self.cursors: Offsets = tuple(
            end if cursor is None else cursor for cursor, end in zip(found, log_ends(), strict=True)
        )
        """The offsets up to which records are forwarded, by partition."""
        for partition, cursor in enumerate(self.cursors):
            store.add((), (), (partition, cursor))

    @property
    def is_behind(self) -> bool:
        """Whether the log has records that are not forwarded."""
        return self.cursors != self._log_ends()

    @property
    def has_counts_due(self) -> bool:
        """Whether a broker is not told yet that its filters count for all later records."""
        known = self._correspondence
        runs = ((each.name, known.last_run(each.number)) for each in list(known.brokers.values()))
        return any(run is not None and run.theirs > known.get(name).counted for name, run in runs)

    def step(self) -> bool:
        """Forward the events of the next block of each partition; return whether there was one."""
        has_moved = False
        for partition in range(len(self.cursors)):
            has_moved |= self._step(partition)
        return self._tell_counts() or has_moved

    def _step(self, partition: int) -> bool:
        cursor = self.cursors[partition]
        block = self._match_log.partition(partition).block_at(cursor)
        if block is None:
            start = self._log.partitions[partition].start()
            if start <= cursor:
                return False
            self._move(partition, start, (), ())
            return True
        parts: list[Part] = []
        size_bytes, changed = 0, dict[str, Correspondent]()
        for record, lists in self._listed(partition, block, cursor):
            for names, indexes in lists.items():
                for entry in self._entries(partition, record, names, indexes, changed):
                    parts += self._topology.split(entry, entry.destinations)
                    size_bytes += len(entry.payload)
            if size_bytes >= STEP_BYTES:
                self._move(partition, record.offset + 1, parts, list(changed.values()))
                parts, size_bytes = [], 0
                changed.clear()
        self._move(partition, block.end, parts, list(changed.values()))
        return True

    def _move(
        self, partition: int, cursor: int, parts: Sequence[Part], changed: Sequence[Correspondent]
    ) -> None:
        self._store.add(parts, changed, (partition, cursor))
        self._correspondence.put(changed)
        self.cursors = (*self.cursors[:partition], cursor, *self.cursors[partition + 1 :])

    def _listed(self, partition: int, block: MatchBlock, start: int) -> Iterator[tuple[Record, Lists]]:
        """Yield the records of a block with events for other brokers, and these events' destinations."""
        brokers = sorted(self._correspondence.brokers.values(), key=lambda each: each.number)
        if not brokers:
            return
        numbers = np.array([each.number for each in brokers], np.uint32)
        bounds, offsets, indexes = block.matches_of_each(numbers)
        names: dict[tuple[int, int], tuple[str, ...]] = {}
        for broker, first, end in zip(brokers, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            for place in zip(offsets[first:end].tolist(), indexes[first:end].tolist(), strict=True):
                if place[0] >= start:
                    names[place] = (*names.get(place, ()), broker.name)
        wanted: dict[int, Lists] = {}
        for (offset, index), chosen in sorted(names.items()):
            wanted.setdefault(offset, {}).setdefault(chosen, []).append(index)
        if not wanted:
            return
        for record in self._log.partitions[partition].read(min(wanted), max(wanted) + 1):
            # Records that came over a link are never matched for other brokers: this is a second lock.
            if record.offset in wanted and record.origin is None:
                yield record, wanted[record.offset]

    def _entries(
        self,
        partition: int,
        record: Record,
        names: Sequence[str],
        indexes: Sequence[int],
        changed: dict[str, Correspondent],
    ) -> Iterator[Events]:
        known = self._correspondence
        revisions = {name: known.theirs(known.brokers[name].number, record.stamp) for name in names}
        reached = [(name, revision) for name, revision in revisions.items() if revision is not None]
        if not reached:
            return
        for count, payload in chosen_events(record.payload, indexes):
            destinations = []
            for name, revision in reached:
                state = changed.get(name) or known.get(name)
                changed[name] = state = replace(state, events=state.events + 1)
                destinations.append(Destination(name, revision, state.events))
            yield Events(
                self._topology.name,
                tuple(destinations),
                space_name(record.space),
                partition,
                record.offset,
                record.stamp,
                count,
                payload,
            )

    def _tell_counts(self) -> bool:
        """Tell brokers whose filters count for all later records; return whether there were any."""
        has_told = False
        for name, broker in self._correspondence.brokers.items():
            run, state = self._correspondence.last_run(broker.number), self._correspondence.get(name)
            if run is None or run.theirs <= state.counted:
                continue
            due = self._due.get(name)
            if due is None or due[0] != run.revision:
                if self._floor() < run.revision:
                    continue
                # After the floor: all records beyond these ends have a stamp of at least the revision.
                due = self._due[name] = run.revision, run.theirs, self._log_ends()
            if all(map(int.__ge__, self.cursors, due[2])):
                to = (Destination(name),)
                counts = Counts(self._topology.name, to, due[0], due[1], state.events)
                state = replace(state, counted=due[1])
                self._store.add(self._topology.split(counts, to), [state])
                self._correspondence.put([state])
                del self._due[name]
                has_told = True
        return has_told


def chosen_events(payload: bytes, indexes: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the chosen events of a record as payloads of about `ENTRY_BYTES`, with each one's size."""
    if is_arrow(payload):
        events = read_events(payload)
        step = max(1, len(indexes) * ENTRY_BYTES // max(1, len(payload)))
        for first in range(0, len(indexes), step):
            some = indexes[first : first + step]
            yield len(some), bytes(write_events(events.take(pa.array(some, pa.int64()))))
        return
    lines = payload.split(b"\n")
    chosen: list[bytes] = []
    size_bytes = 0
    for index in indexes:
        if chosen and size_bytes + len(lines[index]) >= ENTRY_BYTES:
            yield len(chosen), b"\n".join((*chosen, b""))
            chosen, size_bytes = [], 0
        chosen.append(lines[index])
        size_bytes += len(lines[index]) + 1
    yield len(chosen), b"\n".join((*chosen, b""))
