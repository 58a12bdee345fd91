"""Looks into the match log, on threads: at its end, which is followed, and wherever somebody is behind.

Nothing here is done on the event loop: a look lists folders, maps files and decodes them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.frontier import Front
from fieldfare.delivery.keys import INDEX_BITS
from fieldfare.storage import MatchBlock, MatchLog
from fieldfare.storage.errors import BrokenBlockError, MatchLogError, StorageError

logger = logging.getLogger("fieldfare.gateway.matches")

IDLE_LOOK_S = 1.0
"""A look all the same when nothing is to be expected, should something else have written to the log."""

CAUGHT_UP_MAX_S = 2.0
"""So long whoever wants to know the match log's end waits for a look at it."""

LATER_BY = 0.25
LATER_MAX_S = 0.02
"""The longer nothing has come, the later is the next look: by this share of it, and by no more than that."""

MATCHES_A_LOOKUP = 8_192
"""To look up one subscription costs about as much as to read the numbers of so many matches."""

Keys = list[tuple[int, NDArray[np.int64]]]


@dataclass(frozen=True, slots=True)
class Found:
    """What a look has found.

    Attributes
    ----------
    keys
        Of each of those asked for that matched something: its number and its keys.
    end
        Up to where that is all.
    joined
        What `Front.joined` was, when a front was asked for.
    block
        Where it was found; None when retention has taken what was there.
    """

    keys: Keys
    end: int
    joined: int
    block: MatchBlock | None


class MatchTail:
    """The match log as the gateway reads it.

    Parameters
    ----------
    match_log
        What the pipeline writes.
    log
        Says where retention has left the events to begin.
    log_end
        Says how far events are appended.
    tip
        The match log's end, as its reader has got to know it. Whoever takes in what `follow` finds moves it.
    poll_s
        Seconds between looks at the end while somebody waits and not all is matched.
    on_broken
        Called with the error of a block that cannot be read. Whoever needs it waits, but not for long: see
        `Maintenance`.
    """

    def __init__(
        self,
        match_log: MatchLog,
        log: EventLog,
        log_end: Callable[[], int],
        tip: int,
        *,
        poll_s: float,
        on_broken: Callable[[BrokenBlockError], None],
    ) -> None:
        self._match_log = match_log
        self._log = log
        self._log_end = log_end
        self._poll_s = poll_s
        self._on_broken = on_broken
        self._said = ""
        self.tip = tip
        self.gap_seen = False
        """Whether a record before the end was looked for and has no block, though the log holds it."""
        self._stirred = threading.Event()
        self._followed = Front(tip)
        self._is_idle = False
        self._closed = False
        self._asked = 0
        self._askers: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._follower = ThreadPoolExecutor(1, thread_name_prefix="fieldfare-match-tail")
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="fieldfare-matches")

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        self._stirred.set()
        self._release(self._asked)
        self._follower.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)

    def stir(self) -> None:
        """Something was appended, or somebody waits now: if both, there will soon be something at the end."""
        if self._is_idle and self._is_looked_for():
            self._stirred.set()

    def look_again(self) -> None:
        """What could not be read may be readable now."""
        self._stirred.set()

    async def catch_up(self) -> None:
        """Return when everything that is there now has been found, and taken in by whoever follows.

        Or when the disk hangs: figures are given without it then, and show that nothing gets on.
        """
        if self._closed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked += 1
        self._askers.append((self._asked, future))
        self._stirred.set()
        # Not wait_for: in Python 3.11 it may lose a cancellation, and the task would never end.
        await asyncio.wait((future,), timeout=CAUGHT_UP_MAX_S)

    async def follow(self, front: Front) -> Found | None:
        """What comes next behind a front that stands at the end; None when the gateway closes."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._follower, self._follow, front, loop)

    async def look(self, front: Front) -> Found | None:
        """What is there for a front that is behind; None when it cannot be read."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._look_for, front)

    async def look_for_one(self, offset: int, number: int) -> Found | None:
        """The same for one subscription; None also at the end."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._look, offset, (number,))

    def block_at(self, offset: int) -> MatchBlock | None:
        """The block that covers a record; None when the match log has none there."""
        try:
            return self._match_log.block_at(offset)
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

    def _follow(self, front: Front, loop: asyncio.AbstractEventLoop) -> Found | None:
        self._followed = front
        since_s = time.monotonic()
        while not self._closed:
            self._stirred.clear()
            asked = self._asked
            found = self._look_for(front)
            if found is not None:
                return found
            if self._askers:
                with suppress(RuntimeError):  # the loop has ended, and nobody waits
                    loop.call_soon_threadsafe(self._release, asked)
            # Appends need not stir one that looks often anyway. Said before it is asked whether something is
            # looked for: an append in between sees it and stirs, or is seen.
            self._is_idle = True
            self._is_idle = not self._is_looked_for()
            if self._is_idle:
                self._stirred.wait(IDLE_LOOK_S)
                since_s = time.monotonic()
            else:
                later_s = min(LATER_BY * (time.monotonic() - since_s), LATER_MAX_S)
                self._stirred.wait(max(self._poll_s, later_s))
        return None

    def _is_looked_for(self) -> bool:
        front = self._followed
        return bool(front.members) and front.offset < self._log_end()

    def _release(self, asked: int) -> None:
        while self._askers and self._askers[0][0] <= asked:
            _, future = self._askers.popleft()
            if not future.done():
                future.set_result(None)

    def _look_for(self, front: Front) -> Found | None:
        joined = front.joined  # first: who joins from now on may be missed
        found = self._look(front.offset, front.members)
        return None if found is None else Found(found.keys, found.end, joined, found.block)

    def _look(self, offset: int, numbers: Collection[int]) -> Found | None:
        try:
            block = self.block_at(offset)
            if block is not None:
                return Found(list(_matched(block, numbers)), block.end, 0, block)
            if offset >= self.tip:
                return None
            # Retention took it, with the events; what is left begins where the log does.
            kept_from = self._log.start()
            if kept_from > offset:
                return Found([], kept_from, 0, None)
            self.gap_seen = True
        except StorageError as error:
            # A broken block is set aside in a moment; those who need it look again then.
            self.report(error)
        return None


def _matched(block: MatchBlock, numbers: Collection[int]) -> Iterable[tuple[int, NDArray[np.int64]]]:
    """Who of some subscriptions matched something in a block, and what."""
    if len(numbers) <= 1 or MATCHES_A_LOOKUP * len(numbers) < block.matches:
        # In the order of their numbers, so that what is decoded for one serves the next.
        wanted = sorted(numbers)
    else:
        matched = block.numbers()
        if len(matched) <= len(numbers):
            wanted = [number for number in matched.tolist() if number in numbers]
        else:
            wanted = np.intersect1d(matched, np.array(list(numbers), np.uint32)).tolist()
    for number in wanted:
        keys = keys_in(block, number)
        if len(keys):
            yield number, keys


def keys_in(block: MatchBlock, number: int) -> NDArray[np.int64]:
    """A subscription's matches in a block, as keys in order."""
    offsets, indexes = block.matches_of(number)
    return offsets.astype(np.int64) << INDEX_BITS | indexes.astype(np.int64)
