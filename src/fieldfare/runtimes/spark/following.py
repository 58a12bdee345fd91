"""Tasks that follow the log: they match each record as soon as it is there, and write small blocks at once.

A batch is planned by the driver, and an event waits for that, for Spark, and for the batch's last task. A
following task runs for seconds instead, in a service that keeps up: from the record to its block nothing but
this process is involved. It returns when its time is over, or when much waits, so that several tasks would be
faster; the driver then plans batches (see `match_loop`).

Two of them overlap, so that there is always one: the next one stands by until the present one has ended, and
takes only records that have waited for `STANDBY_WAIT_S`. If both match a record, they write the same block.
So nothing depends on their agreement, and either may be killed or stopped at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Protocol

import msgspec

from fieldfare.free_memory import release_free_memory
from fieldfare.matching.files import IndexFileError
from fieldfare.runtimes.spark.batches import (
    FOLLOWED_EVENTS_MAX,
    MicroBatchSettings,
    followed_to,
    is_behind,
)
from fieldfare.runtimes.spark.range_task import RangeMatcher, RecordRange
from fieldfare.storage import EventReader, LogPartition, MatchPartition
from fieldfare.storage.errors import IndexStoreError, TrimmedError

LOOK_S = 0.0005
LATER_BY = 0.25
LOOK_MAX_S = 0.005
"""Where appends are not heard, the pause before the next look is this share of the time without a record,
from `LOOK_S` to `LOOK_MAX_S` seconds: a record waits an eighth of the usual interval on average."""
HEARING_S = 0.25
"""Pause before the next look where appends are heard, in seconds; a killed writer may not be heard."""

OPEN_EVERY_S = 0.2
OPEN_SHARE = 0.01
"""While no record waits, a look for a newer manifest follows the one before after at least `OPEN_EVERY_S`
seconds, and takes at most this share of the time: over a network it takes longer."""

ASK_AGAIN_S = 0.05
"""Seconds after which an index that still does not cover a record is requested once more."""

RELEASE_S = 5.0
"""Seconds without a record after which the process gives freed memory back."""

STANDBY_WAIT_S = 0.025
"""Seconds for which a record waits before a task that stands by matches it."""


class FollowerLane(msgspec.Struct, frozen=True):
    """The work of one following task.

    Attributes
    ----------
    partitions
        The partitions of the log that it follows.
    seconds
        Time after which it returns.
    standby_s
        Time during which another task is expected to follow these partitions too.
    """

    partitions: tuple[int, ...]
    seconds: float
    standby_s: float = 0.0


class FollowJobs(Protocol):
    """The jobs whose tasks follow a service's log."""

    @property
    def lanes_max(self) -> int:
        """Maximum lanes at a time."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether the tasks of two jobs run at a time; else those of the second one wait."""
        ...

    def follow(self, lanes: Sequence[FollowerLane]) -> bool:
        """Follow the log, a task for each lane; return whether one of them is behind. From any thread."""
        ...

    def end(self) -> None:
        """Make all tasks return that follow now, or were started before this call; does not wait."""
        ...


class _Followed:
    """A followed partition.

    Attributes
    ----------
    position
        The offset of the next record to match.
    manifest
        Number of the manifest for which `position` was last compared with the match log; -1 for none.
    waits_since_s
        Since when a record has been seen at `position` while this task stands by.
    seen_ms
        When the record at `position` was first seen, in milliseconds since 1970; None if it is not there yet.
    """

    def __init__(self, number: int, log: LogPartition, matched: MatchPartition) -> None:
        self.number = number
        self.log = log
        self.matched = matched
        self.manifest = -1
        self.waits_since_s: float | None = None
        self.seen_ms: float | None = None
        self.position = matched.end(log.start())

    def skip_matched(self) -> bool:
        """Move behind what other tasks have matched; return whether there was anything."""
        before = self.position
        # Retention may have removed what others have matched: then neither log has it.
        self.move(self.matched.end(max(before, self.log.start())))
        return self.position > before

    def move(self, position: int) -> None:
        """Go on at another record."""
        self.position = position
        self.waits_since_s = self.seen_ms = None


