"""From the match log to the outboxes: events of this broker for other brokers, with their destination lists.

The forwarder reads the match log like a subscriber, for the destination numbers of all brokers together. The
entries of a block and the cursor behind them are stored in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.entries import Group, Lists, Merger, Reached, destination_lists
from fieldfare.gateway.federation.origins import Origin
from fieldfare.gateway.federation.wire import Counts, Destination, Events
from fieldfare.model import Offsets, is_forwarded, space_name
from fieldfare.storage.event_log import EventReader, Record
from fieldfare.storage.links import Correspondent, Part
from fieldfare.storage.match_log import MatchBlock, MatchLog
from fieldfare.storage.sqlite.links import LinkStore

STEP_BYTES = 16 << 20
"""Bytes of entries that are stored in one transaction."""


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
        clusters: Clusters,
        correspondence: Correspondence,
        floor: Callable[[], int],
        log_ends: Callable[[], Offsets],
    ) -> None:
        self._log = log
        self._match_log = match_log
        self._store = store
        self._clusters = clusters
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
        """Whether a broker can be told now, or soon, that its filters count for all later records."""
        known = self._correspondence
        runs = ((each.name, known.last_run(each.number)) for each in list(known.brokers.values()))
        return any(
            run is not None and run.theirs > known.get(name).counted and self._floor_for(name) >= run.revision
            for name, run in runs
        )

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
        merger, parts = Merger(), list[Part]()
        size_bytes, changed = 0, dict[str, Correspondent]()
        for record, lists in self._listed(partition, block, cursor):
            for group in merger.add(record, self._reached(record, lists)):
                parts += self._parts(partition, group, changed)
                size_bytes += group.size_bytes
            if size_bytes + merger.size_bytes >= STEP_BYTES:
                parts += self._parts_of_all(partition, merger.flush(), changed)
                self._move(partition, record.offset + 1, parts, list(changed.values()))
                parts, size_bytes = [], 0
                changed.clear()
        parts += self._parts_of_all(partition, merger.flush(), changed)
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
        matches = block.matches_of_each(np.array([each.number for each in brokers], np.uint32))
        wanted = destination_lists([each.name for each in brokers], *matches, start)
        if not wanted:
            return
        for record in self._log.partitions[partition].read(min(wanted), max(wanted) + 1):
            # Others that came over a link are never matched for brokers: this is a second lock.
            if record.offset in wanted and is_forwarded(record.origin):
                yield record, wanted[record.offset]

    def _reached(self, record: Record, lists: Lists) -> dict[Reached, NDArray[np.int64]]:
        """Return the events of a record by brokers whose filters count, with the revisions as of which."""
        known = self._correspondence
        found: dict[Reached, NDArray[np.int64]] = {}
        hidden = set[str]()
        if record.origin is not None:
            # It came from a cluster whose brokers have got it from there.
            via = Origin.parsed(record.origin).via
            hidden = {via, *self._clusters.members(self._clusters.cluster_of(via))}
        for names, indexes in lists:
            revisions = (
                (name, known.theirs(known.brokers[name].number, record.stamp))
                for name in names
                if name not in hidden
            )
            reached = tuple((name, revision) for name, revision in revisions if revision is not None)
            if reached in found:
                # Two lists are alike without the brokers that are left out here.
                indexes = np.union1d(found[reached], indexes)
            if reached:
                found[reached] = indexes
        return found

    def _parts_of_all(
        self, partition: int, groups: Sequence[Group], changed: dict[str, Correspondent]
    ) -> list[Part]:
        return [part for group in groups for part in self._parts(partition, group, changed)]

    def _parts(self, partition: int, group: Group, changed: dict[str, Correspondent]) -> list[Part]:
        """Return a group as an entry for each next hop, and count it for its destinations."""
        destinations = []
        for name, revision in group.reached:
            state = changed.get(name) or self._correspondence.get(name)
            changed[name] = state = replace(state, events=state.events + 1)
            destinations.append(Destination(name, revision, state.events))
        first = group.first
        origin = "" if first.origin is None else Origin.parsed(first.origin).beyond
        entry = Events(
            self._clusters.name,
            tuple(destinations),
            space_name(first.space),
            partition,
            first.offset,
            first.stamp,
            group.count,
            group.payload,
            origin,
        )
        return self._clusters.split(entry, entry.destinations)

    def _floor_for(self, name: str) -> int:
        """Return the lowest stamp of the records to come that may be sent to a broker."""
        floor, cluster = self._floor(), self._clusters.cluster_of(name)
        if not self._clusters.is_edge:
            return floor
        others = (
            self._correspondence.get(other)
            for other in self._clusters.brokers
            if self._clusters.cluster_of(other) != cluster
        )
        return min([floor, *(other.floor for other in others if other.messages)])

    def tell_again(self) -> None:
        """Repeat what brokers were told last of their filters: it may be gone with a broker between."""
        parts: list[Part] = []
        for name, broker in self._correspondence.brokers.items():
            run, state = self._correspondence.last_run(broker.number), self._correspondence.get(name)
            if run is not None and state.counted:
                to = (Destination(name),)
                counts = Counts(self._clusters.name, to, run.revision, state.counted, state.events)
                parts += self._clusters.split(counts, to)
        self._store.add(parts)

    def _tell_counts(self) -> bool:
        """Tell brokers whose filters count for all later records; return whether there were any."""
        has_told = False
        for name, broker in self._correspondence.brokers.items():
            run, state = self._correspondence.last_run(broker.number), self._correspondence.get(name)
            if run is None or run.theirs <= state.counted:
                continue
            due = self._due.get(name)
            if due is None or due[0] != run.revision:
                if self._floor_for(name) < run.revision:
                    continue
                # After the floor: all records beyond these ends have a stamp of at least the revision.
                due = self._due[name] = run.revision, run.theirs, self._log_ends()
            if all(map(int.__ge__, self.cursors, due[2])):
                to = (Destination(name),)
                counts = Counts(self._clusters.name, to, due[0], due[1], state.events)
                state = replace(state, counted=due[1])
                self._store.add(self._clusters.split(counts, to), [state])
                self._correspondence.put([state])
                del self._due[name]
                has_told = True
        return has_told
