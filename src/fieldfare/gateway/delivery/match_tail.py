"""Looks into the match log, on threads: at its end, which is followed, and wherever somebody is behind.

Nothing here is done on the event loop: a look lists folders, maps files and decodes them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.frontier import Front
from fieldfare.delivery.keys import INDEX_BITS, PARTITION_SHIFT, key_at, offset_of
from fieldfare.gateway.slots import SharedThreads
from fieldfare.gateway.turns import NOBODY
from fieldfare.model import Offsets
from fieldfare.storage import EventReader, MatchBlock, MatchLog
from fieldfare.storage.errors import BrokenBlockError, MatchLogError, StorageError

logger = logging.getLogger("fieldfare.gateway.matches")

IDLE_LOOK_S = 1.0
"""A look all the same when nothing is to be expected, should something else have written to the log."""

CAUGHT_UP_MAX_S = 2.0
"""So long whoever wants to know the match log's end waits for a look at it."""

LATER_BY = 0.25
LATER_MAX_S = 0.02
"""The longer nothing has come, the later is the next look: by this share of it, and by no more than that."""

PACE_BY = 1 / 3
PACE_MAX_S = 0.06
"""Where blocks come faster one after the other than this, a look is later by that share of their pace: to
wake a thread costs more than to look."""

MATCHES_A_LOOKUP = 8_192
"""To look up one subscription costs about as much as to read the numbers of so many matches."""

READERS = 2
"""Threads that look for one space at a time, besides those that follow the end."""

Keys = list[tuple[int, NDArray[np.int64]]]


@dataclass(frozen=True, slots=True)
class LookResult:
    """What a look has found.

    Attributes
    ----------
    keys
        Of each of those asked for that matched something: its number and its keys.
    partition, end
        Up to where that is all.
    joined
        What `Front.joined` was, when a front was asked for.
    block
        Where it was found; None when retention has taken what was there.
    """

    keys: Keys
    partition: int
    end: int
    joined: int
    block: MatchBlock | None

    @property
    def read_to(self) -> int:
        """The end as a key."""
        return key_at(self.partition, self.end)


class _Follower:
    """What is known of the thread that follows one partition."""

    def __init__(self) -> None:
        self.stirred = threading.Event()
        self.front: Front | None = None
        self.is_idle = False
        self.pace_s = 0.0
        self.askers: deque[tuple[int, asyncio.Future[None]]] = deque()

    def is_looked_for(self, log_ends: Offsets) -> bool:
        front = self.front
        return front is not None and bool(front.members) and front.offset < log_ends[front.partition]

    def release(self, asked: int) -> None:
        while self.askers and self.askers[0][0] <= asked:
            _, future = self.askers.popleft()
            if not future.done():
                future.set_result(None)


