"""Tasks that follow the log: they match each record as soon as it is there, and write small blocks at once.

A batch is planned by the driver, and an event waits for that, for Spark, and for the batch's last task. A
following task runs for seconds instead, in a service that keeps up: from the record to its block nothing but
this process is involved. It returns when its time is over, or when much waits, so that several tasks would be
faster; the driver then plans batches (see `match_loop`).

Two of them overlap, so that there is always one: the next one stands by until the present one has ended, and
takes only records that have waited for `STANDBY_WAIT_S`. If both match a record, they write the same block.
So nothing depends on their agreement, and either may be killed or stopped at any moment.

While matching takes long, several tasks share a partition: each takes a *stripe* of it, all that waits and no
other has taken, and matches it. So stripes are as large as the load makes them. The driver says which task
was first (see `TakenStripes`), and nothing depends on that either: a stripe that is not matched soon is
matched by a task that stands by. Blocks of later records may be there before those of earlier ones; readers
of the match log go by the end of what has no gap.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import NamedTuple, Protocol

import msgspec

from fieldfare.free_memory import release_free_memory
from fieldfare.matching.files import IndexFileError
from fieldfare.runtimes.spark.batches import (
    FOLLOWED_EVENTS_MAX,
    MicroBatchSettings,
    followed_to,
    is_behind,
)
from fieldfare.runtimes.spark.range_task import RecordRange
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

SHARED_FROM, SHARED_LOOK_S = 0.4, 0.01
"""Tasks begin to share a lane when matching takes this share of a core, and this CPU time in seconds for a
look: where looks are short, more tasks gain little. They end it when all take less than this share."""
LOAD_S, LOAD_MIN_S = 1.0, 0.25
"""Seconds for which the load of a task is measured at a time; and at least, where it ends before that."""

Take = Callable[[int, int, int], int]
"""Takes records of a partition, by its number, from one offset up to another; see `TakenStripes.take`."""


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
    tasks
        Number of tasks that share these partitions.
    tasks_max
        Number of tasks that could share them: a task that is alone returns when it should not be.
    """

    partitions: tuple[int, ...]
    seconds: float
    standby_s: float = 0.0
    tasks: int = 1
    tasks_max: int = 1


class FollowEnd(NamedTuple):
    """How a task ended that followed the log, or a job of tasks.

    Attributes
    ----------
    is_behind
        Whether more waited than the tasks soon match.
    seconds
        Duration of the longest one.
    matching_s
        CPU time of matching, in seconds: of the task, or of all tasks of the job's most loaded lane.
    is_slow
        Whether looks took long in the end, so that more tasks should share a lane.
    has_reached
        Whether each has reached the driver.
    """

    is_behind: bool
    seconds: float = 0.0
    matching_s: float = 0.0
    is_slow: bool = False
    has_reached: bool = True

    @classmethod
    def of_job(cls, lanes: Sequence[FollowerLane], ended: Sequence[FollowEnd]) -> FollowEnd:
        """Return how a job ended, given the lane of each of its tasks, and how each ended."""
        matching_s: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for lane, each in zip(lanes, ended, strict=True):
            matching_s[lane.partitions] += each.matching_s
        return cls(
            any(each.is_behind for each in ended),
            max(each.seconds for each in ended),
            max(matching_s.values()),
            any(each.is_slow for each in ended),
            all(each.has_reached for each in ended),
        )


class TakenStripes:
    """The records of each partition that the tasks of a job have taken."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}

    def take(self, partition: int, start: int, end: int) -> int:
        """Take records for a task, unless another has taken some of them.

        Returns
        -------
        int
            `start` if the records are the task's now, otherwise the first one that no task has taken.
        """
        taken = self._ends.get(partition, 0)
        if start < taken:
            return taken
        self._ends[partition] = end
        return start


class FollowJobs(Protocol):
    """The jobs whose tasks follow a service's log.

    Attributes
    ----------
    follow_s : float
        Seconds for which the tasks of a job follow it.
    """

    follow_s: float

    @property
    def lanes_max(self) -> int:
        """Maximum lanes at a time."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether the tasks of two jobs run at a time; else those of the second one wait."""
        ...

    def follow(self, lanes: Sequence[FollowerLane]) -> FollowEnd:
        """Follow the log, a task for each lane, until one is behind or all have ended. From any thread."""
        ...

    def end(self) -> None:
        """Make all tasks return that follow now, or were started before this call; does not wait."""
        ...


class FollowedIndex(Protocol):
    """The index with which records are matched."""

    def covering(self, stamp: int) -> int | None:
        """Return the number of a manifest that covers a stamp; None if there is none yet."""
        ...

    def open_newest(self) -> None:
        """Open the newest manifest, if it is not the one that is open."""
        ...


