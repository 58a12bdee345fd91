"""Reading of the match log on threads: following its end, and catching up for subscriptions that are behind.

No read runs on the event loop: it lists folders, maps files and decodes them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.keys import INDEX_BITS, PARTITION_SHIFT, key_at, offset_of
from fieldfare.delivery.read_scheduler import ReadGroup
from fieldfare.gateway.fair_limiter import FairExecutor
from fieldfare.gateway.fair_queue import NO_SPACE
from fieldfare.model import Offsets
from fieldfare.storage import EventReader, MatchBlock, MatchLog
from fieldfare.storage.bell import Waiter
from fieldfare.storage.errors import CorruptBlockError, MatchLogError, StorageError

logger = logging.getLogger("fieldfare.gateway.matches")

IDLE_LOOK_S = 1.0
"""Seconds between reads when nothing is expected, in case another process has written to the log."""

CAUGHT_UP_MAX_S = 2.0
"""Maximum seconds that a caller of `catch_up` waits for the match log's end to be read; then it returns
anyway."""

LATER_BY = 0.25
LATER_MAX_S = 0.02
"""The delay before the next read is this share of the time without a block, at most `LATER_MAX_S` seconds."""

PACE_BY = 1 / 3
PACE_MAX_S = 0.06
"""Where blocks follow each other within `PACE_MAX_S` seconds, a read is delayed by at least this share of
their average interval: waking a thread costs more than a read."""

MATCHES_A_LOOKUP = 8_192
"""Matches whose subscription numbers are read in about the time of one subscription's lookup."""