class MatchTail:
    """The match log as the gateway reads it.

    Parameters
    ----------
    match_log
        What the pipeline writes.
    log
        Says where retention has left the events to begin.
    log_ends
        Says how far events are appended, by partition.
    tips
        The match log's ends, as its reader has got to know them. Whoever takes in what `follow` finds moves
        them: see `take_in`.
    poll_s
        Seconds between looks at the end while somebody waits and not all is matched.
    on_broken
        Called with the error of a block that cannot be read. Whoever needs it waits, but not for long: see
        `Maintenance`.
    """

    def __init__(
        self,
        match_log: MatchLog,
        log: EventReader,
        log_ends: Callable[[], Offsets],
        tips: Offsets,
        *,
        poll_s: float,
        on_broken: Callable[[BrokenBlockError], None],
    ) -> None:
        self._match_log = match_log
        self._log = log
        self._log_ends = log_ends
        self._poll_s = max(poll_s, match_log.look_every_s)
        self._on_broken = on_broken
        self._said = ""
        self.tips = tips
        self.begins: Offsets = tuple(0 for _ in tips)
        """Where the log began when upkeep looked last: its own retention may go beyond what is matched."""
        self.gap_seen = False
        """Whether a record before the end was looked for and has no block, though the log holds it."""
        self._closed = False
        self._asked = 0
        self._followers = [_Follower() for _ in tips]
        self._follower = ThreadPoolExecutor(len(tips), thread_name_prefix="fieldfare-match-tail")
        self._readers = SharedThreads(READERS, "fieldfare-matches")

    @property
    def tip(self) -> int:
        """How much is matched, over all partitions: of one, where its match log ends."""
        return sum(self.tips)

    def lag_events(self) -> int:
        """About how many events wait to be matched."""
        waiting = zip(self._log.partitions, self.tips, strict=True)
        return sum(partition.backlog_events(tip) for partition, tip in waiting)

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        for follower in self._followers:
            follower.stirred.set()
            follower.release(self._asked)
        self._follower.shutdown(cancel_futures=True)
        self._readers.close()

    def stir(self) -> None:
        """Something was appended, or somebody waits now: if both, there will soon be something at the end."""
        for follower in self._followers:
            if follower.is_idle and follower.is_looked_for(self._log_ends()):
                follower.stirred.set()

    def look_again(self) -> None:
        """What could not be read may be readable now."""
        for follower in self._followers:
            follower.stirred.set()

    def take_in(self, found: LookResult) -> None:
        """What `follow` found has been taken in."""
        self.tips = (*self.tips[: found.partition], found.end, *self.tips[found.partition + 1 :])

    async def catch_up(self) -> None:
        """Return when everything that is there now has been found, and taken in by whoever follows.

        Or when the disk hangs: figures are given without it then, and show that nothing gets on.
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

    async def follow(self, front: Front) -> LookResult | None:
        """What comes next behind a front that stands at the end; None when the gateway closes."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._follower, self._follow, front, loop)

    async def look(self, front: Front) -> LookResult | None:
        """What is there for a front that is behind; None when it cannot be read."""
        return await self._readers.run(NOBODY, self._look_for, front)

    async def look_for_one(self, key: int, number: int, space: str) -> LookResult | None:
        """The same for one subscription of a space, from a key on; None also at the end."""
        partition, offset = key >> PARTITION_SHIFT, offset_of(key)
        return await self._readers.run(space, self._look, partition, offset, (number,))

    def block_at(self, partition: int, offset: int) -> MatchBlock | None:
        """The block that covers a record; None when the match log has none there."""
        try:
            return self._match_log.partition(partition).block_at(offset)
        except MatchLogError as error:
            self.report(error)
            return None

    def report(self, error: StorageError) -> None:
        """Something of the match log could not be read."""
        if str(error) != self._said:
            self._said = str(error)
            logger.error("%s", error)
        if isinstance(error, BrokenBlockError):
            self._on_broken(error)

    def _follow(self, front: Front, loop: asyncio.AbstractEventLoop) -> LookResult | None:
        follower = self._followers[front.partition]
        follower.front = front
        since_s = time.monotonic()
        while not self._closed:
            follower.stirred.clear()
            asked = self._asked
            found = self._look_for(front)
            if found is not None:
                took_s = time.monotonic() - since_s
                follower.pace_s = (3 * follower.pace_s + took_s) / 4 if took_s < PACE_MAX_S else 0.0
                return found
            if follower.askers:
                with suppress(RuntimeError):  # the loop has ended, and nobody waits
                    loop.call_soon_threadsafe(follower.release, asked)
            # Appends need not stir one that looks often anyway. Said before it is asked whether something is
            # looked for: an append in between sees it and stirs, or is seen.
            follower.is_idle = True
            follower.is_idle = not follower.is_looked_for(self._log_ends())
            if follower.is_idle:
                follower.stirred.wait(IDLE_LOOK_S)
                since_s = time.monotonic()
            else:
                later_s = max(LATER_BY * (time.monotonic() - since_s), PACE_BY * follower.pace_s)
                follower.stirred.wait(max(self._poll_s, min(later_s, LATER_MAX_S)))
        return None

    def _look_for(self, front: Front) -> LookResult | None:
        joined = front.joined  # first: who joins from now on may be missed
        found = self._look(front.partition, front.offset, front.members)
        return None if found is None else replace(found, joined=joined)

    def _look(self, partition: int, offset: int, numbers: Collection[int]) -> LookResult | None:
        try:
            block = self.block_at(partition, offset)
            if block is not None:
                return LookResult(_matched(block, partition, numbers), partition, block.end, 0, block)
            if self.begins[partition] <= offset >= self.tips[partition]:
                return None
            # Retention took it, with the events; what is left begins where the log does.
            kept_from = self._log.partitions[partition].start()
            if kept_from > offset:
                return LookResult([], partition, kept_from, 0, None)
            self.gap_seen = True
        except StorageError as error:
            # A broken block is set aside in a moment; those who need it look again then.
            self.report(error)
        return None


def _matched(block: MatchBlock, partition: int, numbers: Collection[int]) -> Keys:
    """Who of some subscriptions matched something in a block, and what."""
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
    # Each its own: who keeps a few of them does not keep those of all others.
    return [(number, keys[first:end].copy()) for number, (first, end) in ranges if end > first]


def keys_in(block: MatchBlock, partition: int, number: int) -> NDArray[np.int64]:
    """A subscription's matches in a block, as keys in order."""
    return _keys(partition, *block.matches_of(number))


def _keys(partition: int, offsets: NDArray[np.int64], indexes: NDArray[np.int32]) -> NDArray[np.int64]:
    keys: NDArray[np.int64] = (offsets << INDEX_BITS) + key_at(partition, 0) + indexes
    return keys
