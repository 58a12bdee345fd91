"""An event log in memory, with several partitions and holes anywhere, as limited as a log in Kafka.

It numbers records like a broker with transactions and compaction. It only estimates the size of unread
records, and only knows stamps that it recorded from time to time.
"""

from __future__ import annotations

import random
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from deaf_waiter import DeafWaiter

from fieldfare.model import Offsets
from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.event_log import FIRST, Appended, NewRecord, OutOfOrder, Record, RetentionPolicy

NOTED_EVERY = 5
"""Number of records after which the lowest stamp to come is recorded."""


class MemoryPartition:
    """One partition: its records by offset, with holes."""

    def __init__(self, number: int, url: str, chance: random.Random, holes: float) -> None:
        self.number = number
        self._url = url
        self._chance = chance
        self._holes = holes
        self._records: list[Record] = []
        self._start = self._end = 0
        self._stamp = 0
        self._noted: list[tuple[int, int]] = []
        self.grown: list[tuple[int, int]] = [(0, 0)]
        """How old the log was, and where it ended then."""

    def add(self, new: NewRecord, floor: int) -> Appended:
        if self._chance.random() < self._holes:
            self._end += self._chance.choice((1, 1, 2, 7))
        if len(self._records) % NOTED_EVERY == 0:
            self._noted.append((self._end, floor))
        offset, self._stamp = self._end, new.stamp
        self._records.append(Record(offset, new.space, new.count, new.payload, new.appended_ms, new.stamp))
        self._end += 1
        if self._chance.random() < self._holes:
            self._end += 1  # as the mark that ends a transaction
        return Appended(offset, new.count, new.stamp, duplicate=False, partition=self.number)

    def raise_end(self, to: int) -> None:
        self._end = max(self._end, to)

    def get(self, offset: int) -> Record | None:
        return next(iter(self._from(offset, offset + 1)), None)

    def start(self) -> int:
        return self._start

    def end(self) -> int:
        return self._end

    def read(self, start: int, end: int) -> Iterator[Record]:
        for record in self._from(start, end):
            self._check(start)
            yield record
        self._check(start)

    def first_since(self, time_ms: int) -> int:
        found = (record.offset for record in self._records if record.appended_ms >= time_ms)
        return next(found, self._end)

    def bound(self, start: int, max_bytes: int, max_events: int) -> int:
        self._check(start)
        kept = self._records[-20:]
        if start >= self._end or not kept:
            return max(start, self._end)
        mean_bytes = sum(len(record.payload) for record in kept) / len(kept)
        mean_events = sum(record.count for record in kept) / len(kept)
        offsets = int(min(max_bytes / mean_bytes, max_events / mean_events))
        return min(self._end, start + max(1, offsets))

    def split(self, start: int, end: int, pieces: int, piece_bytes: int) -> list[tuple[int, int]]:
        cuts = {start + (end - start) * piece // pieces for piece in range(pieces)} | {end}
        return list(pairwise(sorted(cuts))) or [(start, end)]

    def backlog_events(self, start: int) -> int:
        return 3 * (self._end - max(start, self._start))

    def lowest_stamp(self, start: int) -> int | None:
        if start >= self._end or not self._from(start, self._end):
            return None
        return max((floor for end, floor in self._noted if end <= start), default=0)

    def first_stamped(self, stamp: int) -> int | None:
        lower = [record.offset for record in self._records if record.stamp < stamp]
        if not self._records or (lower and lower[-1] == self._records[-1].offset):
            return None
        return lower[-1] + 1 if lower else self._start

    def last_stamp(self) -> int:
        return self._stamp

    def trim(self, before: int) -> None:
        before = min(before, self._end)
        if before > self._start:
            self._records = self._from(before, self._end)
            self._start = before

    def size_bytes(self) -> int:
        return sum(len(record.payload) for record in self._records)

    def first_to_go(self) -> Record | None:
        return self._records[0] if self._records else None

    def _from(self, start: int, end: int) -> list[Record]:
        offsets = [record.offset for record in self._records]
        return self._records[bisect_left(offsets, start) : bisect_left(offsets, end)]

    def _check(self, start: int) -> None:
        if start < self._start:
            raise TrimmedError(
                f"{self._url} holds the records from {self._start} to {self._end}, not {start}"
            )


class MemoryEventLog:
    """An `EventLog` of this process; a record's producer, or chance, determines its partition."""

    look_every_s = 0.0

    def __init__(self, partitions: int = 3, seed: int = 0, holes: float = 0.2) -> None:
        self.url = f"memory:{partitions}"
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._all = tuple(MemoryPartition(n, self.url, self._chance, holes) for n in range(partitions))
        self._producers: dict[tuple[str, str], list[tuple[int, Appended]]] = {}
        self._grown_ms = 0
        self._floor = 0

    @property
    def partitions(self) -> Sequence[MemoryPartition]:
        return self._all

    def listen(self, places: Mapping[int, int]) -> DeafWaiter:
        return DeafWaiter()

    def append(self, records: Sequence[NewRecord]) -> list[Appended | OutOfOrder]:
        for record in records:
            record.check()
        with self._lock:
            return [self._append(record) for record in records]

    def raise_ends(self, to: Offsets) -> None:
        with self._lock:
            for partition, end in zip(self._all, to, strict=True):
                partition.raise_end(end)

    def grow_older(self, elapsed_ms: int, policy: RetentionPolicy) -> None:
        self._grown_ms += max(0, elapsed_ms)
        for partition in self._all:
            partition.grown.append((self._grown_ms, partition.end()))

    def retain(self, policy: RetentionPolicy, keep_from: Offsets) -> None:
        for partition, keep in zip(self._all, keep_from, strict=True):
            if policy.max_age_ms is not None:
                partition.trim(min(keep, self._older_than(partition, policy.max_age_ms)))
            share = None if policy.max_bytes is None else policy.max_bytes // len(self._all)
            while share is not None and partition.size_bytes() > share:
                oldest = partition.first_to_go()
                if oldest is None or oldest.offset >= keep:
                    break
                partition.trim(oldest.offset + 1)
        if policy.producers_ms is not None:
            old = {each.number: self._older_than(each, policy.producers_ms) for each in self._all}
            for key, known in self._producers.items():
                self._producers[key] = [pair for pair in known if pair[1].offset >= old[pair[1].partition]]

    def size_bytes(self) -> int:
        return sum(partition.size_bytes() for partition in self._all)

    def sizes(self) -> dict[str, int]:
        kept: dict[str, int] = {}
        for record in (each for partition in self._all for each in partition._records):
            kept[record.space] = kept.get(record.space, 0) + len(record.payload)
        return kept

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _older_than(self, partition: MemoryPartition, age_ms: int) -> int:
        return max((end for at_ms, end in partition.grown if at_ms <= self._grown_ms - age_ms), default=0)

    def _append(self, record: NewRecord) -> Appended | OutOfOrder:
        # As gateways tell it that write beside each other: not all that is noted is as high as what comes.
        self._floor = max(self._floor, record.stamp - 10)
        if record.producer is None:
            return self._chance.choice(self._all).add(record, min(self._floor, record.stamp))
        key = (record.space, record.producer)
        known = self._producers.setdefault(key, [])
        for sequence, first in known:
            if sequence == record.sequence:
                kept = self._all[first.partition].get(first.offset)
                differs = kept is not None and kept.payload != record.payload
                return replace(first, duplicate=True, differs=differs)
        newest = max((sequence for sequence, _ in known), default=FIRST)
        if record.follows is not None and record.follows != newest:
            return OutOfOrder(newest)
        partition = self._all[sum(map(ord, "".join(key))) % len(self._all)]
        appended = partition.add(record, min(self._floor, record.stamp))
        known.append((record.sequence or 0, appended))
        del known[:-1_000]
        return appended