Keys = list[tuple[int, NDArray[np.int64]]]


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of a read of the match log.

    Attributes
    ----------
    keys
        The number and the keys of each requested subscription that has matches.
    partition, end
        The partition, and the offset up to which the keys are complete.
    joined
        The value of `ReadGroup.joined` before the read, where the read was for a group.
    block
        The block that was read; None when retention has removed it.
    read_ms
        When it was read, in milliseconds since 1970.
    """

    keys: Keys
    partition: int
    end: int
    joined: int
    block: MatchBlock | None
    read_ms: float = 0.0

    @property
    def read_to(self) -> int:
        """`end` as a key."""
        return key_at(self.partition, self.end)


class _Follower:
    """The state of the thread that follows one partition."""

    def __init__(self, stirred: Waiter) -> None:
        self.stirred = stirred
        self.group: ReadGroup | None = None
        self.is_idle = False
        self.pace_s = 0.0
        self.askers: deque[tuple[int, asyncio.Future[None]]] = deque()

    def is_search_due(self, log_ends: Offsets) -> bool:
        group = self.group
        return group is not None and bool(group.members) and group.offset < log_ends[group.partition]

    def release(self, asked: int) -> None:
        while self.askers and self.askers[0][0] <= asked:
            _, future = self.askers.popleft()
            if not future.done():
                future.set_result(None)


class MatchLogFollower:
    """The gateway's reader of the match log.

    Parameters
    ----------
    match_log
        The match log that the pipeline writes.
    log
        The event log, for the offsets where it begins after retention.
    log_ends
        Returns the end offset of the event log's partitions.
    tips
        The end offsets of the match log's partitions that have been processed; `take_in` advances them.
    readers
        The threads that read for subscriptions that are behind.
    poll_s
        Minimum seconds between reads of the end while a subscriber waits and not all events are matched.
    on_broken
        Called with the error of a corrupt block. Its subscribers wait until `Maintenance` has set it aside.
    """

    def __init__(
        self,
        match_log: MatchLog,
        log: EventReader,
        log_ends: Callable[[], Offsets],
        tips: Offsets,
        readers: FairExecutor,
        *,
        poll_s: float,
        on_broken: Callable[[CorruptBlockError], None],
    ) -> None:
        self._match_log = match_log
        self._log = log
        self._log_ends = log_ends
        self._poll_s = max(poll_s, match_log.look_every_s)
        self._on_broken = on_broken
        self._said = ""
        self._on_found: list[Callable[[ReadResult], None]] = []
        self.tips = tips
        self.begins: Offsets = tuple(0 for _ in tips)
        """Where the log began at the last maintenance round: its own retention may go beyond what is
        matched."""
        self.gap_seen = False
        """Whether a record before the end was requested and has no block, though the log holds it."""
        self._closed = False
        self._asked = 0
        self._followers = [_Follower(match_log.listen(number)) for number in range(len(tips))]
        # A thread per partition, for this alone: it may wait long for the next block.
        self._follower = ThreadPoolExecutor(len(tips), thread_name_prefix="fieldfare-match-tail")
        self._readers = readers

    @property
    def tip(self) -> int:
        """The sum of the match log's end offsets over all partitions."""
        return sum(self.tips)

    def lag_events(self) -> int:
        """Return the approximate number of events that are not yet matched."""
        waiting = zip(self._log.partitions, self.tips, strict=True)
        return sum(partition.backlog_events(tip) for partition, tip in waiting)

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        for follower in self._followers:
            follower.stirred.set()
            follower.release(self._asked)
        self._follower.shutdown(cancel_futures=True)
        for follower in self._followers:
            follower.stirred.close()

    def stir(self) -> None:
        """Wake idle followers that have a reason to read: events were appended, or a subscriber now waits."""
        for follower in () if self._closed else self._followers:
            if follower.is_idle and not follower.stirred.hears and follower.is_search_due(self._log_ends()):
                follower.stirred.set()

    def look_again(self) -> None:
        """Wake all followers to retry: what was unreadable may be readable now."""
        for follower in () if self._closed else self._followers:
            follower.stirred.set()

    def call_on_found(self, on_found: Callable[[ReadResult], None]) -> None:
        """Call a function with each result of `follow` from now on, in the order of a partition's records."""
        self._on_found.append(on_found)

    def take_in(self, found: ReadResult) -> None:
        """Advance the end of the match log, after a result of `follow` was processed."""
        for on_found in self._on_found:
            on_found(found)
        self.tips = (*self.tips[: found.partition], found.end, *self.tips[found.partition + 1 :])

    async def catch_up(self) -> None:
        """Wait until all blocks that exist now have been read and processed.

        If the disk hangs, return after `CAUGHT_UP_MAX_S` seconds: figures then show the lack of progress.
        """
        if self._closed:
            return
        self._asked += 1
        futures: list[asyncio.Future[None]] = []
        for follower in self._followers:
            futures.append(asyncio.get_running_loop().create_future())
            follower.askers.append((self._asked, futures[-1]))
            follower.stirred.set()
        # Not wait_for: in Python 3.11 it may lose a cancellation, and the task would never end.
        await asyncio.wait(futures, timeout=CAUGHT_UP_MAX_S)

    async def follow(self, group: ReadGroup) -> ReadResult | None:
        """Wait for the next block for a read group at the end; return None when the gateway closes."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._follower, self._follow, group, loop)

    async def read_behind(self, group: ReadGroup) -> ReadResult | None:
        """Read the matches for a read group that is behind; return None when they cannot be read."""
        return await self._readers.run(NO_SPACE, self._read_group, group)

    async def read_subscription(self, key: int, number: int, space: str) -> ReadResult | None:
        """Read one subscription's matches from a key on; None at the end or when they cannot be read."""
        partition, offset = key >> PARTITION_SHIFT, offset_of(key)
        return await self._readers.run(space, self._read_matches, partition, offset, (number,))

    def block_at(self, partition: int, offset: int) -> MatchBlock | None:
        """Return the block that covers a record; None when there is none or it cannot be read."""
        try:
            return self._match_log.partition(partition).block_at(offset)
        except MatchLogError as error:
            self.report(error)
            return None

    def report(self, error: StorageError) -> None:
        """Log an error of reading the match log, once in succession, and pass on a corrupt block's error."""
        if str(error) != self._said:
            self._said = str(error)
            logger.error("%s", error)
        if isinstance(error, CorruptBlockError):
            self._on_broken(error)

    def _follow(self, group: ReadGroup, loop: asyncio.AbstractEventLoop) -> ReadResult | None:
        follower = self._followers[group.partition]
        follower.group = group
        since_s = time.monotonic()
        while not self._closed:
            follower.stirred.clear()
            asked = self._asked
            found = self._read_group(group)
            if found is not None:
                took_s = time.monotonic() - since_s
                follower.pace_s = (3 * follower.pace_s + took_s) / 4 if took_s < PACE_MAX_S else 0.0
                return found
            if follower.askers:
                with suppress(RuntimeError):  # the loop has ended, with all its waiters
                    loop.call_soon_threadsafe(follower.release, asked)
            # Appends need not wake a follower that polls often, or hears of new blocks. The flag is set
            # before the check: an append in between either sees the flag and wakes it, or is seen by it.
            follower.is_idle = True
            follower.is_idle = follower.stirred.hears or not follower.is_search_due(self._log_ends())
            if follower.is_idle:
                follower.stirred.wait(IDLE_LOOK_S)
                since_s = time.monotonic()
            else:
                later_s = max(LATER_BY * (time.monotonic() - since_s), PACE_BY * follower.pace_s)
                follower.stirred.wait(max(self._poll_s, min(later_s, LATER_MAX_S)))
        return None

    def _read_group(self, group: ReadGroup) -> ReadResult | None:
        joined = group.joined  # first: subscriptions that join from now on may be missed
        found = self._read_matches(group.partition, group.offset, group.members)
        return None if found is None else replace(found, joined=joined)

    def _read_matches(self, partition: int, offset: int, numbers: Collection[int]) -> ReadResult | None:
        try:
            block = self.block_at(partition, offset)
            if block is not None:
                keys = _matched(block, partition, numbers)
                return ReadResult(keys, partition, block.end, 0, block, time.time_ns() / 1e6)
            if self.begins[partition] <= offset >= self.tips[partition]:
                return None
            # Retention removed the block with its events; the rest begins where the log does.
            kept_from = self._log.partitions[partition].start()
            if kept_from > offset:
                return ReadResult([], partition, kept_from, 0, None)
            self.gap_seen = True
        except StorageError as error:
            # A corrupt block is soon set aside; its subscribers read again then.
            self.report(error)
        return None