class _Wait:
    """The pause of a follower between two looks at a log."""

    def __init__(self, log: EventReader, followed: Sequence[_Followed]) -> None:
        self._look_every_s = log.look_every_s
        self._waiter = log.listen({each.number: each.position for each in followed})

    def begin(self) -> None:
        """Begin a look: of what is appended from now on, `end` hears."""
        self._waiter.clear()

    def end(self, quiet_s: float, *, is_urgent: bool) -> None:
        """Pause after a look that found nothing to match.

        Parameters
        ----------
        quiet_s : float
            Seconds since something was matched.
        is_urgent : bool
            Whether a record waits, for the index or for another task.
        """
        if self._waiter.hears and not is_urgent:
            self._waiter.wait(HEARING_S)
            return
        pause_s = max(LOOK_S, min(LATER_BY * quiet_s, LOOK_MAX_S))
        time.sleep(pause_s if self._waiter.hears else max(pause_s, self._look_every_s))

    def close(self) -> None:
        self._waiter.close()


class Follower:
    """Follows partitions of a service's log.

    Parameters
    ----------
    matcher : RangeMatcher
    settings : MicroBatchSettings
        `split_bytes` is the maximum matched at a time.
    want_index : callable
        Called with a stamp that the index does not cover yet.
    """

    def __init__(
        self, matcher: RangeMatcher, settings: MicroBatchSettings, want_index: Callable[[int], None]
    ) -> None:
        self._want_index = want_index
        self._matcher = matcher
        self._settings = settings
        self._asked_s = self._open_next_s = float("-inf")
        self._soon = FOLLOWED_EVENTS_MAX

    def follow(self, lane: FollowerLane, goes_on: Callable[[], bool]) -> bool:
        """Match what arrives until the time is over; return early, with True, if too much waits.

        Parameters
        ----------
        goes_on : callable
            Asked before each look at the log; the task returns when it answers False.
        """
        began_s = last_s = time.monotonic()
        log = self._matcher.log
        followed = [_Followed(n, log.partitions[n], self._matcher.matched(n)) for n in lane.partitions]
        stands_by, has_released = lane.standby_s > 0, False
        with closing(_Wait(log, followed)) as wait:
            while (now_s := time.monotonic()) - began_s < lane.seconds and goes_on():
                wait.begin()
                if stands_by and now_s - began_s >= lane.standby_s:
                    stands_by = False
                    for each in followed:
                        each.skip_matched()
                waiting = [(each, end) for each in followed if (end := each.log.end()) > each.position]
                has_matched = False
                for each, end in waiting:
                    if stands_by and not self._is_left(each, now_s):
                        continue
                    try:
                        if is_behind(each.log, each.position, self._settings, self._soon):
                            return True
                        has_matched |= self._match(each, end, now_s)
                    except TrimmedError:
                        if not each.skip_matched():
                            raise
                if has_matched:
                    last_s, has_released = now_s, False
                    continue
                if not has_released and now_s - last_s > RELEASE_S:
                    has_released = True
                    release_free_memory()
                self._open_newest(now_s)
                wait.end(now_s - last_s, is_urgent=bool(waiting))
        return False

    def _is_left(self, each: _Followed, now_s: float) -> bool:
        """Return whether the task that is expected to has not matched a record for a while."""
        if each.waits_since_s is None:
            each.waits_since_s = now_s
        if now_s - each.waits_since_s < STANDBY_WAIT_S:
            return False
        return not each.skip_matched()

    def _match(self, each: _Followed, end: int, now_s: float) -> bool:
        """Match what waits in a partition; return False if the index does not cover it yet."""
        each.seen_ms = each.seen_ms or time.time_ns() / 1e6
        stamp = each.log.last_stamp()  # read after the end: it covers all stamps before that
        manifest = self._matcher.opened.covering(stamp)
        if manifest is None:
            if now_s - self._asked_s >= ASK_AGAIN_S:
                self._asked_s = now_s
                self._want_index(stamp)
            return False
        if manifest != each.manifest:
            # While the next record is not matched, no version that it needs is removed from any index. This
            # one was opened before now, so it has all that the records from here on need.
            each.manifest = manifest
            if each.skip_matched():
                return True
        # Between two of these calls the task can be ended, and reports its load.
        upto = followed_to(each.log, each.position, end, self._settings, self._matcher.events_per_s)
        self._matcher.match(RecordRange(each.number, each.position, upto, manifest), each.seen_ms)
        # Only now: one slow group, long ago, is no reason to end a task before it has matched another.
        self._soon = self._matcher.events_per_s
        each.move(upto)
        return True

    def _open_newest(self, now_s: float) -> None:
        """Open a newer manifest, so that a record that needs it does not wait until it is opened."""
        if now_s < self._open_next_s:
            return
        # A record that needs the index will report the error.
        with suppress(IndexStoreError, IndexFileError, OSError):
            self._matcher.opened.open_newest()
        self._open_next_s = now_s + max(OPEN_EVERY_S, (time.monotonic() - now_s) / OPEN_SHARE)