class FollowMatcher(Protocol):
    """Matches ranges of the log; usually a `RangeMatcher`.

    Attributes
    ----------
    matching_s : float
        CPU time of matching so far, in seconds.
    """

    matching_s: float

    @property
    def log(self) -> EventReader: ...

    @property
    def opened(self) -> FollowedIndex: ...

    @property
    def events_per_s(self) -> int: ...

    def matched(self, partition: int) -> MatchPartition: ...

    def match(self, wanted: RecordRange, seen_ms: float | None = None) -> object: ...


class _Followed:
    """A followed partition.

    Attributes
    ----------
    position
        The offset of the next record to match.
    taken_to
        The end of the records that this task took last, where tasks share the partition.
    manifest
        Number of the manifest for which `position` was last compared with the match log; -1 for none.
    waits_since_s
        Since when a record has been seen at `position` while this task stands by.
    seen_ms
        When the record at `position` was first seen, in milliseconds since 1970; None if it is not there yet.
    awaited_to, stamp
        The end of the records that wait for an index, and a stamp that covers theirs. Later ones may need a
        newer index at each look, and would keep these waiting while subscriptions change.
    """

    def __init__(self, number: int, log: LogPartition, matched: MatchPartition) -> None:
        self.number = number
        self.log = log
        self.matched = matched
        self.taken_to, self.manifest = 0, -1
        self.awaited_to = self.stamp = 0
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


class _Load:
    """The load of a task in the last second or so: matching, and looks at the log that found records."""

    def __init__(self, matcher: FollowMatcher, now_s: float) -> None:
        self._matcher = matcher
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._since_s, self._matched_s = now_s, self._matcher.matching_s
        self.looks = 0

    def is_high(self, now_s: float, seconds_min: float = LOAD_MIN_S) -> bool:
        """Return whether looks take long, and a good part of the time."""
        seconds, matching_s = now_s - self._since_s, self._matcher.matching_s - self._matched_s
        if seconds < seconds_min:
            return False
        return matching_s >= SHARED_FROM * seconds and matching_s >= SHARED_LOOK_S * self.looks

    def becomes_high(self, now_s: float) -> bool:
        """Return whether it is high at the end of each interval."""
        is_high = self.is_high(now_s, LOAD_S)
        if now_s - self._since_s >= LOAD_S and not is_high:
            self._begin(now_s)
        return is_high


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
    matcher : FollowMatcher
    settings : MicroBatchSettings
        `split_bytes` is the maximum matched at a time.
    want_index : callable
        Called with a stamp that the index does not cover yet.
    """

    def __init__(
        self, matcher: FollowMatcher, settings: MicroBatchSettings, want_index: Callable[[int], None]
    ) -> None:
        self._want_index = want_index
        self._matcher = matcher
        self._settings = settings
        self._asked_s = self._open_next_s = float("-inf")
        self._soon = FOLLOWED_EVENTS_MAX

    def follow(self, lane: FollowerLane, goes_on: Callable[[], bool], take: Take | None = None) -> FollowEnd:
        """Match what arrives until the time is over; return early if too much waits.

        Parameters
        ----------
        goes_on : callable
            Asked before each look at the log; the task returns when it answers False.
        take : callable, optional
            Takes records before they are matched, where tasks share the lane.
        """
        began_s, matched_s = time.monotonic(), self._matcher.matching_s
        self._load = _Load(self._matcher, began_s)
        is_behind = self._follow(lane, goes_on, take if lane.tasks > 1 else None)
        now_s, matching_s = time.monotonic(), self._matcher.matching_s - matched_s
        return FollowEnd(is_behind, now_s - began_s, matching_s, self._load.is_high(now_s))

    def _follow(self, lane: FollowerLane, goes_on: Callable[[], bool], take: Take | None) -> bool:
        began_s = last_s = time.monotonic()
        log = self._matcher.log
        followed = [_Followed(n, log.partitions[n], self._matcher.matched(n)) for n in lane.partitions]
        stands_by, has_released = lane.standby_s > 0, False
        with closing(_Wait(log, followed)) as wait:
            while (now_s := time.monotonic()) - began_s < lane.seconds and goes_on():
                if lane.tasks < lane.tasks_max and self._load.becomes_high(now_s):
                    return False
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
                        if is_behind(each.log, each.position, self._settings, self._soon, lane.tasks):
                            return True
                        has_matched |= self._match(each, end, now_s, None if stands_by else take)
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

    def _match(self, each: _Followed, end: int, now_s: float, take: Take | None) -> bool:
        """Match what waits in a partition; return False if the index does not cover it yet."""
        each.seen_ms = each.seen_ms or time.time_ns() / 1e6
        if each.awaited_to <= each.position:
            each.awaited_to = end
            each.stamp = each.log.last_stamp()  # read after the end: it covers all stamps before that
        end, stamp = each.awaited_to, each.stamp
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
        # Retention may have removed the first records of a stripe: no other task matches the rest.
        if take is not None and each.position >= each.taken_to:
            start = take(each.number, each.position, upto)
            if start != each.position:
                each.move(start)  # another task matches the records before that
                return True
            each.taken_to = upto
        self._load.looks += 1
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