def _matched(block: MatchBlock, partition: int, numbers: Collection[int]) -> Keys:
    """Return the matches in a block of those of some subscriptions that have any."""
    wanted = None
    if len(numbers) > 1 and MATCHES_A_LOOKUP * len(numbers) >= block.matches:
        matched = block.numbers()
        if len(matched) <= len(numbers):
            wanted = np.array([number for number in matched.tolist() if number in numbers], np.uint32)
    if wanted is None:
        wanted = np.sort(np.array(list(numbers), np.uint32))
    bounds, offsets, indexes = block.matches_of_each(wanted)
    keys = _keys(partition, offsets, indexes)
    ranges = zip(wanted.tolist(), pairwise(bounds.tolist()), strict=True)
    # Copies: keeping one subscription's keys must not keep those of all others in memory.
    return [(number, keys[first:end].copy()) for number, (first, end) in ranges if end > first]


def keys_in(block: MatchBlock, partition: int, number: int) -> NDArray[np.int64]:
    """Return a subscription's matches in a block as ascending keys."""
    return _keys(partition, *block.matches_of(number))


def _keys(partition: int, offsets: NDArray[np.int64], indexes: NDArray[np.int32]) -> NDArray[np.int64]:
    keys: NDArray[np.int64] = (offsets << INDEX_BITS) + key_at(partition, 0) + indexes
    return keys
