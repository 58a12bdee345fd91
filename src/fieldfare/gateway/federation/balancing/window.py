"""The last matches of a broker: how many events, what they cost, and which subscriptions they matched.

The match log holds each event's subscriptions, so the bit vectors of PRESS are read from it: no local
subscription samples traffic, and a window is as long as wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.arrow_events.stream import is_arrow
from fieldfare.delivery.keys import INDEX_BITS, OFFSET_BITS, OFFSET_MASK, key_at
from fieldfare.gateway.federation.origins import Origin
from fieldfare.model import INDEX_MAX
from fieldfare.storage.errors import MatchLogError
from fieldfare.storage.event_log import EventReader, LogPartition
from fieldfare.storage.match_log import MatchBlock, MatchLog, spent_by_space

WINDOW_S = 60.0
"""Maximum seconds of the log that are looked at, as far as `BLOCKS_MAX` and `MATCHES_MAX` reach."""

BLOCKS_MAX = 512
"""Maximum blocks of the match log that are read in each partition."""

MATCHES_MAX = 5_000_000
"""Matches after which no more blocks of a partition are read: a broker under load measures itself cheaply."""

SIZED_RECORDS = 50
"""Maximum records that are read for the mean size of their events."""

CLOCK_SLACK_MS = 1_000
"""Milliseconds by which a record may seem to be of a later time than now; of more, the clock was set back."""

SAMPLES_MAX = 500
"""Maximum events whose matches are bits of a vector: N of the paper."""


@dataclass(slots=True)
class Window:
    """The last matches.

    Attributes
    ----------
    span_s
        The time over which their records were appended, up to now.
    events, spent_s
        Number of events, and the processor time that matching them took.
    event_bytes
        Mean size of an event.
    blocks
        The blocks, each with its partition, and the first offset that counts and the one after the last.
    """

    span_s: float = 1.0
    events: int = 0
    spent_s: float = 0.0
    event_bytes: float = 0.0
    blocks: list[tuple[int, MatchBlock, int, int]] = field(default_factory=list)

    def matches(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the numbers with matches, ascending, and how many each has."""
        numbers, counts = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)]
        for _, block, start, end in self.blocks:
            here = block.numbers()
            bounds, offsets, _ = block.matches_of_each(here)
            counted = np.concatenate(([0], np.cumsum((offsets >= start) & (offsets < end))))
            numbers.append(here)
            counts.append(np.diff(counted[bounds]))
        found, places = np.unique(np.concatenate(numbers), return_inverse=True)
        totals = np.bincount(places, np.concatenate(counts), found.size)
        return found.astype(np.uint32), totals.astype(np.int64)

    def bits(self, groups: Sequence[Sequence[int]]) -> Any:
        """Return a bit vector for each group of numbers: which of the sampled events any of them matched."""
        samples = self.samples()
        found = np.zeros((len(groups), samples.size), dtype=bool)
        rows: dict[int, list[int]] = {}
        for row, numbers in enumerate(groups):
            for number in numbers:
                rows.setdefault(number, []).append(row)
        wanted = np.array(sorted(rows), np.uint32)
        for partition, block, start, end in self.blocks:
            bounds, offsets, indexes = block.matches_of_each(wanted)
            keys = (key_at(partition, 0) | offsets << INDEX_BITS) | indexes
            places = np.searchsorted(samples, keys)
            is_sampled = (offsets >= start) & (offsets < end) & (places < samples.size)
            is_sampled[is_sampled] = samples[places[is_sampled]] == keys[is_sampled]
            for at, number in enumerate(wanted.tolist()):
                some = slice(bounds[at], bounds[at + 1])
                for row in rows[number]:
                    found[row, places[some][is_sampled[some]]] = True
        return found

    def origins(self, log: EventReader) -> list[str | None]:
        """Return the broker where each sampled event was published, None for this one; it reads the log."""
        found: list[str | None] = []
        for place, some in groupby((self.samples() >> INDEX_BITS).tolist()):
            offset = place & OFFSET_MASK
            origin = next(
                (each.origin for each in log.partitions[place >> OFFSET_BITS].read(offset, offset + 1)), None
            )
            name = None if origin is None else Origin.parsed(origin).broker
            found += [name for _ in some]
        return found

    def samples(self) -> NDArray[np.int64]:
        """Return the keys of events, ascending: of many a random choice, the same each time.

        Every tenth event, say, would be those of one publisher where ten take turns.
        """
        keys: list[NDArray[np.int64]] = []
        for partition, block, start, end in self.blocks:
            counts = block.counts[start - block.start : end - block.start].astype(np.int64)
            offsets = np.repeat(np.arange(start, end, dtype=np.int64), counts)
            firsts = np.repeat(np.cumsum(counts) - counts, counts)
            indexes = np.arange(offsets.size, dtype=np.int64) - firsts
            keys.append((key_at(partition, 0) | offsets << INDEX_BITS) | np.minimum(indexes, INDEX_MAX))
        every = np.sort(np.concatenate(keys)) if keys else np.zeros(0, np.int64)
        if every.size > SAMPLES_MAX:
            places = np.random.default_rng(every.size).choice(every.size, SAMPLES_MAX, replace=False)
            every = every[np.sort(places)]
        return every


def last_matches(
    log: EventReader, match_log: MatchLog, now_ms: int, since_ms: int = 0, window_s: float = WINDOW_S
) -> Window:
    """Return the matches of the last `window_s` seconds, none from before ``since_ms``; it reads files.

    Records of before the clock was set back are left out: they would seem to have come in no time.
    """
    since_ms = max(since_ms, now_ms - int(1000 * window_s))
    window, oldest_ms, unspent = Window(), now_ms, 0
    sizes: list[tuple[int, int]] = []
    for partition in log.partitions:
        matches = 0
        offset = match_log.partition(partition.number).end(partition.start()) - 1
        for _ in range(BLOCKS_MAX):
            if offset < partition.start():
                break
            block = _block_at(match_log, partition.number, offset)
            if block is None or (matches and matches + block.matches > MATCHES_MAX):
                break
            matches += block.matches
            start = max(block.start, partition.start())
            first_ms = _read_sizes(partition, start, offset + 1, sizes)
            if first_ms is not None and not since_ms <= first_ms <= now_ms + CLOCK_SLACK_MS:
                break
            oldest_ms = min(oldest_ms, now_ms if first_ms is None else first_ms)
            events = int(block.counts[start - block.start : offset + 1 - block.start].sum())
            window.events += events
            spent_ms = sum(spent_by_space(block.extra).values())
            window.spent_s += spent_ms / 1000
            unspent += 0 if spent_ms else events
            window.blocks.append((partition.number, block, start, offset + 1))
            offset = start - 1
    window.span_s = max(1.0, (now_ms - oldest_ms) / 1000)
    window.event_bytes = sum(size for size, _ in sizes) / max(1, sum(count for _, count in sizes))
    if 0 < unspent < window.events:
        # Compacted blocks have lost the time that matching took: the others stand for them.
        window.spent_s *= window.events / (window.events - unspent)
    return window


def _block_at(match_log: MatchLog, partition: int, offset: int) -> MatchBlock | None:
    try:
        return match_log.partition(partition).block_at(offset)
    except MatchLogError:
        return None


def _read_sizes(partition: LogPartition, start: int, end: int, sizes: list[tuple[int, int]]) -> int | None:
    """Return when the first record of a range was appended, and add its size and number of events."""
    for record in partition.read(start, min(end, start + 1)):
        if len(sizes) < SIZED_RECORDS and not is_arrow(record.payload):
            sizes.append((len(record.payload), record.count))
        return record.appended_ms
    return None
